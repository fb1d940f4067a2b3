"""Frames of a WebSocket stream, however it is cut (RFC 6455 5.2)."""

from hypothesis import given
from hypothesis import strategies as st

from smartgw.proxy.websocket import GOING_AWAY, FrameTracker


def frame(opcode: int, size: int, mask: bool = False) -> bytes:
    """A whole frame of a server, or of a client with `mask`."""
    bit = 0x80 if mask else 0
    if size < 126:
        head = bytes((0x80 | opcode, bit | size))
    elif size < 65_536:
        head = bytes((opcode, bit | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((opcode, bit | 127)) + size.to_bytes(8, "big")
    return head + (b"mask" if mask else b"") + b"\x88" * size


FRAMES = st.lists(
    st.builds(
        frame,
        st.sampled_from([0, 1, 2, 9, 10]),
        st.one_of(st.integers(0, 300), st.sampled_from([125, 126, 65_535, 65_536])),
        st.booleans(),
    ),
    max_size=6,
)


@given(FRAMES, st.data())
def test_boundaries_are_found(frames: list[bytes], data: st.DataObject) -> None:
    """11.1: a close frame of ours stands between two frames, never in one."""
    stream = b"".join(frames)
    ends = {0}
    for each in frames:
        ends.add(max(ends) + len(each))
    tracker, place = FrameTracker(), 0
    while place < len(stream):
        size = data.draw(st.integers(1, len(stream) - place))
        tracker.feed(stream[place : place + size])
        place += size
        assert tracker.at_boundary == (place in ends)
    assert not tracker.closing


@given(FRAMES, st.integers(0, 70_000), st.data())
def test_the_frame_under_way_is_finished(
    frames: list[bytes], size: int, data: st.DataObject
) -> None:
    """11.1: what the app goes on sending is cut where the frame under way ends."""
    last = frame(2, size)
    stream = b"".join([*frames, last])
    start = data.draw(st.integers(len(stream) - len(last) + 1, len(stream)))
    tracker = FrameTracker()
    tracker.feed(stream[:start])
    assert tracker.feed_frame(stream[start:] + frame(1, 5)) == len(stream) - start
    assert tracker.at_boundary


def test_a_goodbye_of_the_app_is_seen() -> None:
    """11.1: an app that has sent a close frame itself gets no second one behind it."""
    tracker = FrameTracker()
    tracker.feed(frame(1, 10) + GOING_AWAY[:1])
    assert not tracker.closing
    tracker.feed(GOING_AWAY[1:])
    assert tracker.closing
    assert tracker.at_boundary


def test_our_goodbye_is_a_close_frame() -> None:
    """11.1: the status is 1001, going away (RFC 6455 7.4.1)."""
    assert GOING_AWAY[0] & 0x0F == 8
    assert int.from_bytes(GOING_AWAY[2:], "big") == 1001
