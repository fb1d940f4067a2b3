"""Bytes posted and bytes written leave in the order in which they were said."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from smartgw.proxy.outlet import Outlet, Turn


class Transport:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        assert not self.closing
        self.said += data.decode()

    def writelines(self, data: tuple[bytes, ...]) -> None:
        self.write(b"".join(data))

    def write_eof(self) -> None:
        self.said.append("eof")

    def close(self) -> None:
        self.said.append("close")
        self.closing = True

    def abort(self) -> None:
        self.said.append("abort")
        self.closing = True

    def set_protocol(self, protocol: object) -> None:
        self.said.append("released")

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return 0


class Loop:
    """Runs what is due soon when it is told that a turn is over."""

    def __init__(self) -> None:
        self.soon: list[Any] = []

    def call_soon(self, call: Any) -> None:
        self.soon.append(call)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.told = str(context["exception"])

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for call in soon:
            call()


def outlets(count: int) -> tuple[Any, list[Any], list[Any]]:
    loop: Any = Loop()
    turn = Turn(loop)
    transports: list[Any] = [Transport() for _ in range(count)]
    return loop, transports, [Outlet(transport, turn) for transport in transports]


def test_posts_of_a_turn_leave_together_at_its_end() -> None:
    """3.6: a turn holds nothing longer than its own end, and has one for all connections."""
    loop, transports, (one, two) = outlets(2)
    one.post(b"a")
    two.post(b"b")
    one.post(b"c")
    assert [transport.said for transport in transports] == [[], []]
    assert one.get_write_buffer_size() == 2
    assert len(loop.soon) == 1
    loop.turn()
    assert [transport.said for transport in transports] == [["a", "c"], ["b"]]
    assert one.get_write_buffer_size() == 0
    one.post(b"d")
    loop.turn()
    assert transports[0].said == ["a", "c", "d"]


def test_a_turn_can_be_ended_before_other_work() -> None:
    """1.8: what requests have to say does not wait for callbacks that were there before it."""
    loop, transports, (one, two) = outlets(2)
    one.post(b"a")
    two.post(b"b")
    one._turn.end()
    assert [transport.said for transport in transports] == [["a"], ["b"]]
    one.post(b"c")
    one._turn.end()
    loop.turn()
    assert [transport.said for transport in transports] == [["a", "c"], ["b"]]


def test_what_cannot_be_written_costs_only_its_connection() -> None:
    """3.6: an error of one transport ends that one, and the others say what they have to."""
    loop, (bad, good), (one, two) = outlets(2)

    def broken(_data: bytes) -> None:
        raise RuntimeError("this transport is broken")

    bad.write = broken
    one.post(b"a")
    two.post(b"b")
    loop.turn()
    assert (bad.said, good.said) == (["abort"], ["b"])
    assert loop.told == "this transport is broken"


def test_what_was_posted_is_not_written_to_a_connection_that_ended() -> None:
    """3.6: a client that goes away within the turn costs the others of that turn nothing."""
    loop, (gone, there), (one, two) = outlets(2)
    one.post(b"a")
    two.post(b"b")
    gone.closing = True
    loop.turn()
    assert (gone.said, there.said) == ([], ["b"])


CALLS = {
    "write": lambda outlet, data: outlet.write(data),
    "lines": lambda outlet, data: outlet.writelines((data, b"")),
    "post": lambda outlet, data: outlet.post(data),
}
ENDS = {
    "eof": lambda outlet: outlet.write_eof(),
    "close": lambda outlet: outlet.close(),
    "abort": lambda outlet: outlet.abort(),
    "released": lambda outlet: outlet.release(asyncio.Protocol()),
}


@given(
    st.lists(st.sampled_from([*CALLS, "turn"]), max_size=25),
    st.sampled_from([*ENDS, ""]),
)
def test_all_leaves_in_its_order(calls: list[str], end: str) -> None:
    """3.6: whatever was posted comes before whatever was asked for after it, the end included."""
    loop, (transport,), (outlet,) = outlets(1)
    said = []
    for number, call in enumerate(calls):
        if call == "turn":
            loop.turn()
            continue
        letter = chr(ord("a") + number)
        said.append(letter)
        CALLS[call](outlet, letter.encode())
    if end:
        said.append(end)
        ENDS[end](outlet)
    loop.turn()
    assert transport.said == said
