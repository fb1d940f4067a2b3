"""How much of one connection's input is worked off in one turn of the loop, so that all get theirs.

Owns the bounds on work a turn. Whoever has more waits for the next turn, and pauses meanwhile.
"""

from smartgw_hosts.chunked import ChunkedBody

MAX_REQUESTS = 16
"""Pipelined requests that are answered at once, one after the other."""
_SLICE = 16_384
_MAX_CHUNKS = 256


def feed(body: ChunkedBody, data: bytes, start: int) -> tuple[bytes, int, bytes]:
    """Decode data from `start`; of data that is cut into very many chunks only a first part.

    Returns:
        The payload, the place behind what was taken, and what is to be fed in the next turn
        (then the place is the end of data).
    Raises:
        MessageRefused: as `ChunkedBody.feed` does.
    """
    if len(data) - start <= _SLICE:
        return *body.feed(data, start), b""
    before, parts = body.chunks, []
    while len(data) - start > _SLICE:
        payload, taken = body.feed(data[start : start + _SLICE])
        parts.append(payload)
        start += taken
        if body.done:
            return b"".join(parts), start, b""
        if body.chunks - before > _MAX_CHUNKS:
            return b"".join(parts), len(data), data[start:]
    payload, start = body.feed(data, start)
    parts.append(payload)
    return b"".join(parts), start, b""
