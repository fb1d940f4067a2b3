"""`dig` and `kdig` with all that an authoritative server meets, asked of us and of Knot:
`python -m tests.dns_beside [PATTERN ...]`.

Owns what is asked, and which differences are meant, each with its reason (docs/dns.md has them in
words). Prints the others, then the figures; fails on any difference that is not meant, and on a
reason that explains nothing any more. They come with bind9-dnsutils, knot-dnsutils and knot.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from tests.dns_cases import Wire
from tests.dns_servers import Knot
from tests.servers import find_binary

ZONE = Path(__file__).parent / "data/dns/smart-app.test.zone"
ORIGIN = "smart-app.test"
# Every option is one of the tool's own; @ stands for the zone.
COMMANDS = f"""
dig @ SOA
dig @ SOA +norec
dig @ SOA +tcp
dig @ SOA -b 127.0.0.2
dig x.@ A
dig x.@ A +noedns
dig x.@ A +nocookie
dig x.@ A +edns=1
dig x.@ A +edns=1 +noednsneg
dig x.@ A +edns=255 +noednsneg +tcp
dig x.@ A +bufsize=0
dig x.@ A +bufsize=512
dig big.@ TXT +bufsize=512 +ignore
dig big.@ TXT +noedns +ignore
dig big.@ TXT +bufsize=512
dig big.@ TXT +bufsize=65535 +ignore
dig big.@ TXT +tcp
dig X.sMaRt-ApP.TeSt A
dig mAiL.sMaRt-ApP.TeSt A +noedns
dig NX.ExPlIcIt.sMaRt-ApP.TeSt A
dig x.@ A +nsid
dig x.@ A +nsid +tcp
dig x.@ A +subnet=192.0.2.0/24
dig x.@ A +subnet=0.0.0.0/0
dig x.@ A +subnet=2001:db8::/56
dig x.@ A +padding=128
dig x.@ A +padding=128 +tcp
dig x.@ A +keepalive
dig x.@ A +keepalive +tcp
dig x.@ A +keepopen +tcp @ MX +keepopen +tcp
dig x.@ A +expire
dig @ SOA +expire
dig x.@ A +dnssec
dig x.@ A +cd
dig x.@ A +cd +norec
dig x.@ A +ad
dig x.@ A +noad
dig x.@ A +aaflag
dig x.@ A +tcflag
dig x.@ A +raflag
dig x.@ A +zflag
dig x.@ A +ednsflags=0x4000
dig x.@ A +ednsflags=0xffff
dig x.@ A +coflag
dig x.@ A +ednsopt=65001:abcd
dig x.@ A +ednsopt=10:abcd +nocookie
dig x.@ A +ednsopt=10:0102030405060708090a0b0c0d0e0f +nocookie
dig x.@ A +ednsopt=8:abcd
dig x.@ A +ednsopt=11:0001 +tcp
dig x.@ A +ednsopt=15:0001
dig x.@ A +cookie=0123456789abcdef
dig x.@ A +cookie=0123456789abcdef0123456789abcdef
dig x.@ A +cookie=0123456789abcdef0123456789abcdef0123456789abcdef +tcp
dig x.@ A +header-only
dig x.@ A +header-only +nocookie
dig x.@ A +header-only +noedns
dig x.@ A +opcode=1
dig x.@ A +opcode=status
dig @ SOA +opcode=notify
dig @ SOA +opcode=update
dig x.@ A +opcode=update
dig x.@ A +opcode=6
dig x.@ A +opcode=15 +tcp
dig x.@ A +qid=0
dig @ ANY +tcp
dig @ ANY +notcp
dig @ ANY +notcp +ignore
dig x.dn.@ ANY +tcp
dig alias.@ ANY +tcp
dig nx.explicit.@ ANY +notcp
dig @ AXFR
dig x.@ AXFR
dig other.test AXFR
dig @ IXFR=1
dig @ IXFR=1 +notcp
dig @ TYPE65280
dig @ TYPE0
dig @ OPT
dig @ TSIG
dig @ TKEY
dig @ MAILB
dig @ MAILA
dig @ TYPE128
dig @ TYPE200
dig @ TYPE65535
dig @ RRSIG
dig @ DNSKEY
dig @ NSEC
dig @ NSEC3PARAM
dig @ CDS
dig @ DS
dig @ NULL
dig @ HTTPS
dig version.bind CH TXT
dig version.server CH TXT
dig id.server CH TXT
dig hostname.bind CH TXT
dig authors.bind CH TXT
dig @ CH SOA
dig @ HS SOA
dig -c ANY @ SOA
dig -c NONE @ SOA
dig -c CLASS2 @ SOA
dig . NS
dig . A
dig test A
dig example.org A
dig org SOA +tcp
dig -x 192.0.2.1
dig -x 2001:db8::1
dig a.b.sub.@ A
dig sub.@ DS
dig sub.@ NS +tcp
dig sub.@ A +dnssec
dig ns.sub.@ AAAA
dig nx.explicit.@ A
dig nx.explicit.@ A +dnssec
dig x.y.@ A
dig ent.@ A
dig b.ent.@ A
dig alias.@ A
dig loop1.@ A
dig chain0.@ A
dig cnx.@ A
dig out.@ A
dig x.dn.@ A
dig y.dn.@ A
dig dn.@ A
dig dn.@ DNAME
dig x.dn.@ CNAME
dig v\\\\.dot.@ A
dig \\\\000\\\\255.@ A
dig {"a" * 63}.@ A
dig {"a." * 60}@ A
dig -y hmac-sha256:key.:c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0 @ SOA
dig -y hmac-sha256:key.:c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0 @ SOA +tcp +noedns
dig -y hmac-sha256:key.:c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0 @ AXFR
dig @ SOA +tcp +nsid +dnssec +subnet=192.0.2.0/24 +padding=64 +keepalive +expire
kdig @ SOA
kdig @ SOA +norec
kdig @ SOA +edns
kdig @ SOA +noedns
kdig @ SOA +cookie
kdig @ SOA +cookie +badcookie
kdig @ SOA +cookie=0123456789abcdef +tcp
kdig @ SOA +edns=1
kdig @ SOA +edns=255
kdig @ SOA +bufsize=512
kdig big.@ TXT +ignore
kdig big.@ TXT
kdig big.@ TXT +bufsize=1 +ignore
kdig @ SOA +nsid
kdig @ SOA +subnet=192.0.2.0/24
kdig @ SOA +subnet=::/0
kdig @ SOA +padding=64
kdig @ SOA +padding +tcp
kdig @ SOA +alignment=128
kdig @ SOA +dnssec
kdig @ SOA +expire
kdig @ SOA +tcp
kdig @ SOA +tcp +keepopen @ MX +tcp +keepopen
kdig @ SOA +tcp +fastopen
kdig @ SOA +ednsopt=65001:abcd
kdig @ SOA +ednsopt=11 +tcp
kdig @ SOA +ednsopt=3:aa
kdig @ SOA +aaflag +tcflag +raflag +zflag +adflag +cdflag
kdig MaIl.sMaRt-ApP.TeSt A
kdig @ AXFR
kdig @ IXFR=1
kdig @ IXFR=1 +notcp
kdig @ NOTIFY=1
kdig @ ANY
kdig @ ANY +ignore
kdig @ TYPE65280
kdig @ TYPE0
kdig @ -c CH
kdig version.server -c CH -t TXT
kdig id.server -c CH -t TXT
kdig -q ""
kdig -x 192.0.2.1
kdig -y hmac-sha256:key.:c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0 @ SOA
kdig @ SOA +proxy=192.0.2.1#5300-192.0.2.2#53
"""
# What differs from one call to the next, or is about the tool.
_DROPPED = re.compile(
    r"^;; (Query time|WHEN|SERVER|From|MSG SIZE|Received|Time|global options|Got answer)|^; <<>>|^$"
)
_SAME = (
    (re.compile(r"\s+"), " "),
    (re.compile(r"id: \d+"), "id"),
    (re.compile(r"COOKIE: [0-9A-Fa-f]+"), "COOKIE:"),
    (re.compile(r"(?<=127\.0\.0\.1)[@#]\d+"), ""),
    (re.compile(r"TSIG (\S+) \d+ 300 0 \d+"), r"TSIG \1"),
    (re.compile(r"reply ID \(\d+\) is different from query ID \(\d+\)"), "reply ID"),
)
_BEGINS = re.compile(r"->>HEADER<<- opcode: (\w+)[,;] status: (\w+)[,;] id")
_FLAGS = re.compile(r"flags: ([a-z ]*);", re.IGNORECASE)
_SECTION = re.compile(r"^;; (\w+) (?:PSEUDO)?SECTION:$")
PARTS = ("header", "flags", "question", "answer", "authority", "additional", "edns", "tsig", "said")
# dig and kdig have a word of their own.
_PART = {"opt": "edns", "edns": "edns"}


class KnotWithCookies(Knot):
    """Knot as it comes, but that it knows cookies as we do."""

    more = "    global-module: mod-cookies\n"


@dataclass(frozen=True, slots=True)
class Heard:
    """One message as a tool shows it, or what it says of having got none.

    Attributes:
        parts: lines by PARTS, in no order; `said` is what the tool has to say of it.
    """

    parts: dict[str, frozenset[str]]

    def __getitem__(self, part: str) -> frozenset[str]:
        return self.parts.get(part, frozenset())


@dataclass(frozen=True, slots=True)
class Difference:
    """One part in which two answers are not the same.

    Attributes:
        words: of the command.
        theirs, ours: what only one of the two has.
        tell: all parts of both.
    """

    words: tuple[str, ...]
    part: str
    theirs: frozenset[str]
    ours: frozenset[str]
    tell: tuple[Heard, Heard]


@dataclass(frozen=True, slots=True)
class Meant:
    """A kind of difference that is meant; `what` is how docs/dns.md begins its line on it."""

    what: str
    when: Callable[[Difference], bool]


def heard(text: str) -> list[Heard]:
    """Read what dig or kdig prints."""
    messages: list[dict[str, set[str]]] = [{}]
    part = "said"
    for line in text.splitlines():
        if _DROPPED.search(line):
            part = "said"
            continue
        for pattern, same in _SAME:
            line = pattern.sub(same, line)
        begins, flags, section = (p.search(line) for p in (_BEGINS, _FLAGS, _SECTION))
        if begins:
            if "header" in messages[-1]:
                messages.append({})
            messages[-1]["header"] = {f"{begins[1]} {begins[2]}"}
        elif section:
            part = _PART.get(section[1].lower(), section[1].lower())
        elif flags and part == "said":
            messages[-1]["flags"] = set(flags[1].split())
        else:
            messages[-1].setdefault(part, set()).add(line.strip("; ").rstrip())
    return [
        Heard({part: frozenset(lines) for part, lines in found.items()})
        for found in messages
        # Knot wants to see its own cookie first: what it then says is what counts.
        if "QUERY BADCOOKIE" not in found.get("header", ())
    ]


def ask(words: Sequence[str], port: int) -> list[Heard]:
    """Run a command against a port of loopback."""
    tool, *rest = words
    patience = ("-r", "+tries=1", "+timeout=2") if tool == "dig" else ("+retry=0", "+timeout=2")
    argv = [find_binary(tool, f"SMARTGW_TEST_{tool.upper()}"), "@127.0.0.1", "-p", str(port)]
    done = subprocess.run(
        [*argv, *patience, *rest],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "LC_ALL": "C"},
    )
    return heard(done.stdout + done.stderr)


def differences(
    words: tuple[str, ...], theirs: Sequence[Heard], ours: Sequence[Heard]
) -> Iterator[Difference]:
    """Walk the parts in which the answers to one command differ."""
    nothing = Heard({})
    for number in range(max(len(theirs), len(ours))):
        one, two = (both[number] if number < len(both) else nothing for both in (theirs, ours))
        for part in PARTS:
            if one[part] != two[part]:
                yield Difference(
                    words, part, one[part] - two[part], two[part] - one[part], (one, two)
                )


def commands(patterns: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the commands as words, those alone that a pattern fits where there is one."""
    found = [line.strip().replace("@", ORIGIN) for line in COMMANDS.splitlines() if line.strip()]
    return [
        tuple(shlex.split(line))
        for line in found
        if not patterns or any(fnmatchcase(line, f"*{pattern}*") for pattern in patterns)
    ]


