"""Where the frames of a WebSocket stream begin and end (RFC 6455 section 5.2).

Owns nothing of what frames say: only that a frame of ours can be put between two of the app's,
when the gateway goes away (contract 11.1).
"""

GOING_AWAY = b"\x88\x02\x03\xe9"
"""A close frame with status 1001, unmasked as a server's frames are (RFC 6455 7.4.1)."""

_CLOSE = 8
_LONGEST_HEAD = 14


class FrameTracker:
    """Follows a stream of frames byte by byte, however it is cut; keeps no payload.

    Attributes:
        closing: a close frame has begun, after which no other may follow (RFC 6455 5.5.1).
    """

    __slots__ = ("_head", "_left", "closing")

    def __init__(self) -> None:
        self._head = b""
        self._left = 0
        self.closing = False

    @property
    def at_boundary(self) -> bool:
        """Whether the stream stands between two frames."""
        return not self._left and not self._head

    def feed(self, data: bytes) -> None:
        """Take in what the stream goes on with."""
        size, place = len(data), 0
        while place < size:
            place = self._advance(data, place)

    def feed_frame(self, data: bytes) -> int:
        """Take in only what belongs to the frame that is under way; return how many bytes."""
        size, place = len(data), 0
        while place < size and not self.at_boundary:
            place = self._advance(data, place)
        return place

    def _advance(self, data: bytes, place: int) -> int:
        """Take in the rest of a payload or of a head; return the place after it."""
        if self._left:
            step = min(self._left, len(data) - place)
            self._left -= step
            return place + step
        known = len(self._head)
        head = self._head + data[place : place + _LONGEST_HEAD - known]
        size = _head_size(head)
        if len(head) < size:
            self._head = head
            return place + len(head) - known
        self._head = b""
        self._left = _payload(head)
        if head[0] & 0x0F == _CLOSE:
            self.closing = True
        return place + size - known


def _head_size(head: bytes) -> int:
    if len(head) < 2:
        return 2
    length = head[1] & 0x7F
    extended = 2 if length == 126 else 8 if length == 127 else 0
    return 2 + extended + (4 if head[1] & 0x80 else 0)


def _payload(head: bytes) -> int:
    length = head[1] & 0x7F
    if length == 126:
        return int.from_bytes(head[2:4], "big")
    return int.from_bytes(head[2:10], "big") if length == 127 else length
