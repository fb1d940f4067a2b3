"""Domain names as bytes in wire form, which a zone is keyed by and a packet holds already.

Owns the two forms of a name: `wire` as written (RFC 1035 3.1, uncompressed), and `key`, the same in
lower case, by which names are the same (RFC 4343). Lower case is safe for the whole of it: a length
octet is at most 63, below "A". Does not parse packets, nor presentation form (dnspython does).
"""

import dns.name

ROOT = b"\0"
ASTERISK = b"\x01*"
LONGEST = 255  # octets of a name, RFC 1035 2.3.4


def wire_of(name: dns.name.Name) -> bytes:
    """Return the wire form of an absolute name, its case kept; ValueError where it is relative."""
    if not name.is_absolute():
        raise ValueError(f"the name {name} is not absolute")
    return b"".join(bytes((len(label),)) + label for label in name.labels)


def key_of(name: dns.name.Name) -> bytes:
    """Return the key of an absolute name; ValueError where it is relative."""
    return wire_of(name).lower()


def name_of(wire: bytes) -> dns.name.Name:
    """Return the name of a wire form or key."""
    return dns.name.from_wire(wire, 0)[0]


def text_of(wire: bytes) -> str:
    """Return the presentation form, absolute, escaped as RFC 1035 5.1 says."""
    return name_of(wire).to_text()


def parent(wire: bytes) -> bytes:
    """Return the name without its first label; the root has no parent."""
    return wire[wire[0] + 1 :]


def starts(wire: bytes) -> list[int]:
    """Return where each label of a name begins, its first label first, without the root."""
    found, at = [], 0
    while length := wire[at]:
        found.append(at)
        at += length + 1
    return found


def within(key: bytes, top: bytes) -> bool:
    """Tell whether a name is `top` or below it."""
    at = len(key) - len(top)
    return at >= 0 and key.endswith(top) and (at == 0 or at in starts(key) or top == ROOT)


def order(key: bytes) -> tuple[bytes, ...]:
    """Return what to sort names by: the canonical order (RFC 4034 6.1)."""
    return tuple(key[at + 1 : at + 1 + key[at]] for at in reversed(starts(key)))
