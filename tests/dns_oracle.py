"""Generated zones asked of BIND, NSD, Knot and PowerDNS, and of us: `python -m tests.dns_oracle
[--zones 500] [--seed 1]`.

Owns the generator and what agreement is: where all four say the same of a part of the answer, we
say that too. Where they disagree, docs/dns.md tells whom we follow. Ends with the figures; fails on
any difference.
"""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import dns.flags
import dns.message
import dns.name
import dns.query
import dns.rcode
import dns.rdatatype

from smartgw_dns import master
from smartgw_dns.catalog import Catalog
from tests.dns_cases import Record, Response, records, response
from tests.dns_servers import FOUR, running

LABELS = ("a", "b", "c", "d", "*", "Ab", "_x")
DATA = ("A", "AAAA", "TXT", "MX", "SRV", "CAA", "CNAME", "DNAME", "NS", "DS")
# Most of DS comes to nothing: only a cut has it.
WEIGHTS = (6, 2, 3, 2, 1, 1, 5, 2, 5, 12)
ASKED = ("A", "AAAA", "TXT", "NS", "CNAME", "DNAME", "MX", "DS", "SOA", "TYPE65280")
QUESTIONS = 40


@dataclass(frozen=True, slots=True)
class Generated:
    """A zone and what to ask it.

    Attributes:
        origin: as text.
        text: its master file.
        questions: name and type.
    """

    origin: str
    text: str
    questions: tuple[tuple[str, str], ...]


def generate(seed: int, number: int) -> Generated:
    """Make a zone that all four load, full of what lookups get wrong."""
    chance = random.Random(f"{seed}/{number}")
    origin = f"z{number}.test."
    names = [_name(chance, origin) for _ in range(chance.randint(1, 7))]
    # Names above and below others are where cuts, encloser and empty names come from.
    names += [f"{chance.choice(LABELS)}.{chance.choice(names)}" for _ in range(3)]
    held: dict[str, dict[str, list[str]]] = {
        origin: {"SOA": [_SOA], "NS": ["ns.elsewhere.example."]}
    }
    if chance.random() < 0.5:
        # BIND loads no zone whose own name server has no address.
        held[origin]["NS"].append(f"ns1.{origin}")
        held[f"ns1.{origin}"] = {"A": ["192.0.2.254"]}
    for _ in range(chance.randint(4, 20)):
        owner = chance.choice([*names, *names, origin])
        rdtype = chance.choices(DATA, WEIGHTS)[0]
        if _fits(held, owner.lower(), rdtype, origin):
            rdatas = held.setdefault(owner.lower(), {}).setdefault(rdtype, [])
            rdata = _rdata(chance, rdtype, [*names, origin])
            if rdata not in rdatas:
                rdatas.append(rdata)
    lines = [
        f"{owner} {600 if rdtype == 'SOA' else 300} IN {rdtype} {rdata}\n"
        for owner, types in held.items()
        for rdtype, rdatas in types.items()
        for rdata in rdatas
    ]
    return Generated(origin, "".join(lines), tuple(_questions(chance, [*names, origin], origin)))


_SOA = "ns1.elsewhere.example. root.elsewhere.example. 1 7200 900 1209600 60"


def _name(chance: random.Random, origin: str) -> str:
    labels = [chance.choice(LABELS) for _ in range(chance.choice((1, 1, 1, 2, 2, 3)))]
    return ".".join([*labels, origin])


def _fits(held: dict[str, dict[str, list[str]]], owner: str, rdtype: str, origin: str) -> bool:
    """Tell whether all four load a zone with this added; each refuses some that we take."""
    there = set(held.get(owner, {}))
    if "CNAME" in there or (rdtype == "CNAME" and there):
        return False
    if rdtype == "DNAME" and "DNAME" in there:
        return False
    if {"NS", "DNAME"} <= there | {rdtype} and owner != origin:
        return False
    if rdtype == "DS" and (owner == origin or "NS" not in there):
        return False
    # BIND loads no zone with a wildcard NS, nor one whose own name servers have no address; NSD and
    # Knot none with names below a DNAME.
    if rdtype == "NS" and (owner.startswith("*") or owner == origin):
        return False
    if rdtype == "DNAME" and any(o.endswith(f".{owner}") for o in held):
        return False
    return not any("DNAME" in types and owner.endswith(f".{o}") for o, types in held.items())


