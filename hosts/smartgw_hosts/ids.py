"""What a cluster, host, gateway or app may be called.

Owns the grammar of ids, so that nothing else has to ask whether one is safe in a NATS
subject, a log line or a file name. Does not know which ids exist, and never repairs one:
ids are compared and hashed exactly as given.
"""

import re
import unicodedata

ID_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
"""Cluster, host and gateway ids ("Ids" of the contract)."""

APP_ID_BYTES = 256

_ID = re.compile(ID_PATTERN)
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


def check_id(what: str, value: object) -> str:
    """Give back `value`, a cluster, host or gateway id; `what` names it in the error.

    Raises ValueError for anything that is not a string of the form `ID_PATTERN`.
    """
    # fullmatch, because `$` would let a newline through.
    if isinstance(value, str) and _ID.fullmatch(value):
        return value
    raise ValueError(f"{what} {_shown(value)}: must match {ID_PATTERN}")


def check_app_id(value: object) -> str:
    """Give back `value`, an app id: 1 to 256 bytes of UTF-8 without control characters.

    Raises ValueError for anything else, lone surrogates included.
    """
    if not isinstance(value, str):
        raise ValueError(f"app id {_shown(value)}: must be a string")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"app id {_shown(value)}: must be UTF-8 (has a lone surrogate)") from None
    if not 1 <= size <= APP_ID_BYTES:
        raise ValueError(f"app id {_shown(value)}: must be 1 to {APP_ID_BYTES} bytes, is {size}")
    if any(unicodedata.category(character) == "Cc" for character in value):
        raise ValueError(f"app id {_shown(value)}: must not have control characters")
    return value


def dns_label(text: str) -> bool:
    """Tell whether `text` is one LDH label (RFC 5890 2.3.1), 1 to 63 octets, in any case."""
    return _LABEL.fullmatch(text) is not None


def _shown(value: object) -> str:
    """A short, printable, ASCII form: the value comes from outside and ends in a log line."""
    if not isinstance(value, str):
        return f"of type {type(value).__name__}"
    return ascii(value if len(value) <= 80 else value[:77] + "...")
