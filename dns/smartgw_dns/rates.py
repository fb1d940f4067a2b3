"""Response-rate limiting: how many like answers the network of an address gets in a second.

Owns that decision. A flood of questions with a forged address makes us send answers to a victim:
beyond the rate every second answer is left out and the others are cut short, so that a real client
can come back over TCP, where an address cannot be forged. Does not know what an answer is.
"""

from collections.abc import Hashable
from enum import Enum, auto


class Verdict(Enum):
    """What to send."""

    ANSWER = auto()
    TRUNCATED = auto()
    NOTHING = auto()


_ANSWER, _TRUNCATED, _NOTHING = Verdict.ANSWER, Verdict.TRUNCATED, Verdict.NOTHING
_GROUPS, _GROUPS_OF_NETWORK = 8, 4
# Networks and answers of one second that are told apart; beyond it all are taken for new.
_MOST_KEPT = 200_000


class Rates:
    """Counts answers; `rate` a second for each network and answer, 0: no limit."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.limited = 0
        self._second = 0
        self._counts: dict[tuple[str, Hashable], int] = {}

    def judge(self, address: str, account: Hashable, now: float) -> Verdict:
        """Say what may be sent to an address.

        Args:
            account: what the answer is, so that like ones are counted together: for a wildcard
                or a missing name the place that decides, not the name that was asked for.
            now: seconds of any clock.
        """
        if not self.rate:
            return _ANSWER
        second = int(now)
        counts = self._counts
        if second != self._second or len(counts) >= _MOST_KEPT:
            self._second = second
            counts.clear()
        key = (network(address), account)
        count = counts.get(key, 0) + 1
        counts[key] = count
        if count <= self.rate:
            return _ANSWER
        self.limited += 1
        return _TRUNCATED if count & 1 else _NOTHING


def network(address: str) -> str:
    """Return what stands for all addresses of one network: an IPv4 /24, an IPv6 /56."""
    if ":" not in address:
        return address.rpartition(".")[0]
    if "." in address:  # an IPv4 address in an IPv6 socket
        return address.rpartition(":")[2].rpartition(".")[0]
    head, _, tail = address.partition("::")
    groups = head.split(":") if head else []
    if len(groups) < _GROUPS_OF_NETWORK:
        behind = tail.split(":") if tail else []
        groups += ["0"] * (_GROUPS - len(groups) - len(behind)) + behind
    *first, last = groups[:_GROUPS_OF_NETWORK]
    return f"{':'.join(first)}:{int(last, 16) >> 8:x}"
