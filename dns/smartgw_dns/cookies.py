"""DNS cookies: a client that shows ours is where it says it is (RFC 7873, RFC 9018).

Owns how a server cookie is made and for how long it is taken. Its form is that of RFC 9018, its
hash a keyed BLAKE2s in the place of SipHash: only whoever made a cookie reads it, and all processes
that share the secret take each other's.
"""

import hashlib
import hmac

CLIENT_BYTES = 8
SERVER_BYTES = 16
_VERSION = b"\x01\0\0\0"
_HASH_BYTES = 8
# RFC 9018 4.3: taken for an hour, and five minutes ahead of us. Every answer brings a new one.
_MOST_AGE, _MOST_AHEAD = 3_600, 300


def server_cookie(secret: bytes, client: bytes, address: bytes, now: int) -> bytes:
    """Return the server cookie for a client's.

    Args:
        secret: 32 bytes.
        client: the client cookie, 8 bytes.
        address: the client's IP address, as text or packed: the same each time.
        now: unix seconds.
    """
    stamp = (now & 0xFFFFFFFF).to_bytes(4, "big")
    return _VERSION + stamp + _hash(secret, client, address, _VERSION + stamp)


def is_ours(secret: bytes, cookie: bytes, address: bytes, now: int) -> bool:
    """Say whether a whole cookie, client's and server's part, was given to this address lately."""
    if len(cookie) != CLIENT_BYTES + SERVER_BYTES:
        return False
    client, head, told = cookie[:8], cookie[8:16], cookie[16:]
    age = (now - int.from_bytes(head[4:], "big") + (1 << 31)) % (1 << 32) - (1 << 31)
    if head[:4] != _VERSION or not -_MOST_AHEAD <= age <= _MOST_AGE:
        return False
    return hmac.compare_digest(told, _hash(secret, client, address, head))


def _hash(secret: bytes, client: bytes, address: bytes, head: bytes) -> bytes:
    data = client + head + address
    return hashlib.blake2s(data, key=secret, digest_size=_HASH_BYTES, person=b"dnscooki").digest()
