"""The pool's rules, one by one: what comes in, and what the pool says is to be done."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest

from smartgw_hosts.challenge import Proof, Verdict
from smartgw_hosts.enrolment import Enrolment
from smartgw_hosts.pool import Pool
from smartgw_hosts.records import (
    Action,
    AskBus,
    HostRecord,
    HostState,
    Ignored,
    PoolSettings,
    Remove,
    Update,
    Verify,
)
from smartgw_hosts.transitions import TRANSITIONS, Event
from smartgw_hosts.wire import Kind, Reason, SignedMessage
from tests.hosts.bus_messages import CLUSTER, WALL, Speaker, altered, identity_of, signed

OK = Verdict(Proof.OK)
BAD = Verdict(Proof.BAD_SIGNATURE, "not signed by key 0")
ANNOUNCE, HEARTBEAT, LEAVE = Kind.ANNOUNCE, Kind.HEARTBEAT, Kind.LEAVE
HEALTHY, UNHEALTHY, PROVISIONAL = (
    HostState.HEALTHY,
    HostState.UNHEALTHY,
    HostState.PROVISIONAL,
)


def enrolment(
    host_id: str = "h1",
    apps: tuple[str, ...] = ("shop",),
    key_of: str = "",
    cluster: str = CLUSTER,
    expires: float | None = None,
) -> Enrolment:
    return Enrolment(host_id, identity_of(key_of or host_id).public_key, cluster, apps, expires)


class Playbook:
    """Drives a pool as its listener would, with a wall clock that runs as the monotonic one."""

    def __init__(
        self, *enrolments: Enrolment, settings: PoolSettings | None = None, wall: float = WALL
    ) -> None:
        self.pool = Pool(CLUSTER, settings)
        self.wall = wall
        self.pool.enrol(enrolments, 0.0, wall)

    def receive(self, message: SignedMessage, now: float = 0.0) -> list[Action]:
        return self.pool.receive(message, now, round((self.wall + now) * 1000))

    def say(self, host: Speaker, kind: Kind, now: float = 0.0) -> list[Action]:
        return self.receive(host.signed(kind, now), now)

    def enrol(self, *enrolments: Enrolment, now: float = 0.0) -> list[Action]:
        return self.pool.enrol(enrolments, now, self.wall + now)

    def tick(self, now: float) -> list[Action]:
        return self.pool.tick(now, self.wall + now)

    def routed(self, host: Speaker, now: float = 0.0) -> HostRecord:
        """Let `host` announce itself and prove its key."""
        self.pool.verdict(verify(self.say(host, ANNOUNCE, now)).ticket, OK, now)
        record = self.at(host)
        assert record.state is HEALTHY
        return record

    def at(self, host: Speaker) -> HostRecord:
        record = self.pool.record(host.host_id)
        assert record is not None
        return record

    def refused(self, message: SignedMessage, reason: Reason, now: float = 0.0) -> None:
        """The message is counted under `reason` and changes nothing."""
        records, count = self.pool.records(), self.pool.counters[reason]
        (ignored,) = self.receive(message, now)
        assert isinstance(ignored, Ignored)
        assert ignored.reason is reason
        assert self.pool.counters[reason] == count + 1
        assert self.pool.records() == records


def verify(actions: Iterable[Action]) -> Verify:
    (found,) = [action for action in actions if isinstance(action, Verify)]
    return found


def updated(actions: Iterable[Action]) -> HostRecord:
    (found,) = [action.record for action in actions if isinstance(action, Update)]
    return found


@pytest.fixture
def play() -> Playbook:
    return Playbook(enrolment())


@pytest.fixture
def h1() -> Speaker:
    return Speaker()


# 1.2 and 1.3: which messages count


@pytest.mark.parametrize("kind", [ANNOUNCE, HEARTBEAT])
def test_first_message_is_announcement(play: Playbook, h1: Speaker, kind: Kind) -> None:
    """1.3: A signed heartbeat of an unknown host counts as its announcement."""
    actions = play.say(h1, kind)
    record = updated(actions)
    assert (record.state, record.reason, record.apps) == (PROVISIONAL, "unverified", ("shop",))
    asked = verify(actions)
    assert (asked.host_id, asked.address, asked.key) == (
        "h1",
        h1.address,
        h1.identity.public_key,
    )


def test_badly_signed(play: Playbook, h1: Speaker) -> None:
    """1.2: A forged `leave` must not remove a host; a forged heartbeat not keep a dead one."""
    play.routed(h1)
    for kind in Kind:
        play.refused(signed(h1.message(kind), identity_of("h2")), Reason.BAD_SIGNATURE)


def test_replay(play: Playbook, h1: Speaker) -> None:
    """1.2: Replayed messages (sequence not above the last of that boot) are refused."""
    first, second = h1.signed(HEARTBEAT), h1.signed(HEARTBEAT)
    play.receive(second)
    play.refused(first, Reason.REPLAYED)
    play.refused(second, Reason.REPLAYED)
    play.say(h1, LEAVE)
    play.refused(second, Reason.REPLAYED)
    h1.sequence -= 1
    play.refused(h1.signed(HEARTBEAT), Reason.REPLAYED)


def test_superseded_boot(play: Playbook, h1: Speaker) -> None:
    """1.2: Messages of a superseded boot are refused, a leave of it too."""
    old = replace(h1, boot=99, sequence=500)
    play.routed(h1)
    for kind in Kind:
        play.refused(old.signed(kind), Reason.SUPERSEDED_BOOT)


def test_new_boot_counts_anew(play: Playbook, h1: Speaker) -> None:
    """1.2: The sequence rises within a boot; a higher boot id begins anew."""
    h1.sequence = 900
    play.routed(h1)
    h1.boot, h1.sequence = 101, 0
    actions = play.say(h1, HEARTBEAT, 5.0)
    assert verify(actions).address == h1.address
    assert play.at(h1).boot == 101


@pytest.mark.parametrize("late", [-600.0, -30.1, 30.1, 600.0])
def test_stale(play: Playbook, h1: Speaker, late: float) -> None:
    """1.2: Stale messages (beyond ±30 s) are counted and ignored; the skew is told."""
    play.refused(h1.signed(HEARTBEAT, now=late), Reason.STALE)
    (ignored,) = play.receive(h1.signed(HEARTBEAT, now=late))
    assert isinstance(ignored, Ignored)
    assert f"{late:+.1f} s" in ignored.detail


@pytest.mark.parametrize("late", [-30.0, 0.0, 30.0])
def test_not_stale(play: Playbook, h1: Speaker, late: float) -> None:
    """1.2: Within ±30 s a message is not stale."""
    assert verify(play.receive(h1.signed(HEARTBEAT, now=late)))


# 1.4: trust


def test_not_enrolled_is_never_dialled(h1: Speaker) -> None:
    """1.4: A key that is not enrolled stays provisional, is never dialled and never routed."""
    play = Playbook()
    for second in range(0, 120, 5):
        actions = play.say(h1, ANNOUNCE, second) + play.tick(second)
        assert not [action for action in actions if isinstance(action, Verify)]
    record = play.at(h1)
    assert (record.state, record.reason, record.apps) == (PROVISIONAL, "not_enrolled", ())
    assert record.refused_apps == (("shop", "not_enrolled"),)
    assert play.pool.suspect("h1", 120.0) == []


def test_provisional_goes_after_30_s(h1: Speaker) -> None:
    """1.5: Provisional: known, never routed, gone after 30 s."""
    play = Playbook()
    play.say(h1, ANNOUNCE)
    assert play.tick(29.9) == []
    assert play.tick(30.0) == [Remove("h1")]
    assert play.pool.records() == []


def test_other_reasons_for_no_trust(h1: Speaker) -> None:
    """1.4: An enrolment gives the cluster a host belongs to and an expiry."""
    for entry, reason in (
        (enrolment(cluster="c2"), "wrong_cluster"),
        (enrolment(expires=WALL), "expired_enrolment"),
    ):
        play = Playbook(entry)
        play.say(h1, ANNOUNCE)
        assert (play.at(h1).state, play.at(h1).reason) == (PROVISIONAL, reason)


def test_entry_of_our_cluster_counts(h1: Speaker) -> None:
    """1.4: An enrolment gives the cluster a host belongs to."""
    play = Playbook(enrolment(cluster="c2", key_of="x"), enrolment(), enrolment(cluster="c3"))
    play.routed(h1)


def test_unknown_key(play: Playbook) -> None:
    """1.4: The enrolment list gives each host's public key."""
    play.refused(Speaker(key_of="other").signed(ANNOUNCE), Reason.UNKNOWN_KEY)


