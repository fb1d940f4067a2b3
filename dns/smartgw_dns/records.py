"""Records as somebody writes them, read strictly: name, type, TTL and rdata to the form of zones.

Owns what a field may be and what is said of one that is wrong. Does not know what may stand beside
what (edits.py), nor the syntax of whole files (master.py). dnspython reads names and rdata.
"""

from collections.abc import Iterable, Sequence

import dns.exception
import dns.name
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.tokenizer

from smartgw_dns.edits import Change
from smartgw_dns.names import name_of, text_of, wire_of
from smartgw_dns.zone import CNAME, DNAME, RRset, type_text

LONGEST_TTL = (1 << 31) - 1  # RFC 2181 8
LONGEST_RDATA = 65_535


class RecordRefused(ValueError):
    """A field of a record is wrong: which (`name`, `type`, `ttl`, `rdata`), and what of it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class AsciiNames(dns.name.IDNACodec):
    """Refuses names in other letters than ASCII: which A-label is meant depends on the version of
    IDNA, so whoever writes the name decides."""

    def encode(self, label: str) -> bytes:
        """Refuse."""
        raise ValueError(f"{label!r} is not ASCII; write its A-label (xn--...)")


ASCII_NAMES = AsciiNames()  # type: ignore[no-untyped-call]  # its base has no types


def absolute(text: str) -> str:
    """Return a name with its last dot, where it is absolute without it, too. A dot behind a
    backslash is of a label (RFC 1035 5.1).
    """
    before = text.removesuffix(".")
    escaped = (len(before) - len(before.rstrip("\\"))) % 2
    return text if before != text and not escaped else f"{text}."


def read_name(text: object) -> bytes:
    """Return the wire form of an absolute name in presentation form; raises RecordRefused."""
    if not isinstance(text, str):
        raise RecordRefused("name", "the name is not a text")
    if not text.isascii():
        raise RecordRefused("name", "the name is not ASCII; write its A-labels (xn--...)")
    if not all("!" <= char <= "~" for char in text):
        raise RecordRefused(
            "name", "the name has a character that must be written as an escape, such as \\032"
        )
    try:
        name = dns.name.from_text(text, None)
    except dns.exception.DNSException as error:
        raise RecordRefused("name", f"{text[:300]!r} is not a name: {_words(error)}") from error
    if not name.is_absolute():
        raise RecordRefused("name", f"{text[:300]!r} is not absolute; end it with a dot")
    return wire_of(name)


def read_type(text: object) -> int:
    """Return the code of a type that records can have; raises RecordRefused."""
    if not isinstance(text, str) or not text.isascii():
        raise RecordRefused("type", "the type is not a text such as A or TYPE65280")
    try:
        rdtype = dns.rdatatype.from_text(text)
    except (dns.exception.DNSException, ValueError) as error:
        raise RecordRefused("type", f"there is no record type {text[:64]!r}") from error
    if rdtype in (0, 65_535) or dns.rdatatype.is_metatype(rdtype):
        raise RecordRefused("type", f"{text[:64]} is for questions and messages, not for zones")
    return int(rdtype)


def read_question_type(text: str) -> int:
    """Return the code of a type that may be asked for, by its mnemonic or number; ANY is one, and
    types that no name can have are for the lookup to refuse. Raises RecordRefused.
    """
    try:
        number = int(text) if text.isascii() and text.isdigit() else 0
        code = number or int(dns.rdatatype.from_text(text))
    except (dns.exception.DNSException, ValueError):
        code = 0
    if not 0 < code <= 65_535:
        raise RecordRefused("type", f"there is no record type {text[:64]!r}")
    return code


def read_ttl(value: object) -> int:
    """Return a TTL; raises RecordRefused."""
    # To Python True is a number, and 1e400 in JSON an infinite one.
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LONGEST_TTL:
        message = f"the TTL is not a whole number of seconds from 0 to {LONGEST_TTL} (RFC 2181 8)"
        raise RecordRefused("ttl", message)
    return value


def read_rdata(rdtype: int, text: object) -> bytes:
    """Return the wire form of rdata in presentation form, its names absolute; or RecordRefused."""
    if not isinstance(text, str):
        raise RecordRefused("rdata", "the rdata is not a text")
    if any(char < " " or char == "\x7f" for char in text):
        raise RecordRefused("rdata", "the rdata has a control character; write it as \\010")
    try:
        tok = dns.tokenizer.Tokenizer(text, idna_codec=ASCII_NAMES)
        rdata = parse_rdata(rdtype, tok, None)
        wire = rdata.to_wire()
    except dns.name.NeedAbsoluteNameOrOrigin as error:
        message = f"a name in {text[:300]!r} is not absolute; end it with a dot"
        raise RecordRefused("rdata", message) from error
    except (dns.exception.DNSException, ValueError) as error:
        message = f"{text[:300]!r} is no rdata of {type_text(rdtype)}: {_words(error)}"
        raise RecordRefused("rdata", message) from error
    if rdata.rdcomment is not None:
        # As a comment the rest of an unquoted SPF or DKIM record would be lost in silence.
        raise RecordRefused("rdata", "what follows ; is a comment; put the string in quotes")
    assert wire is not None, "rdata written to no file is returned"
    return wire


def parse_rdata(
    rdtype: int, tok: dns.tokenizer.Tokenizer, origin: dns.name.Name | None
) -> dns.rdata.Rdata:
    """Read rdata and the end of its line; raises SyntaxError of dnspython or ValueError."""
    rdata = dns.rdata.from_text(
        dns.rdataclass.IN,
        dns.rdatatype.RdataType.make(rdtype),
        tok,
        origin,
        relativize=False,
        idna_codec=ASCII_NAMES,
    )
    if len(rdata.to_wire(origin=dns.name.root) or b"") > LONGEST_RDATA:
        raise ValueError(f"longer than {LONGEST_RDATA} octets")
    return rdata


def read_rrset(name: object, rdtype: object, ttl: object, rdatas: Sequence[object]) -> Change:
    """Return the change that makes these the records of a type at a name; raises RecordRefused.

    Args:
        rdatas: one of each record at least; one that is written twice counts once.
    """
    owner, code = read_name(name), read_type(rdtype)
    if not rdatas:
        raise RecordRefused("rdata", "an rrset has a record at least; delete it instead")
    rrset = RRset(code, read_ttl(ttl), distinct(code, (read_rdata(code, r) for r in rdatas)))
    _refuse_self_loop(owner, rrset)
    return Change(owner, code, rrset)


def distinct(rdtype: int, rdatas: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the rdata without what is there already but for the case of names (RFC 4034 6.2)."""
    found = tuple(rdatas)
    if len(found) < 2:
        return found
    kept: dict[bytes, bytes] = {}
    for rdata in found:
        kept.setdefault(canonical(rdtype, rdata), rdata)
    return tuple(kept.values())


def canonical(rdtype: int, rdata: bytes) -> bytes:
    """Return rdata with its names in lower case, where the type says they are names (RFC 4034)."""
    code = dns.rdatatype.RdataType.make(rdtype)
    return dns.rdata.from_wire(dns.rdataclass.IN, code, rdata, 0, len(rdata)).to_digestable()


def _refuse_self_loop(owner: bytes, rrset: RRset) -> None:
    """Refuse what can never lead anywhere: a CNAME to itself, a DNAME to itself or below."""
    target = rrset.rdatas[0].lower()
    if rrset.rdtype == CNAME and target == owner.lower():
        raise RecordRefused("rdata", f"{text_of(owner)} would be an alias of itself")
    if rrset.rdtype == DNAME and name_of(target).is_subdomain(name_of(owner)):
        raise RecordRefused("rdata", f"{text_of(owner)} would redirect to itself without end")


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
