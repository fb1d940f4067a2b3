"""The four authoritative servers that answers are compared with: BIND, NSD, Knot and PowerDNS.

Owns how each is configured to serve a folder of zones on loopback, with what would hide an answer
switched off (rate limits, caches, checks that refuse odd zones). Judges nothing. They come with the
system: bind9, nsd, knot, and pdns-server with pdns-backend-bind.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.query
import dns.rdatatype

from tests.servers import Server, find_binary


class Authoritative(Server):
    """One of the four. Subclasses write its configuration.

    Args:
        zones: master files by the text of their origin.
    """

    def __init__(self, zones: Mapping[str, str]) -> None:
        super().__init__()
        self.zones = {origin: self.folder / f"zone{n}" for n, origin in enumerate(zones)}
        for origin, path in self.zones.items():
            path.write_text(zones[origin])

    def ready(self) -> bool:
        """Whether it answers for its last zone."""
        question = dns.message.make_query(list(self.zones)[-1], "SOA", flags=0)
        with contextlib.suppress(dns.exception.DNSException, OSError):
            found = dns.query.udp(question, "127.0.0.1", 0.5, self.port)
            return bool(found.flags & dns.flags.AA)
        return False

    def write(self, name: str, text: str) -> str:
        """Write a file of its configuration; returns the path."""
        path = self.folder / name
        path.write_text(text)
        return str(path)


def system(name: str) -> str:
    """Return the path of a daemon, which may be where only root looks by default."""
    path = f"/usr/sbin/{name}"
    return path if os.access(path, os.X_OK) else find_binary(name, f"SMARTGW_TEST_{name.upper()}")


class Bind(Authoritative):
    """BIND 9."""

    def command(self) -> list[str]:
        zones = "".join(
            f'zone "{origin}" {{ type primary; file "{path}"; }};\n'
            for origin, path in self.zones.items()
        )
        ignored = ("names primary", "mx", "mx-cname", "srv-cname", "dup-records")
        checks = "".join(f"check-{what} ignore; " for what in ignored)
        conf = self.write(
            "named.conf",
            f"""options {{ directory "{self.folder}"; pid-file none; session-keyfile none;
listen-on port {self.port} {{ 127.0.0.1; }}; listen-on-v6 {{ none; }}; recursion no; notify no;
empty-zones-enable no; dnssec-validation no; {checks} check-integrity no; check-sibling no;
check-wildcard no; allow-transfer {{ none; }}; }};
controls {{ }};
{zones}""",
        )
        return [system("named"), "-g", "-n", "1", "-c", conf]


class Nsd(Authoritative):
    """NSD."""

    def command(self) -> list[str]:
        zones = "".join(
            f'zone:\n  name: "{origin}"\n  zonefile: "{path}"\n'
            for origin, path in self.zones.items()
        )
        conf = self.write(
            "nsd.conf",
            f"""server:
  ip-address: 127.0.0.1@{self.port}
  username: ""
  zonesdir: "{self.folder}"
  database: ""
  pidfile: "{self.folder}/nsd.pid"
  xfrdfile: "{self.folder}/xfrd.state"
  xfrdir: "{self.folder}"
  zonelistfile: "{self.folder}/zone.list"
  cookie-secret-file: "{self.folder}/cookies"
  server-count: 1
  rrl-ratelimit: 0
remote-control:
  control-enable: no
{zones}""",
        )
        return [system("nsd"), "-d", "-c", conf]


class Knot(Authoritative):
    """Knot DNS; `more` are further lines of what holds for each zone."""

    more = ""

    def command(self) -> list[str]:
        zones = "".join(
            f'  - domain: "{origin}"\n    file: "{path}"\n' for origin, path in self.zones.items()
        )
        conf = self.write(
            "knot.conf",
            f"""server:
  rundir: "{self.folder}"
  listen: 127.0.0.1@{self.port}
  udp-workers: 1
  tcp-workers: 1
  background-workers: 1
control:
  listen: "{self.folder}/knot.sock"
database:
  storage: "{self.folder}"
template:
  - id: default
    zonefile-sync: -1
    journal-content: none
    semantic-checks: off
{self.more}zone:
{zones}""",
        )
        return [system("knotd"), "-c", conf]


class Pdns(Authoritative):
    """PowerDNS with its bind backend; `caches` are settings of its caches, here without any."""

    caches = "cache-ttl=0\nquery-cache-ttl=0\nnegquery-cache-ttl=0\n"

    def command(self) -> list[str]:
        zones = "".join(
            f'zone "{origin}" {{ type master; file "{path}"; }};\n'
            for origin, path in self.zones.items()
        )
        named = self.write("zones.conf", zones)
        self.write(
            "pdns.conf",
            f"""launch=bind
bind-config={named}
local-address=127.0.0.1
local-port={self.port}
socket-dir={self.folder}
daemon=no
guardian=no
dname-processing=yes
{self.caches}receiver-threads=1
distributor-threads=1
security-poll-suffix=
""",
        )
        return [system("pdns_server"), f"--config-dir={self.folder}"]


FOUR: Mapping[str, Callable[[Mapping[str, str]], Authoritative]] = {
    "bind": Bind,
    "nsd": Nsd,
    "knot": Knot,
    "pdns": Pdns,
}


@contextlib.contextmanager
def running(zones: Mapping[str, str]) -> Iterator[dict[str, Authoritative]]:
    """Run all four with the same zones; FileNotFoundError names one that is not there."""
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(kind(zones)) for name, kind in FOUR.items()}
