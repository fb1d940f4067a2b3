"""How a gateway leaves without losing a request: phases and when each ends (contract 11.1).

Owns the order: not ready, stop accepting, finish what is in flight, send the long-lived away,
close. Does none of it: the steps go out as values, time and open connections come in.
"""

from enum import StrEnum

LEAVING_SECONDS = 2.0
"""Of the time to drain, how much is left to those who are told to go away (at most a fifth)."""
SETTLE_SECONDS = 0.2
"""After the last accept a connection may be taken but not counted yet."""


class Phase(StrEnum):
    """Where a gateway is on its way out."""

    SERVING = "serving"
    UNREADY = "unready"
    DRAINING = "draining"
    LEAVING = "leaving"
    DRAINED = "drained"


class Step(StrEnum):
    """What to do now.

    RETIRE: every answer says `Connection: close` from now on. STOP: accept nobody any more.
    RELEASE: let go of the listening sockets, for it is final. SEND_AWAY: close idle connections,
    tell WebSockets to go away. CUT: end what is still open. RESUME: accept again, and keep
    connections again.
    """

    RETIRE = "retire"
    STOP = "stop"
    RELEASE = "release"
    SEND_AWAY = "send_away"
    CUT = "cut"
    RESUME = "resume"

    @property
    def told(self) -> str:
        """The step in words, for the log."""
        return _TOLD[self]


_TOLD = {
    Step.RETIRE: "not ready any more; each answer ends its connection",
    Step.STOP: "accepting no more connections; finishing what is in flight",
    Step.RELEASE: "the listening sockets are let go",
    Step.SEND_AWAY: "closing idle connections and WebSockets",
    Step.CUT: "ending what is still open",
    Step.RESUME: "in use again",
}


class Drain:
    """Begin, undo, and ask what is due; times are monotonic seconds.

    Attributes:
        phase: where it is.
        final: it ends with the process and cannot be undone.
    """

    __slots__ = ("_drain", "_stopped_at", "_unready_wait", "_until", "final", "phase")

    def __init__(self, unready_wait: float, drain: float) -> None:
        self._unready_wait = unready_wait
        self._drain = drain
        self._until = 0.0
        self._stopped_at = 0.0
        self.phase = Phase.SERVING
        self.final = False

    def begin(self, now: float, *, wait: bool = True, final: bool = False) -> list[Step]:
        """Begin to leave. `wait` false: at once, for nobody has to learn that we are not ready.

        Begun already: only what was not final may become so, and a wait may be cut short.
        """
        steps: list[Step] = []
        if final and not self.final and self.phase not in (Phase.SERVING, Phase.UNREADY):
            steps.append(Step.RELEASE)
        self.final = self.final or final
        if self.phase is Phase.SERVING:
            self.phase = Phase.UNREADY
            self._until = now + self._unready_wait
            steps.append(Step.RETIRE)
        if self.phase is Phase.UNREADY and not wait:
            self._until = now
        return steps + self.tick(now, 1)

    def undo(self) -> list[Step]:
        """Serve again; nothing to do when it has not begun or is final."""
        if self.final or self.phase is Phase.SERVING:
            return []
        self.phase = Phase.SERVING
        return [Step.RESUME]

    def tick(self, now: float, connections: int) -> list[Step]:
        """Return what is due, with that many connections of clients still open."""
        steps: list[Step] = []
        if self.phase is Phase.UNREADY and now >= self._until:
            self.phase = Phase.DRAINING
            self._stopped_at, self._until = now, now + self._drain
            steps += [Step.STOP, Step.RELEASE] if self.final else [Step.STOP]
        if self.phase in (Phase.DRAINING, Phase.LEAVING):
            if not connections and now >= self._stopped_at + SETTLE_SECONDS:
                self.phase = Phase.DRAINED
            elif now >= self._until:
                self.phase = Phase.DRAINED
                steps.append(Step.CUT)
            elif self.phase is Phase.DRAINING and now >= self._until - min(
                LEAVING_SECONDS, self._drain / 5
            ):
                self.phase = Phase.LEAVING
                steps.append(Step.SEND_AWAY)
        return steps
