"""failover.py: the table of contract 5, who is asked, for how long, and when to stop."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw.peers.directory import Mode, View
from smartgw.routing.failover import (
    READ,
    SHARE,
    WRITE,
    Attempt,
    Breaker,
    Budget,
    Course,
    Failover,
    Outcome,
    Place,
    Then,
    owner_elsewhere,
)
from smartgw_hosts.clusters import Cluster, ClusterList, Gateway, State

TOTAL = 30.0
_FAILURES = (Outcome.NOTHING, Outcome.REFUSED, Outcome.BROKEN, Outcome.TIMED_OUT)


def view_of(
    *ids: str, here: str = "c1", affinity: bool = True, failover: bool = True, draining: str = ""
) -> View:
    """A fresh view of active clusters, but for one that is draining."""
    clusters = tuple(
        Cluster(
            one,
            (Gateway(f"https://{one}.example", f"{one}.example", 443),),
            (),
            State.DRAINING if one == draining else State.ACTIVE,
            False,
        )
        for one in sorted(ids)
    )
    return View(Mode.FRESH, here, ClusterList(clusters, affinity, failover))


def app_of(view: View, owner: str) -> str:
    """An app that this cluster owns."""
    return next(f"app-{n}" for n in range(1_000) if view.owner(f"app-{n}") == owner)


THREE = view_of("c1", "c2", "c3")
OURS, THEIRS = app_of(THREE, "c1"), app_of(THREE, "c2")


@dataclass
class Run:
    """Plays a request: the outcome of each attempt in turn, each taking `step` seconds."""

    outcomes: Iterable[Outcome]
    view: View = THREE
    app: str = THEIRS
    read: bool = True
    local: bool = True
    again: bool = True
    step: float = 0.01
    failover: Failover = field(default_factory=Failover)
    began: float = 100.0
    attempts: list[Attempt] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    then: Then | None = None

    def play(self) -> "Run":
        now, until = self.began, self.began + TOTAL
        outcomes = iter(self.outcomes)
        course = Course(self.failover, self.view, self.app, read=self.read, total=TOTAL)
        owner = owner_elsewhere(self.view, self.app)
        if owner is None:
            course.after_local(until, made=self.local)
            attempt = course.attempt
        else:
            attempt = course.to_owner(owner, until, now, local=self.local)
        while attempt is not None:
            self.attempts.append(attempt)
            self.times.append(now)
            outcome = next(outcomes, Outcome.ANSWERED)
            now += self.step
            course.end(outcome, now, spoke=outcome in (Outcome.ANSWERED, Outcome.FAILED))
            self.then = course.then(outcome)
            if self.then is not Then.NEXT:
                return self
            sent = outcome not in (Outcome.NOTHING, Outcome.REFUSED)
            attempt = course.next(now, again=self.again, sent=sent)
        return self

    @property
    def asked(self) -> list[str]:
        return [attempt.cluster for attempt in self.attempts]


# ---- the table, row by row ----


@pytest.mark.parametrize("failure", _FAILURES)
@pytest.mark.parametrize("app", [OURS, THEIRS])
def test_a_write_that_failed_goes_to_no_other_cluster(app: str, failure: Outcome) -> None:
    """5, row 1: any method but GET, HEAD, OPTIONS that failed is never sent to another cluster."""
    run = Run([failure], app=app, read=False).play()
    assert run.asked == ["c1" if app == OURS else "c2"]
    assert run.then is Then.END


@pytest.mark.parametrize("failure", _FAILURES)
def test_a_read_that_nobody_serves_here_goes_to_peers(failure: Outcome) -> None:
    """5, row 2: GET, HEAD, OPTIONS with nothing local, or unreachable hosts: peers are tried."""
    order = Failover().order(THREE, OURS)
    run = Run([failure, failure, Outcome.ANSWERED], app=OURS).play()
    assert run.asked == ["c1", *order]
    assert run.then is Then.RETURN


@pytest.mark.parametrize("failure", _FAILURES)
def test_a_read_whose_owner_is_away_is_served_here_first(failure: Outcome) -> None:
    """5, row 3: the owner cannot be reached: the local instance first, then the other peers."""
    assert Run([failure], app=THEIRS).play().asked == ["c2", "c1"]
    assert Run([failure] * 3, app=THEIRS).play().asked == ["c2", "c1", "c3"]


def test_without_a_local_host_the_other_peers_are_next() -> None:
    """5, row 3: where no host of ours serves the app there is no local instance to ask."""
    assert Run([Outcome.REFUSED], app=THEIRS, local=False).play().asked == ["c2", "c3"]


def test_what_a_peer_answers_is_returned() -> None:
    """5, row 4: 2xx, 3xx and 4xx of a peer are returned as they are."""
    for read in (True, False):
        run = Run([Outcome.ANSWERED], read=read).play()
        assert (run.asked, run.then) == (["c2"], Then.RETURN)
    run = Run([Outcome.REFUSED, Outcome.REFUSED, Outcome.ANSWERED]).play()
    assert (run.asked, run.then) == (["c2", "c1", "c3"], Then.RETURN)


def test_a_failover_peer_that_answers_500_is_skipped() -> None:
    """5, row 5: a failover peer answers >= 500: skipped, the next one."""
    view = view_of("c1", "c2", "c3", "c4")
    app = app_of(view, "c1")
    order = Failover().order(view, app)
    run = Run([Outcome.REFUSED, Outcome.FAILED, Outcome.ANSWERED], view=view, app=app).play()
    assert run.asked == ["c1", *order[:2]]
    assert run.then is Then.RETURN


@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize("app", [OURS, THEIRS])
def test_500_of_the_owners_or_the_local_app_is_an_answer(app: str, read: bool) -> None:
    """5, row 6: the owner's app or the local app itself answers >= 500: returned."""
    run = Run([Outcome.FAILED], app=app, read=read).play()
    assert (len(run.asked), run.then) == (1, Then.RETURN)
    run = Run([Outcome.REFUSED, Outcome.FAILED], app=THEIRS).play()
    assert (run.asked, run.then) == (["c2", "c1"], Then.RETURN)