_MORE = re.compile("NSID|EXPIRE")
_META = frozenset(("TYPE0", "OPT", "TSIG", "TKEY", "MAILB", "MAILA"))
_APEX_SERVERS = frozenset(("ns1", "ns2"))


def _servers_beside(it: Difference) -> bool:
    """Say whether we tell the name servers, with their addresses, and Knot does not."""
    owners = {line.split()[0].lower().removesuffix(f".{ORIGIN}.") for line in it.ours}
    if it.part == "authority":
        return all(line.split()[3] == "NS" for line in it.ours) and not it.theirs
    return it.part == "additional" and owners <= _APEX_SERVERS and not it.theirs


def _asks(it: Difference, *words: str) -> bool:
    return all(word in it.words for word in words)


def _says_more(it: Difference) -> bool:
    """Say whether Knot alone says these options of EDNS."""
    return it.part == "edns" and not it.ours and all(_MORE.match(line) for line in it.theirs)


MEANT = (
    Meant("NS of the apex beside an answer", _servers_beside),
    Meant("NSID and EXPIRE", _says_more),
    Meant(
        "a cookie that is asked for first",
        lambda it: it.part == "said" and all("cookie" in line.lower() for line in it.theirs),
    ),
    Meant(
        "a query without a question but with a cookie",
        lambda it: _asks(it, "+header-only"),
    ),
    Meant("a malformed client subnet", lambda it: _asks(it, "+ednsopt=8:abcd")),
    Meant(
        "NOTIFY and UPDATE",
        lambda it: (
            _asks(it, "+opcode=notify") or _asks(it, "+opcode=update") or _asks(it, "NOTIFY=1")
        ),
    ),
    Meant("ANY over UDP", lambda it: "ANY" in it.words and not _asks(it, "+tcp")),
    Meant("ANY below a DNAME or at an alias", lambda it: _asks(it, "ANY", "+tcp")),
    Meant(
        "transfers",
        lambda it: any(word in it.words for word in ("AXFR", "IXFR=1")) and it.part != "tsig",
    ),
    Meant("types that are for messages", lambda it: not _META.isdisjoint(it.words)),
    Meant("CH", lambda it: _asks(it, "TXT") and ("CH" in it.words)),
)

