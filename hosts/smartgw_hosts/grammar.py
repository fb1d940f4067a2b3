"""What all parts of an HTTP/1 head have in common: bytes, tokens, bounds, and how one is refused.

Owns which bytes may stand in a line and in a token (RFC 9110 5.5, 5.6.2). What a head means is
http1.py's.
"""

# RFC 9110 5.5: HTAB, SP, VCHAR and obs-text may stand in a line; CR and LF only between lines.
LINE_BYTES = bytes([9, *range(32, 127), *range(128, 256)])
_TOKEN_BYTES = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class MessageRefused(Exception):
    """A message that breaks the grammar or a bound.

    Attributes:
        status: the answer it deserves when it is a request; a response that is refused is a 502.
        reason: what was wrong, in words for a person; never holds bytes of the message.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Bounds:
    """How large a head may be: bytes in all, fields, bytes of one field line, bytes of a target."""

    __slots__ = ("field_line", "fields", "head", "target")

    def __init__(
        self, head: int = 32_768, fields: int = 100, field_line: int = 16_384, target: int = 8_192
    ) -> None:
        self.head = head
        self.fields = fields
        self.field_line = min(field_line, head)
        self.target = target


def is_token(text: bytes) -> bool:
    """Say whether text is a token of RFC 9110 5.6.2."""
    return bool(text) and not text.translate(None, _TOKEN_BYTES)
