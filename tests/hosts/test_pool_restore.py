"""The pool when it begins with the hosts of before a restart."""

from dataclasses import replace

import pytest

from smartgw_hosts.records import AskBus, HostState, KnownHost, Remove
from smartgw_hosts.wire import Kind, Reason
from tests.hosts.bus_messages import WALL, Speaker
from tests.hosts.test_pool import BAD, OK, Playbook, enrolment, verify

HEALTHY, UNHEALTHY, PROVISIONAL = HostState.HEALTHY, HostState.UNHEALTHY, HostState.PROVISIONAL


def known(host: Speaker) -> KnownHost:
    return KnownHost(host.host_id, host.boot, host.describe())


def restored(play: Playbook, host: Speaker, now: float = 0.0) -> int:
    """Restore one host and return the ticket of its challenge."""
    return verify(play.pool.restore([known(host)], now, WALL + now)).ticket


def test_a_restored_host_serves_after_a_challenge() -> None:
    """11.2: Each of the last healthy hosts serves only after a fresh challenge."""
    play, host = Playbook(enrolment()), Speaker()
    ticket = restored(play, host)
    record = play.at(host)
    assert (record.state, record.reason, record.apps) == (PROVISIONAL, "restored", ("shop",))
    assert play.pool.knows_app("shop")
    play.pool.verdict(ticket, OK, 0.1)
    assert play.at(host).state is HEALTHY


@pytest.mark.parametrize(
    "entries",
    [
        (),
        (enrolment(key_of="thief"),),
        (enrolment(cluster="c2"),),
        (enrolment(expires=WALL - 1),),
    ],
    ids=["none", "another key", "another cluster", "expired"],
)
def test_trust_is_that_of_today(entries: tuple[object, ...]) -> None:
    """1.4, 11.2: A host whose enrolment is gone, expired or of another key is not restored."""
    play = Playbook(*entries)  # type: ignore[arg-type]
    assert play.pool.restore([known(Speaker())], 0.0, WALL) == []
    assert play.pool.records() == []


def test_apps_are_those_of_today() -> None:
    """1.4: A restored host serves the apps that it may serve now."""
    play = Playbook(enrolment(apps=("blog",)))
    host = Speaker(apps=("shop", "blog"))
    restored(play, host)
    assert play.at(host).apps == ("blog",)
    assert play.at(host).refused_apps == (("shop", Reason.APP_REFUSED),)


def test_the_lease_starts_when_the_bus_returns() -> None:
    """11.2: The lease of a restored host starts when the bus returns: a full term."""
    play, host = Playbook(enrolment()), Speaker()
    play.pool.verdict(restored(play, host), OK, 0.1)
    for now in range(1, 520):
        asked = AskBus() in play.tick(float(now))
        if asked and now >= 500:
            play.pool.bus_answered(float(now), now + 0.1)
        assert now > 515 or play.at(host).state is HEALTHY
    assert play.at(host).reason == "lease_expired"


def test_a_restored_host_that_does_not_answer_is_tried_again() -> None:
    """11.2: While the bus is away a restored host that was down is challenged again and again."""
    play, host = Playbook(enrolment()), Speaker()
    play.pool.verdict(restored(play, host), BAD, 0.1)
    assert play.at(host).state is UNHEALTHY
    play.pool.verdict(verify(play.tick(2.0)).ticket, BAD, 2.1)
    play.pool.verdict(verify(play.tick(4.2)).ticket, OK, 4.3)
    assert play.at(host).state is HEALTHY


def test_a_restored_host_that_nobody_hears_is_forgotten() -> None:
    """1.5: A restored host that never proved itself is gone once the bus does not tell of it."""
    play, host = Playbook(enrolment()), Speaker()
    restored(play, host)
    play.tick(100.0)
    assert play.at(host).state is PROVISIONAL
    play.pool.bus_answered(100.0, 100.1)
    play.tick(110.0)
    assert play.at(host).state is PROVISIONAL
    assert Remove("h1") in play.tick(131.0)


def test_the_bus_knows_better() -> None:
    """1.3: What the bus told already is not overwritten, and a message beats what was stored."""
    play, host = Playbook(enrolment()), Speaker()
    play.routed(host)
    assert play.pool.restore([known(replace(host, address="http://10.0.0.9:1"))], 1.0, WALL) == []
    assert play.at(host).address == host.address

    play = Playbook(enrolment())
    old, moved = Speaker(boot=100), Speaker(boot=101, address="http://10.0.0.9:1")
    ticket = restored(play, old)
    asked = verify(play.say(moved, Kind.HEARTBEAT, 1.0))
    assert asked.address == moved.address
    play.pool.verdict(ticket, OK, 1.1)
    assert play.at(moved).state is PROVISIONAL, "a verdict on the old boot counts for nothing"
    play.pool.verdict(asked.ticket, OK, 1.2)
    assert play.at(moved).state is HEALTHY
    play.refused(old.signed(Kind.HEARTBEAT, 2.0), Reason.SUPERSEDED_BOOT, 2.0)


def test_the_same_boot_needs_no_second_challenge() -> None:
    """1.7: When the bus returns, restored hosts that were verified are not all asked again."""
    play, host = Playbook(enrolment()), Speaker()
    play.pool.verdict(restored(play, host), OK, 0.1)
    play.pool.bus_answered(1.0, 1.1)
    assert play.say(host, Kind.ANNOUNCE, 2.0) == []
