"""Which settings a running gateway takes in, and which need a new generation (contract 11.1).

Owns the list. Reading the file is config.py's, putting settings in force is each part's own.
"""

from collections.abc import Mapping
from typing import Any

FIXED = (
    ("cluster",),
    ("gateway",),
    ("listen",),
    ("bus",),
    ("trust", "mode"),
    ("discovery",),
    ("state",),
    ("apps",),
    ("identity",),
    ("rates", "window"),
    ("rates", "callers"),
    ("store",),
    ("dns",),
    ("log", "access"),
    ("log", "audit"),
    ("processes", "workers"),
    ("processes", "handover"),
)
"""Settings that sockets, ids, the bus or the pool were made with."""

Values = Mapping[str, Any]


def merge(current: Values, wanted: Values) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the settings to put in force, and the dotted keys that stay as they are.

    Both are whole dumps of settings: tables of values. A section of FIXED stays as a whole.
    """
    merged: dict[str, Any] = {
        name: dict(value) if isinstance(value, Mapping) else value for name, value in wanted.items()
    }
    kept: list[str] = []
    for name, *rest in FIXED:
        if not rest:
            if merged[name] != current[name]:
                kept.extend(_changed(name, current[name], merged[name]))
                merged[name] = current[name]
        elif merged[name][rest[0]] != current[name][rest[0]]:
            kept.append(f"{name}.{rest[0]}")
            merged[name][rest[0]] = current[name][rest[0]]
    return merged, tuple(kept)


def _changed(name: str, current: Any, wanted: Any) -> list[str]:
    if not isinstance(current, Mapping):
        return [name]
    return [f"{name}.{key}" for key in current if current[key] != wanted.get(key)]
