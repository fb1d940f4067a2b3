"""The settings of DNS: where zones are served, and for whom others are asked (8.2, 8.4).

Owns these fields alone; the others are in `smartgw.config_fields`.
"""

from ipaddress import ip_address
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from smartgw.config_values import HostPort, Section, refuse, shown, split_host_port, unique


def _address(value: str) -> str:
    try:
        ip_address(split_host_port(value)[0])
    except ValueError:
        refuse(f"{shown(value)} is no IP address with a port", 'write "10.0.0.53:53"')
    return value


def _rate(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int):
        refuse(f"{shown(value)} is not a whole number", "write 200, or 0 for no limit")
    return value


AddressPort = Annotated[HostPort, AfterValidator(_address)]


class Dns(Section):
    """Where the zones are served that the API keeps. They are in state.bucket."""

    listen: Annotated[tuple[AddressPort, ...], AfterValidator(unique)] = Field(
        default=(),
        max_length=16,
        examples=[["192.0.2.53:53", "[2001:db8::53]:53"]],
        description="IP addresses and ports where zones are answered from, over UDP and TCP. None "
        "by default: then only the API resolves. A port below 1024 needs the right to bind it. "
        "Name the addresses that clients ask rather than 0.0.0.0.",
    )
    rate: Annotated[int, BeforeValidator(_rate), Field(ge=0, le=1_000_000)] = Field(
        default=200,
        description="Like answers a second over UDP to one network (IPv4 /24, IPv6 /56), 0 for any "
        "number. Beyond it every second answer is left out and the others are cut short, so that a "
        "resolver comes back over TCP, and a flood in somebody's name does not reach them. Lower "
        "protects others better; a large resolver that is not let in by a cookie feels it sooner.",
    )
    resolvers: Annotated[tuple[AddressPort, ...], AfterValidator(unique)] = Field(
        default=(),
        max_length=8,
        examples=[["10.0.0.53:53"]],
        description="Resolvers that are asked for services, at the API, about names of no zone of "
        "ours. None by default, which switches it off; sessions and the wire never get there.",
    )