@pytest.mark.parametrize("place", Place)
@pytest.mark.parametrize("table", [READ, WRITE])
def test_of_a_suspended_app_nobody_else_is_asked(
    table: dict[Place, dict[Outcome, Then]], place: Place
) -> None:
    """5, row 7: app retired or suspended: 503, nobody is asked."""
    if place in table:
        assert table[place][Outcome.SUSPENDED] is Then.RETURN


def test_when_nobody_is_left_there_is_no_next() -> None:
    """5, row 8: nobody left: the first failure is the answer."""
    run = Run([Outcome.TIMED_OUT, Outcome.NOTHING, Outcome.REFUSED]).play()
    assert (run.asked, run.then) == (["c2", "c1", "c3"], Then.NEXT)


def test_past_the_deadline_nobody_is_asked() -> None:
    """5, row 9: the deadline passed: no further attempt."""
    run = Run([Outcome.TIMED_OUT] * 3, step=16.0).play()
    assert run.asked == ["c2", "c1"]
    run = Run([Outcome.TIMED_OUT] * 3, step=TOTAL).play()
    assert run.asked == ["c2"]


def test_every_outcome_has_its_meaning_everywhere() -> None:
    """5: the table has no holes; a write has no row for peers, for it goes to none."""
    assert set(READ) == set(Place)
    assert set(WRITE) == {Place.LOCAL, Place.OWNER}
    for row in (*READ.values(), *WRITE.values()):
        assert set(row) == set(Outcome)


# ---- 4.2, 4.4: who is the owner ----


def test_the_owner_is_as_the_list_says() -> None:
    """4.2: a gateway that is not the owner forwards to the owner's."""
    assert owner_elsewhere(THREE, OURS) is None
    assert owner_elsewhere(THREE, THEIRS) == "c2"


