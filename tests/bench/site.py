"""Where a proxy of the benchmark runs, and how it is started: the values that its parts share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Site:
    """What a proxy is told: its folder, its ports, and which hostnames lead where.

    `hostnames` lead to the upstream at `upstream_port`, ECHO_HOSTNAME to `echo_port`; our
    gateway learns both from the bus of `cluster`. `long_leases` are for hosts that announce
    themselves only once. `spare_ports` are for a second gateway.
    """

    folder: Path
    port: int
    internal_port: int
    upstream_port: int
    echo_port: int
    nats_port: int
    cluster: str
    enrolment: Path | None
    hostnames: Sequence[str]
    long_leases: bool = False
    spare_ports: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a proxy."""

    command: list[str]
    env: Mapping[str, str] = field(default_factory=dict)
