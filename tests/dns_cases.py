"""Questions with the right answer: `python -m tests.dns_cases FILE.jsonl`, or
`python -m tests.dns_cases --queries FILE.tsv --zone FILE`.

Two forms. In the first each line has a zone, a question and all that authoritative servers agree
on: rcode, AA and three sections (FerretDataset of dns-groot). In the second all questions go to
one zone, and only rcode and answer are known. Ends with `N passed, N failed`.
"""

import argparse
import asyncio
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import dns.flags
import dns.message
import dns.name
import dns.query
import dns.rcode
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from smartgw_dns import master
from smartgw_dns.catalog import Catalog
from smartgw_dns.lookup import Answer, Owned
from smartgw_dns.names import wire_of
from smartgw_dns.respond import Responder
from smartgw_dns.server import Server, bind

# Between two records of an answer; rdata may have a `;` too.
_BETWEEN = re.compile(r";(?=[A-Z][A-Z0-9]*:)")
# Owner, TTL, type, rdata; names in lower case.
Record = tuple[str, int, str, bytes]


@dataclass(frozen=True, slots=True)
class Response:
    """What was answered, whoever was asked; a section is the set of its records."""

    rcode: str
    authoritative: bool
    answer: frozenset[Record]
    authority: frozenset[Record]
    additional: frozenset[Record]


@dataclass(frozen=True, slots=True)
class Case:
    """A question to a zone, and the answer that is right.

    Attributes:
        rcodes: those that are right.
        answer, authority, additional: None where anything is right; the answer of the second form
            has type and rdata alone.
    """

    name: str
    zone: str
    qname: dns.name.Name
    rdtype: dns.rdatatype.RdataType
    rcodes: frozenset[str]
    authoritative: bool | None
    answer: frozenset[Record] | frozenset[tuple[str, bytes]] | None
    authority: frozenset[Record] | None = None
    additional: frozenset[Record] | None = None


Ask = Callable[[Case], Response]


def records(rrsets: Iterable[dns.rrset.RRset]) -> frozenset[Record]:
    """Return the records of rrsets in the form that they are compared in."""
    return frozenset(
        (
            rrset.name.to_text().lower(),
            rrset.ttl,
            dns.rdatatype.to_text(rrset.rdtype),
            rdata.to_digestable(),
        )
        for rrset in rrsets
        for rdata in rrset
    )


def record(line: str) -> Record:
    """Read `owner TTL IN TYPE rdata`."""
    owner, ttl, _, rdtype, text = line.split(" ", 4)
    rdata = dns.rdata.from_text(dns.rdataclass.IN, rdtype, text)
    return owner.lower(), int(ttl), rdtype, rdata.to_digestable()


def ferret_cases(path: Path) -> Iterator[Case]:
    """Read the first form."""
    for line in path.read_text().splitlines():
        found = json.loads(line)
        yield Case(
            f"{found['id']} {found['qname']} {found['qtype']}",
            found["zone"],
            dns.name.from_text(found["qname"]),
            dns.rdatatype.from_text(found["qtype"]),
            frozenset({found["rcode"]}),
            "AA" in found["flags"],
            frozenset(map(record, found["answer"])),
            frozenset(map(record, found["authority"])),
            frozenset(map(record, found["additional"])),
        )


def query_cases(path: Path, zone: Path) -> Iterator[Case]:
    """Read the second form."""
    text = zone.read_text()
    for line in path.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        qname, rdtype, rcodes, answer, *_ = [*line.split("\t"), ""]
        parts = [part.split(":", 1) for part in _BETWEEN.split(answer) if part]
        wanted = frozenset(
            (kind, dns.rdata.from_text(dns.rdataclass.IN, kind, rdata).to_digestable())
            for kind, rdata in parts
        )
        yield Case(
            f"{qname} {rdtype}",
            text,
            dns.name.from_text(qname),
            dns.rdatatype.from_text(rdtype),
            frozenset(rcodes.split("|")),
            None,
            None if answer == "*" else wanted,
        )


class Core:
    """Asks the lookup core; the zone of a case is read once for all cases that follow with it."""

    def __init__(self) -> None:
        self.text = ""
        self.catalog = Catalog()

    def __call__(self, case: Case) -> Response:
        """Answer the question of a case."""
        if case.zone != self.text:
            self.read(case.zone)
        return response(self.catalog.lookup(case.qname, case.rdtype))

    def read(self, text: str) -> None:
        """Take a zone."""
        self.text, self.catalog = text, Catalog.of([master.read(text, apex(text))])