def test_without_a_list_or_affinity_the_local_instance_serves() -> None:
    """4.4: the owner is unknown, and 4.2: the switch is off: served here."""
    assert owner_elsewhere(View(Mode.UNKNOWN, "c1"), THEIRS) is None
    assert owner_elsewhere(View(Mode.UNKNOWN, "c1", ClusterList(())), THEIRS) is None
    assert owner_elsewhere(view_of("c1", "c2", "c3", affinity=False), THEIRS) is None


def test_without_failover_the_first_failure_is_the_answer() -> None:
    """4.2: the switch for failover is the directory's."""
    view = view_of("c1", "c2", "c3", failover=False)
    assert Run([Outcome.REFUSED], view=view, app=OURS).play().asked == ["c1"]
    assert Run([Outcome.REFUSED], view=view, app=THEIRS).play().asked == ["c2"]


# ---- 4.8: a marked 421 ----


def test_a_421_of_the_guard_is_followed_once() -> None:
    """4.8: on a marked 421 the newest list's owner gets the request, once."""
    course = Course(Failover(), THREE, OURS, read=False, total=TOTAL)
    course.after_local(30.0, made=True)
    assert course.then(Outcome.MISPLACED) is Then.FOLLOW
    newest = view_of("c2", "c3")
    newer = View(Mode.FRESH, "c1", newest.clusters)
    attempt = course.follow(newer, 30.0, 1.0)
    assert attempt is not None
    assert attempt.place is Place.OWNER
    assert attempt.cluster == course.intended == newer.owner(OURS)
    assert course.then(Outcome.MISPLACED) is Then.END
    assert course.follow(newer, 30.0, 2.0) is None
    assert course.next(2.0) is None


def test_a_421_is_not_followed_to_ourselves_nor_into_the_unknown() -> None:
    """4.8: otherwise 503."""
    for view in (THREE, View(Mode.UNKNOWN, "c1")):
        course = Course(Failover(), THREE, OURS, read=False, total=TOTAL)
        course.after_local(30.0, made=True)
        assert course.follow(view, 30.0, 1.0) is None
    course = Course(Failover(), THREE, OURS, read=False, total=TOTAL)
    course.after_local(30.0, made=True)
    assert course.follow(View(Mode.FRESH, "c1", view_of("c2").clusters), 30.0, 30.0) is None


def test_the_421_of_a_forward_is_not_followed() -> None:
    """4.8: a forward that meets 421: 503."""
    assert READ[Place.OWNER][Outcome.MISPLACED] is WRITE[Place.OWNER][Outcome.MISPLACED] is Then.END


# ---- 5.1: time ----


def test_an_attempt_gets_a_share_while_others_remain() -> None:
    """5.1: at most 40 % of the one deadline while others remain; the last gets what is left."""
    run = Run([Outcome.TIMED_OUT] * 3, step=SHARE * TOTAL).play()
    shares = [attempt.due - now for attempt, now in zip(run.attempts, run.times, strict=True)]
    assert shares == pytest.approx([12.0, 12.0, 6.0])


def test_who_cannot_be_followed_has_the_whole_deadline() -> None:
    """5.1: a write has nobody to leave time for."""
    (attempt,) = Run([Outcome.TIMED_OUT], read=False).play().attempts
    assert attempt.due == 130.0


def test_nobody_is_cut_short_for_nothing() -> None:
    """5.1: when its share is over an attempt goes on, unless somebody else would be asked."""
    failover = Failover()
    course = Course(failover, THREE, THEIRS, read=True, total=TOTAL)
    course.to_owner("c2", 30.0, 0.0, local=True)
    assert course.others(12.0, again=True, sent=True)
    assert not course.others(12.0, again=False, sent=True)
    assert not course.others(30.0, again=True, sent=True)
    while failover.budget.take(12.0):
        pass
    assert not course.others(12.0, again=True, sent=True)
    assert course.others(12.0, again=True, sent=False)
    alone = Course(failover, view_of("c1", "c2"), THEIRS, read=True, total=TOTAL)
    alone.to_owner("c2", 30.0, 0.0, local=False)
    assert not alone.others(12.0, again=True, sent=True)


# ---- 5.2: order, breaker, budget ----


