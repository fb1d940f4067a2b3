"""The JSON of the API: what may be sent and what is answered (contract 10.3).

Owns names, kinds and bounds of members, with an example of each; the description is made from
them (openapi.py). What a value means is decided elsewhere.
"""

import re
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from smartgw.state.names import canonical_hostname, canonical_label, canonical_origin
from smartgw.state.records import check_label_key, check_label_value
from smartgw_hosts.identity import PublicKey
from smartgw_hosts.ids import ID_PATTERN, check_app_id

MAX_PAGE = 1000
DEFAULT_PAGE = 100
MAX_FAULTS = 20
"""Of a body are told."""


class Model(BaseModel):
    """Frozen, and no member beyond the known ones."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _page_size(value: object) -> object:
    # int() would take other digits than these, and signs.
    if isinstance(value, str) and not re.fullmatch(r"[0-9]{1,4}", value):
        raise ValueError(f"must be a number from 1 to {MAX_PAGE}")
    return value


def unix_of(text: str) -> float:
    """Unix seconds of a time as RFC 3339 writes it. Raises ValueError."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError("no offset")
        return moment.timestamp()
    except (ValueError, OverflowError):
        raise ValueError("must be a time with an offset: 2027-01-31T12:00:00Z") from None


def _judged(check: Callable[[str], object]) -> AfterValidator:
    """Have a value judged by whoever knows what it means, so that a body's faults are told at once.

    `check` raises ValueError.
    """

    def judge(value: str) -> str:
        check(value)
        return value

    return AfterValidator(judge)


PageSize = Annotated[
    int,
    BeforeValidator(_page_size),
    Field(ge=1, le=MAX_PAGE, description=f"How many a page has, 1 to {MAX_PAGE}.", examples=[2]),
]
Id = Annotated[str, Field(pattern=f"^{ID_PATTERN}$")]
Time = Annotated[
    str, Field(json_schema_extra={"format": "date-time"}, examples=["2027-01-31T12:00:00.000Z"])
]
Cursor = Annotated[
    str,
    Field(
        pattern="^[A-Za-z0-9_.-]{0,600}$",
        description="The `next_cursor` of the page before.",
        examples=[""],
    ),
]
NextCursor = Annotated[
    str | None, Field(description="Of the next page; null on the last.", examples=[None])
]


class Page(Model):
    """Which page of a list."""

    limit: PageSize = DEFAULT_PAGE
    cursor: Cursor = ""


class ErrorDetail(Model):
    """One thing that is wrong with a body."""

    pointer: str = Field(examples=["/origins/0"])
    message: str = Field(examples=["must be scheme://host or scheme://host:port"])


class ErrorBody(Model):
    """What went wrong. `reason` is of a closed set; `message` is for people."""

    model_config = ConfigDict(frozen=True, extra="allow")

    status: int = Field(ge=400, le=599, examples=[404])
    reason: str = Field(examples=["unknown_app"])
    message: str = Field(examples=["no app shop is registered"])
    request_id: str | None = Field(
        default=None,
        examples=["5f0c1e2d3b4a59687786950a1b2c3d4e"],
        description="As in X-Request-Id; not in a 401.",
    )
    pointer: str | None = Field(
        default=None, description="JSON pointer to the member of the body that is wrong."
    )
    parameter: str | None = Field(
        default=None, description="The parameter or header field that is wrong."
    )
    faults: list[ErrorDetail] | None = Field(
        default=None,
        description="All that is wrong with the body, where it is more than one thing: the first "
        f"{MAX_FAULTS}.",
    )
    name: str | None = Field(default=None, description="The name that is taken.")
    holder: str | None = Field(default=None, description="The app that has it.")
    line: int | None = Field(
        default=None, description="The line of the master file, 0 for the file as a whole."
    )
    rule: str | None = Field(default=None, description="The rule of zones that would be broken.")


class Error(Model):
    """The one form of an error."""

    error: ErrorBody


# ---- health ----


class Alive(Model):
    """The process lives."""

    status: Literal["alive"]


class SharedState(Model):
    """What gateways that share a state are compared by."""

    digest: str = Field(
        examples=["5f1d7a84db735b3a1b1d9c2a4e8a7c11"],
        description="The same wherever the same records are in force at the same revisions.",
    )
    revision: int = Field(examples=[42], description="Of the last write in force.")
    age: float | None = Field(
        examples=[0.0],
        description="Seconds for which it may be out of date: 0 while changes are heard of, null "
        "when it was never read.",
    )


