"""The JSON of the API: what may be sent and what is answered (contract 10.3).

Owns names, kinds and bounds of members, with an example of each; the description is made from
them (openapi.py). What a value means is decided elsewhere.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from smartgw_hosts.ids import ID_PATTERN

MAX_PAGE = 1000
DEFAULT_PAGE = 100


class Model(BaseModel):
    """Frozen, and no member beyond the known ones."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _page_size(value: object) -> object:
    # int() would take other digits than these, and signs.
    if isinstance(value, str) and not re.fullmatch(r"[0-9]{1,4}", value):
        raise ValueError(f"must be a number from 1 to {MAX_PAGE}")
    return value


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
    Field(max_length=2000, description="The `next_cursor` of the page before.", examples=[""]),
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
        default=None, description="All that is wrong with the body, where it is more than one."
    )
    name: str | None = Field(default=None, description="The name that is taken.")
    holder: str | None = Field(default=None, description="The app that has it.")


class Error(Model):
    """The one form of an error."""

    error: ErrorBody


# ---- health ----


class Alive(Model):
    """The process lives."""

    status: Literal["alive"]


class Ready(Model):
    """Whether traffic may come."""

    ready: bool
    missing: list[str] = Field(examples=[["bus: not connected"]])
    degraded: list[str] = Field(examples=[[]])


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
