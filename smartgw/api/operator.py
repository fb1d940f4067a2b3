"""The token of this machine's operator: a file that only the gateway's own user can read.

Owns its making and its end. Where no issuer is configured it is what lets `smartgw status` and
`smartgw drain` in, without the internal listener being open to whoever reaches it (contract 10.1).
It counts at that listener alone. The file names the listener, so that no other program can have a
command show it the token of this one.
"""

import contextlib
import hmac
import json
import logging
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from smartgw.api.tokens import Caller, Role

FILE_NAME = "operator.json"
_log = logging.getLogger(__name__)


class Operator:
    """`caller` is who the operator is. Attributes: `path` of the file, None while there is none."""

    caller = Caller(Role.SERVICE, "operator", "operator", "operator")

    def __init__(self) -> None:
        self.path: Path | None = None
        self._token = f"smartgw-operator-{secrets.token_urlsafe(32)}"

    def write(self, folders: Sequence[Path], endpoint: str) -> None:
        """Write the file into the first folder that takes it; no harm when none does.

        `endpoint` is the address of the internal listener.
        """
        text = json.dumps({"endpoint": endpoint, "token": self._token}) + "\n"
        for folder in folders:
            try:
                folder.mkdir(mode=0o700, exist_ok=True)
                self.path = _replace(folder / FILE_NAME, text)
                return
            except OSError as error:
                _log.warning(
                    "%s: the operator's token cannot be written (%s)", folder, error.strerror
                )

    def remove(self) -> None:
        """Remove the file, unless it is another generation's by now."""
        path, self.path = self.path, None
        if path is not None:
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                if json.loads(path.read_text())["token"] == self._token:
                    path.unlink()

    def holds(self, fields: Sequence[str]) -> bool:
        """Say whether a request's Authorization fields are the operator's."""
        wanted = f"Bearer {self._token}".encode()
        given = fields[0] if len(fields) == 1 else ""
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), wanted)


def _replace(path: Path, text: str) -> Path:
    """Put a file in place, whole and readable by its owner alone from the first byte on."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.replace(fresh, path)
    return path