def test_leave_of_nobody(play: Playbook) -> None:
    """1.2: A leave of a host that is not known changes nothing."""
    assert play.say(Speaker(), LEAVE) == []
    play.refused(Speaker("h9").signed(LEAVE), Reason.NOT_ENROLLED)


def test_stranger_leaves(h1: Speaker) -> None:
    """1.5: A provisional host that leaves is gone."""
    play = Playbook()
    play.say(h1, ANNOUNCE)
    play.refused(signed(h1.message(LEAVE), identity_of("h2")), Reason.BAD_SIGNATURE)
    assert play.say(h1, LEAVE) == [Remove("h1")]


def test_stranger_is_bound_to_its_first_key(h1: Speaker) -> None:
    """N03: Old binding kept, refused and counted; never a silent key change."""
    play = Playbook()
    play.say(h1, ANNOUNCE)
    play.refused(Speaker(key_of="other", boot=999).signed(ANNOUNCE), Reason.KEY_CHANGED)


def test_removed_enrolment(play: Playbook, h1: Speaker) -> None:
    """1.4: A removed enrolment ends routing at once; a new one needs a fresh verification."""
    play.routed(h1)
    asked = verify(play.say(h1, ANNOUNCE, 5.0))
    record = updated(play.enrol(now=6.0))
    assert (record.state, record.reason, record.since) == (UNHEALTHY, "not_enrolled", 6.0)
    assert record.apps == ()
    assert not play.pool.wants(asked.ticket)
    assert play.pool.verdict(asked.ticket, OK, 6.0) == []
    play.refused(h1.signed(HEARTBEAT, 7.0), Reason.NOT_ENROLLED, 7.0)
    back = play.enrol(enrolment(), now=8.0)
    assert updated(back).state is UNHEALTHY
    play.pool.verdict(verify(back).ticket, OK, 8.0)
    assert play.at(h1).state is HEALTHY


