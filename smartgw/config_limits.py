"""The settings of the limits on callers, and of the store that counts for several gateways (6).

Owns these fields alone; the others are in `smartgw.config_fields`.
"""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from smartgw.config_values import Count, FilePath, Seconds, Section, refuse, split_host_port, unique

Requests = Annotated[Count, Field(le=1_000_000_000)]
_SCHEMES = "valkey://host:6379, valkeys://host:6379 for TLS, or unix:///run/valkey.sock"


def _store_server(value: str) -> str:
    # The value may hold a password: it is never shown.
    if "@" in value:
        refuse(
            "a URL of the store carries a user or password, which would show in logs",
            "name a file in store.password_file, and store.username if it has one",
        )
    match = re.fullmatch(r"(?:valkey|redis)s?://([^/?#]+)(?:/[0-9]{0,4})?", value)
    if match is None and re.fullmatch(r"unix:///[^\0?#]{1,100}", value):
        return value
    try:
        split_host_port(match[1] if match else "")
    except ValueError:
        refuse("a URL of the store is not one", f"write {_SCHEMES}")
    return value


def _name(value: str) -> str:
    if not re.fullmatch(r"[!-~]{1,256}", value):
        refuse("it is not 1 to 256 letters, digits or signs of ASCII", 'write one like "smartgw"')
    return value


StoreServer = Annotated[str, AfterValidator(_store_server)]
StoreName = Annotated[str, AfterValidator(_name)]


class Rates(Section):
    """How many requests of one caller pass (contract 6): of an IPv4 address, or an IPv6 /48."""

    requests: Requests = Field(
        default=600,
        description="Requests of one caller to one app in any rates.window, where the app has no "
        "limit of its own. Fewer protects apps better, and many people may share one address "
        "behind a provider's translator.",
    )
    unknown: Requests = Field(
        default=100,
        description="Requests of one caller for hostnames that no app has, all such names "
        "together, and malformed ones. More lets somebody guess names faster.",
    )
    own: Requests = Field(
        default=600,
        description="Requests of one caller to the gateway's own `hostnames`.",
    )
    services: Requests = Field(
        default=6000,
        description="Requests of one service to one gateway's API, whatever its address. Enough "
        "for a hundred a second; fewer protects traffic from a program that runs wild.",
    )
    queries: Requests = Field(
        default=120,
        description="DNS queries of one session at the API in any rates.window, whatever its "
        "address. Services have rates.services.",
    )
    queries_a_day: Requests = Field(
        default=10_000,
        description="DNS queries of one session at the API on one day (UTC).",
    )
    window: Annotated[Seconds, Field(ge=1, le=3600)] = Field(
        default=60.0,
        description="Seconds of the sliding windows in which these are counted. Longer forgives "
        "bursts and makes callers wait longer; what was used is remembered to a 240th of it.",
    )
    callers: Annotated[Count, Field(ge=1000)] = Field(
        default=200_000,
        description="Callers of apps that one process counts apart at once, 300 bytes each and "
        "1.3 KiB when busy. When a flood brings more, newcomers share windows, and none is "
        "forgotten before it is empty.",
    )


class Store(Section):
    """Where several gateway processes count together: Redis 6.2 or newer, or Valkey."""

    servers: Annotated[tuple[StoreServer, ...], AfterValidator(unique)] = Field(
        default=(),
        max_length=16,
        examples=[["valkey://10.0.0.5:6379"]],
        description="The store of this cluster's counters. Needed where the cluster has several "
        "gateways. None by default: one process counts in memory, and the workers of one gateway "
        "start a Valkey of their own, if `smart-gateway[embedded]` is installed.",
    )
    kind: Literal["server", "sentinel", "cluster"] = Field(
        default="server",
        validate_default=True,
        description='What store.servers are: "server" is one server, "sentinel" the Sentinels '
        'that know it, "cluster" members of a Redis Cluster, of which one holds all counters of '
        "this cluster.",
    )
    primary: StoreName | None = Field(
        default=None,
        validate_default=True,
        examples=["counters"],
        description="What the Sentinels call the primary. Needed with sentinel, not allowed "
        "otherwise.",
    )
    username: StoreName | None = Field(
        default=None,
        examples=["smartgw"],
        description="User to sign in as; the default user where there is only a password.",
    )
    password_file: FilePath | None = Field(
        default=None,
        examples=["/etc/smartgw/store.password"],
        description="File whose first line is the password, readable by its owner only. Without "
        "it nobody signs in, which a private network may allow.",
    )
    tls_ca: FilePath | None = Field(
        default=None,
        examples=["/etc/smartgw/store-ca.pem"],
        description="PEM file of the authorities trusted for valkeys://. The system's own by "
        "default.",
    )
    budget: Annotated[Seconds, Field(le=1)] = Field(
        default=0.05,
        description="Seconds that a request may wait for its count. What takes longer counts as "
        "charged, and each process counts alone until the store is quick again. Longer rides out "
        "slower stores at the price of slower answers.",
    )

    @field_validator("kind")
    @classmethod
    def _as_many_as_it_takes(cls, value: str, info: ValidationInfo) -> str:
        servers = info.data.get("servers", ())
        if value == "server" and len(servers) > 1:
            refuse(
                "one of several servers would count without the others",
                'write kind = "sentinel" or "cluster", or name one server',
            )
        if value != "server" and not servers:
            refuse(f'"{value}" without servers', "name them in store.servers")
        if len({_is_tls(server) for server in servers}) > 1:
            refuse("store.servers are with TLS and without", "write all the same way")
        if value == "cluster" and any(re.search(r":\d+/[1-9]", server) for server in servers):
            refuse("a Redis Cluster has no numbered databases", "write the servers without /N")
        return value

    @field_validator("primary")
    @classmethod
    def _with_sentinels(cls, value: str | None, info: ValidationInfo) -> str | None:
        kind = info.data.get("kind", "server")
        if (value is not None) != (kind == "sentinel"):
            refuse(
                "is missing, and the Sentinels know servers by name"
                if value is None
                else f'has no meaning with kind = "{kind}"',
                'write primary = "counters"' if value is None else "remove store.primary",
            )
        return value


def _is_tls(server: str) -> bool:
    return server.startswith(("valkeys:", "rediss:"))