def test_a_dead_clusters_load_spreads() -> None:
    """5.2: peers are ordered by rendezvous hash of (app, cluster)."""
    view, failover = view_of("c1", "c2", "c3", "c4", "c5"), Failover()
    firsts = [failover.order(view, f"app-{n}")[0] for n in range(4_000)]
    counts = [firsts.count(name) for name in ("c2", "c3", "c4", "c5")]
    assert sum(counts) == 4_000
    assert all(900 < count < 1_100 for count in counts)


def test_a_peer_that_comes_or_goes_moves_no_other() -> None:
    """5.2: what distinguishes rendezvous hashing."""
    more, less = view_of("c1", "c2", "c3", "c4", "c5"), view_of("c1", "c2", "c3", "c5")
    for n in range(200):
        app = f"app-{n}"
        before = [name for name in Failover().order(more, app) if name != "c4"]
        assert before == list(Failover().order(less, app))


def test_every_gateway_orders_alike() -> None:
    """5.2: the order depends on app and clusters only."""
    assert Failover().order(view_of("c3", "c2", "c1"), "a") == Failover().order(THREE, "a")


def test_a_draining_peer_is_asked_last() -> None:
    """5.2: a cluster that is about to leave gets no load that another could take."""
    view = view_of("c1", "c2", "c3", "c4", draining="c3")
    assert {Failover().order(view, f"app-{n}")[-1] for n in range(100)} == {"c3"}


def test_orders_are_kept_in_bounded_memory() -> None:
    """House rule: every cache is bounded; and what is kept is of the present view."""
    failover = Failover()
    for n in range(10_000):
        failover.order(THREE, f"app-{n}")
    assert len(failover._orders) <= 4_096
    assert failover.order(view_of("c1", "c2"), "app-1") == ("c2",)


def _fail(breaker: Breaker, now: float, times: int = 1) -> None:
    for _ in range(times):
        breaker.end(breaker.begin(now, "a"), now, now, "a", Outcome.REFUSED, False)


def test_a_peer_that_keeps_failing_is_set_aside_and_tried_again() -> None:
    """5.2: set aside by a circuit breaker; one request on trial after each, longer, term."""
    breaker = Breaker()
    _fail(breaker, 0.0, 4)
    assert breaker.admits(0.0)
    _fail(breaker, 0.0)
    assert breaker.is_open
    now = 0.0
    for term in (1.0, 2.0, 4.0, 8.0, 10.0, 10.0):
        assert not breaker.admits(now + term - 0.001)
        now += term
        assert breaker.admits(now)
        era = breaker.begin(now, "a")
        assert not breaker.admits(now)
        breaker.end(era, now, now, "a", Outcome.REFUSED, False)
    now += 10.0
    breaker.end(breaker.begin(now, "a"), now, now, "a", Outcome.ANSWERED, True)
    assert not breaker.is_open
    _fail(breaker, now, 5)
    assert breaker.admits(now + 1.0)


def test_one_answer_in_between_keeps_a_peer() -> None:
    """5.2: only who keeps failing is set aside."""
    breaker = Breaker()
    for _ in range(10):
        _fail(breaker, 0.0, 4)
        breaker.end(breaker.begin(0.0, "a"), 0.0, 0.0, "a", Outcome.NOTHING, True)
    assert breaker.admits(0.0)


def test_an_app_that_hangs_is_not_a_peer_that_fails() -> None:
    """5.2: nobody sets a cluster aside for all others by one app that never answers."""
    breaker = Breaker()
    for n in range(100):
        assert not breaker.end(
            breaker.begin(n, "hanging"), n, n + 12.0, "hanging", Outcome.TIMED_OUT, False
        )
    assert breaker.admits(200.0)
    for n in range(20):
        for app in ("a", "b", "c", "d", "e", "f"):
            breaker.end(
                breaker.begin(200.0 + n, app), 200.0 + n, 212.0 + n, app, Outcome.TIMED_OUT, False
            )
            breaker.end(
                breaker.begin(212.0 + n, "well"),
                212.0 + n,
                212.0 + n,
                "well",
                Outcome.ANSWERED,
                True,
            )
    assert breaker.admits(240.0)