def test_enrolment_expires(h1: Speaker) -> None:
    """1.4: An enrolment has an expiry."""
    play = Playbook(enrolment(expires=WALL + 60))
    play.routed(h1)
    play.say(h1, HEARTBEAT, 55.0)
    assert play.at(h1).state is HEALTHY
    record = updated(play.tick(60.0))
    assert (record.state, record.reason) == (UNHEALTHY, "expired_enrolment")
    play.refused(h1.signed(HEARTBEAT, 61.0), Reason.EXPIRED_ENROLMENT, 61.0)
    renewed = play.enrol(enrolment(), now=62.0)
    play.pool.verdict(verify(renewed).ticket, OK, 62.0)
    assert play.at(h1).state is HEALTHY


def test_enrolled_key_changes(play: Playbook, h1: Speaker) -> None:
    """1.4: The enrolment list gives the key: another key there ends the old one at once."""
    play.routed(h1)
    record = updated(play.enrol(enrolment(key_of="new"), now=1.0))
    assert (record.state, record.reason) == (UNHEALTHY, "key_changed")
    assert record.refused_apps == (("shop", "key_changed"),)
    play.refused(h1.signed(HEARTBEAT, 2.0), Reason.KEY_CHANGED, 2.0)
    rekeyed = Speaker(key_of="new", boot=1)
    actions = play.say(rekeyed, HEARTBEAT, 3.0)
    assert updated(actions).key == rekeyed.identity.public_key
    play.pool.verdict(verify(actions).ticket, OK, 3.0)
    assert play.at(h1).state is HEALTHY


