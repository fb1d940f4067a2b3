"""The folder of the last good snapshot (contract 11.2).

Owns its files: how a snapshot is written so that a whole one is always there, what becomes of one
that is refused, the generation that was reached, and the identity that signs when no other is
named. One process writes at a time. All calls block; last_good.py says when they are made.
"""

import contextlib
import fcntl
import logging
import os
from pathlib import Path
from typing import Final

from smartgw.state import snapshot
from smartgw.state.snapshot import Contents, Fault, SnapshotRefused
from smartgw_hosts import keyfile
from smartgw_hosts.identity import Identity

KEPT_ASIDE: Final = 5
"""Refused files that are kept to be looked at."""
_SNAPSHOT, _GENERATION, _SEED, _LOCK = "snapshot", "generation", "identity.seed", "lock"
_REMEDIES = {
    Fault.ROLLED_BACK: "to go back on purpose remove the file named generation first",
    Fault.FOREIGN_KEY: "a new identity cannot vouch for the old one's files: expected after a "
    "change of identity.seed_file",
    Fault.FOREIGN_CLUSTER: "give each cluster a state.dir of its own",
}

_log = logging.getLogger(__name__)


class StateFolder:
    """`path` is made when its parent is there. `refused` is why the last `load` gave nothing."""

    def __init__(self, path: Path, cluster: str, seed_file: Path | None = None) -> None:
        self.path = path
        self.refused: Fault | None = None
        self.generation = 0
        self._cluster = cluster
        self._seed_file = seed_file
        self._identity: Identity | None = None
        self._lock: int | None = None

    def load(self) -> Contents | None:
        """Read the snapshot; one that is refused is set aside, with a reason in the log.

        Raises:
            OSError, keyfile.KeyFileError: the folder or the identity cannot be used.
        """
        identity = self._prepare()
        path = self.path / _SNAPSHOT
        self.refused = None
        try:
            with open(path, "rb", opener=keyfile.open_at_once) as file:
                data = file.read(snapshot.MAX_BYTES + 1)
            contents = snapshot.decode(
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

    def write(self, hosts: list[str], time: float) -> None:
        """Put a new snapshot in place of the old one, or leave that as it is.

        Raises:
            OSError, keyfile.KeyFileError: it could not be written.
        """
        identity = self._prepare()
        self._take_lock()
        # Another process may have written since we looked: that of before a handover.
        generation = max(self.generation, self._reached()) + 1
        data = snapshot.encode(
            hosts, cluster=self._cluster, generation=generation, time=time, identity=identity
        )
        self._replace(_SNAPSHOT, data)
        self.generation = generation
        # Second, so that a kill in between leaves a snapshot above the number, not below.
        self._replace(_GENERATION, b"%d\n" % generation)

    def close(self) -> None:
        """Let another process write."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

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
            descriptor = os.open(self.path / _LOCK, flags, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(descriptor)
                raise OSError(error.errno, "another process writes there") from None
            self._lock = descriptor

    def _reached(self) -> int:
        """The highest generation that was written here, 0 when that is not known."""
        try:
            text = (self.path / _GENERATION).read_bytes()[:32].strip()
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
        path = self.path / _SNAPSHOT
        remedy = _REMEDIES.get(fault, "hosts will be known when the bus tells of them")
        prefix = f"{_SNAPSHOT}.refused-"
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