def test_a_peer_of_which_several_apps_hear_nothing_is_set_aside() -> None:
    """5.2: it keeps failing, whoever asks."""
    breaker = Breaker()
    aside = [
        breaker.end(breaker.begin(0.0, app), 0.0, 12.0, app, Outcome.TIMED_OUT, False)
        for app in "abcde"
    ]
    assert aside == [False, False, False, False, True]
    assert not breaker.admits(12.5)


def test_a_peer_that_answered_meanwhile_does_not_fail() -> None:
    """5.2: as many apps as may be slow there at once, as long as others hear from it."""
    breaker = Breaker()
    slow = [(breaker.begin(0.0, app), app) for app in "abcdefgh"]
    breaker.end(breaker.begin(6.0, "well"), 6.0, 6.0, "well", Outcome.ANSWERED, True)
    assert not any(breaker.end(era, 0.0, 12.0, app, Outcome.TIMED_OUT, False) for era, app in slow)
    for app in "abcde":
        breaker.end(breaker.begin(7.0, app), 7.0, 19.0, app, Outcome.TIMED_OUT, False)
    assert not breaker.admits(19.5)


def test_clients_that_leave_say_nothing_of_a_peer() -> None:
    """5.2: nobody is set aside for what his callers do, and a trial is given again."""
    breaker = Breaker()
    for _ in range(20):
        breaker.end(breaker.begin(0.0, "a"), 0.0, 0.0, "a", None, False)
    assert breaker.admits(0.0)
    _fail(breaker, 0.0, 5)
    breaker.end(breaker.begin(1.0, "a"), 1.0, 1.5, "a", None, False)
    assert breaker.admits(1.5)


def test_what_began_before_a_peer_came_back_does_not_set_it_aside_again() -> None:
    """5.2: the requests that hung while it was away end one by one when it is there again."""
    breaker = Breaker()
    old = [breaker.begin(0.0, "a") for _ in range(20)]
    _fail(breaker, 0.0, 5)
    breaker.end(breaker.begin(1.0, "a"), 1.0, 1.0, "a", Outcome.ANSWERED, True)
    for era in old:
        breaker.end(era, 0.0, 2.0, "a", Outcome.BROKEN, False)
    assert breaker.admits(2.0)


def test_a_write_finds_its_owner_as_soon_as_it_is_back_and_piles_up_nowhere() -> None:
    """5.2, R60: what can go nowhere else tries a peer that is set aside, a few at a time."""
    failover = Failover()
    for _ in range(5):
        Run([Outcome.REFUSED], failover=failover).play()
    assert failover.aside() == ("c2",)
    assert Run([], failover=failover).play().asked == ["c1"]
    courses = {}
    for app in [THEIRS, "another", "a third"] * 20:
        course = Course(failover, THREE, app, read=False, total=TOTAL)
        if course.to_owner("c2", 130.0, 100.1, local=True) is not None:
            courses[course] = app
    assert len(courses) == 8
    next(iter(courses)).end(Outcome.ANSWERED, 100.2, spoke=True)
    assert failover.aside() == ()
    assert Run([], failover=failover).play().asked == ["c2"]


def test_writes_of_one_app_leave_room_to_find_the_peer() -> None:
    """5.2: an app that hangs there keeps no other from seeing that the peer is well."""
    failover = Failover()
    for _ in range(5):
        Run([Outcome.REFUSED], failover=failover).play()

    def writes(app: str) -> list[Course]:
        courses = [Course(failover, THREE, app, read=False, total=TOTAL) for _ in range(20)]
        return [one for one in courses if one.to_owner("c2", 130.0, 100.1, local=True)]

    hanging = writes("hanging")
    assert len(hanging) == 4
    assert len(writes("well")) == 4
    assert not writes("another")
    for course in hanging[:2]:
        course.end(Outcome.TIMED_OUT, 130.0, spoke=False)
    assert len(writes("another")) == 2


