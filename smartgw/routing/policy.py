"""What the platform has decided about an app: its state, its CORS origins, its request limit.

Owns the value that a route carries (contract 3.4, 3.9, 6.1) and what holds for an app of which
nothing was said. Who may write it is the control plane's, what follows of it the path's.
"""

from dataclasses import dataclass
from enum import StrEnum


class AppState(StrEnum):
    """Whether an app is served (contract 3.4)."""

    ACTIVE = "active"
    SUSPENDED = "suspended"
    RETIRED = "retired"


@dataclass(frozen=True)  # no slots: see snapshot.py
class AppPolicy:
    """What holds for one app.

    Attributes:
        origins: serialised origins that may read its answers, compared exactly (contract 3.9).
        own_cors: the app answers preflights and sets its CORS fields itself.
        limit: requests of one caller in 60 s, None for the gateway's default (contract 6.1).
    """

    state: AppState = AppState.ACTIVE
    origins: frozenset[bytes] = frozenset()
    own_cors: bool = False
    limit: int | None = None


DEFAULT_POLICY = AppPolicy()
