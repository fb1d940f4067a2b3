"""How a running gateway hands its listening sockets to the next generation (contract 11.1).

Owns the conversation over a Unix socket. The old one sends its sockets and the hosts that it
routes to; the new one says `take` when it serves; the old one drains and says `done`. Until
`take` the old one goes on as if nothing were. Only the same user may take part (SO_PEERCRED).
"""

import asyncio
import contextlib
import json
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from smartgw.processes.sockets import Listener, Listeners

_HEAD = struct.Struct("!I")
_MAX_BYTES = 16 << 20
_MAX_SOCKETS = 64
_PATIENCE = 5.0
_TAKE, _DONE = b"take", b"done"

_log = logging.getLogger(__name__)


class HandoverFailed(OSError):
    """There is a running gateway, and it does not hand over; the text says why."""


class Offer:
    """The old side: offers `listeners` at `path` until they are taken or the offer is closed.

    `hosts` returns the ids of the hosts that are routed to; `taken` stops accepting.
    """

    def __init__(
        self,
        path: str,
        listeners: Listeners,
        hosts: Callable[[], Sequence[str]],
        taken: Callable[[], Awaitable[None]],
    ) -> None:
        self._path = path
        self._listeners = listeners
        self._hosts = hosts
        self._taken = taken
        self._socket: socket.socket | None = None
        self._inode = 0
        self._task: asyncio.Task[None] | None = None

    def open(self, *, needed: bool) -> None:
        """Stand at the path, in place of whoever stood there.

        Raises OSError when it cannot be bound and is `needed`. After a takeover it is not: the
        one before has ended, and better no next handover than no gateway.
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        fresh = f"{self._path}.{os.getpid()}"
        try:
            Path(fresh).unlink(missing_ok=True)
            mask = os.umask(0o177)
            try:
                sock.bind(fresh)
            finally:
                os.umask(mask)
            sock.listen(4)
            sock.setblocking(False)
            self._inode = os.stat(fresh).st_ino
            os.replace(fresh, self._path)
        except OSError as error:
            sock.close()
            what = f"processes.handover: {error.strerror}"
            if needed:
                raise OSError(error.errno, what, self._path) from None
            _log.error("%s: %s; cannot hand over later", self._path, what)
            return
        self._socket = sock
        self._task = asyncio.create_task(self._accept(sock), name="handover")

    async def close(self) -> None:
        """Offer nothing any more; the path is removed if it is still ours."""
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            with contextlib.suppress(OSError):
                if os.stat(self._path).st_ino == self._inode:
                    os.unlink(self._path)

    async def _accept(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # One after the other: two next generations would both take.
            peer, _ = await loop.sock_accept(sock)
            with peer:
                try:
                    if await self._serve(peer):
                        return
                except (OSError, ValueError, TimeoutError) as error:
                    _log.warning("handover: the next generation is gone (%s); going on", error)

    async def _serve(self, peer: socket.socket) -> bool:
        """Talk to a next generation; True when it has taken over."""
        if not _same_user(peer):
            _log.warning("handover: refused a process of another user")
            return False
        loop = asyncio.get_running_loop()
        peer.setblocking(False)
        listeners = self._listeners.all
        body = json.dumps(
            {
                "listeners": [[listener.name, listener.address] for listener in listeners],
                "hosts": list(self._hosts()),
            }
        ).encode()
        fds = [listener.socket.fileno() for listener in listeners]
        socket.send_fds(peer, [_HEAD.pack(len(body))], fds)
        async with asyncio.timeout(_PATIENCE):
            await loop.sock_sendall(peer, body)
        _log.info("handover: the next generation is starting")
        # Its own bound is the limit of this wait; it ends when that process does.
        if await _exactly(peer, len(_TAKE)) != _TAKE:
            _log.warning("handover: the next generation ended before it served; going on")
            return False
        await self._taken()
        with contextlib.suppress(OSError):
            await loop.sock_sendall(peer, _DONE)
        return True


class Taking:
    """The new side: sockets in hand, and a word to the old one when we serve."""

    def __init__(
        self, sock: socket.socket, listeners: Sequence[Listener], hosts: Sequence[str]
    ) -> None:
        self._socket = sock
        self.listeners = tuple(listeners)
        self.hosts = frozenset(hosts)

    async def take(self) -> None:
        """We serve: the old one stops. If it has ended by itself, that is as well."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_PATIENCE):
                await loop.sock_sendall(self._socket, _TAKE)
                await _exactly(self._socket, len(_DONE))
        except (OSError, TimeoutError) as error:
            _log.warning("handover: the old generation did not answer: %s", error)
        self.close()

    def close(self) -> None:
        """End the conversation; before `take` the old one goes on."""
        self._socket.close()


async def ask(path: str) -> Taking | None:
    """Ask the gateway that runs at `path` for its sockets; None when there is none.

    Raises:
        HandoverFailed: it is there and does not hand over.
    """
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as undo:
        sock = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, path)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except OSError as error:
            raise _failed(error, path) from None
        if not _same_user(sock):
            raise HandoverFailed(0, "the gateway at processes.handover is another user's", path)
        try:
            async with asyncio.timeout(_PATIENCE):
                await _readable(sock)
                head, fds, _, _ = socket.recv_fds(sock, _HEAD.size, _MAX_SOCKETS)
                received = [undo.enter_context(one) for one in _adopted(fds)]
                size = _HEAD.unpack(head)[0]
                if size > _MAX_BYTES:
                    raise ValueError("too long an answer")
                said = json.loads(await _exactly(sock, size))
            listeners = [
                Listener(str(name), str(address), listening)
                for (name, address), listening in zip(said["listeners"], received, strict=True)
            ]
            taking = Taking(sock, listeners, [str(host) for host in said["hosts"]])
        except (OSError, ValueError, LookupError, TypeError, struct.error) as error:
            raise _failed(error, path) from None
        undo.pop_all()
        return taking


def _adopted(fds: Sequence[int]) -> list[socket.socket]:
    """The sockets of descriptors; when one is none, all are closed. Raises OSError."""
    adopted: list[socket.socket] = []
    for fd in fds:
        try:
            adopted.append(socket.socket(fileno=fd))
        except OSError:
            for sock in adopted:
                sock.close()
            for other in fds[len(adopted) :]:
                os.close(other)
            raise
    for sock in adopted:
        sock.setblocking(False)
    return adopted


def _failed(error: Exception, path: str) -> HandoverFailed:
    why = "it is busy with another, or stuck" if isinstance(error, TimeoutError) else error
    return HandoverFailed(0, f"the running gateway does not hand over: {why}", path)


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)


async def _exactly(sock: socket.socket, count: int) -> bytes:
    """Return that many bytes, fewer when the peer is gone."""
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < count and (part := await loop.sock_recv(sock, min(count - len(data), 65536))):
        data += part
    return data


def _same_user(sock: socket.socket) -> bool:
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.getuid())
