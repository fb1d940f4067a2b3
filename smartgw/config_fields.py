"""The settings of a gateway: every field, its default and what it trades (contract 11.5).

Owns which settings there are and the rules between them. What a single value may be is in
`smartgw.config_values`; where values come from is in `smartgw.config`. Holds no secret, only
paths to them, so a Settings may be logged.
"""

import os
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from smartgw.config_dns import Dns
from smartgw.config_limits import Rates, Store
from smartgw.config_peers import Peers
from smartgw.config_processes import Log, Processes
from smartgw.config_state import Identity, State, Trust
from smartgw.config_values import (
    BusServer,
    Count,
    DnsName,
    FieldName,
    FilePath,
    HostPort,
    Id,
    KeysUrl,
    Networks,
    Seconds,
    Section,
    Text,
    Token,
    Wait,
    refuse,
    shown,
    split_host_port,
    unique,
)

ANY_ADDRESS = {"0.0.0.0", "::"}


class Listen(Section):
    """Where the gateway listens."""

    http: Annotated[tuple[HostPort, ...], AfterValidator(unique)] = Field(
        default=("0.0.0.0:8080",),
        min_length=1,
        description="Addresses for browser traffic. Every IPv4 address by default; name one "
        "address to keep the others closed. A port below 1024 needs the right to bind it.",
    )
    links: HostPort | None = Field(
        default=None,
        examples=["0.0.0.0:8443"],
        description="Address for links of other clusters' gateways over TLS, with a certificate of "
        "the cluster's own key: what the directory names as https://. Off by default; gateways "
        "that it names as http:// are reached at listen.http, in the clear.",
    )
    internal: HostPort = Field(
        default="127.0.0.1:9080",
        validate_default=True,
        description="Address for health, metrics and control. Loopback by default: whoever "
        "reaches it sees every host, so open it to a private network only.",
    )

    proxy_protocol: bool = Field(
        default=False,
        description="Whether every connection begins with a PROXY header, version 1 or 2, which "
        "tells the client's address. Only peers in proxy.trusted may connect then.",
    )

    @field_validator("links", "internal")
    @classmethod
    def _apart_from_others(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None:
            return None
        free = "8443" if info.field_name == "links" else "9080"
        host, port = split_host_port(value)
        for name in ("http", "links"):
            taken = info.data.get(name) or ()
            for other in (taken,) if isinstance(taken, str) else taken:
                there, same = split_host_port(other)
                if port == same != 0 and (host == there or {host, there} & ANY_ADDRESS):
                    refuse(
                        f"{value} is taken by listen.{name}", f"write another port, such as {free}"
                    )
        return value


class Bus(Section):
    """How the gateway reaches NATS, on which hosts announce themselves."""

    servers: Annotated[tuple[BusServer, ...], AfterValidator(unique)] = Field(
        default=("nats://127.0.0.1:4222",),
        min_length=1,
        description="NATS servers, the nearest first. Name every server of the NATS cluster: "
        "one that is missing here cannot stand in when another is down.",
    )
    nkey_seed_file: FilePath | None = Field(
        default=None,
        examples=["/etc/smartgw/bus.seed"],
        description="File with the NKey seed that signs the gateway in at NATS, readable by its "
        "owner only. Without it the gateway connects anonymously, which a private bus may allow.",
    )
    tls_ca: FilePath | None = Field(
        default=None,
        examples=["/etc/smartgw/bus-ca.pem"],
        description="PEM file of the authorities trusted for tls:// servers. The system's own by "
        "default; naming yours keeps a public authority from vouching for your bus.",
    )


class Discovery(Section):
    """When a host counts as alive; hosts and gateways of a cluster use the same heartbeat."""

    heartbeat: Seconds = Field(
        default=5.0,
        description="Seconds between two heartbeats of a host. Shorter finds dead hosts sooner "
        "and costs messages: hosts / heartbeat a second.",
    )
    missed: Count = Field(
        default=3,
        description="Missed heartbeats that make a host unhealthy. Fewer reacts sooner and "
        "drops hosts for a lost message.",
    )
    provisional_ttl: Seconds = Field(
        default=30.0,
        description="Seconds that an unproven host is remembered. Longer helps to see it in "
        "status and leaves more room to whoever floods the bus.",
    )
    unhealthy_ttl: Seconds = Field(
        default=300.0,
        description="Seconds that an unhealthy host stays visible in status. It gets no traffic "
        "meanwhile; longer only costs memory.",
    )
    reverify: Seconds = Field(
        default=60.0,
        description="Seconds between two challenges of a healthy host. Shorter notices a lost "
        "key sooner and costs each host a signature.",
    )
    skew: Seconds = Field(
        default=30.0,
        description="Seconds that a message's time may be off. Larger forgives bad clocks and "
        "leaves recorded messages usable longer.",
    )
    max_provisional: Count = Field(
        default=1000,
        description="Unproven hosts remembered at once. More helps when many unknown hosts "
        "start together, and gives a flood more memory.",
    )
    max_provisional_bytes: Count = Field(
        default=4 << 20,
        description="Bytes that unproven hosts may take together, 4 MiB by default: the bound "
        "that holds when each of them announces a thousand apps.",
    )
    max_hosts: Count = Field(
        default=50_000,
        description="Hosts known at once. About 2 KiB each: raise it with the memory.",
    )
    record: FilePath | None = Field(
        default=None,
        examples=["/var/lib/smartgw/discovery.jsonl"],
        description="File to which everything that decides about hosts is appended, so that "
        "`smartgw replay` can show why a host was routed to or not. Off by default: it costs a "
        "write for every message of the bus.",
    )
    record_bytes: Annotated[Count, Field(ge=1 << 20)] = Field(
        default=64 << 20,
        description="Bytes that the record may take, 64 MiB by default: the file, and the one "
        "before it with .1 at its end. A host with ten apps takes about 10 MB a day.",
    )


class Upstream(Section):
    """Connections to hosts."""

    verify: Literal["connection", "periodic"] = Field(
        default="connection",
        description='"connection" challenges the host on every new connection before a request '
        'goes out, so a program that took over its port gets none. "periodic" leaves it to '
        "discovery.reverify, for hosts that close after each answer.",
    )
    connect_timeout: Seconds = Field(
        default=1.0,
        description="Seconds until a connection must stand. Longer forgives slow networks and "
        "makes callers wait for a dead host before the next is tried.",
    )
    challenge_timeout: Seconds = Field(
        default=2.0,
        description="Seconds until a challenge must be answered. Longer forgives a busy host "
        "and holds the first request on a connection back.",
    )
    idle: Seconds = Field(
        default=60.0,
        description="Seconds that an unused connection is kept. Longer saves challenges; keep "
        "it below the host's own keep-alive, or it closes first.",
    )
    connections_per_host: Count = Field(
        default=512,
        description="Connections to one host at once. More lets slow apps pile up work; "
        "requests beyond it wait.",
    )
    tls_ca: FilePath | None = Field(
        default=None,
        examples=["/etc/smartgw/hosts-ca.pem"],
        description="PEM file of the authorities trusted for https hosts. The system's own by "
        "default; the host's key is challenged in any case.",
    )


class Issuer(Section):
    """One issuer of tokens."""

    issuer: Text = Field(
        examples=["https://id.example"],
        description="The `iss` of its tokens, exactly.",
    )
    audience: Text = Field(
        default="smartgw",
        description="What the tokens' `aud` must name. One of this platform alone keeps tokens "
        "that were made for another program from counting here.",
    )
    jwks_file: FilePath | None = Field(
        default=None,
        examples=["/etc/smartgw/issuer.jwks.json"],
        description="File with its public keys, a JWK set with Ed25519 keys as `smartgw token "
        "--keygen` makes it. Read again within two seconds of a change.",
    )
    jwks_url: KeysUrl | None = Field(
        default=None,
        validate_default=True,
        examples=["https://id.example/.well-known/jwks.json"],
        description="Where its public keys are fetched from instead: at start, every five minutes, "
        "and at most every ten seconds when a token names a key that is not known. While it cannot "
        "be reached the last keys count.",
    )
    roles: Annotated[tuple[Literal["service", "session"], ...], AfterValidator(unique)] = Field(
        default=("session",),
        min_length=1,
        description='What its tokens may make of a caller: "service" may control everything, '
        '"session" is a signed-in person. A token names one in its `role`, which it need not '
        "where the issuer may grant one only.",
    )

    @field_validator("jwks_url")
    @classmethod
    def _one_source(cls, value: str | None, info: ValidationInfo) -> str | None:
        if (value is None) == (info.data.get("jwks_file") is None):
            refuse(
                "and jwks_file are both missing" if value is None else "stands beside jwks_file",
                'write one of the two: jwks_file = "/etc/smartgw/issuer.jwks.json"',
            )
        return value


class Auth(Section):
    """Whose tokens count at the API (contract 10.2)."""

    skew: Wait = Field(
        default=30.0,
        le=300.0,
        description="Seconds that the clocks of issuers and gateway may differ. Larger forgives "
        "bad clocks, and lets tokens live as much longer.",
    )
    control_on_hostnames: bool = Field(
        default=True,
        description="Whether services may control the gateway on its own `hostnames`, too, and not "
        "at the internal listener alone. false keeps control off the public listener.",
    )
    issuer: tuple[Issuer, ...] = Field(
        default=(),
        max_length=16,
        description="The issuers, each a table `[[auth.issuer]]`. None by default: then only the "
        "operator of this machine may control the gateway, by a file that the gateway makes for "
        "its own user.",
    )

    @field_validator("issuer")
    @classmethod
    def _named_once(cls, value: tuple[Issuer, ...]) -> tuple[Issuer, ...]:
        unique(tuple(each.issuer for each in value))
        return value


class Deadlines(Section):
    """How long the gateway waits, in seconds (contract 3.11)."""

    head: Seconds = Field(
        default=10.0,
        description="Until a request's head must be complete. Shorter frees connections of slow "
        "senders sooner, longer forgives poor mobile networks.",
    )
    request_body: Seconds = Field(
        default=30.0,
        description="Without progress of a request's body. Not a limit on the whole upload.",
    )
    keepalive: Seconds = Field(
        default=75.0,
        description="Until an idle client connection is closed. Longer saves handshakes and "
        "holds memory; keep it above that of a load balancer in front.",
    )
    response_head: Seconds = Field(
        default=30.0,
        description="Until an app's response must begin, all attempts together. Longer serves "
        "slow apps, and callers wait as long when one hangs.",
    )
    response_body: Seconds = Field(
        default=60.0,
        description="Without progress of a response. An event stream must send a comment more "
        "often than this, or raise it.",
    )
    websocket: Seconds = Field(
        default=600.0,
        description="Without a byte on a WebSocket. Longer keeps silent connections and what "
        "they hold in memory.",
    )
    linger: Seconds = Field(
        default=5.0,
        description="That a closing connection still reads what the client is sending, so that "
        "an early answer reaches it. Shorter may cut that answer off.",
    )


class Limits(Section):
    """How much a client may send and hold (contract 3.11)."""

    head_bytes: Count = Field(
        default=32_768,
        description="Bytes of a request's head. More fits large cookies, and each connection "
        "may hold that much before it is known what it wants.",
    )
    fields: Count = Field(
        default=100,
        description="Header fields of a request. More costs time per request for all.",
    )
    field_line_bytes: Count = Field(
        default=16_384,
        description="Bytes of one header field; not above head_bytes. Many apps refuse more "
        "than 8 KiB themselves.",
    )
    target_bytes: Count = Field(
        default=8192,
        description="Bytes of the request target; not above head_bytes. Longer links are cut by "
        "many clients anyway.",
    )
    connections_per_address: Count = Field(
        default=1000,
        description="Connections of one client address at once. Many people may share one "
        "address behind a provider's translator; fewer stops a single flooder sooner.",
    )
    connections: Count = Field(
        default=50_000,
        description="Client connections at once. Each may hold limits.head_bytes, and needs a "
        "file descriptor (so does its host's side), so fewer are taken where the process may "
        "open fewer. One address may hold as many as are still free.",
    )
    requests: Count = Field(
        default=20_000,
        description="Requests at once. One app may hold as many as are still free, so that a "
        "slow one leaves room for the others; what is above is answered 503 at once.",
    )
    memory_mib: Count | None = Field(
        default=None,
        description="Memory in MiB above 90 % of which new connections are answered 503 until it "
        "is below 80 %, and above 95 % new requests on the others, too. None: what the control "
        "group or the system's limits allow, if anything.",
    )

    @field_validator("field_line_bytes", "target_bytes")
    @classmethod
    def _within_the_head(cls, value: int, info: ValidationInfo) -> int:
        head = info.data.get("head_bytes", value)
        if value > head:
            refuse(f"{value} is above limits.head_bytes, {head}", f"write at most {head}")
        return value


class Proxy(Section):
    """What is believed of a request, and what is passed on (contract 3.5, 3.6)."""

    trusted: Networks = Field(
        default=(),
        examples=[["10.0.0.0/8"]],
        description="Networks of load balancers whose X-Forwarded-* and Forwarded are believed. "
        "None by default: anyone in these networks can claim any client address.",
    )
    upgrades: Annotated[tuple[Token, ...], AfterValidator(unique)] = Field(
        default=("websocket",),
        description="Protocols a connection may be upgraded to. Each further one is bytes "
        "that the gateway passes unseen; h2c and TLS are never passed.",
    )
    removed_fields: Annotated[tuple[FieldName, ...], AfterValidator(unique)] = Field(
        default=(
            "X-Real-IP",
            "True-Client-IP",
            "CF-Connecting-IP",
            "X-Host",
            "X-Original-Host",
            "X-HTTP-Host-Override",
        ),
        description="Request fields that are removed, since apps believe them and anyone may "
        "send them. Take one out only if something in front of the gateway always sets it.",
    )

    @field_validator("upgrades")
    @classmethod
    def _never_another_http(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name.lower() in ("h2c", "h2", "http") or name.lower().startswith("tls"):
                refuse(f"{shown(name)} would carry requests past the gateway", "remove it")
        return value


def _own_name() -> str:
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", os.uname().nodename.partition(".")[0])
    return name.lstrip("-_")[:64] or "gateway"


class Settings(Section):
    """All settings of one gateway; `load` makes them, `model_validate` in tests."""

    cluster: Id = Field(
        examples=["eu-1"],
        description="Id of this cluster; part of the bus subjects its hosts announce on.",
    )
    gateway: Id = Field(
        default_factory=_own_name,
        examples=["gw-1"],
        description="Id of this gateway, in Via, logs and challenges. Made from the machine's "
        "name by default; set it where several gateways share a machine.",
    )
    base_domains: Annotated[tuple[DnsName, ...], AfterValidator(unique)] = Field(
        min_length=1,
        examples=[["smart-app.example"]],
        description="Domains below which every app has a hostname, `<label>.<base domain>`. Lower "
        "case, A-labels. Point a wildcard DNS record of each at the gateways.",
    )
    hostnames: Annotated[tuple[DnsName, ...], AfterValidator(unique)] = Field(
        default=(),
        examples=[["api.smart-app.example"]],
        description="Hostnames on which the gateway's own public API answers. None by default; "
        "no app can have the label of one. Where several clusters share a base domain and a "
        "`state.bucket`, name those of all of them at each gateway: else an app that is registered "
        "at one cluster could take the hostname of another's API.",
    )
    host_networks: Networks = Field(
        min_length=1,
        examples=[["10.0.0.0/8"]],
        description="Networks that hosts live in: no other address is ever dialled. Keep them "
        "narrow, since an announcement names the address that the gateway connects to.",
    )
    listen: Listen = Field(default=Listen(), description="Where the gateway listens.")
    bus: Bus = Field(default=Bus(), description="How the gateway reaches NATS.")
    state: State = Field(default=State(), description="What outlives a restart.")
    trust: Trust = Field(
        default=Trust(), validate_default=True, description="Whose announcements count."
    )
    apps: Literal["announced", "registered"] = Field(
        default="announced",
        validate_default=True,
        description='Which apps are served: with "announced" every app that a trusted host '
        'announces, with "registered" only those that the platform registered, so that the '
        "hostname of another is unknown. Needs state.bucket then.",
    )
    discovery: Discovery = Field(default=Discovery(), description="When a host counts as alive.")
    identity: Identity = Field(
        default=Identity(), validate_default=True, description="The cluster's own key."
    )
    peers: Peers = Field(default=Peers(), description="The directory of clusters.")
    upstream: Upstream = Field(default=Upstream(), description="Connections to hosts.")
    auth: Auth = Field(default=Auth(), description="Whose tokens count at the API.")
    deadlines: Deadlines = Field(default=Deadlines(), description="How long the gateway waits.")
    limits: Limits = Field(default=Limits(), description="How much a client may send and hold.")
    rates: Rates = Field(default=Rates(), description="How many requests of one caller pass.")
    store: Store = Field(default=Store(), description="Where several gateways count together.")
    dns: Dns = Field(
        default=Dns(), validate_default=True, description="Where our zones are served."
    )
    proxy: Proxy = Field(default=Proxy(), description="What is believed and what is passed on.")
    log: Log = Field(default=Log(), description="What is written.")
    processes: Processes = Field(
        default=Processes(), description="Processes and their generations."
    )

    @field_validator("trust")
    @classmethod
    def _from_somewhere(cls, value: Trust, info: ValidationInfo) -> Trust:
        state = info.data.get("state")
        if value.mode == "enrolment" and value.file is None and state and state.bucket is None:
            refuse(
                "is missing, and without an enrolment file or state.bucket no host is trusted",
                'write file = "/etc/smartgw/hosts.toml" under [trust]',
                "file",
            )
        return value

    @field_validator("apps")
    @classmethod
    def _kept_somewhere(cls, value: str, info: ValidationInfo) -> str:
        state = info.data.get("state")
        if value == "registered" and state and state.bucket is None:
            refuse(
                'is "registered", and without state.bucket no app is',
                'write bucket = "smartgw" under [state], or apps = "announced"',
            )
        return value

    @field_validator("dns")
    @classmethod
    def _zones_from_somewhere(cls, value: Dns, info: ValidationInfo) -> Dns:
        state = info.data.get("state")
        if value.listen and state and state.bucket is None:
            refuse(
                "is named, and without state.bucket there is no zone",
                'write bucket = "smartgw" under [state], or remove dns.listen',
                "listen",
            )
        return value

    @field_validator("identity")
    @classmethod
    def _certified(cls, value: Identity, info: ValidationInfo) -> Identity:
        listen = info.data.get("listen")
        if listen and listen.links is not None and value.seed_file is None:
            refuse(
                "needs seed_file, since listen.links speaks TLS by the cluster's key",
                "run `smartgw keygen cluster.seed` and name the file here, or remove listen.links",
            )
        return value

    @field_validator("peers")
    @classmethod
    def _known_by_a_key(cls, value: Peers, info: ValidationInfo) -> Peers:
        identity = info.data.get("identity")
        if (value.file or value.validators) and identity and identity.seed_file is None:
            refuse(
                "needs identity.seed_file, by which the other clusters know this one",
                "run `smartgw keygen cluster.seed`, name the file under [identity], and list its "
                "public key in the directory",
            )
        return value

    @field_validator("hostnames")
    @classmethod
    def _not_reserved(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        for name in value:
            for base in info.data.get("base_domains", ()):
                if name == base or f".{name}".endswith(f".verify.{base}"):
                    refuse(
                        f"{shown(name)} is reserved: apps' domains are proven there"
                        if name != base
                        else f"{shown(name)} is a base domain, not one hostname below it",
                        f'write another label: "api.{base}"',
                    )
        return value
