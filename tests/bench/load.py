"""The load: how wrk is called and what it says, and the same for our WebSocket client.

Owns the command lines and the reading of the results. What is asked is in cases.py.
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.bench.cases import ECHO_HOSTNAME, HOSTNAME, Case

_UNITS = {"us": 1.0, "ms": 1e3, "s": 1e6, "m": 60e6, "h": 3600e6}
_TIMEOUT = "10s"
ROOT = Path(__file__).parents[2]


class LoadFailed(Exception):
    """The load generator did not give a result; the text is what it printed."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a run of load has seen; `errors` counts answers other than 2xx and socket errors."""

    requests: int
    rps: float
    p50_us: float
    p99_us: float
    errors: int


def parse_wrk(text: str) -> Result:
    """Read what `wrk --latency` prints. Raises LoadFailed when a figure is missing."""

    def figure(pattern: str) -> str:
        match = re.search(pattern, text, re.MULTILINE)
        if match is None:
            raise LoadFailed(text.strip() or "wrk printed nothing")
        return match[1]

    errors = sum(map(int, re.findall(r"Non-2xx or 3xx responses: (\d+)", text)))
    for line in re.findall(r"Socket errors: (.*)", text):
        errors += sum(map(int, re.findall(r"\d+", line)))
    return Result(
        requests=int(figure(r"^\s*(\d+) requests in ")),
        rps=float(figure(r"^Requests/sec:\s+([\d.]+)")),
        p50_us=microseconds(figure(r"^\s+50%\s+(\S+)")),
        p99_us=microseconds(figure(r"^\s+99%\s+(\S+)")),
        errors=errors,
    )


def microseconds(text: str) -> float:
    """Read a time as wrk writes it: `71.00us`, `1.20ms`, `2.00s`, `1.00m`."""
    match = re.fullmatch(r"([\d.]+)(us|ms|s|m|h)", text)
    if match is None:
        raise LoadFailed(f"not a time of wrk: {text}")
    return float(match[1]) * _UNITS[match[2]]


def wrk_command(case: Case, port: int, seconds: int, script: Path | None) -> list[str]:
    """The call of wrk: one thread, since it has one core, which it shares with the upstream."""
    fields = (f"Host: {HOSTNAME}", *case.fields)
    return [
        *("wrk", "-t1", f"-c{case.connections}", f"-d{seconds}s", "--latency"),
        *("--timeout", _TIMEOUT),
        *(word for field in fields for word in ("-H", field)),
        *(("-s", str(script)) if script else ()),
        f"http://127.0.0.1:{port}{case.path}",
    ]


def post_script(size: int) -> str:
    """A script for wrk that posts `size` bytes."""
    return f'wrk.method = "POST"\nwrk.body = string.rep("x", {size})\n'


def rotation_script(hostnames: Sequence[str]) -> str:
    """A script for wrk that asks the hostnames in an order that no cache can follow.

    The requests are made before the start, so that the load costs as much for 10 as for 10,000.
    """
    names = ",".join(f'"{name}"' for name in hostnames)
    return f"""\
local names = {{{names}}}
local requests, place = {{}}, 0
function init(args)
  math.randomseed(1)
  for i = #names, 2, -1 do
    local j = math.random(i)
    names[i], names[j] = names[j], names[i]
  end
  for i, name in ipairs(names) do
    wrk.headers["Host"] = name
    requests[i] = wrk.format()
  end
end
function request()
  place = place % #requests + 1
  return requests[place]
end
"""


def run(case: Case, port: int, seconds: int, script: Path | None) -> Result:
    """Load one proxy once. Raises LoadFailed."""
    if case.websocket:
        command = [
            *(sys.executable, "-m", "tests.bench.websocket", ECHO_HOSTNAME),
            *(str(port), str(case.connections), str(seconds)),
        ]
    else:
        command = wrk_command(case, port, seconds, script)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds + 30, cwd=ROOT
        )
    except subprocess.TimeoutExpired:
        raise LoadFailed(f"{command[0]} did not end within {seconds + 30} s") from None
    if done.returncode:
        raise LoadFailed(done.stderr.strip()[-1000:] or f"{command[0]} ended {done.returncode}")
    return read_result(done.stdout) if case.websocket else parse_wrk(done.stdout)


def write_result(result: Result) -> str:
    """One line for `read_result`."""
    return json.dumps(asdict(result))


def read_result(text: str) -> Result:
    """Read what `write_result` made. Raises LoadFailed for anything else."""
    try:
        return Result(**json.loads(text))
    except (ValueError, TypeError):
        raise LoadFailed(text.strip()[-1000:] or "no result") from None
