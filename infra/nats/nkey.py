"""Make an NKey for a user of the bus: `python infra/nats/nkey.py FILE`.

Owns nothing but the two halves' places: the seed (SU...) goes into FILE, which only its owner can
read and which must not exist; the public key (U...), for nats.conf, is printed.
"""

import os
import sys

import nkeys


def main(argv: list[str]) -> int:
    """Make one key; returns an exit code."""
    if len(argv) != 1 or argv[0].startswith("-"):
        print("usage: python infra/nats/nkey.py FILE", file=sys.stderr)
        return 2
    seed: bytes = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    try:
        descriptor = os.open(argv[0], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        print(f"nkey: {argv[0]}: {error.strerror}", file=sys.stderr)
        return 1
    with os.fdopen(descriptor, "wb") as file:
        file.write(seed + b"\n")
    print(nkeys.from_seed(bytearray(seed)).public_key.decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
