"""A host's private key in a file.

Owns the file's form (`smartgw-seed:` and the seed in base64url) and who may read it: its
owner alone. Never overwrites one, and never repairs its permissions: a key that others could
read may have been read.
"""

import os
import stat
from pathlib import Path

from nacl.utils import random

from smartgw_hosts.identity import SEED_BYTES, Identity, decode64, encode64

_PREFIX = "smartgw-seed:"
_MOST_BYTES = 256


class KeyFileError(Exception):
    """A key file that could not be used: says which, what is wrong and what to do."""


def generate(path: str | Path) -> Identity:
    """Make a key and a new file for it, mode 0600; raises KeyFileError when it exists."""
    seed = random(SEED_BYTES)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise KeyFileError(
            f"{path}: exists, and a key is never overwritten; `smartgw keygen --show {path}` tells "
            "its public key (its entry too, with --host, --app and --cluster); "
            "for a new key move it away or choose another name"
        ) from None
    except OSError as error:
        raise KeyFileError(f"{path}: cannot be created ({error.strerror})") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(f"{_PREFIX}{encode64(seed)}\n".encode("ascii"))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        # A file without a whole key would only be in the way of the next attempt.
        os.unlink(path)
        raise KeyFileError(f"{path}: cannot be written ({error.strerror})") from None
    return Identity.from_seed(seed)


def load(path: str | Path) -> Identity:
    """Read a key file; raises KeyFileError when it is not one, or others could read it."""
    try:
        with open(path, "rb", opener=open_at_once) as file:
            # Asked of the open file, so that what is judged is what is read.
            _check_mode(path, os.fstat(file.fileno()).st_mode)
            content = file.read(_MOST_BYTES)
    except OSError as error:
        raise KeyFileError(
            f"{path}: cannot be read ({error.strerror}); make a key with `smartgw keygen`"
        ) from None
    try:
        return Identity.from_seed(_seed(content.decode("ascii")))
    except ValueError:
        # The cause is left out, and its context too: either could show a part of the seed.
        pass
    raise KeyFileError(
        f"{path}: not a key file (one line, {_PREFIX} and 43 characters of base64url); "
        "restore it, or make a new key with `smartgw keygen` and enrol that"
    )


def open_at_once(path: str, flags: int) -> int:
    """Open without blocking, so that a FIFO in the file's place is refused, not waited for."""
    return os.open(path, flags | os.O_NONBLOCK)


def _check_mode(path: str | Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise KeyFileError(f"{path}: not a file; name the file that `smartgw keygen` made")
    if mode & 0o077:
        raise KeyFileError(
            f"{path}: open to group or others (mode {stat.S_IMODE(mode):04o}); "
            f"run `chmod 600 {path}`, and make a new key if anyone may have read this one"
        )


def _seed(content: str) -> bytes:
    line = content.removesuffix("\n")
    if not line.startswith(_PREFIX):
        raise ValueError("no prefix")
    return decode64(line.removeprefix(_PREFIX))
