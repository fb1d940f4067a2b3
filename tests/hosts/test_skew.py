"""The time that challenges bear, when our own clock jumps."""

from smartgw_hosts.challenge import Proof, Verdict, refused_as_stale
from smartgw_hosts.skew import IssueClock


def test_a_step_changes_nothing() -> None:
    """1.7: A wall clock that steps by an hour makes no challenge of ours stale."""
    clock = IssueClock()
    assert clock.now_ms(100.0, 5000.0) == 5_000_000
    assert clock.now_ms(110.0, 8610.0) == 5_010_000
    assert clock.now_ms(120.0, 1420.0) == 5_020_000


def test_a_clock_that_was_set_right() -> None:
    """1.7: When a host doubts our time and the wall clock says another, that one is tried."""
    clock = IssueClock()
    issued = clock.offset(100.0, 5000.0)
    assert not clock.doubted(issued, 110.0, 5010.2), "nothing else to try"
    assert clock.doubted(issued, 120.0, 8620.0)
    assert clock.now_ms(120.0, 8620.0) == 8_620_000


def test_many_proofs_under_way_when_the_clock_was_set_right() -> None:
    """1.7: All that were issued by the wrong time are tried again by the right one."""
    clock = IssueClock()
    issued = clock.offset(100.0, 5000.0)
    for _ in range(64):
        assert clock.doubted(issued, 120.0, 8620.0)
        assert clock.now_ms(120.0, 8620.0) == 8_620_000


def test_a_host_that_lies() -> None:
    """1.7: A host that doubts a right time makes no other refuse us for longer than one try."""
    clock = IssueClock()
    right = clock.offset(100.0, 5000.0)
    assert clock.doubted(right, 110.0, 8610.0), "the lie, while the wall clock is wrong"
    assert clock.now_ms(110.0, 8610.0) == 8_610_000
    wrong = clock.offset(110.0, 8610.0)
    for _ in range(2):
        assert clock.doubted(wrong, 111.0, 8611.0), "an honest host refuses that"
        assert clock.now_ms(111.0, 8611.0) == 5_011_000


def test_which_refusal_is_about_time() -> None:
    """2.1: Only a host's word on the issue time is one on our clock."""
    stale = Verdict(Proof.REFUSED, "status 403: issued more than 30 s from this host's clock")
    assert refused_as_stale(stale)
    assert not refused_as_stale(Verdict(Proof.REFUSED, "status 403: this is another host"))
    assert not refused_as_stale(Verdict(Proof.BAD_ANSWER, stale.detail))