def test_enrolled_later(h1: Speaker) -> None:
    """1.4: What a stranger becomes is the enrolment list's to say: its key's, and no other."""
    play = Playbook()
    play.say(h1, ANNOUNCE)
    actions = play.enrol(enrolment(), now=1.0)
    assert updated(actions).apps == ("shop",)
    play.pool.verdict(verify(actions).ticket, OK, 1.0)
    assert play.at(h1).state is HEALTHY

    play = Playbook()
    play.say(h1, ANNOUNCE)
    assert play.enrol(enrolment(key_of="other"), now=1.0) == [Remove("h1")]


def test_apps_are_granted_one_by_one() -> None:
    """1.4: An announcement for an app its host may not serve is refused for that app."""
    play = Playbook(enrolment(apps=("shop", "blog-*")))
    host = Speaker(apps=("shop", "admin", "blog-7", "Shop"))
    record = play.routed(host)
    assert record.apps == ("shop", "blog-7")
    assert record.refused_apps == (("admin", "app_refused"), ("Shop", "app_refused"))
    assert play.pool.counters[Reason.APP_REFUSED] == 2
    play.say(host, HEARTBEAT, 1.0)
    assert play.pool.counters[Reason.APP_REFUSED] == 2


def test_enrolled_apps_change(play: Playbook, h1: Speaker) -> None:
    """1.4: The list in force says which apps a host may serve; routing others ends at once."""
    play.routed(h1)
    record = updated(play.enrol(enrolment(apps=("blog",)), now=1.0))
    assert (record.state, record.apps) == (HEALTHY, ())
    assert record.refused_apps == (("shop", "app_refused"),)


def test_known_apps() -> None:
    """3.4: A known app with nothing to serve it is not an unknown one."""
    play = Playbook(enrolment(apps=("shop", "blog-*")), enrolment("h2", ("far",), cluster="c2"))
    assert play.pool.known_apps() == {"shop"}
    host = Speaker(apps=("blog-1", "admin"))
    play.say(host, ANNOUNCE)
    assert play.pool.known_apps() == {"shop", "blog-1"}
    host.apps = ("shop",)
    play.say(host, HEARTBEAT)
    assert play.pool.known_apps() == {"shop"}
    play.say(Speaker("h3", apps=("theirs",)), ANNOUNCE)
    assert not play.pool.knows_app("theirs")
    play.enrol()
    assert play.pool.known_apps() == frozenset()


def test_apps_of_forgotten_hosts_are_forgotten() -> None:
    """3.4 and 1.8: An app is known while a host for it is, and no longer."""
    play = Playbook(enrolment(apps=("*",)))
    play.say(Speaker(), ANNOUNCE)
    assert play.pool.knows_app("shop")
    play.tick(30.0)
    assert play.pool.known_apps() == frozenset()


def test_first_use() -> None:
    """1.4: `trust = "first-use"` exists for development, is off by default."""
    assert PoolSettings().trust == "enrolment"
    play = Playbook(enrolment("h2"), settings=PoolSettings(trust="first-use"))
    record = play.routed(Speaker(apps=("any", "thing")))
    assert record.apps == ("any", "thing")
    play.refused(Speaker(key_of="other", boot=999).signed(ANNOUNCE), Reason.KEY_CHANGED)
    play.refused(Speaker("h2", key_of="other").signed(ANNOUNCE), Reason.UNKNOWN_KEY)


# 1.5, 1.6 and 1.7: states and leases


def silence(play: Playbook, asked_at: float) -> list[Action]:
    assert AskBus() in play.tick(asked_at)
    return play.pool.bus_answered(asked_at, asked_at + 0.1)


