"""JSON from a stranger, read in one way only.

Owns what we take for a JSON object: whatever two readers could understand differently
(duplicate members, NaN, numbers out of range, lone surrogates, a byte order mark) is
refused. Does not limit the size, nor look at the members: the caller does, before and after.
"""

import json
import math


def parse_object(data: bytes) -> dict[str, object]:
    """Read one JSON object (RFC 8259, with the limits of RFC 7493); raises ValueError only."""
    try:
        value: object = _DECODER.decode(data.decode("utf-8"))
        # Only an escape can bring in a lone surrogate; writing finds it wherever it hides.
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except UnicodeEncodeError:
        raise ValueError("has a lone surrogate") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("has a member twice")
    return members


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("has a number out of range")
    return value


def _no_constant(text: str) -> float:
    raise ValueError(f"has {text}, which is not JSON")


# Made once: `json.loads` would make one for every message.
_DECODER = json.JSONDecoder(
    object_pairs_hook=_no_duplicates, parse_float=_finite, parse_constant=_no_constant
)
