"""The kinds of value a setting may have, each with the sentence for a wrong one.

Owns the grammar of single values: ids, DNS names, networks, host:port, bus URLs. A refusal
carries what is wrong and what would be right; where it stands is added by `smartgw.config`.
Does no I/O.
"""

import re
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

import idna
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from smartgw_hosts.ids import check_id

T = TypeVar("T")
REFUSED = "smartgw"
"""The pydantic error type of these refusals; its context holds `fault` and `remedy`."""


class Section(BaseModel):
    """A table of the file: frozen, and no key beyond the known ones."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def refuse(fault: str, remedy: str, member: str | None = None) -> NoReturn:
    """Refuse a value inside a validator, with what is wrong and what would be right.

    `member` names the key at fault, where the value is a table.
    """
    context = {"fault": fault, "remedy": remedy, "member": member}
    raise PydanticCustomError(REFUSED, "{fault}", context)


def shown(value: object) -> str:
    """Return a value for an error message: short, on one line, escaped."""
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 128:
        return "a huge number"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:56]}..."


def _id(value: str) -> str:
    try:
        return check_id("id", value)
    except ValueError:
        refuse(
            f"{shown(value)} is not an id",
            "write 1 to 64 letters, digits, '-' or '_', the first a letter or digit",
        )


def _dns_name(value: str) -> str:
    """Return a lower-case A-label name of at least two labels, or refuse it with the right one."""
    name = value.lower().removeprefix("*.").strip(".")
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        pass
    else:
        refuse(f"{shown(value)} is an IP address", "write a DNS name: smart-app.example")
    if len(name) > 253 - 64:
        refuse(f"{shown(value)} leaves no room for labels", "keep it under 190 bytes")
    try:
        right = idna.encode(name, uts46=True).decode("ascii")
    except UnicodeError:
        refuse(f"{shown(value)} is not a DNS name", "write one like smart-app.example")
    if "." not in right:
        refuse(
            f"{shown(value)} is a single label, under which anyone may own names",
            f"write a name of your own below it: smart-app.{right}",
        )
    if right != value:
        refuse(f"{shown(value)} is not written as on the wire", f'write "{right}"')
    return value


def split_host_port(text: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port`; the host comes without brackets. Raises ValueError."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]+)):([0-9]{1,5})", text)
    if match is None or not 0 <= int(match[3]) <= 65535:
        raise ValueError(f"{text!r} is not host:port")
    if match[1] is not None:
        ip_address(match[1])
    return match[1] or match[2], int(match[3])


def _host_port(value: str) -> str:
    try:
        split_host_port(value)
    except ValueError:
        refuse(
            f"{shown(value)} is not host:port",
            'write "0.0.0.0:8080", or "[::]:8080" for IPv6, with a port up to 65535',
        )
    return value


def _network(value: object) -> object:
    if isinstance(value, IPv4Network | IPv6Network):
        return value
    if not isinstance(value, str) or "%" in value:
        refuse(f"{shown(value)} is not a network", 'write a CIDR as text: "10.0.0.0/8"')
    try:
        network = ip_network(value, strict=False)
    except ValueError:
        refuse(f"{shown(value)} is not a network", 'write a CIDR: "10.0.0.0/8", "fd00::/8"')
    if str(network.network_address) != value.partition("/")[0].lower():
        refuse(f"{shown(value)} has bits set beyond its prefix", f'write "{network}"')
    return network


def _bus_server(value: str) -> str:
    # The value may hold a password: it is never shown.
    right = "write nats://host:4222 or tls://host:4222"
    if "@" in value:
        refuse(
            "a URL of the bus carries a user or password, which would show in logs",
            f"{right} and name a seed in bus.nkey_seed_file",
        )
    match = re.fullmatch(r"(nats|tls)://([^/?#]+)/?", value)
    try:
        split_host_port(match[2] if match else "")
    except ValueError:
        refuse("a URL of the bus is not one", right)
    return value


def _number(value: object) -> object:
    # Otherwise pydantic reads true as 1 and "5" as 5.
    if isinstance(value, bool | str):
        refuse(f"{shown(value)} is not a number", "write a number without quotes")
    return value


def unique(values: tuple[T, ...]) -> tuple[T, ...]:
    """Refuse a list that holds a value twice."""
    for index, value in enumerate(values):
        if value in values[:index]:
            refuse(f"{shown(str(value))} stands there twice", "write it once")
    return values


def _field_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", value):
        refuse(f"{shown(value)} is not a header field name", 'write one like "X-Real-IP"')
    return value


def _path(value: object) -> object:
    if isinstance(value, str) and (not value or "\0" in value):
        refuse("the path is empty or holds a NUL", 'write a path like "/etc/smartgw/bus.seed"')
    return value


def _access(value: str) -> str:
    if value in ("stdout", "-"):
        return "stdout"
    if value != "off" and not (value.startswith("/") and "\0" not in value):
        refuse(
            f"{shown(value)} is neither stdout, off nor an absolute path",
            'write "stdout", "off" or a path like "/var/log/smartgw/access.log"',
        )
    return value


def _audit_sink(value: str) -> str:
    return value if value == "stderr" else _access(value)


def _text(value: str) -> str:
    if not 1 <= len(value) <= 256 or not value.isprintable():
        refuse(f"{shown(value)} is not 1 to 256 printable characters", "write it as the tokens do")
    return value


def _keys_url(value: str) -> str:
    match = re.fullmatch(r"(https?)://([^/?#\s@]+)(/[!-~]*)?", value)
    host = match[2].partition(":")[0] if match and not match[2].startswith("[") else ""
    if match is None or len(value) > 2000:
        refuse(f"{shown(value)} is not a URL", 'write one like "https://id.example/jwks.json"')
    # Whoever can answer in the issuer's place makes services.
    local = host in ("localhost", "127.0.0.1") or match[2].startswith("[::1]")
    if match[1] == "http" and not local:
        refuse(f"{shown(value)} is not protected on its way", f'write "https{value[4:]}"')
    return value


def _validator_url(value: str) -> str:
    host = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)"
    match = re.fullmatch(rf"(https?)://{host}(?::[0-9]{{1,5}})?(?:/[!-~]*)?", value)
    if match is None or len(value) > 2000:
        refuse(f"{shown(value)} is not a URL", 'write one like "https://api.smart-app.example"')
    try:
        near = ip_address(match[2].strip("[]")).is_private
    except ValueError:
        near = match[2] == "localhost"
    # Whoever can answer in a validator's place says which clusters there are, and their keys.
    if match[1] == "http" and not near:
        remedy = f'write "https{value[4:]}"; http is for addresses of private networks'
        refuse(f"{shown(value)} is not protected on its way", remedy)
    return value


def _socket_path(value: str) -> str:
    # The kernel's sockaddr_un holds 107 bytes and a NUL; a name for the new one is longer.
    if not value.startswith("/") or "\0" in value or len(value.encode()) > 100:
        refuse(
            f"{shown(value)} is not an absolute path of at most 100 bytes",
            'write one like "/run/smartgw/handover.sock"',
        )
    return value


Id = Annotated[str, AfterValidator(_id)]
DnsName = Annotated[str, AfterValidator(_dns_name)]
HostPort = Annotated[str, AfterValidator(_host_port)]
Network = Annotated[IPv4Network | IPv6Network, BeforeValidator(_network)]
Networks = Annotated[tuple[Network, ...], AfterValidator(unique)]
BusServer = Annotated[str, AfterValidator(_bus_server)]
FieldName = Annotated[str, AfterValidator(_field_name)]
Token = Annotated[str, AfterValidator(_field_name)]
Access = Annotated[str, AfterValidator(_access)]
AuditSink = Annotated[str, AfterValidator(_audit_sink)]
SocketPath = Annotated[str, AfterValidator(_socket_path)]
Text = Annotated[str, AfterValidator(_text)]
KeysUrl = Annotated[str, AfterValidator(_keys_url)]
ValidatorUrl = Annotated[str, AfterValidator(_validator_url)]
FilePath = Annotated[Path, BeforeValidator(_path)]
Seconds = Annotated[float, BeforeValidator(_number), Field(gt=0, allow_inf_nan=False)]
Wait = Annotated[float, BeforeValidator(_number), Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, BeforeValidator(_number), Field(gt=0, le=1 << 40)]