def test_three_missed_heartbeats(play: Playbook, h1: Speaker) -> None:
    """1.6: Heartbeats every 5 s; three missed make a host unhealthy."""
    play.routed(h1)
    play.say(h1, HEARTBEAT, 5.0)
    assert play.tick(19.9) == []
    record = updated(silence(play, 20.0))
    assert (record.state, record.reason, record.since) == (UNHEALTHY, "lease_expired", 20.1)


def test_only_a_later_ping_counts(play: Playbook, h1: Speaker) -> None:
    """1.7: A lease expires only after the bus answered a PING sent after the lease was due."""
    play.routed(h1)
    assert play.tick(15.0) == [AskBus()]
    assert play.tick(16.0) == []
    assert play.pool.bus_answered(14.9, 16.0) == []
    assert play.at(h1).state is HEALTHY
    play.say(h1, HEARTBEAT, 16.1)
    assert play.pool.bus_answered(15.0, 16.2) == []
    assert play.at(h1).state is HEALTHY
    assert [AskBus()] == [a for a in play.tick(31.1) if isinstance(a, AskBus)]


def test_bus_that_does_not_answer_is_asked_again(play: Playbook, h1: Speaker) -> None:
    """1.7: A lease expires only after the bus has answered."""
    play.routed(h1)
    asked = [now for now in range(15, 35) if AskBus() in play.tick(float(now))]
    assert asked == list(range(15, 35, 2))
    assert play.at(h1).state is HEALTHY


def test_bus_away(play: Playbook, h1: Speaker) -> None:
    """1.7: While the bus is away nothing expires; on return leases get a full term."""
    play.routed(h1)
    play.pool.bus_lost(10.0)
    assert play.tick(1000.0)
    assert play.pool.bus_answered(9.0, 1000.0) == []
    play.tick(1002.0)
    assert play.pool.bus_answered(1002.0, 1003.0) == []
    assert AskBus() not in play.tick(1017.9)
    assert play.at(h1).state is HEALTHY
    assert updated(silence(play, 1018.0)).reason == "lease_expired"


def test_nobody_is_forgotten_while_the_bus_is_away(play: Playbook, h1: Speaker) -> None:
    """1.7: While the bus is away nothing expires, and verification goes on."""
    play.say(Speaker("x1"), ANNOUNCE)
    asked = verify(play.say(h1, ANNOUNCE))
    play.pool.bus_lost(1.0)
    play.tick(1000.0)
    assert len(play.pool.records()) == 2
    assert updated(play.pool.verdict(asked.ticket, OK, 1000.0)).state is HEALTHY
    assert verify(play.tick(1060.0))


def test_all_come_back_at_once() -> None:
    """1.7: On return of the bus re-verification is spread out."""
    hosts = [Speaker(f"h{n}") for n in range(300)]
    play = Playbook(*(enrolment(host.host_id) for host in hosts))
    for host in hosts:
        play.routed(host)
    play.pool.bus_lost(1.0)
    play.pool.bus_answered(100.0, 100.0)
    for host in hosts:
        assert play.say(host, ANNOUNCE, 100.0) == []
    first: dict[str, int] = {}
    for second in range(100, 161):
        for action in play.tick(second):
            if isinstance(action, Verify):
                first.setdefault(action.host_id, second)
                play.pool.verdict(action.ticket, OK, second)
        for host in hosts if second % 10 == 0 else ():
            play.say(host, HEARTBEAT, second)
    assert len(first) == 300
    assert max(Counter(first.values()).values()) < 20


def test_stall(play: Playbook, h1: Speaker) -> None:
    """1.7: A 12 s stall costs no host its place."""
    play.routed(h1)
    play.say(h1, HEARTBEAT, 5.0)
    play.pool.stalled(12.0, 20.0)
    assert play.tick(20.0) == []
    assert play.pool.bus_answered(20.0, 20.1) == []
    assert AskBus() not in play.tick(34.9)
    assert updated(silence(play, 35.0)).reason == "lease_expired"