def apex(text: str) -> bytes | None:
    """Return whose zone it is where a record says so in full and the SOA is not the first."""
    owners = (line.split()[0] for line in text.splitlines() if " IN SOA " in line)
    owner = next(owners, "@")
    return wire_of(dns.name.from_text(owner)) if owner.endswith(".") else None


class Wire:
    """Asks a server of ours over UDP, and over TCP what did not fit."""

    def __init__(self) -> None:
        self.core = Core()
        self.responder = Responder(bytes(32), 0, time.time)
        self._started = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        self._started.wait(10)

    async def _serve(self) -> None:
        server = Server(self.responder, [bind("127.0.0.1", 0)])
        await server.start()
        self.address, self.port = server.addresses[0]
        self._started.set()
        await asyncio.Event().wait()

    def __call__(self, case: Case) -> Response:
        """Answer the question of a case."""
        if case.zone != self.core.text:
            self.core.read(case.zone)
            self.responder.catalog = self.core.catalog
        query = dns.message.make_query(case.qname, case.rdtype, flags=0, payload=1232)
        if case.rdtype == dns.rdatatype.ANY:
            # Whoever has not shown that he is there gets no more than he sent.
            got = dns.query.tcp(query, self.address, 5, self.port)
        else:
            got, _ = dns.query.udp_with_fallback(query, self.address, 5, self.port)
        return Response(
            dns.rcode.to_text(got.rcode()),
            bool(got.flags & dns.flags.AA),
            *(records(section) for section in (got.answer, got.authority, got.additional)),
        )


def response(answer: Answer) -> Response:
    """Return what the lookup core answers in the form that it is compared in."""
    return Response(
        dns.rcode.to_text(dns.rcode.Rcode(answer.rcode)),
        answer.authoritative,
        *(_section(s) for s in (answer.answer, answer.authority, answer.additional)),
    )


def _section(owned: Iterable[Owned]) -> frozenset[Record]:
    return records(found for each in owned for found in each.to_dnspython())


def faults(case: Case, got: Response) -> list[str]:
    """Return in what an answer differs from the right one."""
    found = []
    if got.rcode not in case.rcodes:
        found.append(f"rcode {got.rcode}, not {'|'.join(sorted(case.rcodes))}")
    if case.authoritative not in (None, got.authoritative):
        found.append(f"AA {got.authoritative}")
    answer = got.answer if case.authoritative is not None else {r[2:] for r in got.answer}
    for section, wanted, have in (
        ("answer", case.answer, answer),
        ("authority", case.authority, got.authority),
        ("additional", case.additional, got.additional),
    ):
        if wanted is not None and wanted != have:
            found.append(f"{section} lacks {sorted(wanted - have)}, has {sorted(have - wanted)}")
    return found


def run(cases: Iterable[Case], ask: Ask) -> tuple[int, int]:
    """Ask all questions, say what is wrong; returns how many passed and failed."""
    passed = failed = 0
    for case in cases:
        try:
            wrong = faults(case, ask(case))
        except master.MasterRefused as refused:
            wrong = [f"the zone is refused: {refused}"]
        passed, failed = passed + (not wrong), failed + bool(wrong)
        for line in wrong:
            print(f"{case.name}: {line}")
    return passed, failed


def main(argv: Sequence[str]) -> int:
    """Run the cases of a file; 0 when all passed."""
    parser = argparse.ArgumentParser("dns_cases", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, nargs="?", help="cases with a zone each, JSON lines")
    parser.add_argument("--queries", type=Path, help="questions to one zone, tab-separated")
    parser.add_argument("--zone", type=Path, help="the master file of that zone")
    parser.add_argument("--udp", action="store_true", help="ask a server of ours, not its core")
    args = parser.parse_args(argv)
    if args.file:
        cases = ferret_cases(args.file)
    elif args.queries and args.zone:
        cases = query_cases(args.queries, args.zone)
    else:
        parser.error("name a file of cases, or --queries and --zone")
    passed, failed = run(cases, Wire() if args.udp else Core())
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
