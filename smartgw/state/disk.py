"""The folder of what outlives a restart (contract 11.2).

Owns its files: how one is written so that a whole one is always there, what becomes of one that is
refused, the generation that was reached, and the identity that signs when no other is named. One
process writes at a time. All calls block; keeping.py says when they are made.
"""

import contextlib
import fcntl
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from smartgw.state.sealed import Fault, SnapshotRefused, Stamp
from smartgw_hosts import keyfile
from smartgw_hosts.identity import Identity, PublicKey

KEPT_ASIDE: Final = 5
"""Refused files that are kept to be looked at."""
_SEED = "identity.seed"
_REMEDIES = {
    Fault.ROLLED_BACK: "to go back on purpose remove the file named {generation} first",
    Fault.FOREIGN_KEY: "a new identity cannot vouch for the old one's files: expected after a "
    "change of identity.seed_file",
    Fault.FOREIGN_CLUSTER: "give each cluster a state.dir of its own",
}

_log = logging.getLogger(__name__)


class Generation(Protocol):
    """What a file says, whatever else."""

    @property
    def generation(self) -> int: ...


T_co = TypeVar("T_co", bound=Generation, covariant=True)


class Decode(Protocol[T_co]):
    """Reads a file; raises SnapshotRefused. `seen` is the highest generation reached."""

    def __call__(self, data: bytes, *, cluster: str, key: PublicKey, seen: int) -> T_co: ...


@dataclass(frozen=True, slots=True)
class Kind(Generic[T_co]):
    """One of the files. `prefix` begins the names of what belongs to it, `lost` says what makes up
    for it when it is refused.
    """

    name: str
    prefix: str
    most: int
    decode: Decode[T_co]
    lost: str


Encode = Callable[[Stamp, Identity], bytes]


class StateFolder(Generic[T_co]):
    """A folder, for one kind of file in it. `path` is made when its parent is there. `refused` is
    why the last `load` gave nothing.
    """

    def __init__(
        self, path: Path, cluster: str, kind: Kind[T_co], seed_file: Path | None = None
    ) -> None:
        self.path = path
        self._kind = kind
        self.refused: Fault | None = None
        self.generation = 0
        self._cluster = cluster
        self._seed_file = seed_file
        self._identity: Identity | None = None
        self._lock: int | None = None

    def load(self) -> T_co | None:
        """Read the file; one that is refused is set aside, with a reason in the log.

        Raises:
            OSError, keyfile.KeyFileError: the folder or the identity cannot be used.
        """
        identity = self._prepare()
        path = self.path / self._kind.name
        self.refused = None
        try:
            with open(path, "rb", opener=keyfile.open_at_once) as file:
                data = file.read(self._kind.most + 1)
            contents = self._kind.decode(
                data,
                cluster=self._cluster,
                key=identity.public_key,
                seen=self._reached(),
            )
        except FileNotFoundError:
            return None
        except SnapshotRefused as refused:
            self._set_aside(refused.fault, str(refused))
            return None
        except OSError as error:
            self._set_aside(Fault.UNREADABLE, f"cannot be read ({error.strerror})")
            return None
        self.generation = contents.generation
        return contents

    def write(self, encode: Encode, time: float) -> None:
        """Put a new file in place of the old one, or leave that as it is.

        Raises:
            OSError, keyfile.KeyFileError: it could not be written.
        """
        identity = self._prepare()
        self._take_lock()
        # Another process may have written since we looked: that of before a handover.
        generation = max(self.generation, self._reached()) + 1
        data = encode(Stamp(self._cluster, generation, time), identity)
        self._replace(self._kind.name, data)
        self.generation = generation
        # Second, so that a kill in between leaves a file above the number, not below.
        self._replace(self._generation_file, b"%d\n" % generation)

    def close(self) -> None:
        """Let another process write."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def name(self) -> str:
        """Of the file."""
        return self._kind.name

    @property
    def _generation_file(self) -> str:
        return f"{self._kind.prefix}generation"

    def _prepare(self) -> Identity:
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
        if self._identity is None:
            path = self._seed_file or self.path / _SEED
            if self._seed_file is None and not path.exists():
                self._identity = self._make_identity(path)
            else:
                self._identity = keyfile.load(path)
        return self._identity

    def _make_identity(self, path: Path) -> Identity:
        # Under another name first: a kill must not leave half a key in the way of every start.
        fresh = path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        identity = keyfile.generate(fresh)
        os.replace(fresh, path)
        _log.info(
            "state: made an identity for this gateway, key id %s, in %s; "
            "name one with identity.seed_file to share it between the gateways of a cluster",
            identity.public_key.key_id,
            path,
        )
        return identity

    def _take_lock(self) -> None:
        if self._lock is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(self.path / f"{self._kind.prefix}lock", flags, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(descriptor)
                raise OSError(error.errno, "another process writes there") from None
            self._lock = descriptor

    def _reached(self) -> int:
        """The highest generation that was written here, 0 when that is not known."""
        try:
            text = (self.path / self._generation_file).read_bytes()[:32].strip()
        except OSError:
            return 0
        return int(text) if text.isdigit() else 0

    def _replace(self, name: str, data: bytes) -> None:
        """Write a whole file before it takes the name, so that no reader sees a half."""
        fresh = self.path / f"{name}.new"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            with os.fdopen(os.open(fresh, flags, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, self.path / name)
        except OSError:
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _set_aside(self, fault: Fault, text: str) -> None:
        """Keep a refused file for whoever wants to know, out of the way of the next."""
        self.refused = fault
        path = self.path / self._kind.name
        remedy = _REMEDIES.get(fault, self._kind.lost).format(generation=self._generation_file)
        prefix = f"{self._kind.name}.refused-"
        try:
            aside = {_number(name): name for name in os.listdir(self.path) if prefix in name}
            number = max(aside, default=0) + 1
            kept = self.path / f"{prefix}{fault}-{number}"
            os.replace(path, kept)
            _log.error("%s: refused, %s; kept as %s; %s", path, text, kept.name, remedy)
            for old in sorted(aside)[: max(0, len(aside) + 1 - KEPT_ASIDE)]:
                (self.path / aside[old]).unlink()
        except OSError as error:
            _log.error(
                "%s: refused, %s; cannot be set aside (%s); %s", path, text, error.strerror, remedy
            )


def _number(name: str) -> int:
    digits = name.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdigit() else 0