@pytest.mark.parametrize("step", [3600.0, -3600.0, 1e9])
def test_clock_jump(step: float) -> None:
    """1.7: A gateway whose clock jumped must not demote anyone for it."""
    hosts = [Speaker(f"h{n}") for n in range(3)]
    play = Playbook(*(enrolment(h.host_id, expires=WALL + 1800) for h in hosts))
    for host in hosts:
        play.routed(host)
    play.wall += step
    for second in range(5, 120, 5):
        for host in hosts:
            play.say(host, HEARTBEAT, second)
        for action in play.tick(second):
            if isinstance(action, Verify):
                play.pool.verdict(action.ticket, OK, second)
            if isinstance(action, AskBus):
                play.pool.bus_answered(second, second)
    assert {record.state for record in play.pool.records()} == {HEALTHY}
    play.refused(hosts[0].signed(HEARTBEAT, 120.0 + 600), Reason.STALE, 120.0)


def test_clock_set_right(h1: Speaker) -> None:
    """1.2: The time counts by the wall clock: once that was set right, hosts are heard."""
    play = Playbook(enrolment(), wall=WALL + 3600)
    play.refused(h1.signed(HEARTBEAT, 1.0), Reason.STALE, 1.0)
    play.wall = WALL
    for second in range(2, 20):
        play.say(h1, HEARTBEAT, second)
    play.wall += 3600  # from now on this is the wrong time
    play.say(h1, HEARTBEAT, 21.0)
    assert play.pool.counters[Reason.STALE] == 1


def test_leave(play: Playbook, h1: Speaker) -> None:
    """1.5: A host that left is unhealthy, kept 5 minutes for status, then removed."""
    play.routed(h1)
    record = updated(play.say(h1, LEAVE, 1.0))
    assert (record.state, record.reason, record.since) == (UNHEALTHY, "left", 1.0)
    assert play.tick(300.9) == []
    assert play.tick(301.0) == [Remove("h1")]
    assert play.tick(10_000.0) == []


def test_back_from_unhealthy(play: Playbook, h1: Speaker) -> None:
    """1.5: From unhealthy back to healthy always takes a fresh verification."""
    play.routed(h1)
    old = verify(play.say(h1, ANNOUNCE, 5.0))
    play.say(h1, LEAVE, 6.0)
    assert play.pool.verdict(old.ticket, OK, 6.0) == []
    asked = verify(play.say(h1, HEARTBEAT, 7.0))
    assert play.at(h1).state is UNHEALTHY
    record = updated(play.pool.verdict(asked.ticket, OK, 8.0))
    assert (record.state, record.reason, record.since) == (HEALTHY, "verified", 8.0)


def test_good_verdict_for_a_silent_host(play: Playbook, h1: Speaker) -> None:
    """1.5: Healthy is verified and lease fresh."""
    asked = verify(play.say(h1, ANNOUNCE))
    assert play.pool.verdict(asked.ticket, OK, 15.0) == []
    assert play.at(h1).state is PROVISIONAL
    asked = verify(play.say(h1, HEARTBEAT, 16.0))
    assert updated(play.pool.verdict(asked.ticket, OK, 16.0)).state is HEALTHY


def test_transitions_are_total() -> None:
    """1.5: provisional -> healthy -> unhealthy -> removed; healthy only by verification."""
    for (state, event), after in TRANSITIONS.items():
        assert (after is HEALTHY) == (event is Event.VERIFIED)
        assert (after is None) == (event is Event.FORGOTTEN)
        assert state is not HEALTHY or after is not None


# 1.5 and 1.8: caps


def test_flood_by_number(play: Playbook, h1: Speaker) -> None:
    """1.5: Provisional hosts are capped in number, and push out nobody."""
    play.routed(h1)
    for n in range(1000):
        play.say(Speaker(f"x{n}"), ANNOUNCE)
    play.refused(Speaker("x1000").signed(ANNOUNCE), Reason.TOO_MANY)
    assert play.at(h1).state is HEALTHY
    play.say(Speaker("x5"), LEAVE)
    play.receive(replace(Speaker("x5", sequence=1)).signed(LEAVE))
    assert play.say(Speaker("x1000"), ANNOUNCE)
    play.enrol(enrolment("h7"))
    assert verify(play.say(Speaker("h7"), ANNOUNCE))


