"""Proves smartgw_dns/master.py: texts to zones and back, and faults by their line."""

import contextlib

import dns.rdata
import dns.rdataclass
import dns.rdatatype
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw_dns import master
from smartgw_dns.edits import MOST_TYPES, Change, EditRefused, Why, build, difference
from smartgw_dns.master import MOST_GENERATED, MasterRefused, rdata_text
from smartgw_dns.zone import RRset, Zone
from tests.dns.zones import ORIGIN, apex, wire, zones

LONG = f'"{"x" * 250}" ' * 63
HEAD = "@ 60 SOA ns root 1 2 3 4 5\n@ 60 NS ns\n"


def read(text: str) -> Zone:
    """Read a zone `z.`."""
    return master.read(text, ORIGIN)


def written(text: str) -> list[str]:
    """Return the lines of a zone as it is written, but for its head."""
    return "".join(master.write(read(HEAD + text))).splitlines()[3:]


def test_a_line_takes_over_what_it_does_not_say() -> None:
    """8.6: RFC 1035 master-file import: owners, origins and TTLs carried over."""
    assert written(
        "$TTL 1h\n"
        "a A 192.0.2.1\n"
        "  300 IN A 192.0.2.2\n"
        "\tIN 1d2h AAAA 2001:db8::1 ; a comment\n"
        "\n"
        "   ; nothing\n"
        "$ORIGIN b.z.\n"
        "@ TXT ( one ; first\n"
        '  "two ; 2" )\n'
        "c.z. MX 10 mail\n"
    ) == [
        "a 300 IN A 192.0.2.1",
        "a 300 IN A 192.0.2.2",
        "a 93600 IN AAAA 2001:db8::1",
        'b 3600 IN TXT "one" "two ; 2"',
        "c 3600 IN MX 10 mail.b.z.",
    ]


def test_a_ttl_is_the_last_one_where_there_is_no_default() -> None:
    """8.6: RFC 1035 5.1: a record without TTL has that of the one before; RFC 2308 4: $TTL."""
    text = "@ SOA ns root 1 2 3 4 5\n@ NS ns\na 7 A 192.0.2.1\nb A 192.0.2.2\n"
    assert [line.split()[1] for line in master.write(read(text))][1:] == ["5", "5", "7", "7"]


def test_the_zone_is_that_of_the_soa_unless_it_is_said() -> None:
    """8.6: An import into a zone is checked against it; a file alone is the zone of its SOA."""
    assert master.read("$ORIGIN y.\n" + HEAD).origin == wire("y.")
    with pytest.raises(MasterRefused, match=r"line 1: the first record is not the SOA"):
        master.read("a.y. 1 A 192.0.2.1\n")
    with pytest.raises(MasterRefused, match=r"line 1: @ is not absolute"):
        master.read(HEAD)


