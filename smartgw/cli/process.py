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


def log_to_stderr(level: str, *, as_json: bool) -> None:
    """Log from `level` on, as lines for a person or as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _JsonLines() if as_json else logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler])


def open_many_files() -> None:
    """Raise the limit of open files as far as it goes: a connection costs one on each side."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def cancel_on_signal() -> None:
    """Let SIGTERM and Ctrl-C cancel the task that calls this."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    signals = (signal.SIGTERM, signal.SIGINT)

    def end() -> None:
        # The next signal has its plain effect: whoever cannot wait need not.
        for number in signals:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        task.cancel()

    for number in signals:
        loop.add_signal_handler(number, end)