def test_a_peer_that_is_set_aside_is_better_than_nobody() -> None:
    """5.2: where all else has failed it is asked all the same."""
    failover = Failover()
    for _ in range(5):
        Run([Outcome.REFUSED], failover=failover).play()
    run = Run([Outcome.REFUSED, Outcome.REFUSED], failover=failover).play()
    assert run.asked == ["c1", "c3", "c2"]


def test_breakers_of_clusters_that_left_are_forgotten() -> None:
    """House rule: a list that changes for ever fills no memory."""
    failover = Failover()
    for n in range(5):
        failover.breaker(f"x{n}")
    failover.breaker("c2")
    failover.keep(THREE)
    assert list(failover._breakers) == ["c2"]


def test_retries_have_a_budget() -> None:
    """5.2: 20 % of the traffic over 10 s, never fewer than 10 a second."""
    budget = Budget()
    assert sum(budget.take(0.5) for _ in range(500)) == 100
    for second in range(1, 10):
        assert sum(budget.take(second + 0.5) for _ in range(500)) == 10
    budget = Budget()
    for n in range(10_000):
        budget.count(2.0 + n / 1_000)
    assert sum(budget.take(11.999) for _ in range(5_000)) == 2_000
    for second in range(12, 21):
        assert sum(budget.take(second + 0.5) for _ in range(5_000)) == 10


def test_traffic_counts_for_ten_seconds() -> None:
    """5.2: what was long ago allows nothing now."""
    for now, allowed in ((9.9, 2_000), (10.0, 100)):
        budget = Budget()
        for _ in range(10_000):
            budget.count(0.0)
        assert sum(budget.take(now) for _ in range(5_000)) == allowed


def test_a_dead_cluster_doubles_no_traffic() -> None:
    """5.2: when the budget is used up the first failure is the answer."""
    failover = Failover()
    made = 0
    for _ in range(1_000):
        failover.budget.count(0.0)
        made += len(Run([Outcome.BROKEN] * 9, app=OURS, failover=failover, began=0.5).play().asked)
    assert made <= 1_210


def test_what_was_not_sent_is_not_sent_again() -> None:
    """5.2, 3.7: a request that nobody took is given to another without a budget: only once is it
    done, so nothing is doubled.
    """
    failover = Failover()
    for _ in range(1_000):
        run = Run([Outcome.REFUSED], app=OURS, failover=failover, began=0.5).play()
        assert len(run.asked) == 2


# ---- properties ----


@st.composite
def requests(draw: st.DrawFn) -> Run:
    ids = draw(st.sets(st.sampled_from([f"c{n}" for n in range(1, 8)]), min_size=1))
    view = view_of(*ids, "c1", affinity=draw(st.booleans()), failover=draw(st.integers(0, 9)) > 0)
    return Run(
        draw(st.lists(st.sampled_from([o for o in Outcome if o is not Outcome.MISPLACED]))),
        view=view,
        app=draw(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)),
        read=draw(st.booleans()),
        local=draw(st.booleans()),
        again=draw(st.booleans()),
        step=draw(st.floats(0, 13)),
    )


@given(st.lists(requests(), min_size=1, max_size=8))
def test_whatever_happens(runs: Sequence[Run]) -> None:
    """5: no write to another cluster than the one it is meant for, no cluster twice, nobody who
    is not in the view, no attempt that begins at or ends behind the deadline, and an end.
    """
    failover = Failover()
    for run in runs:
        run.failover = failover
        run.play()
        asked = run.asked
        intended = owner_elsewhere(run.view, run.app) or "c1"
        assert len(asked) == len(set(asked))
        assert set(asked) <= {"c1", *run.view.peers}
        if not run.read:
            assert asked in ([], [intended])
        if not run.again or not run.view.failover:
            # Where no host is nothing has been sent yet.
            assert len(asked) <= 1 + (not run.local and intended == "c1" and run.view.failover)
        until = run.began + TOTAL
        for attempt, now in zip(run.attempts, run.times, strict=True):
            assert now < until
            assert attempt.due <= until
            if attempt.place is Place.OWNER:
                assert attempt.cluster == intended
        if run.then is Then.RETURN and run.attempts[-1].place is Place.PEER:
            assert run.read