def test_an_answer_of_dig_axfr_is_a_master_file() -> None:
    """8.6: Import: the SOA that a transfer repeats at its end, the same again, is no second one."""
    text = "z. 60 IN SOA ns.z. root.z. 1 2 3 4 5\nz. 60 IN NS ns.z.\n"
    assert master.read(text + text.splitlines()[0] + "\n").records == 2


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a CNAME b\na A 192.0.2.1\n", 4, "a.z. has a CNAME, beside which no other data stands"),
        ("a A 192.0.2.1\n\n\na CNAME b\n", 6, "a.z. has a CNAME"),
        ("a CNAME b\na CNAME c\n", 4, "a.z. has a second CNAME record"),
        ("d DNAME a\nd NS b\n", 4, "d.z. has NS and DNAME"),
        ("a A 192.0.2.1\nb.y. A 192.0.2.1\n", 4, "b.y. does not lie in the zone z."),
        ("a SOA ns root 1 2 3 4 5\n", 3, "a.z. is not the apex of the zone"),
        ("@ SOA ns root 2 2 3 4 5\n", 3, "z. has a second SOA record"),
        ("$INCLUDE /etc/passwd\n", 3, r"\$INCLUDE is refused"),
        ("$include x\n", 3, r"\$INCLUDE is refused"),
        ("$UNKNOWN x\n", 3, r"there is no directive \$UNKNOWN"),
        ("$TTL 1\n$TTL\n", 4, "expecting an identifier"),
        ("$TTL 3000000000\n", 3, "longer than 2147483647 s"),
        ("a 2147483648 A 192.0.2.1\n", 3, "longer than 2147483647 s"),
        ("a 1x A 192.0.2.1\n", 3, "unit"),
        ("$GENERATE 1-6000 a TXT $\n", 3, "a.z. has records of one type that fit in no answer"),
        ("".join(f"a TXT {n:05}\n" for n in range(4_000)), 3558, "a.z. has records of one type"),
        ("".join(f"a TXT {LONG}{n}\n" for n in range(6)), 7, "a.z. has records of one type"),
        (f"a TXT {LONG * 4}{LONG[: 253 * 4]}\n", 3, "a.z. has records of one type"),
        ("a A 300.1.1.1\n", 3, "this is no rdata of A"),
        ("a A 192.0.2.1 192.0.2.2\n", 3, "this is no rdata of A"),
        ("a MX (\n10\n)\n\nb A 192.0.2.1\n", 3, "this is no rdata of MX"),
        ("a CH A 192.0.2.1\n", 3, "the class is CH"),
        ("a 5 IN IN A 192.0.2.1\n", 3, "no record type 'IN'"),
        ("a OPT x\n", 3, "OPT is for questions and messages"),
        ("a TYPE0 \\# 0\n", 3, "TYPE0 is for questions"),
        ("a NONSENSE x\n", 3, "there is no record type 'NONSENSE'"),
        ("a\n", 3, "the line has no record type"),
        ("a 300\n", 3, "the line has no record type"),
        ('a TXT "open\n', 3, "newline in quoted string"),
        ("a TXT ( open\n", 3, "unbalanced parentheses"),
        ("a..b A 192.0.2.1\n", 3, "empty"),
        (f"{'a' * 64} A 192.0.2.1\n", 3, "> 63|long"),
        ("m\u00fcnchen A 192.0.2.1\n", 3, "is not ASCII; write its A-label"),
        ("a CNAME m\u00fcnchen\n", 3, "is not ASCII; write its A-label"),
        ("$GENERATE 0-65536 a$ A 192.0.2.1\n", 3, f"more than {MOST_GENERATED} records"),
        ("$GENERATE 0-40000 a$ TXT x\n$GENERATE 0-40000 b$ TXT x\n", 4, "more than"),
        (f"$GENERATE 1-2 a TXT {'a' * 300_001}\n", 3, "more than 300000 characters"),
        (f"a A 192.0.2.1\nb TXT {'x ' * 70_001}\n", 4, "more than 70000 words"),
        ("$GENERATE 1-2/0 a$ A 192.0.2.1\n", 3, "no range"),
        ("$GENERATE 2-1 a$ A 192.0.2.1\n", 3, "no range"),
        ("$GENERATE -1-1 a$ A 192.0.2.1\n", 3, "no range"),
        ("$GENERATE 1-1 a${0,128} A 192.0.2.1\n", 3, "wider than 127"),
        ("$GENERATE 0-300 a$ A 192.0.2.$\n", 3, "this is no rdata of A"),
        ("$GENERATE 1-2 a TXT x\n$GENERATE 1-2 $.y. A 192.0.2.1\n", 4, "1.y. does not lie in"),
    ],
)
def test_a_fault_is_named_with_its_line(text: str, line: int, words: str) -> None:
    """8.6: CNAME-and-other-data, out-of-zone names and all else: with the line number."""
    with pytest.raises(MasterRefused, match=f"line {line}: .*({words})") as refused:
        read(HEAD + text)
    assert refused.value.line == line


def test_generated_text_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """8.6: $GENERATE bounded: a short file makes no more than a long one may hold."""
    monkeypatch.setattr(master, "MOST_GENERATED_TEXT", 1_000)
    with pytest.raises(MasterRefused, match=r"line 4: .*makes more than 1000 characters"):
        read(HEAD + "$GENERATE 1-9 a$ TXT x\n$GENERATE 1-9 b$ TXT ${0,127}\n")