def test_flood_by_bytes(play: Playbook, h1: Speaker) -> None:
    """1.5: Provisional hosts are capped in bytes, by what they say later too."""
    play.routed(h1)
    big = tuple("a" * 250 + str(n) for n in range(200))
    hosts = [Speaker(f"x{n}", apps=big) for n in range(100)]
    for host in hosts:
        play.say(host, ANNOUNCE)
    assert 70 < len(play.pool.records()) < 82
    assert play.pool.counters[Reason.TOO_MANY] == 101 - len(play.pool.records())
    late = Speaker("late", apps=())
    play.say(late, ANNOUNCE)
    late.apps = big
    play.refused(late.signed(HEARTBEAT), Reason.TOO_MANY)
    play.tick(30.0)
    assert [record.host_id for record in play.pool.records()] == ["h1"]
    assert play.say(replace(late), ANNOUNCE, 30.0)


def test_cap_of_hosts() -> None:
    """1.8: Memory stays bounded."""
    play = Playbook(*(enrolment(f"h{n}") for n in range(4)), settings=PoolSettings(max_hosts=2))
    play.say(Speaker("h0"), ANNOUNCE)
    play.say(Speaker("h1"), ANNOUNCE)
    play.refused(Speaker("h2").signed(ANNOUNCE), Reason.TOO_MANY)
    play.tick(31.0)
    assert play.say(Speaker("h2"), ANNOUNCE, 31.0)


def test_first_use_is_capped_until_verified() -> None:
    """1.5: Capped in number: a host that nobody vouches for counts until it has proven its key."""
    play = Playbook(settings=PoolSettings(trust="first-use", max_provisional=1))
    asked = verify(play.say(Speaker("h1"), ANNOUNCE))
    play.refused(Speaker("h2").signed(ANNOUNCE), Reason.TOO_MANY)
    play.pool.verdict(asked.ticket, OK, 0.0)
    assert verify(play.say(Speaker("h2"), ANNOUNCE))


# 2.2: verification


def test_verified_again(play: Playbook, h1: Speaker) -> None:
    """2.2: Verified again every 60 s (jittered)."""
    play.routed(h1)
    asked = []
    for second in range(1, 601):
        if second % 5 == 0:
            play.say(h1, HEARTBEAT, second)
        for action in play.tick(second):
            assert isinstance(action, Verify)
            asked.append(second)
            assert play.pool.verdict(action.ticket, OK, second) == []
    gaps = [b - a for a, b in zip([0, *asked], asked, strict=False)]
    assert all(45 <= gap <= 61 for gap in gaps)
    assert len(set(gaps)) > 2
    assert play.at(h1).verified_at == asked[-1]


@pytest.mark.parametrize("why", ["announce", "boot", "suspect"])
def test_verified_when_something_happened(play: Playbook, h1: Speaker, why: str) -> None:
    """2.2: Verified again on re-announce; 3.7: a suspect is challenged at once."""
    play.routed(h1)
    if why == "boot":
        h1.boot += 1
    actions = (
        play.pool.suspect("h1", 5.0)
        if why == "suspect"
        else play.say(h1, ANNOUNCE if why == "announce" else HEARTBEAT, 5.0)
    )
    asked = verify(actions)
    assert play.at(h1).state is HEALTHY
    assert updated(play.pool.verdict(asked.ticket, BAD, 5.1)).state is UNHEALTHY


def test_challenges_are_spaced(play: Playbook, h1: Speaker) -> None:
    """1.8: However often a host announces, challenges stay few."""
    play.routed(h1)
    asked = 0
    for tenth in range(1, 101):
        now = tenth / 10
        for action in play.say(h1, ANNOUNCE, now) + play.tick(now):
            if isinstance(action, Verify):
                asked += 1
                play.pool.verdict(action.ticket, OK, now)
    assert 9 <= asked <= 10


