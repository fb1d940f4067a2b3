"""The pool under any order of events, against a model that is too simple to be wrong.

The model remembers what was said and proven, in plain dicts; it has no timers and no tickets.
Each step checks what must hold whatever happened, and at the end the whole stream is replayed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from smartgw_hosts.challenge import Proof, Verdict
from smartgw_hosts.enrolment import Enrolment
from smartgw_hosts.pool import Pool
from smartgw_hosts.records import (
    Action,
    HostRecord,
    HostState,
    Ignored,
    PoolSettings,
    Remove,
    Update,
    Verify,
)
from smartgw_hosts.wire import Kind, SignedMessage
from tests.hosts.bus_messages import CLUSTER, WALL, Speaker, identity_of, signed

TERM = 15.0
SETTINGS = PoolSettings(max_provisional=2, unhealthy_ttl=60.0)
IDS = ("h1", "h2", "x1", "x2", "x3")
KEYS = ("h1", "h2", "x1", "x2", "x3", "thief")
APPS = ("shop", "blog-1", "admin")
ADDRESSES = ("http://10.0.0.1:80", "http://10.0.0.2:80", "http://10.0.0.3:80")

hosts = st.sampled_from(IDS)
keys = st.sampled_from(KEYS)
kinds = st.sampled_from(Kind)
enrolments = st.builds(
    lambda host_id, key, cluster, apps, expires: Enrolment(
        host_id, identity_of(key or host_id).public_key, cluster, apps, expires
    ),
    hosts,
    st.sampled_from(["", "", "", "thief"]),
    st.sampled_from([CLUSTER, CLUSTER, CLUSTER, "c2"]),
    st.sampled_from([("shop",), ("shop", "blog-*"), ("*",)]),
    st.sampled_from([None, None, WALL + 40, WALL + 200]),
)
proofs = st.sampled_from([Proof.OK, Proof.OK, Proof.OK, Proof.BAD_SIGNATURE, Proof.TIMEOUT])
seconds = st.sampled_from([0.1, 1.0, 1.0, 5.0, 5.0, 14.9, 30.0, 61.0])
Told = Callable[[Pool], list[Action]]


@dataclass(frozen=True)
class Asked:
    """A Verify, and how often its host had lost its standing when it was asked for."""

    verify: Verify
    spell: int


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(CLUSTER, SETTINGS)
        self.now = 0.0
        self.ticked = 0.0
        self.told: list[tuple[Told, list[Action]]] = []
        self.speakers = {host_id: Speaker(host_id, apps=APPS) for host_id in IDS}
        self.captured: list[SignedMessage] = []
        self.list: dict[str, Enrolment] = {}
        self.asked: dict[int, Asked] = {}
        self.answered: set[int] = set()
        # By host: the last message taken, when, and what was proven since it was not healthy.
        self.last: dict[str, tuple[bytes, int, int]] = {}
        self.heard: dict[str, float] = {}
        self.proven: dict[str, tuple[str, bytes]] = {}
        self.spells = dict.fromkeys(IDS, 0)
        self.away_since: float | None = None
        self.held_until = 0.0

    # What is told to the pool, and what the model makes of the answer.

    def tell(self, told: Told) -> list[Action]:
        before = {record.host_id: record for record in self.pool.records()}
        actions = told(self.pool)
        self.told.append((told, actions))
        after = {record.host_id: record for record in self.pool.records()}
        for host_id in IDS:
            self.note(host_id, before.get(host_id), after.get(host_id))
        self.check_actions(actions, before, after)
        for action in actions:
            if isinstance(action, Verify):
                assert action.ticket not in self.asked
                self.asked[action.ticket] = Asked(action, self.spells[action.host_id])
        return actions

    def hear(self, message: SignedMessage, now: float, wall_ms: int) -> list[Action]:
        """Tell a message, its signature looked at before; whoever plays this again looks then."""
        before = self.pool.dump()
        key = self.pool.signer(message.claims, now, wall_ms)
        assert self.pool.dump() == before
        tried = message if key is None else message.try_key(key)
        ours = self.pool
        return self.tell(
            lambda pool: pool.receive(tried if pool is ours else message, now, wall_ms)
        )

    def note(self, host_id: str, before: HostRecord | None, after: HostRecord | None) -> None:
        if after is None:
            self.last.pop(host_id, None)
            self.heard.pop(host_id, None)
        if after is None or after.state is not HostState.HEALTHY:
            self.proven.pop(host_id, None)
        if before is None:
            return
        lost = after is None or (
            after.state is HostState.UNHEALTHY
            and before.state is not HostState.UNHEALTHY
            and not after.reason.startswith("verification")
        )
        if lost or (after is not None and (after.boot, after.key) != (before.boot, before.key)):
            self.spells[host_id] += 1

    def check_actions(
        self,
        actions: list[Action],
        before: dict[str, HostRecord],
        after: dict[str, HostRecord],
    ) -> None:
        """Whoever believes the actions knows what the pool knows."""
        view = dict(before)
        for action in actions:
            if isinstance(action, Update):
                view[action.record.host_id] = action.record
            elif isinstance(action, Remove):
                del view[action.host_id]
            elif isinstance(action, Verify):
                # An expiry ends what a host has at the next tick, well within 2 s.
                record, entry = after[action.host_id], self.in_force(action.host_id, self.ticked)
                assert entry is not None, "1.4: not enrolled: never dialled"
                assert action.key == entry.key == record.key
                assert action.address in (record.address, record.pending_address)
                if record.pending_address is not None and not record.pending_reason:
                    assert action.address == record.pending_address, "N04: asked where it went"
        without = partial(replace, verified_at=None)
        assert {k: without(v) for k, v in view.items()} == {k: without(v) for k, v in after.items()}

    def in_force(self, host_id: str, at: float) -> Enrolment | None:
        entry = self.list.get(host_id)
        if entry is None or entry.cluster != CLUSTER:
            return None
        return None if entry.expires is not None and entry.expires <= WALL + at else entry

    def publish(self, message: SignedMessage, late: float = 0.0) -> None:
        """Tell a message that its own key signed, and compare what becomes of it."""
        claims, now = message.claims, self.now
        host_id, described = claims.host_id, claims.description
        before = self.pool.record(host_id)
        wall_ms = round((WALL + now - late) * 1000)
        actions = self.hear(message, now, wall_ms)
        if any(isinstance(action, Ignored) for action in actions):
            assert len(actions) == 1
            assert self.pool.record(host_id) == before
            return
        last = self.last.get(host_id)
        record = self.pool.record(host_id)
        if described is not None:
            assert record is not None
            key = described.key.value
            assert described.key == record.key
            if last is not None and last[0] == key:
                assert (claims.boot, claims.sequence) > last[1:], "1.2: replayed"
            entry = self.in_force(host_id, self.now)
            assert entry is None or entry.key == described.key, "1.4: the enrolled key"
        elif before is not None:
            assert record is None or (record.state, record.reason) == (HostState.UNHEALTHY, "left")
            key = before.key.value if record is None else record.key.value
        if record is not None:
            self.last[host_id] = (key, claims.boot, claims.sequence)
            self.heard[host_id] = now

    # Rules.

    @initialize()
    def enrol_the_first(self) -> None:
        self.enrol([Enrolment(h, identity_of(h).public_key, CLUSTER, ("*",)) for h in ("h1", "h2")])

    @rule(host_id=hosts, kind=kinds)
    def speak(self, host_id: str, kind: Kind) -> None:
        message = self.speakers[host_id].signed(kind, self.now)
        self.captured.append(message)
        self.publish(message)

    @rule(later=st.sampled_from([1.0, 5.0]))
    def go_on(self, later: float) -> None:
        """What happens nearly always."""
        self.wait(later)
        for host_id in IDS:
            self.beat_and_prove(host_id)

    @rule(host_id=hosts)
    def beat_and_prove(self, host_id: str) -> None:
        message = self.speakers[host_id].signed(Kind.HEARTBEAT, self.now)
        self.captured.append(message)
        self.publish(message)
        for ticket, asked in list(self.asked.items()):
            if asked.verify.host_id == host_id and ticket not in self.answered:
                self.judge(ticket, Proof.OK)

    @rule(host_id=hosts, address=st.sampled_from(ADDRESSES))
    def move(self, host_id: str, address: str) -> None:
        self.speakers[host_id].address = address
        self.speak(host_id, Kind.HEARTBEAT)

    @rule(host_id=hosts)
    def restart(self, host_id: str) -> None:
        speaker = self.speakers[host_id]
        speaker.boot, speaker.sequence = speaker.boot + 1, 0

    @rule(host_id=hosts, key=st.sampled_from(["", "", "thief"]))
    def rekey(self, host_id: str, key: str) -> None:
        self.speakers[host_id].key_of = key

    @precondition(lambda self: self.captured)
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        self.publish(data.draw(st.sampled_from(self.captured)))

    @rule(host_id=hosts, kind=kinds, key=keys, boots=st.integers(-1, 1))
    def forge(self, host_id: str, kind: Kind, key: str, boots: int) -> None:
        """1.2: A forged leave must not remove a host, a forged heartbeat not keep a dead one."""
        speaker = self.speakers[host_id]
        if identity_of(key) is speaker.identity or key == (speaker.key_of or host_id):
            return
        message = replace(speaker, boot=speaker.boot + boots, sequence=500).message(kind, self.now)
        record = self.pool.record(host_id)
        entry = self.in_force(host_id, self.now)
        bound = entry.key if entry is not None else record.key if record is not None else None
        if message.description is None and bound == identity_of(key).public_key:
            return  # no forgery: the thief's key is the one that counts
        forged = signed(message, identity_of(key))
        now, wall_ms = self.now, round((WALL + self.now) * 1000)
        actions = self.hear(forged, now, wall_ms)
        assert not actions or isinstance(actions[0], Ignored)
        assert self.pool.record(host_id) == record

    @rule(host_id=hosts, kind=kinds, late=st.sampled_from([-600.0, -31.0, 31.0, 600.0]))
    def speak_at_another_time(self, host_id: str, kind: Kind, late: float) -> None:
        """N07: Refused outside the skew window."""
        message = self.speakers[host_id].signed(kind, self.now + late)
        record = self.pool.record(host_id)
        now, wall_ms = self.now, round((WALL + self.now) * 1000)
        actions = self.hear(message, now, wall_ms)
        assert [type(action) for action in actions] == [Ignored]
        assert self.pool.record(host_id) == record

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), proof=proofs)
    def give_verdict(self, data: st.DataObject, proof: Proof) -> None:
        """Any that was ever asked for: again, too late, for what has changed since."""
        self.judge(data.draw(st.sampled_from(sorted(self.asked))), proof)

    @rule(data=st.data(), proof=proofs)
    def give_wanted_verdict(self, data: st.DataObject, proof: Proof) -> None:
        if wanted := [ticket for ticket in self.asked if self.pool.wants(ticket)]:
            self.judge(data.draw(st.sampled_from(wanted)), proof)

    def judge(self, ticket: int, proof: Proof) -> None:
        asked, now = self.asked[ticket], self.now
        host_id, address = asked.verify.host_id, asked.verify.address
        before = self.pool.record(host_id)
        counts = (
            before is not None
            and ticket not in self.answered
            and asked.spell == self.spells[host_id]
            and address in (before.address, before.pending_address)
        )
        # Once a move is announced, what was under way at the old address says nothing any more.
        held = (
            before is not None
            and before.pending_address is not None
            and address == before.address
            and not self.pool.wants(ticket)
        )
        self.answered.add(ticket)
        wanted = {t for t in self.asked if self.pool.wants(t)} - {ticket}
        actions = self.tell(lambda pool: pool.verdict(ticket, Verdict(proof), now))
        after = self.pool.record(host_id)
        if before is None or after is None or held or not counts:
            assert actions == [], "2.2: a stale verdict is ignored"
            assert after == before
        elif proof is Proof.OK:
            if before.state is not HostState.HEALTHY and after.state is HostState.HEALTHY:
                held = self.away_since is not None or now < self.held_until
                assert held or now < self.heard[host_id] + TERM, "1.5: and lease fresh"
            if (after.state, after.address) == (HostState.HEALTHY, address):
                self.proven[host_id] = (address, asked.verify.key.value)
        elif address == before.pending_address:
            changed = replace(after, pending_reason=before.pending_reason)
            assert changed == before, "N04: old url keeps its own state"
        elif before.pending_address is not None:
            assert after.address == before.pending_address, "N04: a move is never dropped"
            assert all(self.pool.wants(t) for t in wanted)

    @rule(
        entries=st.lists(enrolments, min_size=2, max_size=5, unique_by=lambda entry: entry.host_id)
    )
    def enrol(self, entries: list[Enrolment]) -> None:
        self.list = {entry.host_id: entry for entry in entries}
        now = self.now
        self.tell(lambda pool: pool.enrol(entries, now, WALL + now))

    @rule(host_id=hosts)
    def suspect(self, host_id: str) -> None:
        before, now = self.pool.record(host_id), self.now
        self.tell(lambda pool: pool.suspect(host_id, now))
        assert self.pool.record(host_id) == before

    @rule(later=seconds)
    def wait(self, later: float) -> None:
        """Time goes by in small steps, as the listener's ticks are; the bus is silent."""
        self.now += later
        self.tick()

    @rule()
    def tick(self) -> None:
        before, now = {r.host_id: r for r in self.pool.records()}, self.now
        self.ticked = now
        self.tell(lambda pool: pool.tick(now, WALL + now))
        for host_id, record in before.items():
            after = self.pool.record(host_id)
            if record.state is HostState.HEALTHY:
                assert after is not None
                assert after == record or self.in_force(host_id, self.now) is None, (
                    "1.7: silence alone"
                )
        if self.away_since is not None or now < self.held_until:
            assert len(self.pool.records()) == len(before), "1.7: nothing expires"
        else:
            for record in self.pool.records():
                if record.state is HostState.PROVISIONAL:
                    assert self.heard[record.host_id] > now - SETTINGS.provisional_ttl
                assert record.state is HostState.HEALTHY or (
                    max(self.heard[record.host_id], record.since) > now - SETTINGS.unhealthy_ttl
                )

    @rule()
    def lose_bus(self) -> None:
        self.away_since = now = self.now
        self.tell(lambda pool: pool.bus_lost(now))

    @rule(ago=st.sampled_from([0.0, 0.0, 1.0, 20.0]))
    def bus_answers(self, ago: float) -> None:
        """1.7: Over only if the bus answered a PING that was sent after the lease was due."""
        before, now, asked_at = (
            {r.host_id: r for r in self.pool.records()},
            self.now,
            self.now - ago,
        )
        self.tell(lambda pool: pool.bus_answered(asked_at, now))
        held = self.away_since is not None or asked_at < self.held_until
        for host_id, record in before.items():
            due = self.heard[host_id] + TERM <= asked_at
            after = self.pool.record(host_id)
            assert after is not None
            if record.state is HostState.HEALTHY and due and not held:
                assert (after.state, after.reason) == (HostState.UNHEALTHY, "lease_expired")
            else:
                assert after == record
        if self.away_since is not None and asked_at >= self.away_since:
            self.away_since = None
            self.held_until = now + TERM

    @rule()
    def stall(self) -> None:
        """1.7: A 12 s stall costs no host its place."""
        self.now += 12.0
        self.held_until = self.now + TERM
        before, now = self.pool.records(), self.now
        self.tell(lambda pool: pool.stalled(12.0, now))
        assert self.pool.records() == before

    # What holds at all times.

    @invariant()
    def healthy_is_enrolled_and_proven(self) -> None:
        """1.4, 1.5, 2.2 and N03: enrolled, with this key, verified since it was not healthy."""
        for record in self.pool.records():
            if record.state is HostState.HEALTHY:
                entry = self.in_force(record.host_id, self.ticked)
                assert entry is not None
                assert entry.key == record.key
                assert self.proven[record.host_id] == (record.address, record.key.value)
                assert record.verified_at is not None

    @invariant()
    def apps_are_allowed(self) -> None:
        """1.4 and N06: only apps that the host is enrolled for; each other with a reason."""
        for record in self.pool.records():
            entry = self.list.get(record.host_id)
            for app in record.apps:
                assert entry is not None
                assert entry.allows(app)
            claimed = {*record.apps, *(app for app, _ in record.refused_apps)}
            assert claimed == set(APPS)
            assert all(why for _, why in record.refused_apps)

    @invariant()
    def states_show_reason_and_since(self) -> None:
        """1.5: Every state shows its reason and since when."""
        for record in self.pool.records():
            assert record.reason
            assert 0.0 <= record.since <= self.now
            assert record.pending_address is None or record.state is HostState.HEALTHY
            assert record.pending_address != record.address

    @invariant()
    def strangers_are_capped(self) -> None:
        """1.5: Provisional hosts are capped in number, and they never push out another."""
        strangers = [
            record
            for record in self.pool.records()
            if record.state is HostState.PROVISIONAL and record.reason != "unverified"
        ]
        assert len(strangers) <= SETTINGS.max_provisional

    @invariant()
    def apps_are_known(self) -> None:
        """3.4: Known are the apps enrolled by name and those that some host may serve."""
        named = {app for e in self.list.values() if e.cluster == CLUSTER for app in e.exact_apps}
        served = {app for record in self.pool.records() for app in record.apps}
        assert self.pool.known_apps() == named | served

    @invariant()
    def verdicts_are_still_wanted_of_few(self) -> None:
        """1.8: At most one challenge an address is wanted, and two a host."""
        wanted = [a.verify for t, a in self.asked.items() if self.pool.wants(t)]
        assert len({(verify.host_id, verify.address) for verify in wanted}) == len(wanted)
        for host_id in IDS:
            assert sum(verify.host_id == host_id for verify in wanted) <= 2

    def teardown(self) -> None:
        """1.9: Same messages, same table: a recorded stream can be replayed offline."""
        again = Pool(CLUSTER, SETTINGS)
        for told, actions in self.told:
            assert told(again) == actions
        assert again.records() == self.pool.records()
        assert again.counters == self.pool.counters


PoolMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None, print_blob=True
)
TestPool = PoolMachine.TestCase