def test_the_types_of_a_name_are_bounded() -> None:
    """8.6: a name has so many types as can be looked through for each question, with the line."""
    text = "".join(f"a TYPE{number} \\# 0\n" for number in range(1_000, 1_000 + MOST_TYPES))
    assert read(HEAD + "$TTL 5\n" + text).records == MOST_TYPES + 2
    with pytest.raises(MasterRefused, match=r"line 104: a\.z\. has records of") as refused:
        read(HEAD + "$TTL 5\n" + text + "a TXT x\n")
    assert refused.value.why is Why.TOO_MANY


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", Why.SOA_MISSING),
        (HEAD.splitlines()[0], Why.NS_MISSING),
        ("@ 1 NS ns\n", Why.SOA_MISSING),
    ],
)
def test_a_file_that_lacks_something_is_refused(text: str, why: Why) -> None:
    """8.6: A zone has an SOA and name servers; what is missing has no line."""
    with pytest.raises(MasterRefused) as refused:
        read(text)
    assert (refused.value.line, refused.value.why) == (0, why)


def test_generate_counts() -> None:
    """8.6: $GENERATE, with step, offset, width and base, `$$` and escapes, as BIND has it."""
    assert written(
        "$GENERATE 1-3/2 h${10,4,x} 60 A 192.0.2.$\n"
        '$GENERATE 7-7 t 60 MX "$ m${-1}"\n'
        "$GENERATE 0-0 $$x\\$\\032 60 IN CNAME h$\n"
    ) == [
        r"\$x\$\032 60 IN CNAME h0.z.",
        "h000b 60 IN A 192.0.2.1",
        "h000d 60 IN A 192.0.2.3",
        "t 60 IN MX 7 m6.z.",
    ]


def test_an_import_has_a_bound_and_tells_how_far_it_is() -> None:
    """8: A large zone is loaded with progress shown, and its number of records is bounded."""
    text = HEAD + "".join(f"a{n} 60 A 192.0.2.1\n" for n in range(20_000))
    seen: list[int] = []
    assert master.read(text, ORIGIN, progress=seen.append).records == 20_002
    assert seen == [10_000, 20_000]
    with pytest.raises(MasterRefused, match="line 101: the zone has more than 100 records"):
        master.read(text, ORIGIN, most_records=100)


def test_records_of_one_type_have_one_ttl() -> None:
    """8.6: RFC 2181 5.2: the TTLs of an rrset do not differ; the lowest is right for each."""
    assert written("a 300 A 192.0.2.1\na 60 A 192.0.2.2\na 60 A 192.0.2.1\n") == [
        "a 60 IN A 192.0.2.1",
        "a 60 IN A 192.0.2.2",
    ]


def test_a_record_that_differs_in_case_only_is_the_same() -> None:
    """8.3: Case is kept and matched without it, in rdata too."""
    assert written("a 60 MX 1 Mail\na 60 MX 1 mail\n") == ["a 60 IN MX 1 Mail.z."]


# ---- there and back ----

SAMPLES = r"""
A 192.0.2.1
AAAA 2001:db8::1
AFSDB 1 afs.z.
APL 1:192.0.2.0/24 !2:2001:db8::/32
AVC "app-name:x"
CAA 0 issue "ca.example; account=1"
CERT 1 2 8 aGVsbG8=
CDS 1 13 2 abababababababababababababababababababababababababababababababab
CSYNC 66 3 A NS AAAA
DHCID AAIBY2/AuCccgoJbsaxcQc9TUapptP69lOjxfNuVAA2kjEA=
DNSKEY 257 3 13 aGVsbG8gd29ybGQ=
DS 1 13 2 abababababababababababababababababababababababababababababababab
EUI48 00-00-5e-00-53-2a
EUI64 00-00-5e-ef-10-00-00-2a
GPOS -22.6882 116.8652 250
HINFO "a \"quoted\" cpu" "\000\255"
HTTPS 1 . alpn="h2,h3" port="8443" ipv4hint="192.0.2.1" key65000="a\"b"
IPSECKEY 10 3 2 gw.z. aGVsbG8=
KX 10 kx.z.
L32 10 10.1.2.0
L64 10 2001:0db8:1140:1000
LOC 51 30 12.748 N 0 7 39.611 W 0.00m 1.00m 10000.00m 10.00m
LP 10 l64.z.
MX 10 mail.z.
NAPTR 100 10 "S" "SIP+D2U" "!^.*$!sip:x@z!" _sip._udp.z.
NID 10 0014:4fff:ff20:ee64
NSEC3PARAM 1 0 12 aabbccdd
OPENPGPKEY aGVsbG8=
PTR a\.b\032c.z.
PX 10 a.z. b.z.
RP mbox.z. txt.z.
RT 10 r.z.
SMIMEA 3 0 0 abcd
SPF "v=spf1 -all"
SRV 1 2 443 t.z.
SSHFP 1 1 abababababababababababababababababababab
SVCB 0 alias.z.
SVCB 2 t.z. mandatory="alpn" alpn="h2"
TLSA 3 1 1 abababababababababababababababababababababababababababababababab
TXT "a;b" "" "(c)" "d\\e" "\195\188"
TYPE65280 \# 4 0a000001
URI 10 1 "https://z.example/?a=\"b\""
WKS 192.0.2.1 6 25 80
X25 "311061700956"
""".strip().splitlines()