class Ready(Model):
    """Whether traffic may come."""

    ready: bool
    missing: list[str] = Field(examples=[["bus: not connected"]])
    degraded: list[str] = Field(examples=[[]])
    state: SharedState | None = Field(
        default=None, description="What the platform has decided; null where nothing is shared."
    )


# ---- hosts ----


class HostBrief(Model):
    """A verified host, in brief."""

    host_id: str = Field(examples=["shop-1"])
    state: str = Field(examples=["healthy"])
    region: str = Field(examples=["fra"])


class HostBriefs(Model):
    """A page of hosts in brief."""

    hosts: list[HostBrief]
    next_cursor: NextCursor


class RefusedApp(Model):
    """An app that a host announced and may not serve."""

    app_id: str = Field(examples=["bank"])
    reason: str = Field(examples=["app_not_enrolled"])


class HostFull(Model):
    """A host in full."""

    host_id: str = Field(examples=["shop-1"])
    state: str = Field(examples=["healthy"])
    reason: str = Field(examples=["verified"])
    detail: str = Field(examples=[""])
    since: Time
    since_seconds: float = Field(examples=[12.5])
    verified_at: Time | None
    address: str = Field(examples=["http://10.0.0.5:9000"])
    pending_address: str | None = Field(examples=[None])
    pending_reason: str = Field(examples=[""])
    apps: list[str] = Field(examples=[["shop"]])
    refused_apps: list[RefusedApp]
    key: str = Field(examples=["ed25519:11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"])
    weight: int = Field(examples=[100])
    region: str = Field(examples=["fra"])
    version: str = Field(examples=["1.4.2"])
    boot: int = Field(examples=[1])


class HostFulls(Model):
    """A page of hosts in full."""

    hosts: list[HostFull]
    next_cursor: NextCursor


# ---- clusters ----


class ListedCluster(Model):
    """One cluster of the list."""

    id: Id = Field(examples=["eu-1"])
    gateways: list[str] = Field(
        examples=[["https://gw-1.eu.example:8443"]],
        description="Where its gateways are reached by those of other clusters.",
    )
    keys: list[str] = Field(
        examples=[["ed25519:11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"]],
        description="Its public keys: one, or two during a rotation.",
    )
    state: Literal["active", "draining", "gone"] = Field(examples=["active"])


class Clusters(Model):
    """The clusters, sorted by their ids, and what holds for all of them."""

    epoch: str = Field(
        pattern="^[0-9a-f]{16}$",
        examples=["ac4a0bb3c8d2bca3"],
        description="Of the ids that are active or draining; two lists of one epoch have the "
        "same owners.",
    )
    affinity: bool = Field(examples=[True], description="Requests go to the owner.")
    failover: bool = Field(examples=[True], description="Other clusters stand in.")
    clusters: list[ListedCluster]


class OwnerOf(Model):
    """Whose owner is asked for."""

    app: str = Field(min_length=1, max_length=256, description="The app's id.", examples=["shop"])


class Owner(Model):
    """The owner of an app, null when it is unknown: each cluster then serves what it is asked."""

    app_id: str = Field(examples=["shop"])
    owner: str | None = Field(examples=["eu-1"])
    epoch: str | None = Field(examples=["ac4a0bb3c8d2bca3"])
    mode: Literal["none", "fresh", "grace", "unknown"] = Field(examples=["fresh"])


# ---- the gateway ----


class Status(Model):
    """What `smartgw status` shows, by section."""

    model_config = ConfigDict(frozen=True, extra="allow")

    time: Time
    readiness: Ready
    hosts: dict[str, Any]
    apps: dict[str, Any]


class DrainWrite(Model):
    """What to take out of use, or back into it."""

    host: Id | None = Field(
        default=None, examples=["shop-1"], description="A host instead of the gateway."
    )
    undo: bool = Field(default=False, description="Back into use.")


class Drained(Model):
    """What came of it: `phase` of the gateway, or `drained` of the host."""

    phase: str | None = Field(default=None, examples=["unready"])
    host: str | None = Field(default=None, examples=["shop-1"])
    drained: bool | None = Field(default=None, examples=[True])


# ---- apps ----

_LABEL_TEXT = "The label below every base domain. null: the app's id, where that is a DNS label."
AppStateName = Literal["active", "suspended", "retired"]


