"""A short run of the fuzzing on every change, and faults planted to see that it finds them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from smartgw_dns.query import read
from smartgw_dns.respond import Responder
from tests.dns_fuzz import Packets, directly, fault, made_responder, run

SECONDS = 2.0


def test_two_seconds() -> None:
    """8.4: no crash, no answer longer than allowed, over sockets too."""
    assert list(run(SECONDS, 20_261)) == []


def test_packets_are_no_mere_noise() -> None:
    """8.4: enough of what is sent is a question, an error and nothing to answer; a seed repeats."""
    one, two = Packets(7), Packets(7)
    sent = [one.next() for _ in range(600)]
    assert sent == [two.next() for _ in range(600)]
    read_as = [read(packet) for packet in sent]
    questions = sum(query is not None and not query.error for query in read_as)
    faults = sum(query is not None and query.error == 1 for query in read_as)
    assert questions > 200
    assert faults > 50
    assert read_as.count(None) > 20


QUERY = bytes((1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0)) + b"\4mail\x09smart-app\4test\0\0\1\0\1"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda answer: None, "no answer"),
        (lambda answer: b"\2" + answer[1:], "another message"),
        (lambda answer: answer[:2] + b"\5" + answer[3:], "another message"),
        (lambda answer: answer[:3] + b"\x80" + answer[4:], "recursion"),
        (lambda answer: answer[:3] + b"\2" + answer[4:], "fault of ours"),
        (lambda answer: answer[:3] + b"\5" + answer[4:], "refused with authority"),
        (lambda answer: answer[:-1], "cannot be read"),
        (lambda answer: answer + bytes(600), "octets, and 512 are allowed"),
    ],
)
def test_a_planted_fault_is_found(change: Callable[[bytes], bytes | None], found: str) -> None:
    """8.4: the fuzzing tells an answer that is wrong."""
    answer = made_responder().udp(QUERY, "192.0.2.7")
    assert answer is not None
    assert fault(QUERY, answer, udp=True) == ""
    assert found in fault(QUERY, change(answer), udp=True)


def test_what_depends_on_earlier_questions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """8.3: an answer that was kept and is another one's is told; so is a crash."""
    made = made_responder()
    assert directly(made, QUERY, "192.0.2.7") == ""
    tcp = Responder.tcp

    def second(responder: Responder, packet: bytes, address: str) -> bytes | None:
        return b"x" if responder is made else tcp(responder, packet, address)

    monkeypatch.setattr(Responder, "tcp", second)
    assert "depends on what was asked before" in directly(made, QUERY, "192.0.2.7")

    def crash(responder: Responder, packet: bytes, address: str) -> bytes | None:
        raise KeyError(packet)

    monkeypatch.setattr(Responder, "udp", crash)
    assert "KeyError" in directly(made, QUERY, "192.0.2.7")