def test_failed_verification(play: Playbook, h1: Speaker) -> None:
    """2.2: Signing wrongly drops the host until it verifies again."""
    play.routed(h1)
    asked = verify(play.say(h1, ANNOUNCE, 5.0))
    record = updated(play.pool.verdict(asked.ticket, BAD, 5.0))
    assert (record.state, record.reason) == (UNHEALTHY, "verification: bad_signature")
    assert record.detail == BAD.detail
    failures = []
    for second in range(6, 160):
        if second % 5 == 0:
            play.say(h1, HEARTBEAT, second)
        for action in play.tick(second):
            assert isinstance(action, Verify)
            failures.append(second)
            play.pool.verdict(action.ticket, BAD, second)
    assert failures == [6, 8, 12, 20, 36, 66, 96, 126, 156]
    asked = verify(play.say(h1, ANNOUNCE, 160.0))
    assert updated(play.pool.verdict(asked.ticket, OK, 160.0)).state is HEALTHY


def test_silent_failure_is_not_tried_for_ever(play: Playbook, h1: Speaker) -> None:
    """1.5: Unhealthy hosts are kept 5 minutes; a silent one is not challenged meanwhile."""
    play.pool.verdict(verify(play.say(h1, ANNOUNCE)).ticket, BAD, 0.0)
    asked = 0
    for second in range(1, 300):
        for action in play.tick(second):
            assert isinstance(action, Verify)
            asked += 1
            play.pool.verdict(action.ticket, BAD, second)
    assert asked == 3
    assert play.tick(300.0) == [Remove("h1")]


def test_talking_failure_is_kept(play: Playbook, h1: Speaker) -> None:
    """1.5: Kept for status while it is heard: status must not forget why it is not routed."""
    for second in range(0, 1000, 5):
        for action in play.say(h1, HEARTBEAT, second) + play.tick(second):
            assert not isinstance(action, Remove)
            if isinstance(action, Verify):
                play.pool.verdict(action.ticket, BAD, second)
    assert play.at(h1).since == 0.0


def test_stale_verdict(play: Playbook, h1: Speaker) -> None:
    """2.2: A verdict counts once, and only for the boot and the address it was asked for."""
    first = verify(play.say(h1, ANNOUNCE))
    h1.boot += 1
    actions = play.say(h1, ANNOUNCE, 1.0)
    second = verify(actions)
    h1.address = "http://10.0.0.2:8001"
    third = verify(play.say(h1, ANNOUNCE, 2.0))
    assert third.address == h1.address
    for stale in (first, second, replace(third, ticket=999)):
        assert not play.pool.wants(stale.ticket)
        assert play.pool.verdict(stale.ticket, OK, 2.0) == []
        assert play.pool.verdict(stale.ticket, BAD, 2.0) == []
    assert play.at(h1).state is PROVISIONAL
    assert play.pool.wants(third.ticket)
    assert updated(play.pool.verdict(third.ticket, OK, 2.0)).address == h1.address
    assert play.pool.verdict(third.ticket, BAD, 2.0) == []
    assert play.at(h1).state is HEALTHY


def test_heartbeat_that_says_nothing_new(play: Playbook, h1: Speaker) -> None:
    """1.8: Traffic does not feel it: an unchanged heartbeat asks for nothing."""
    play.routed(h1)
    assert play.say(h1, HEARTBEAT, 5.0) == []


def test_description_changes(play: Playbook, h1: Speaker) -> None:
    """1.3: A heartbeat carries the full description; what changed in it counts at once."""
    play.routed(h1)
    message = altered(h1.message(HEARTBEAT, 5.0), weight=7, region="us", version="2", apps=())
    record = updated(play.receive(signed(message, h1.identity), 5.0))
    assert (record.weight, record.region, record.version, record.apps) == (7, "us", "2", ())
    assert record.state is HEALTHY