# These differ in nearly all.
USUAL = {"NS of the apex beside an answer", "a cookie that is asked for first"}


def main(argv: Sequence[str]) -> int:
    """Compare; 0 where there is no difference that is not meant."""
    parser = argparse.ArgumentParser("dns_beside", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="of the commands to run")
    args = parser.parse_args(argv)
    text = ZONE.read_text()
    wire = Wire()
    wire.core.read(text)
    wire.responder.catalog = wire.core.catalog
    asked = found = same = 0
    used: Counter[str] = Counter()
    with KnotWithCookies({ORIGIN: text}) as knot:
        for words in commands(args.patterns):
            asked += 1
            odd: set[str | None] = set()
            for it in differences(words, ask(words, knot.port), ask(words, wire.port)):
                reason = next((meant.what for meant in MEANT if meant.when(it)), None)
                odd.add(reason)
                if reason is not None:
                    used[reason] += 1
                    continue
                found += 1
                print(f"{shlex.join(words)}: {it.part}: theirs {_shown(it.theirs)}")
                print(f"    ours {_shown(it.ours)}")
            same += odd <= USUAL
    idle = [meant.what for meant in MEANT if not used[meant.what] and not args.patterns]
    for what in idle:
        print(f"nothing differs any more by: {what}")
    print(f"meant: {dict(used)}")
    print(f"{asked} commands, {same} answered alike but for {' and '.join(sorted(USUAL))}")
    print(f"{found} differences that are not meant")
    return 1 if found or idle else 0


def _shown(lines: frozenset[str]) -> str:
    return "; ".join(sorted(lines)) or "nothing"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
