"""Where a gateway's listening sockets come from: inherited, handed over, or bound (11.1).

Owns which source wins and how sockets are told apart. Accepts nobody.
"""

import contextlib
import socket
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass

from smartgw.config import Settings, split_host_port

_FIRST_FD = 3  # SD_LISTEN_FDS_START
HTTP, LINKS, INTERNAL = "http", "links", "internal"
DNS_UDP, DNS_TCP = "dns-udp", "dns-tcp"

UNSENT_BYTES = 131_072
"""What the kernel holds of an answer beyond what the client's window lets it send."""


class BadActivation(OSError):
    """What the service manager passed cannot be listened on."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A bound socket; `name` is one of those above, `address` what the settings say."""

    name: str
    address: str
    socket: socket.socket

    def close(self) -> None:
        """Let go of it; whoever else holds it goes on."""
        self.socket.close()


@dataclass(frozen=True, slots=True)
class Listeners:
    """All listening sockets of a gateway; of `dns` two at each address."""

    http: tuple[Listener, ...]
    links: tuple[Listener, ...]
    internal: Listener
    dns: tuple[Listener, ...] = ()

    @property
    def all(self) -> tuple[Listener, ...]:
        return (*self.public, self.internal, *self.dns)

    @property
    def public(self) -> tuple[Listener, ...]:
        """Those for browser traffic, and the one for the links of peers if there is one."""
        return (*self.http, *self.links)

    def close(self) -> None:
        """Let go of them; whoever else holds them goes on."""
        for listener in self.all:
            listener.close()


def activated(env: MutableMapping[str, str], pid: int) -> list[Listener]:
    """Take the sockets that systemd passed (sd_listen_fds(3)), and their variables away.

    A socket is named `internal`, `links` or `http` (FileDescriptorName=); any other name is http.

    Raises:
        BadActivation: one of them is not a listening TCP socket.
    """
    names = env.pop("LISTEN_FDNAMES", "").split(":")
    count, owner = env.pop("LISTEN_FDS", ""), env.pop("LISTEN_PID", "")
    if owner != str(pid) or not count.isdigit():
        return []
    found: list[Listener] = []
    for index in range(int(count)):
        sock = socket.socket(fileno=_FIRST_FD + index)
        sock.set_inheritable(False)
        inet = sock.family in (socket.AF_INET, socket.AF_INET6)
        if not inet or sock.type != socket.SOCK_STREAM:
            raise BadActivation(0, f"descriptor {_FIRST_FD + index} is no TCP socket")
        sock.setblocking(False)
        name = names[index] if index < len(names) else HTTP
        name = name if name in (INTERNAL, LINKS) else HTTP
        found.append(Listener(name, address_of(sock), sock))
    return found


def acquire(
    settings: Settings, activated: Sequence[Listener], handed: Sequence[Listener]
) -> Listeners:
    """Return the sockets to listen on; those that are not needed are closed.

    Activated ones stand for all of their name; of handed ones those whose address the settings
    still name are taken, and what is missing is bound.

    Raises:
        OSError: an address cannot be bound.
    """
    wanted = {
        HTTP: settings.listen.http,
        LINKS: () if settings.listen.links is None else (settings.listen.links,),
        INTERNAL: (settings.listen.internal,),
    }
    spare = {(listener.name, listener.address): listener for listener in handed}
    made: dict[str, list[Listener]] = {name: [] for name in wanted}
    dns: list[Listener] = []
    for listener in activated:
        made[listener.name].append(listener)
    try:
        for name, addresses in wanted.items():
            if not made[name]:
                for address in addresses:
                    made[name].append(_take(spare, name, address))
        for address in settings.dns.listen:
            dns += _take_pair(spare, address)
    except OSError:
        for listeners in (*made.values(), dns):
            for listener in listeners:
                listener.close()
        raise
    finally:
        for listener in spare.values():
            listener.close()
    found = Listeners(tuple(made[HTTP]), tuple(made[LINKS]), made[INTERNAL][0], tuple(dns))
    for listener in found.public:
        # Linux hands it on to the connections that are accepted. Without it the kernel takes
        # megabytes for a client that does not read, in long turns of the loop; how much is on its
        # way to one that does is not bounded by it. A Unix socket that was passed has no such.
        with contextlib.suppress(OSError):
            listener.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    return found


def refuse_clients(listeners: Iterable[Listener]) -> None:
    """Have the kernel refuse new clients, in all processes; `listen` undoes it (Linux).

    The sockets stay bound, so that nobody else gets their addresses.
    """
    for listener in listeners:
        with contextlib.suppress(OSError):
            # Where nobody had listened since the last time, it would not be undone: whatever was
            # accepted later would read as ended by its client.
            if listener.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                listener.socket.shutdown(socket.SHUT_RD)


def address_of(sock: socket.socket) -> str:
    """Return `host:port`, with brackets for IPv6."""
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _take(spare: dict[tuple[str, str], Listener], name: str, address: str) -> Listener:
    if (name, address) in spare:
        return spare.pop((name, address))
    return _bind(name, address)


def _take_pair(spare: dict[tuple[str, str], Listener], address: str) -> list[Listener]:
    # Late, since workers need none of it.
    from smartgw_dns.server import bind

    names = (DNS_UDP, DNS_TCP)
    if all((name, address) in spare for name in names):
        return [spare.pop((name, address)) for name in names]
    try:
        pair = bind(*split_host_port(address))
    except OSError as error:
        raise OSError(error.errno, f"cannot serve DNS on {address}: {error.strerror}") from None
    return [Listener(name, address, sock) for name, sock in zip(names, pair, strict=True)]


def _bind(name: str, address: str) -> Listener:
    host, port = split_host_port(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from None
    sock.setblocking(False)
    return Listener(name, address, sock)
