"""Master files (RFC 1035 5): a text to a zone, with the line of each fault, and a zone to its text.

Owns the syntax around records: directives, and what a line takes over from the one before.
`$INCLUDE` is refused, for a zone that somebody sends reads no file of ours; `$GENERATE` is bounded.
dnspython parts the lines and reads rdata; edits.py has the rules of zones.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import dns.exception
import dns.inet
import dns.name
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.tokenizer
import dns.ttl

from smartgw_dns.edits import LARGEST, SINGLE, Change, EditRefused, Why, build, refusal
from smartgw_dns.lookup import AAAA, A
from smartgw_dns.names import name_of, text_of, wire_of, within
from smartgw_dns.records import (
    ASCII_NAMES,
    LONGEST_TTL,
    RecordRefused,
    distinct,
    parse_rdata,
    read_type,
)
from smartgw_dns.zone import SOA, RRset, Zone, type_text

MOST_RECORDS = 1_000_000
# A short line must not cost more than a long file: BIND has no bound, and a /16 is enough.
MOST_GENERATED = 65_536
MOST_GENERATED_TEXT = 32 << 20  # characters of their owners and rdata
_LONGEST_TEMPLATE = 300_000  # no rdata is longer, were each of its octets written as \\ddd
# Each string of a TXT takes an octet at least; of types in an NSEC there are 65,536.
_MOST_WORDS = 70_000
_FAMILIES = {A: dns.inet.AF_INET, AAAA: dns.inet.AF_INET6}
_WIDEST = 127  # of a number in $GENERATE, as in BIND
_CLASSES = re.compile(r"(?:IN|CH|HS|CS|NONE|ANY|CLASS\d{1,5})\Z", re.IGNORECASE)
_OURS = {"IN", "CLASS1"}
_RANGE = re.compile(r"(\d{1,10})-(\d{1,10})(?:/(\d{1,10}))?")
_COUNTER = re.compile(
    r"\\(?P<escaped>.)|\$(?:(?P<dollar>\$)|"
    r"\{(?P<offset>[+-]?\d{1,10})(?:,(?P<width>\d{1,3})(?:,(?P<base>[doxX]))?)?\})?",
    re.DOTALL,
)
_STEP = 10_000
_FEW = 8  # records of one type at a name, whose octets are summed up each time


class MasterRefused(ValueError):
    """A master file is no zone: in which line, and why.

    Attributes:
        line: of the file, from 1; 0 where the file as a whole lacks something.
        why: the rule of zones that it breaks, None for a fault of syntax.
    """

    def __init__(self, line: int, message: str, why: Why | None = None) -> None:
        super().__init__(f"line {line}: {message}" if line else message)
        self.line = line
        self.why = why


def read(
    text: str,
    origin: bytes | None = None,
    *,
    most_records: int = MOST_RECORDS,
    progress: Callable[[int], None] | None = None,
) -> Zone:
    """Return the zone of a master file; raises MasterRefused.

    Args:
        origin: its apex in wire form; None takes the owner of the SOA, which then comes first.
        most_records: a file with more is refused.
        progress: called with the number of records read so far, every 10,000.
    """
    reader = _Reader(text, origin, most_records, progress)
    changes = reader.changes()
    if reader.zone is None:
        raise MasterRefused(0, "the file has no record", Why.SOA_MISSING)
    try:
        return build(reader.zone, changes)
    except EditRefused as error:
        raise MasterRefused(0, str(error), error.why) from error


def apex_of(text: str) -> bytes | None:
    """Return which zone a master file is of, in wire form: the owner of the SOA it begins with.
    None where it begins otherwise, or with a name that is relative to what the file does not say.
    """
    return _Reader(text, None, MOST_RECORDS, None).apex()


def write(zone: Zone) -> Iterator[str]:
    """Walk the lines of a master file that `read` makes the same zone of, each with its end."""
    apex = name_of(zone.apex.owner)
    yield f"$ORIGIN {apex}\n"
    for _, entry in zone.sorted():
        owner = name_of(entry.owner).relativize(apex).to_text()
        # The SOA comes first in a file (RFC 1035 5.2).
        for rrset in sorted(entry.rrsets, key=lambda r: r.rdtype != SOA):
            head = f"{owner} {rrset.ttl} IN {type_text(rrset.rdtype)}"
            for wire in rrset.rdatas:
                yield f"{head} {rdata_text(rrset.rdtype, wire)}\n"


def rdata_text(rdtype: int, wire: bytes) -> str:
    """Return rdata in presentation form, in the one of RFC 3597 where another would not read back
    as the same."""
    code = dns.rdatatype.RdataType.make(rdtype)
    family = _FAMILIES.get(rdtype)
    if family is not None:
        # Most records of most zones: 2 us instead of 100.
        return dns.inet.inet_ntop(family, wire)
    text = dns.rdata.from_wire(dns.rdataclass.IN, code, wire, 0, len(wire)).to_text()
    try:
        same = dns.rdata.from_text(dns.rdataclass.IN, code, text).to_wire() == wire
    except (dns.exception.DNSException, ValueError):
        same = False
    return text if same else f"\\# {len(wire)} {wire.hex()}"


class _Words(dns.tokenizer.Tokenizer):
    """Parts a file, and an entry of it into no more words than one can have.

    dnspython would gather them all first: 32 MiB of strings of one letter in gigabytes.
    """

    count = 0

    def get(self, want_leading: bool = False, want_comment: bool = False) -> dns.tokenizer.Token:
        self.count += 1
        if self.count > _MOST_WORDS:
            raise ValueError(f"more than {_MOST_WORDS} words")
        return super().get(want_leading, want_comment)


class _Reader:
    """Goes through one file."""

    def __init__(
        self,
        text: str,
        origin: bytes | None,
        most_records: int,
        progress: Callable[[int], None] | None,
    ) -> None:
        self.tok = _Words(text, idna_codec=ASCII_NAMES)
        self.zone = origin
        self.origin = None if origin is None else name_of(origin)
        self.owner: bytes | None = None
        self.default_ttl: int | None = None
        self.last_ttl: int | None = None
        self.most_records = most_records
        self.progress = progress
        self.generated = self.generated_text = 0
        self.records = 0
        self.line = 0
        # By key of the owner; kept as what is made of them, for a large zone in little memory.
        self.sets: dict[bytes, tuple[Change, ...]] = {}
        # Octets of the sets that have more than a few records.
        self.sizes: dict[tuple[bytes, int], int] = {}
        # One object for each TTL, not one for each record.
        self.ttls: dict[int, int] = {}

    def changes(self) -> Iterator[Change]:
        """Read all and return what it makes of an empty zone."""
        try:
            while self._entry():
                pass
        except MasterRefused:
            raise
        except (RecordRefused, dns.exception.DNSException, ValueError) as error:
            raise self._fault(str(error) or type(error).__name__) from error
        return self._taken()

    def apex(self) -> bytes | None:
        """Read until it is known which zone it is; None where that is never."""
        try:
            while self.zone is None and self._entry():
                pass
        except (MasterRefused, RecordRefused, dns.exception.DNSException, ValueError):
            return None
        return self.zone

    def _taken(self) -> Iterator[Change]:
        while self.sets:
            _, sets = self.sets.popitem()
            for found in sets:
                assert found.rrset is not None, "what was read is set"
                if len(found.rrset.rdatas) > 1:
                    rdatas = distinct(found.rdtype, found.rrset.rdatas)
                    yield replace(found, rrset=replace(found.rrset, rdatas=rdatas))
                else:
                    yield found

    def _fault(self, message: str, why: Why | None = None) -> MasterRefused:
        return MasterRefused(self.line, message, why)

    def _entry(self) -> bool:
        """Read one entry of the file; False at its end."""
        self.tok.count = 0
        token = self.tok.get(want_leading=True)
        # The end of a line is counted when it is looked at.
        self.line = self.tok.line_number - (self.tok.ungotten_char == "\n")
        if token.is_whitespace():
            token = self.tok.get()
            if not token.is_eol_or_eof():
                self._record(token)
        elif token.is_eof():
            return False
        elif token.value.startswith("$") and token.is_identifier():
            self._directive(token.value.upper())
        elif not token.is_eol():
            self.owner = wire_of(self._name(token))
            self._record(self.tok.get())
        return not token.is_eof()

    def _name(self, token: dns.tokenizer.Token) -> dns.name.Name:
        name = self.tok.as_name(token, self.origin)
        if not name.is_absolute():
            raise self._fault(f"{name} is not absolute, and no $ORIGIN says what it is relative to")
        return name

    def _directive(self, word: str) -> None:
        if word == "$ORIGIN":
            self.origin = self._name(self.tok.get())
        elif word == "$TTL":
            self.default_ttl = self._ttl(self.tok.get_identifier())
        elif word == "$GENERATE":
            self._generate()
            return
        elif word == "$INCLUDE":
            raise self._fault("$INCLUDE is refused; put the records into this file")
        else:
            raise self._fault(f"there is no directive {word[:64]}")
        self.tok.get_eol()

    def _ttl(self, text: str) -> int:
        ttl = dns.ttl.from_text(text)
        if ttl > LONGEST_TTL:
            raise self._fault(f"the TTL is longer than {LONGEST_TTL} s (RFC 2181 8)")
        return self.ttls.setdefault(ttl, ttl)

    def _head(self, token: dns.tokenizer.Token) -> tuple[int | None, int]:
        """Read TTL and class, each optional and in either order, and the type."""
        ttl, seen_class = None, False
        while token.is_identifier():
            if ttl is None and token.value[:1].isdigit():
                ttl = self.last_ttl = self._ttl(token.value)
            elif not seen_class and _CLASSES.match(token.value):
                if token.value.upper() not in _OURS:
                    raise self._fault(f"the class is {token.value}; a zone of ours is IN")
                seen_class = True
            else:
                return ttl, read_type(token.value)
            token = self.tok.get()
        raise self._fault("the line has no record type")

    def _record(self, token: dns.tokenizer.Token) -> None:
        if self.owner is None:
            raise self._fault("the first record has no owner")
        ttl, rdtype = self._head(token)
        self._add(self.owner, ttl, rdtype, self._rdata(rdtype, self.tok))

    def _rdata(self, rdtype: int, tok: dns.tokenizer.Tokenizer) -> bytes:
        try:
            rdata = parse_rdata(rdtype, tok, self.origin).to_wire()
        except (dns.exception.DNSException, ValueError) as error:
            words = str(error) or type(error).__name__
            raise self._fault(f"this is no rdata of {type_text(rdtype)}: {words}") from error
        assert rdata is not None, "rdata written to no file is returned"
        return rdata

    def _add(self, owner: bytes, ttl: int | None, rdtype: int, rdata: bytes) -> None:
        self._admit(owner, rdtype)
        if ttl is None:
            ttl = self.default_ttl if self.default_ttl is not None else self.last_ttl
        if ttl is None and rdtype == SOA:
            # RFC 1035 3.3.13: MINIMUM was the TTL of whatever states none.
            ttl = self.last_ttl = min(int.from_bytes(rdata[-4:], "big"), LONGEST_TTL)
        if ttl is None:
            raise self._fault("the record has no TTL, and there is no $TTL")
        key = owner.lower()
        sets = self.sets.get(key, ())
        before = next((found.rrset for found in sets if found.rdtype == rdtype), None)
        self._weigh(key, rdtype, (*(before.rdatas if before else ()), rdata))
        if before is None:
            rdtypes = frozenset({rdtype, *(found.rdtype for found in sets)})
            why = refusal(rdtypes, at_apex=key == self._apex)
            if why:
                raise self._fault(f"{text_of(owner)} {why.words}", why)
            made = Change(key if key == owner else owner, rdtype, RRset(rdtype, ttl, (rdata,)))
            self.sets[key] = (*sets, made)
            return
        rdatas = (*before.rdatas, rdata)
        if rdtype in SINGLE and len(distinct(rdtype, rdatas)) > 1:
            message = f"{text_of(owner)} has a second {type_text(rdtype)} record"
            raise self._fault(message, Why.SEVERAL)
        # RFC 2181 5.2: one TTL for all; the lowest is right for each of them.
        made = Change(sets[0].owner, rdtype, RRset(rdtype, min(ttl, before.ttl), rdatas))
        self.sets[key] = tuple(made if found.rdtype == rdtype else found for found in sets)

    def _weigh(self, key: bytes, rdtype: int, rdatas: tuple[bytes, ...]) -> None:
        """Refuse more of one type than an answer holds: 12 octets and the rdata of each."""
        if len(rdatas) <= _FEW:
            size = sum(len(rdata) + 12 for rdata in rdatas)
        else:
            size = self.sizes[key, rdtype] + len(rdatas[-1]) + 12
        if len(rdatas) >= _FEW:
            self.sizes[key, rdtype] = size
        if size > LARGEST:
            raise self._fault(f"{text_of(key)} {Why.TOO_LARGE.words}", Why.TOO_LARGE)

    def _admit(self, owner: bytes, rdtype: int) -> None:
        if self.zone is None:
            if rdtype != SOA:
                raise self._fault("the first record is not the SOA", Why.SOA_MISSING)
            self.zone = owner
        if not within(owner.lower(), self._apex):
            message = f"{text_of(owner)} {Why.OUT_OF_ZONE.words} {text_of(self.zone)}"
            raise self._fault(message, Why.OUT_OF_ZONE)
        self.records += 1
        if self.records > self.most_records:
            raise self._fault(f"the zone has more than {self.most_records} records")
        if self.progress is not None and self.records % _STEP == 0:
            self.progress(self.records)

    @property
    def _apex(self) -> bytes:
        assert self.zone is not None, "the first record says which zone it is"
        return self.zone.lower()

    def _generate(self) -> None:
        """Read `$GENERATE start-stop[/step] owner [ttl] [class] type rdata`, as BIND has it.

        Rdata of several words is in quotes.
        """
        match = _RANGE.fullmatch(self.tok.get_identifier())
        start, stop, step = (int(part or 1) for part in match.groups()) if match else (1, 0, 1)
        if stop < start or step < 1:
            raise self._fault("$GENERATE has no range such as 0-255 or 0-254/2")
        owner = self.tok.get()
        ttl, rdtype = self._head(self.tok.get())
        rdata = self.tok.get().value
        self.tok.get_eol()
        self.generated += (stop - start) // step + 1
        if self.generated > MOST_GENERATED:
            raise self._fault(f"$GENERATE makes more than {MOST_GENERATED} records")
        if max(len(owner.value), len(rdata)) > _LONGEST_TEMPLATE:
            raise self._fault(f"$GENERATE has a part of more than {_LONGEST_TEMPLATE} characters")
        for number in range(start, stop + 1, step):
            name, data = self._substitute(owner.value, number), self._substitute(rdata, number)
            self.generated_text += len(name) + len(data)
            if self.generated_text > MOST_GENERATED_TEXT:
                raise self._fault(f"$GENERATE makes more than {MOST_GENERATED_TEXT} characters")
            token = dns.tokenizer.Token(owner.ttype, name)
            self.owner = wire_of(self._name(token))
            tok = dns.tokenizer.Tokenizer(data, idna_codec=ASCII_NAMES)
            self._add(self.owner, ttl, rdtype, self._rdata(rdtype, tok))

    def _substitute(self, template: str, number: int) -> str:
        """Put the counter for `$` and `${offset,width,base}`; `$$` and `\\$` are a `$`."""

        def shown(match: re.Match[str]) -> str:
            if match["escaped"]:
                return "$" if match["escaped"] == "$" else match[0]
            if match["dollar"]:
                return "$"
            width = int(match["width"] or 0)
            if width > _WIDEST:
                raise self._fault(f"$GENERATE has a number wider than {_WIDEST} digits")
            return format(number + int(match["offset"] or 0), match["base"] or "d").zfill(width)

        return _COUNTER.sub(shown, template)
