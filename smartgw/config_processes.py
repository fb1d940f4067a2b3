"""The settings of processes and of what they write about themselves (contract 11.1, 11.3).

Owns the tables `log` and `processes`; the others are in `smartgw.config_fields`.
"""

from typing import Annotated, Literal

from pydantic import Field

from smartgw.config_values import Access, AuditSink, Count, Seconds, Section, SocketPath, Wait


class Log(Section):
    """What is written about the traffic and about the gateway itself."""

    access: Access = Field(
        default="stdout",
        description='Where one JSON line a request goes: "stdout" (or "-"), "off", or an '
        "absolute path. Lines are dropped and counted, never waited for, when the disk is slow.",
    )
    audit: AuditSink = Field(
        default="stderr",
        description='Where one JSON line a change made through the API goes: "stderr", "stdout", '
        '"off", or an absolute path. A change waits for its line, for two seconds at most; a line '
        "that cannot be written is counted.",
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info",
        description="How much the gateway tells about itself on stderr. debug is for looking "
        "for a fault: it costs time on every message of the bus.",
    )


class Processes(Section):
    """How many processes carry the traffic, and how one generation of them follows another."""

    workers: Annotated[Count, Field(le=256)] = Field(
        default=1,
        description="Processes that carry traffic; with one, that is also the one that listens "
        "to the hosts. One for each core serves most; each keeps its own connections to hosts, "
        "and the limits hold for each of them.",
    )
    handover: SocketPath | None = Field(
        default=None,
        examples=["/run/smartgw/handover.sock"],
        description="Unix socket at which a running gateway hands its listening sockets to the "
        "next `smartgw serve` with the same path, so that an upgrade loses no connection. "
        "Off by default; its folder must let in nobody else.",
    )
    unready_wait: Wait = Field(
        default=10.0,
        description="Seconds between being told to end and accepting nobody any more, so that "
        "load balancers can see that the gateway is not ready. 0 where there are none.",
    )
    drain: Seconds = Field(
        default=20.0,
        description="Seconds for what is in flight to end, after the last connection was "
        "accepted. WebSockets are told to go away shortly before it is over.",
    )