@pytest.mark.parametrize("sample", [*SAMPLES, f"ZONEMD 1 1 1 {'AB' * 48}"])
def test_a_record_of_each_type_survives(sample: str) -> None:
    """8.6: Record types of dnspython in full, in presentation form and back."""
    before = read(f"{HEAD}a 60 {sample}\n")
    text = "".join(master.write(before))
    assert difference(before, read(text)) == ()
    assert sample.partition(" ")[0] in text
    assert sample.startswith("TYPE") or "\\#" not in text


TYPES = [
    code
    for code in dns.rdatatype.RdataType
    if not dns.rdatatype.is_metatype(code) and code not in (0, 5, 6, 39)
]


@st.composite
def any_records(draw: st.DrawFn) -> Change:
    """An rrset of any type of dnspython, at a name of any octets."""
    labels = draw(st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=3))
    owner = b"".join(bytes((len(label),)) + label for label in labels) + ORIGIN
    rdtype = draw(st.sampled_from(TYPES) | st.just(dns.rdatatype.RdataType.make(65_280)))
    octets = draw(st.binary(max_size=60) | WELL_FORMED.get(int(rdtype), st.nothing()))
    try:
        rdata = dns.rdata.from_wire(dns.rdataclass.IN, rdtype, octets, 0, len(octets))
        wire_form = rdata.to_wire()
    except Exception:
        rdata = dns.rdata.GenericRdata(dns.rdataclass.IN, rdtype, b"")
        rdtype = dns.rdatatype.RdataType.make(65_281)
        wire_form = octets
    assert wire_form is not None
    rrset = RRset(int(rdtype), draw(st.integers(0, 2**31 - 1)), (wire_form,))
    return Change(owner, int(rdtype), rrset)


STRINGS = st.lists(st.binary(max_size=255), min_size=1, max_size=3).map(
    lambda parts: b"".join(bytes((len(part),)) + part for part in parts)
)
WELL_FORMED = {
    16: STRINGS,
    99: STRINGS,
    13: st.tuples(st.binary(max_size=9), st.binary(max_size=9)).map(
        lambda two: b"".join(bytes((len(part),)) + part for part in two)
    ),
    257: st.binary(max_size=40).map(lambda value: b"\0\5issue" + value),
    33: st.binary(min_size=1, max_size=63).map(
        lambda label: bytes(6) + bytes((len(label),)) + label + b"\0"
    ),
}


@given(st.lists(any_records(), max_size=6))
def test_an_export_is_imported_as_the_same_zone(made: list[Change]) -> None:
    """8.6: Export re-imports to the same zone, in all types, labels and strings escaped."""
    try:
        before = build(ORIGIN, [*apex(), *made])
    except EditRefused:
        return
    after = read("".join(master.write(before)))
    assert difference(before, after) == ()
    assert after.records == before.records


@given(zones())
def test_zones_of_all_shapes_survive_an_export(before: Zone) -> None:
    """8.6: Export re-imports to the same zone, whoever reads it."""
    text = "".join(master.write(before))
    assert difference(before, read(text)) == ()
    assert difference(before, master.read(text)) == ()


@given(st.text(st.sampled_from('a.@*\\"();$ \n\t19:#\u00fc') | st.characters(), max_size=60))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    """8.6: Whatever is imported is a zone or is refused."""
    with contextlib.suppress(MasterRefused):
        assert read(HEAD + text).records >= 2


def test_rdata_that_no_text_says_is_written_in_octets() -> None:
    """8.6: Where presentation form would not read back as the same, RFC 3597's does."""
    assert rdata_text(65_280, b"\1\2") == r"\# 2 0102"
    assert rdata_text(1, b"\xc0\0\2\1") == "192.0.2.1"
