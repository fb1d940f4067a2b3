"""Who may be a host, as the operator says it (contract 1.4).

Owns the form of the enrolment list and which apps an entry allows. Trust comes from here and
never from an announcement. Does not read files (enrolment_file.py), and leaves the expiry to
the pool, which knows the time.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from smartgw_hosts.identity import PublicKey
from smartgw_hosts.ids import check_app_id, check_id

_REQUIRED = ("id", "key", "cluster", "apps")
_MEMBERS = (*_REQUIRED, "expires")


class EnrolmentError(ValueError):
    """An enrolment list that must not come into force; `problems` has a line for each fault."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Enrolment:
    """One host's enrolment.

    `apps` are app ids in which each `*` stands for any characters, none too; nothing else is
    special, and case counts. `expires` is in seconds since the epoch, None for never.
    """

    host_id: str
    key: PublicKey
    cluster: str
    apps: tuple[str, ...]
    expires: float | None = None

    def allows(self, app: str) -> bool:
        """Tell whether this host may serve `app`."""
        return any(_matches(pattern, app) for pattern in self.apps)

    @property
    def exact_apps(self) -> tuple[str, ...]:
        """The apps that are enrolled by their very id: known before any host announces them."""
        return tuple(app for app in self.apps if "*" not in app)


def parse(text: str) -> tuple[Enrolment, ...]:
    """Read an enrolment list: TOML, one `[[host]]` an entry, in the order of the file.

    Raises EnrolmentError with a line for each entry at fault: its number (from 1), the member,
    what is wrong, what would be right. One fault refuses the whole list, so that no half of
    one comes into force.
    """
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise EnrolmentError(f"not TOML: {error}") from None
    entries = document.pop("host", [])
    problems = [f"{name!a}: unknown; a list has only [[host]] entries" for name in document]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise EnrolmentError(*problems, "host: must be written [[host]], once for each host")
    enrolments: list[Enrolment] = []
    numbers: dict[str, int] = {}
    for number, entry in enumerate(entries, 1):
        try:
            enrolment = _read(entry)
            first = numbers.setdefault(enrolment.host_id, number)
            if first != number:
                raise ValueError(f"id: {enrolment.host_id} has entry {first}; keep one of the two")
        except ValueError as error:
            problems.append(f"entry {number}: {error}")
        else:
            enrolments.append(enrolment)
    if problems:
        raise EnrolmentError(*problems)
    return tuple(enrolments)


def _read(entry: Mapping[str, object]) -> Enrolment:
    """Read one entry; raises ValueError whose text begins with the member."""
    for name in entry:
        # A misspelt `expires` that was passed over would enrol a host for ever.
        if name not in _MEMBERS:
            raise ValueError(f"{name!a}: unknown; an entry has {', '.join(_MEMBERS)}")
    for name in _REQUIRED:
        if name not in entry:
            raise ValueError(f"{name}: missing; an entry needs {', '.join(_REQUIRED)}")
    return Enrolment(
        host_id=check_id("id:", entry["id"]),
        key=_key(entry["key"]),
        cluster=check_id("cluster:", entry["cluster"]),
        apps=_apps(entry["apps"]),
        expires=_expires(entry.get("expires")),
    )


def _key(value: object) -> PublicKey:
    if not isinstance(value, str):
        raise ValueError('key: must be a string, "ed25519:..." as `smartgw keygen` prints it')
    try:
        return PublicKey.parse(value)
    except ValueError as error:
        raise ValueError(f"key: {error}; copy it as `smartgw keygen` printed it") from None


def _apps(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError('apps: must be a list of app ids, "*" for any characters: ["shop-*"]')
    try:
        return tuple(check_app_id(app) for app in value)
    except ValueError as error:
        raise ValueError(f"apps: {error}") from None


def _expires(value: object) -> float | None:
    if value is None:
        return None
    # Without an offset it would end at another moment on each machine.
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError(
            "expires: must be a time with an offset, without quotes: 2027-01-01T00:00:00Z"
        )
    return value.timestamp()


def _matches(pattern: str, app: str) -> bool:
    """Match with `*` for any characters, in time linear in both: each part's first place will do.

    fnmatch would read `?` and `[` too, which app ids may have in them, and a regular expression
    of many stars can be made to take for ever.
    """
    first, *parts = pattern.split("*")
    if not parts:
        return pattern == app
    *middle, last = parts
    if len(app) < len(first) + len(last) or not (app.startswith(first) and app.endswith(last)):
        return False
    place, end = len(first), len(app) - len(last)
    for part in middle:
        place = app.find(part, place, end)
        if place < 0:
            return False
        place += len(part)
    return True