class AppWrite(Model):
    """What the platform decides about an app. A member that is left out has its default."""

    label: Annotated[str, Field(max_length=256), _judged(canonical_label)] | None = Field(
        default=None, examples=["shop"], description=_LABEL_TEXT
    )
    hostnames: list[Annotated[str, Field(max_length=300), _judged(canonical_hostname)]] = Field(
        default=[],
        max_length=1000,
        examples=[["www.shop.example"]],
        description="Exact hostnames besides, in Unicode or as A-labels.",
    )
    state: AppStateName = Field(
        default="active",
        description="A suspended or retired app is answered 503 `app_suspended` or `app_retired`.",
    )
    origins: list[Annotated[str, Field(max_length=400), _judged(canonical_origin)]] = Field(
        default=[],
        max_length=100,
        examples=[["https://app.example"]],
        description="Origins whose pages may read the app's answers (CORS).",
    )
    own_cors: bool = Field(
        default=False, description="The app answers preflights and sets its CORS fields itself."
    )
    limit: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None,
        examples=[600],
        description="Requests of one caller in 60 s. null: the gateway's own limit.",
    )
    labels: dict[
        Annotated[str, _judged(check_label_key)],
        Annotated[str, Field(max_length=256), _judged(check_label_value)],
    ] = Field(
        default={},
        max_length=64,
        examples=[{"tier": "gold"}],
        description="Keys and values of your own; they decide nothing.",
    )


class App(Model):
    """A registered app, as it is in force at this gateway."""

    app_id: str = Field(examples=["shop"])
    label: str | None = Field(examples=["shop"], description=_LABEL_TEXT)
    hostnames: list[str] = Field(examples=[["www.shop.example"]])
    state: AppStateName = Field(examples=["active"])
    origins: list[str] = Field(examples=[["https://app.example"]])
    own_cors: bool = Field(examples=[False])
    limit: int | None = Field(examples=[600])
    labels: dict[str, str] = Field(examples=[{"tier": "gold"}])
    served: list[str] = Field(
        examples=[["shop.smart-app.example", "www.shop.example"]],
        description="The hostnames that are the app's now.",
    )
    etag: str = Field(examples=["5-18f0a1b2c3d"], description="As in the field ETag, unquoted.")
    updated_at: Time


class Apps(Model):
    """A page of apps."""

    apps: list[App]
    next_cursor: NextCursor
    age_seconds: float = Field(
        examples=[0.0], description="For how long this may be out of date; 0 while it is followed."
    )


class AppsPage(Page):
    """Which apps of the list."""

    state: AppStateName | None = Field(
        default=None, description="Only apps in this state.", examples=["active"]
    )


# ---- enrolments ----


class EnrolmentWrite(Model):
    """What a host is trusted with."""

    key: Annotated[str, _judged(PublicKey.parse)] = Field(
        max_length=100,
        json_schema_extra={"pattern": "^(ed25519:[A-Za-z0-9_-]{43}|[0-9A-Fa-f]{64})$"},
        examples=["ed25519:11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"],
        description="Its public key, as `smartgw keygen` prints it.",
    )
    apps: list[Annotated[str, Field(min_length=1, max_length=256), _judged(check_app_id)]] = Field(
        max_length=1000,
        examples=[["shop", "shop-*"]],
        description="Apps that it may serve; `*` stands for any characters.",
    )
    expires: Annotated[str, Field(max_length=40), _judged(unix_of)] | None = Field(
        default=None,
        examples=["2027-01-31T12:00:00Z"],
        json_schema_extra={"format": "date-time"},
        description="When it ends, with an offset; null for never.",
    )


class Enrolment(Model):
    """An enrolment, as it is in force at this gateway."""

    host_id: str = Field(examples=["shop-1"])
    cluster: str = Field(examples=["eu-1"])
    key: str = Field(examples=["ed25519:11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"])
    key_id: str = Field(examples=["b1c2d3e4f5a60718"])
    apps: list[str] = Field(examples=[["shop", "shop-*"]])
    expires: Time | None
    etag: str = Field(examples=["7-18f0a1b2c3d"], description="As in the field ETag, unquoted.")
    updated_at: Time


class Enrolments(Model):
    """A page of enrolments."""

    enrolments: list[Enrolment]
    next_cursor: NextCursor
    age_seconds: float = Field(
        examples=[0.0], description="For how long this may be out of date; 0 while it is followed."
    )


class EnrolmentsPage(Page):
    """Which enrolments of the list."""

    cluster: Id | None = Field(
        default=None, description="Only hosts of this cluster.", examples=["eu-1"]
    )
