"""What the long-running commands, `serve` and `host`, need of their process.

Owns the form of what they log, the limit of open files and what a signal does. Nothing here
knows what a command runs.
"""

import asyncio
import json
import logging
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from smartgw_hosts.quiet_log import QuietLog


class _JsonLines(logging.Formatter):
    """One JSON object a record."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


class _Lines(logging.Formatter):
    """Every line of a message begins with its time and level, so that each can be looked for."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        whole, lines = record.message, []
        for record.message in whole.splitlines() or [""]:
            lines.append(super().formatMessage(record))
        record.message = whole
        return "\n".join(lines)


def log_to_stderr(level: str, *, as_json: bool) -> None:
    """Log from `level` on, as lines for a person or as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _JsonLines() if as_json else _Lines("%(asctime)s %(levelname)s %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler])


def quiet_loop(logger: logging.Logger) -> None:
    """Have the running loop log what its callbacks raise once a kind in half a minute.

    What a client or a lack of memory causes once, it causes a thousand times a second.
    """
    say = QuietLog(30.0, logger)

    def told(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        # Where memory is short, even the message may be missing.
        text = str(context.get("message", "a callback failed"))
        say(logging.ERROR, f"loop {type(error).__name__}", text, error=error)

    asyncio.get_running_loop().set_exception_handler(told)


def open_many_files() -> None:
    """Raise the limit of open files as far as it goes: a connection costs one on each side."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def cancel_on_signal() -> None:
    """Let SIGTERM and Ctrl-C cancel the task that calls this."""
    task = asyncio.current_task()
    assert task is not None
    on_end(lambda number: task.cancel())


def on_end(end: Callable[[int], object]) -> None:
    """Call `end` with the first SIGTERM or SIGINT; the next one has its plain effect, for
    whoever cannot wait need not.
    """
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)

    def first(number: int) -> None:
        for each in signals:
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)
        end(number)

    for number in signals:
        loop.add_signal_handler(number, first, number)
