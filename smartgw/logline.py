"""The form of an access-log line: one JSON object a request (contract 11.3).

Owns the layout of an entry and what of it is written. When and where lines are written is
accesslog.py's, what a request's status or reason is the path's.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii

# What the data path appends, once a request, when the exchange is over. A plain tuple, because
# building a NamedTuple costs ten times as much. In this order:
Entry = tuple[
    float,  # start of the request: time.monotonic() seconds (loop.time() is the same clock)
    float,  # duration in seconds, to the last byte given to the downstream socket
    str,  # client address, as the gateway believes it
    bytes,  # method
    bytes,  # hostname, normalised: nothing in it needs escaping
    bytes,  # request target as received
    str,  # protocol: "HTTP/1.1"
    int,  # status sent; 0 when the client went away before one was
    int,  # bytes of the request body received
    int,  # bytes of the response body sent
    bytes,  # request id: nothing in it needs escaping
    str | None,  # app id
    str | None,  # host id
    str | None,  # the reason of an error of our own (smartgw.errors)
    bytes | None,  # User-Agent
    str | None,  # id of the cluster that answered, None when the gateway did itself
    str | None,  # why it was forwarded to that cluster: affinity or failover
    str | None,  # id of the cluster that forwarded it to us
    int,  # clusters that it was given to, ours included
]

# Bounded, and emptied when full: much of what is logged is chosen by outsiders.
MAX_REMEMBERED = 16_384
MAX_STAMPS = 1_024

_THOUSANDTHS = tuple(f"{number:03d}" for number in range(1000))


class Formatter:
    """Turns entries into JSON lines. With `query` false only `?` is left of a query.

    Queries often carry secrets (tokens, signed links), so they are logged only when asked for.
    """

    def __init__(self, *, query: bool = False) -> None:
        self._query = query
        self._stamps: dict[int, str] = {}
        self._remembered: dict[str | bytes | None, str] = {}

    def lines(self, entries: Iterable[Entry], wall_offset: float) -> tuple[bytes, int]:
        """The lines of `entries` as ASCII, and how many entries could not be formatted.

        `wall_offset` is what to add to a monotonic time to get unix seconds.
        """
        done: list[str] = []
        failed = 0
        for entry in entries:
            try:
                done.append(self._line(entry, wall_offset))
            except (TypeError, ValueError, OverflowError, OSError):
                failed += 1
        return "".join(done).encode("ascii"), failed

    def _line(self, entry: Entry, wall_offset: float) -> str:
        (
            start,
            duration,
            client,
            method,
            hostname,
            target,
            protocol,
            status,
            received,
            sent,
            request_id,
            app_id,
            host_id,
            reason,
            user_agent,
            cluster,
            forward,
            from_cluster,
            attempts,
        ) = entry
        if not self._query and b"?" in target:
            target = target[: target.index(b"?") + 1]
        moment = int((start + wall_offset) * 1000)
        stamp = self._stamps.get(moment) or self._stamp(moment)
        micros = int(duration * 1e6)
        known = self._remembered
        # Strings that come again and again are escaped once; the others, of which there may be
        # more than are remembered, each time.
        return (
            f'{{"time":"{stamp}","duration_ms":{micros // 1000}.{_THOUSANDTHS[micros % 1000]}'
            f',"client":{known.get(client) or self._remember(client)}'
            f',"method":{known.get(method) or self._remember(method)}'
            f',"hostname":"{hostname.decode("ascii")}"'
            f',"target":{encode_basestring_ascii(target.decode("latin-1"))}'
            f',"protocol":{known.get(protocol) or self._remember(protocol)}'
            f',"status":{status},"received":{received},"sent":{sent}'
            f',"request_id":"{request_id.decode("ascii")}"'
            f',"app_id":{"null" if app_id is None else encode_basestring_ascii(app_id)}'
            f',"host_id":{known.get(host_id) or self._remember(host_id)}'
            f',"reason":{known.get(reason) or self._remember(reason)}'
            f',"user_agent":{known.get(user_agent) or self._remember(user_agent)}'
            f',"cluster":{known.get(cluster) or self._remember(cluster)}'
            f',"forward":{known.get(forward) or self._remember(forward)}'
            f',"from_cluster":{known.get(from_cluster) or self._remember(from_cluster)}'
            f',"attempts":{attempts}}}\n'
        )

    def _stamp(self, moment: int) -> str:
        """Write a moment, unix ms, by RFC 3339; many requests share one."""
        second, millis = divmod(moment, 1000)
        if len(self._stamps) >= MAX_STAMPS:
            self._stamps.clear()
        text = f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}.{millis:03d}Z"
        self._stamps[moment] = text
        return text

    def _remember(self, value: str | bytes | None) -> str:
        if value is None:
            text = "null"
        else:
            text = encode_basestring_ascii(
                value if isinstance(value, str) else value.decode("latin-1")
            )
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.clear()
        if len(text) <= 256:
            self._remembered[value] = text
        return text
