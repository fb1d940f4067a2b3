"""What the end of a connection needs and asyncio has no word for (Linux)."""

import fcntl
import os
import select
import socket
import struct
import sys

from smartgw.proxy.outlet import Outlet


def reset_on_close(transport: Outlet) -> None:
    """Have the connection end with a reset instead of an orderly end."""
    sock = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
    with sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


# ioctl_tcp(7): SIOCOUTQ, the bytes that the other side has not acknowledged yet.
_SIOCOUTQ = 0x5411


def unsent(transport: Outlet) -> int:
    """Return the bytes written that the other side has not taken, here and in the kernel.

    The transport's own count falls only in steps of a third of the socket's buffer, which a slow
    but steady reader may take minutes for.
    """
    waiting = transport.get_write_buffer_size()
    if transport.is_closing() and not waiting:
        return 0
    sock = transport.get_extra_info("socket")
    try:
        queued = fcntl.ioctl(sock.fileno(), _SIOCOUTQ, b"\0\0\0\0")
    except OSError:
        return waiting
    return waiting + int.from_bytes(queued, sys.byteorder)


def has_unread(transport: Outlet) -> bool:
    """Say whether the other side has sent something that has not been read, or ended."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(poll.poll(0))
