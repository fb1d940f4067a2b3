"""The JSON of `explain`: the request that is asked about, and what would be done with it (10.4).

Owns names, kinds and bounds of members, as models.py does for all else.
"""

from typing import Literal

from pydantic import Field

from smartgw.api.models import AppStateName, Model


class ExplainOf(Model):
    """A request that nobody has sent."""

    host: str = Field(
        min_length=1,
        max_length=300,
        pattern="^[^\\x00-\\x1f\\x7f]*$",
        description="The hostname, as a client would send it in Host.",
        examples=["shop.smart-app.example"],
    )
    method: str = Field(
        default="GET",
        pattern="^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}$",
        description="The method.",
        examples=["GET"],
    )
    client: str = Field(
        default="",
        max_length=50,
        description="The client's address, by default that of whoever asks.",
        examples=["203.0.113.7"],
    )
    path: str = Field(
        default="/",
        pattern="^/[!-~]{0,2000}$",
        description="Path and query.",
        examples=["/"],
    )
    origin: str = Field(
        default="",
        pattern="^[!-~]{0,400}$",
        description="Of the page that would send it; with OPTIONS it is then a preflight.",
        examples=["https://www.example.com"],
    )


class ExplainedStep(Model):
    """One step of the path."""

    step: str = Field(examples=["match"])
    result: str = Field(examples=["app shop, active"])


class ExplainedPolicy(Model):
    """What is in force for the app."""

    state: AppStateName = Field(examples=["active"])
    origins: list[str] = Field(examples=[["https://www.example.com"]])
    own_cors: bool = Field(examples=[False])
    limit: int | None = Field(examples=[None])


class ExplainedLimit(Model):
    """The caller's window, as the answering process knows it."""

    client: str = Field(examples=["203.0.113.7"])
    limit: int = Field(examples=[600])
    used: int = Field(examples=[12])
    remaining: int = Field(examples=[588])
    reset_seconds: float = Field(examples=[3.5])


class ExplainedCors(Model):
    """What the page could read."""

    origin: str = Field(examples=["https://www.example.com"])
    allowed: bool = Field(examples=[True])


class ExplainedHost(Model):
    """A host that may get it."""

    host_id: str = Field(examples=["shop-1"])
    address: str = Field(examples=["http://10.0.0.5:9000"])
    weight: int = Field(examples=[100])
    outstanding: int = Field(examples=[0])
    suspect: bool = Field(examples=[False])


class ExplainedAttempt(Model):
    """Who would be asked; the next one only if this one could not be reached."""

    place: Literal["local", "owner", "peer"] = Field(examples=["local"])
    cluster: str = Field(examples=["eu-1"])
    set_aside: bool = Field(examples=[False])
    hosts: list[ExplainedHost]
    hosts_total: int | None = Field(examples=[1])


class UnroutedHost(Model):
    """A host that announces the app and gets no requests."""

    host_id: str = Field(examples=["shop-2"])
    state: str = Field(examples=["unhealthy"])
    reason: str = Field(examples=["lease_expired"])


class Explained(Model):
    """What this gateway would do with a request, and why."""

    gateway: str = Field(examples=["gw-1"])
    cluster: str = Field(examples=["eu-1"])
    outcome: Literal["served", "forwarded", "preflight", "api", "refused"] = Field(
        examples=["served"],
        description="By a host here, by another cluster, by us as a preflight, by our own API, or "
        "not at all.",
    )
    status: int | None = Field(examples=[None], description="Of an answer of our own.")
    reason: str | None = Field(examples=[None], description="Of a refusal.")
    detail: str = Field(examples=[""])
    hostname: str | None = Field(examples=["shop.smart-app.example"])
    app_id: str | None = Field(examples=["shop"])
    registered: bool | None = Field(
        examples=[True], description="Whether the app is registered; null where nothing is kept."
    )
    owner: str | None = Field(examples=["eu-1"])
    policy: ExplainedPolicy | None
    limit: ExplainedLimit | None
    cors: ExplainedCors | None
    attempts: list[ExplainedAttempt]
    unrouted: list[UnroutedHost]
    steps: list[ExplainedStep]
