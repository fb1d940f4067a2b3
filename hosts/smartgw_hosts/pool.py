"""What the gateway knows of its hosts, and what happens to each (contract 1.2 to 1.9, 2.2).

Owns the state of every host and feeds transitions.py's table its events. A deterministic
function of what it is told: messages, verdicts, enrolments and times come in, actions go out.
Does no I/O and reads no clock. The form of messages is wire.py's, trust grants.py's, when to
challenge checks.py's, when silence counts leases.py's.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Self

from smartgw_hosts.authentic import authenticate, signer
from smartgw_hosts.challenge import Verdict
from smartgw_hosts.checks import Checks, Tickets
from smartgw_hosts.enrolment import Enrolment
from smartgw_hosts.grants import Grant, Grants, divide
from smartgw_hosts.host import Host
from smartgw_hosts.identity import PublicKey
from smartgw_hosts.leases import Leases
from smartgw_hosts.records import (
    Action,
    AskBus,
    HostRecord,
    HostState,
    Ignored,
    KnownHost,
    PoolSettings,
    Remove,
    Update,
    Verify,
)
from smartgw_hosts.skew import WallClock
from smartgw_hosts.timers import Timers
from smartgw_hosts.transitions import TRANSITIONS, Event
from smartgw_hosts.wire import Description, Kind, Message, Reason, Refused, SignedMessage

_P, _H, _U = HostState.PROVISIONAL, HostState.HEALTHY, HostState.UNHEALTHY

_PARTS = ("tickets", "clock", "grants", "leases", "checks", "move_checks", "removals")
"""What is dumped beside hosts and counters: attributes, each with a dump of its own."""

RECORD_BYTES = 1024
"""What a provisional host costs beyond its message, for the cap in bytes."""


class Pool:
    """The hosts of one cluster. Every method but the questions returns what is to be done.

    `now` is the receiver's monotonic clock, `wall_ms` and `wall_s` its wall clock in ms or
    seconds since the epoch. `counters` has the refused messages by reason, and the apps that
    were refused to their hosts.
    """

    def __init__(self, cluster: str, settings: PoolSettings | None = None) -> None:
        self.cluster = cluster
        self.settings = settings or PoolSettings()
        self.counters: dict[str, int] = dict.fromkeys(Reason, 0)
        self._hosts: dict[str, Host] = {}
        self._grants = Grants(cluster, self.settings.trust)
        self._clock = WallClock(self.settings.skew)
        self._leases = Leases(self.settings.heartbeat * self.settings.missed)
        # Verification of `address`, and of `pending_address` where a host has one. Until the
        # first verdict on that, `address` is not challenged; later, only when its turn comes.
        self._tickets = Tickets()
        self._checks = Checks(self._tickets)
        self._move_checks = Checks(self._tickets)
        self._removals = Timers()
        self._apps: Counter[str] = Counter()
        self._strangers = 0
        self._stranger_bytes = 0
        self._changed: dict[str, None] = {}
        self._out: list[Action] = []

    @classmethod
    def load(cls, cluster: str, settings: PoolSettings, data: Mapping[str, Any]) -> Self:
        """Make the pool that `dump` gave, after JSON or not; it goes on as that one would.

        Raises ValueError, TypeError, LookupError or AttributeError for what is no dump.
        """
        pool = cls(cluster, settings)
        pool.counters = dict(data["counters"])
        for name in _PARTS:
            getattr(pool, f"_{name}").load(data[name])
        for host in map(Host.load, data["hosts"]):
            pool._hosts[host.record.host_id] = host
            pool._strangers += host.cost > 0
            pool._stranger_bytes += host.cost
            pool._recount((), host.record.apps)
        for host_id in pool._grants.host_ids:
            pool._recount((), pool._grants.named_apps(host_id))
        return pool

    # Questions.

    def dump(self) -> Mapping[str, Any]:
        """What is known now: copies of containers, and values that never change (1.9)."""
        parts = {name: getattr(self, f"_{name}").dump() for name in _PARTS}
        hosts = [host.dump() for host in self._hosts.values()]
        return {"counters": dict(self.counters), "hosts": hosts, **parts}

    def records(self) -> list[HostRecord]:
        """All hosts, in the order in which they became known."""
        return [host.record for host in self._hosts.values()]

    def record(self, host_id: str) -> HostRecord | None:
        """One host, or None if it is not known."""
        host = self._hosts.get(host_id)
        return None if host is None else host.record

    def knows_app(self, app_id: str) -> bool:
        """Tell whether `app_id` is enrolled by name, or some host may serve it, in any state."""
        return app_id in self._apps

    def known_apps(self) -> frozenset[str]:
        """All apps for which `knows_app` is true."""
        return frozenset(self._apps)

    def wants(self, ticket: int) -> bool:
        """Tell whether the verdict for a `Verify` would still count: else spare the challenge."""
        return self._checks.valid(ticket) or self._move_checks.valid(ticket)

    def signer(self, claims: Message, now: float, wall_ms: int) -> PublicKey | None:
        """The key of which `receive` will want the signature, as things are; None: of none."""
        host, grant = self._look_up(claims, self._clock.guess(now, wall_ms / 1000))
        try:
            return signer(claims, host, grant)
        except Refused:
            return None

    def idle(self, now: float, wall_s: float) -> bool:
        """Tell whether a `tick` would change nothing and have nothing done."""
        return (
            self._grants.next_expiry(self._clock.believed(now, wall_s)) is None
            and not self._checks.any_due(now)
            and not self._move_checks.any_due(now)
            and (self._leases.on_hold(now) or self._removals.first(now) is None)
            and not self._leases.wants_to_ask(now)
        )

    # What the pool is told.

    def receive(self, signed: SignedMessage, now: float, wall_ms: int) -> list[Action]:
        """Take in one message, or refuse it and count why."""
        try:
            self._take_in(signed, now, wall_ms / 1000)
        except Refused as refused:
            self.counters[refused.reason] += 1
            self._out.append(Ignored(signed.claims.host_id, refused.reason, refused.detail))
        return self._flush()

    def refuse(self, reason: Reason) -> None:
        """Count a message that `wire.decode` refused."""
        self.counters[reason] += 1

    def verdict(self, ticket: int, verdict: Verdict, now: float) -> list[Action]:
        """Take in how the verification of `ticket` ended; a stale one is ignored (2.2)."""
        if (host_id := self._checks.end(ticket)) is not None:
            self._judge(self._hosts[host_id], verdict, now)
        elif (host_id := self._move_checks.end(ticket)) is not None:
            self._judge_move(self._hosts[host_id], verdict, now)
        return self._flush()

    def suspect(self, host_id: str, now: float) -> list[Action]:
        """The host refused a connection: challenge it at once, where it says it is (3.7)."""
        host = self._hosts.get(host_id)
        if host is not None and host.record.state is _H:
            (self._check_move if host.record.pending_address else self._check)(host, now)
        return self._flush()

    def enrol(self, enrolments: Iterable[Enrolment], now: float, wall_s: float) -> list[Action]:
        """Put a whole new enrolment list in force; what it no longer allows ends at once (1.4)."""
        wall = self._clock.believed(now, wall_s)
        for host_id, apps_before in self._grants.replace(enrolments):
            self._recount(apps_before, self._grants.named_apps(host_id))
            self._reconsider(host_id, now, wall)
        return self._flush()

    def restore(self, hosts: Iterable[KnownHost], now: float, wall_s: float) -> list[Action]:
        """Take in the hosts of before a restart, to be told after `enrol` and before the bus.

        Whom the enrolment list no longer has by this key is left out. The others are challenged
        and serve once they have proven themselves; silence counts when the bus is there (11.2).
        """
        self._leases.bus_lost(now)
        wall = self._clock.believed(now, wall_s)
        for known in hosts:
            grant = self._grants.of(known.host_id, known.description.key, wall)
            if (
                known.host_id in self._hosts
                or isinstance(grant, Reason)
                or grant.key != known.description.key
            ):
                continue
            # Any message of this boot is newer than what was stored.
            said = Message(Kind.HEARTBEAT, known.host_id, known.boot, 0, 0, known.description)
            try:
                self._meet(said, known.description, grant, 0, now)
            except Refused as refused:
                self.counters[refused.reason] += 1
                continue
            self._change(self._hosts[known.host_id], reason="restored")
        return self._flush()

    def tick(self, now: float, wall_s: float) -> list[Action]:
        """Do what is due; to be called about once a second."""
        wall = self._clock.believed(now, wall_s)
        while (host_id := self._grants.expired(wall)) is not None:
            self._reconsider(host_id, now, wall)
        while (host_id := self._checks.due(now)) is not None:
            host = self._hosts[host_id]
            if host.record.pending_address is not None and not host.record.pending_reason:
                self._checks.hold(host_id, now)
            # A silent host is not asked again and again: it is when it is heard.
            elif host.record.state is _H or self._leases.fresh(host.heard, now):
                self._check(host, now)
        while (host_id := self._move_checks.due(now)) is not None:
            self._check_move(self._hosts[host_id], now)
        if not self._leases.on_hold(now):
            self._remove_forgotten(now)
        if self._leases.ask(now):
            self._out.append(AskBus())
        return self._flush()

    def bus_lost(self, now: float) -> list[Action]:
        """The bus is away: from now on nothing expires, until it answers (1.7)."""
        self._leases.bus_lost(now)
        return self._flush()

    def bus_answered(self, asked_at: float, now: float) -> list[Action]:
        """The bus answered a PING that was sent at `asked_at` (1.7).

        To be told only after every message that came in before the answer was received.
        """
        was_away = self._leases.bus_away
        for host_id in self._leases.bus_answered(asked_at, now):
            missed = f"missed {self.settings.missed} heartbeats"
            self._move(self._hosts[host_id], Event.LEASE_OVER, "lease_expired", now, missed)
        if was_away and not self._leases.bus_away:
            self._spread_overdue_checks(now)
        return self._flush()

    def stalled(self, seconds: float, now: float) -> list[Action]:
        """We did not run for `seconds`: what hosts said may be lost, or yet to come (1.7).

        To be told before anything else after a stall, and only of those that can cost a message.
        """
        if seconds > 0:
            self._leases.extend(now)
            self._spread_overdue_checks(now)
        return self._flush()

    # Messages.

    def _look_up(self, claims: Message, wall: float) -> tuple[Host | None, Grant]:
        host = self._hosts.get(claims.host_id)
        known = host.record if host is not None else claims.description
        key = None if known is None else known.key
        return host, self._grants.of(claims.host_id, key, wall)

    def _take_in(self, signed: SignedMessage, now: float, wall: float) -> None:
        claims = signed.claims
        host, grant = self._look_up(claims, self._clock.believed(now, wall))
        message = authenticate(signed, host, grant, self._clock, now, wall)
        if host is None:
            if message.description is not None:
                self._meet(message, message.description, grant, signed.size, now)
        elif message.description is not None:
            self._hear(host, message, message.description, grant, signed.size, now)
        else:
            host.sequence, host.heard = message.sequence, now
            self._change(host, boot=message.boot)
            self._move(host, Event.LEFT if host.trusted else Event.FORGOTTEN, "left", now)

    def _meet(
        self, message: Message, described: Description, grant: Grant, size: int, now: float
    ) -> None:
        """A host that was not known: announced, or heard for the first time (1.3)."""
        trusted = isinstance(grant, Enrolment)
        if trusted and self._grants.listed(message.host_id):
            cost = 0
            if len(self._hosts) - self._strangers >= self.settings.max_hosts:
                raise Refused(Reason.TOO_MANY, f"{self.settings.max_hosts} hosts are known")
        else:
            cost = size + RECORD_BYTES
            self._check_room(1, cost)
        record = HostRecord(
            host_id=message.host_id,
            boot=message.boot,
            address=described.address,
            key=described.key,
            apps=(),
            refused_apps=(),
            weight=described.weight,
            region=described.region,
            version=described.version,
            state=_P,
            reason=str(grant) if isinstance(grant, Reason) else "unverified",
            since=now,
        )
        host = self._hosts[message.host_id] = Host(record, described, message.sequence)
        host.trusted = trusted
        self._charge(host, cost)
        self._changed[message.host_id] = None
        self._set_apps(host, grant)
        self._removals.set(message.host_id, self._gone_at(host))
        if trusted:
            self._check(host, now)

    def _hear(
        self,
        host: Host,
        message: Message,
        described: Description,
        grant: Grant,
        size: int,
        now: float,
    ) -> None:
        """A host that is known says how it is."""
        record = host.record
        anew = message.boot != record.boot or described.key != record.key
        known = described == host.description and not anew
        if host.cost and not known:
            self._check_room(0, size + RECORD_BYTES - host.cost)
            self._charge(host, size + RECORD_BYTES)
        host.sequence, host.heard = message.sequence, now
        if record.state is _H:
            self._leases.heard(message.host_id, now)
        if not known:
            host.description = described
            self._change(
                host,
                boot=message.boot,
                key=described.key,
                weight=described.weight,
                region=described.region,
                version=described.version,
            )
            self._set_apps(host, grant)
        if isinstance(grant, Enrolment) and not host.trusted:
            self._trust(host, grant)
        if anew:
            self._checks.void(message.host_id)
            self._drop_move(host)
        self._place(host, described.address, now)
        if host.trusted:
            self._check_if_needed(host, message.kind is Kind.ANNOUNCE, anew, now)

    def _place(self, host: Host, address: str, now: float) -> None:
        """Take note of where the host says it is; what serves goes on serving (2.2)."""
        record = host.record
        if address == (record.pending_address or record.address):
            return
        self._drop_move(host)
        if record.state is not _H:
            # Nothing is routed there, so nothing has to be kept.
            self._checks.void(record.host_id)
            self._change(host, address=address, verified_at=None)
        elif address != record.address:
            self._change(host, pending_address=address)
            # That the host no longer signs for the old address is no fault.
            self._checks.hold(record.host_id, now)

    def _check_if_needed(self, host: Host, announced: bool, anew: bool, now: float) -> None:
        """Verify on re-announce, new boot, change of address, and to leave unhealthy (2.2)."""
        record = host.record
        if record.pending_address is not None:
            if announced or anew or not self._move_checks.under_way(record.host_id):
                self._check_move(host, now)
            return
        if record.state is _H:
            # When the bus comes back all hosts announce at once; their turn comes anyway (1.7).
            calm = self._leases.back_within(self.settings.reverify, now)
            needed = anew or (announced and not calm)
        else:
            needed = anew or announced or not self._checks.under_way(record.host_id)
        if needed:
            self._check(host, now)

    # Verification.

    def _check(self, host: Host, now: float) -> None:
        record = host.record
        if (ticket := self._checks.begin(record.host_id, record.address, now)) is not None:
            self._out.append(Verify(ticket, record.host_id, record.address, record.key))

    def _check_move(self, host: Host, now: float) -> None:
        record, address = host.record, host.record.pending_address
        if address and (ticket := self._move_checks.begin(record.host_id, address, now)):
            self._out.append(Verify(ticket, record.host_id, address, record.key))

    def _judge(self, host: Host, verdict: Verdict, now: float) -> None:
        if verdict.ok:
            self._verified(host, now)
            return
        reason = f"verification: {verdict.reason}"
        self._move(host, Event.DISPROVED, reason, now, verdict.detail)
        if host.record.pending_address is None:
            self._checks.failed(host.record.host_id, now)
        else:
            # Now the new address is the only one; how it is being verified goes on.
            self._settle(host)
            self._change(host, verified_at=None)

    def _judge_move(self, host: Host, verdict: Verdict, now: float) -> None:
        """Only a good verdict for the pending address may touch the one that serves."""
        if verdict.ok:
            self._settle(host)
            self._verified(host, now)
        else:
            self._change(host, pending_reason=f"verification: {verdict.reason}")
            self._move_checks.failed(host.record.host_id, now)

    def _verified(self, host: Host, now: float) -> None:
        if host.record.state is not _H and not self._leases.fresh(host.heard, now):
            # It answers, but has been silent too long: it is asked again when it is heard.
            return
        self._charge(host, 0)
        # No news to anybody who routes, so not told as a change.
        host.record = replace(host.record, verified_at=now)
        self._move(host, Event.VERIFIED, "verified", now)
        self._checks.passed(host.record.host_id, self.settings.reverify, now)

    def _spread_overdue_checks(self, now: float) -> None:
        """Checks that could not be made in time are not made all at once (1.7)."""
        overdue: list[str] = []
        while (host_id := self._checks.due(now)) is not None:
            overdue.append(host_id)
        for host_id in overdue:
            # What waits for a first proof is left to the tick, which looks at expiries before.
            serves = self._hosts[host_id].record.state is _H
            self._checks.put_off(host_id, self.settings.reverify if serves else 0.0, now)

    def _settle(self, host: Host) -> None:
        """The pending address becomes the host's only one, with its checks."""
        address = host.record.pending_address
        self._checks.succeed(host.record.host_id, self._move_checks)
        self._change(host, address=address, pending_address=None, pending_reason="")

    def _drop_move(self, host: Host) -> None:
        if host.record.pending_address is not None:
            self._move_checks.void(host.record.host_id)
            self._change(host, pending_address=None, pending_reason="")

    # Trust.

    def _reconsider(self, host_id: str, now: float, wall: float) -> None:
        """The host's enrolment is another one, or its time is over."""
        host = self._hosts.get(host_id)
        if host is None:
            return
        grant = self._grants.enrolled(host_id, wall)
        if isinstance(grant, Reason):
            if host.trusted:
                host.trusted = False
                self._move(host, Event.UNTRUSTED, str(grant), now)
            elif host.record.state is _P:
                self._change(host, reason=str(grant))
            self._set_apps(host, grant)
        elif grant.key == host.record.key:
            self._trust(host, grant)
            if host.record.state is not _H and self._leases.fresh(host.heard, now):
                self._check(host, now)
        elif host.record.state is _P:
            self._move(host, Event.FORGOTTEN, "", now)
        else:
            detail = f"key {grant.key.key_id} is enrolled"
            self._move(host, Event.UNTRUSTED, str(Reason.KEY_CHANGED), now, detail)
            self._set_apps(host, Reason.KEY_CHANGED)

    def _trust(self, host: Host, grant: Enrolment) -> None:
        """The host's key is enrolled: it has a place of its own and may serve what is granted."""
        host_id = host.record.host_id
        host.trusted = True
        if self._grants.listed(host_id):
            self._grants.watch(host_id)
            self._charge(host, 0)
        if host.record.state is _P:
            self._change(host, reason="unverified")
        self._set_apps(host, grant)

    def _set_apps(self, host: Host, grant: Grant) -> None:
        apps, refused = divide(host.description.apps, grant)
        if isinstance(grant, Enrolment) and refused != host.record.refused_apps:
            self.counters[Reason.APP_REFUSED] += len(refused)
        self._change(host, apps=apps, refused_apps=refused)

    def _check_room(self, number: int, cost: int) -> None:
        """A flood of strangers is refused; nobody who is here makes room for it (1.5)."""
        if (
            self._strangers + number > self.settings.max_provisional
            or self._stranger_bytes + cost > self.settings.max_provisional_bytes
        ):
            raise Refused(Reason.TOO_MANY, f"{self._strangers} hosts are provisional")

    def _charge(self, host: Host, cost: int) -> None:
        """Count the host as provisional for `cost` bytes, or with 0 no more."""
        self._strangers += (cost > 0) - (host.cost > 0)
        self._stranger_bytes += cost - host.cost
        host.cost = cost

    # Changes.

    def _move(self, host: Host, event: Event, reason: str, now: float, detail: str = "") -> None:
        """Make the one step that TRANSITIONS has for this state and event."""
        record = host.record
        state = TRANSITIONS[record.state, event]
        if state is None:
            self._forget(host)
            return
        since = record.since if state is record.state else now
        self._change(host, state=state, reason=reason, since=since, detail=detail)
        if state is _H:
            self._leases.heard(record.host_id, host.heard)
            self._removals.cancel(record.host_id)
            return
        self._leases.drop(record.host_id)
        self._removals.set(record.host_id, self._gone_at(host))
        if event is not Event.DISPROVED:
            self._checks.void(record.host_id)
            self._drop_move(host)

    def _remove_forgotten(self, now: float) -> None:
        while (host_id := self._removals.pop(now)) is not None:
            host = self._hosts[host_id]
            gone_at = self._gone_at(host)
            if gone_at > now:
                # It was heard since; noted only now, because most messages come long before.
                self._removals.set(host_id, gone_at)
            else:
                self._move(host, Event.FORGOTTEN, "", now)

    def _gone_at(self, host: Host) -> float:
        """When a host that serves nothing is forgotten: its time after it was last heard."""
        if host.record.state is _P:
            return host.heard + self.settings.provisional_ttl
        return max(host.record.since, host.heard) + self.settings.unhealthy_ttl

    def _forget(self, host: Host) -> None:
        host_id = host.record.host_id
        self._charge(host, 0)
        self._recount(host.record.apps, ())
        self._leases.drop(host_id)
        self._removals.cancel(host_id)
        self._checks.forget(host_id)
        self._move_checks.forget(host_id)
        del self._hosts[host_id]
        self._changed[host_id] = None

    def _change(self, host: Host, **changes: object) -> None:
        """Replace the record if anything in it becomes another."""
        before = host.record
        after = replace(before, **changes)  # type: ignore[arg-type]  # by name, as replace does
        if after != before:
            self._recount(before.apps, after.apps)
            host.record = after
            self._changed[before.host_id] = None

    def _recount(self, before: tuple[str, ...], after: tuple[str, ...]) -> None:
        """Some entry or host has these apps now instead of those."""
        if before == after:
            return
        self._apps.update(after)
        for app in before:
            self._apps[app] -= 1
            if not self._apps[app]:
                del self._apps[app]

    def _flush(self) -> list[Action]:
        """Hand out what is to be done: one word on each changed host, then the rest in order."""
        if not self._changed and not self._out:
            return []
        actions: list[Action] = []
        for host_id in self._changed:
            host = self._hosts.get(host_id)
            actions.append(Remove(host_id) if host is None else Update(host.record))
        actions += self._out
        self._changed = {}
        self._out = []
        return actions
