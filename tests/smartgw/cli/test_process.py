"""What the long-running commands log like."""

import os
import subprocess
import sys


def test_every_line_of_a_message_has_its_time_and_level() -> None:
    """11.1: a fault with several lines is found by its level, line by line."""
    program = (
        "import logging; from smartgw.cli.process import log_to_stderr as log; "
        "log('info', as_json=False); logging.error('one:\\n%s', 'two')"
    )
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, env=os.environ, check=True)
    first, second = done.stderr.splitlines()
    assert first.endswith(" ERROR one:")
    assert second == first.replace("one:", "two")