def _rdata(chance: random.Random, rdtype: str, names: Sequence[str]) -> str:
    target = chance.choice([*names, *names, "out.example.", f"x.{chance.choice(names)}"])
    number = chance.randint(1, 250)
    return {
        "A": f"192.0.2.{number}",
        "AAAA": f"2001:db8::{number:x}",
        "TXT": f'"{number}"',
        "MX": f"{number} {target}",
        "SRV": f"1 {number} 443 {target}",
        "CAA": f'0 issue "ca{number}.example"',
        "DS": f"{number} 13 2 {number:064x}",
    }.get(rdtype, target)


def _questions(
    chance: random.Random, names: Sequence[str], origin: str
) -> Iterator[tuple[str, str]]:
    for _ in range(QUESTIONS):
        name = chance.choice(names)
        kind = chance.random()
        if kind < 0.3:
            name = f"{chance.choice((*LABELS, 'new'))}.{name}"
        elif kind < 0.4:
            name = f"new.{chance.choice(LABELS)}.{name}"
        elif kind < 0.5 and name != origin:
            name = name.partition(".")[2]
        yield name, chance.choice(ASKED)


def ask(port: int, qname: str, rdtype: str) -> Response:
    """Ask one of the four, over TCP where UDP was too small."""
    question = dns.message.make_query(qname, rdtype, flags=0)
    found, _ = dns.query.udp_with_fallback(question, "127.0.0.1", 5, port)
    return Response(
        dns.rcode.to_text(found.rcode()),
        bool(found.flags & dns.flags.AA),
        *map(records, (found.answer, found.authority, found.additional)),
    )


def differences(four: Sequence[Response], ours: Response) -> Iterator[tuple[str, str, str]]:
    """Walk the parts of an answer on which all four agree and we do not: part, theirs, ours."""
    for part in ("rcode", "authoritative", "answer", "authority", "additional"):
        theirs = {getattr(response, part) for response in four}
        if len(theirs) == 1 and getattr(ours, part) not in theirs:
            yield part, _shown(theirs.pop()), _shown(getattr(ours, part))


def _shown(value: str | bool | frozenset[Record]) -> str:
    if isinstance(value, frozenset):
        return ", ".join(sorted(f"{owner} {ttl} {kind}" for owner, ttl, kind, _ in value))
    return str(value)


def main(argv: Sequence[str]) -> int:
    """Compare; 0 where there is no difference."""
    parser = argparse.ArgumentParser("dns_oracle", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--zones", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    zones = [generate(args.seed, number) for number in range(args.zones)]
    catalog = Catalog.of(master.read(zone.text, most_records=1_000) for zone in zones)
    agreed: Counter[str] = Counter()
    found = asked = 0
    with running({zone.origin: zone.text for zone in zones}) as servers:
        for zone in zones:
            for kind, server in servers.items():
                if not ask(server.port, zone.origin, "SOA").answer:
                    raise SystemExit(f"{kind} did not load\n{zone.text}")
            for qname, rdtype in zone.questions:
                asked += 1
                four = [ask(server.port, qname, rdtype) for server in servers.values()]
                name = dns.name.from_text(qname)
                ours = response(catalog.lookup(name, dns.rdatatype.from_text(rdtype)))
                for part in ("rcode", "authoritative", "answer", "authority", "additional"):
                    agreed[part] += len({getattr(response, part) for response in four}) == 1
                for part, theirs, mine in differences(four, ours):
                    found += 1
                    print(f"{qname} {rdtype} {part}: theirs [{theirs}], ours [{mine}]\n{zone.text}")
    print(f"{args.zones} zones, {asked} questions; {len(FOUR)} servers agree on {dict(agreed)}")
    print(f"{found} differences from what all four say")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
