"""Proves the lookup on the examples of RFC 1034 6, RFC 4592 and RFC 6672, zone for zone."""

import pytest

from smartgw_dns import master
from smartgw_dns.zone import Fit
from tests.dns.zones import ask, look, wire, zone

# ---- RFC 1034 6: the zones of C.ISI.EDU ----

ROOT = master.read(
    """\
. 86400 IN SOA SRI-NIC.ARPA. HOSTMASTER.SRI-NIC.ARPA. (
                870611 ;serial
                1800   ;refresh every 30 min
                300    ;retry every 5 min
                604800 ;expire after a week
                86400) ;minimum of a day
        NS A.ISI.EDU.
        NS C.ISI.EDU.
        NS SRI-NIC.ARPA.
MIL. 86400 NS SRI-NIC.ARPA.
     86400 NS A.ISI.EDU.
EDU. 86400 NS SRI-NIC.ARPA.
     86400 NS C.ISI.EDU.
SRI-NIC.ARPA. A 26.0.0.73
              A 10.0.0.51
              MX 0 SRI-NIC.ARPA.
              HINFO DEC-2060 TOPS20
ACC.ARPA. A 26.6.0.65
          HINFO PDP-11/70 UNIX
          MX 10 ACC.ARPA.
USC-ISIC.ARPA. CNAME C.ISI.EDU.
73.0.0.26.IN-ADDR.ARPA. PTR SRI-NIC.ARPA.
A.ISI.EDU. 86400 A 26.3.0.103
C.ISI.EDU. 86400 A 10.0.0.52
""",
    wire("."),
)
EDU = master.read(
    """\
$ORIGIN EDU.
$TTL 172800
@ SOA SRI-NIC.ARPA. HOSTMASTER.SRI-NIC.ARPA. 870729 1800 300 604800 86400
  NS SRI-NIC.ARPA.
  NS C.ISI.EDU.
UCI NS ICS.UCI
    NS ROME.UCI
ICS.UCI A 192.5.19.1
ROME.UCI A 192.5.19.31
ISI NS VAXA.ISI
    NS A.ISI
    NS VENERA.ISI.EDU.
VAXA.ISI A 10.2.0.27
         A 128.9.0.33
VENERA.ISI.EDU. A 10.1.0.52
                A 128.9.0.32
A.ISI A 26.3.0.103
""",
    wire("EDU."),
)
ISI = master.read(
    """\
$ORIGIN ISI.EDU.
$TTL 172800
@ SOA VAXA HOSTMASTER.VAXA 870729 1800 300 604800 86400
  NS VAXA
VAXA A 10.2.0.27
C A 10.0.0.52
""",
    wire("ISI.EDU."),
)
NIC = "SRI-NIC.ARPA. A 26.0.0.73", "SRI-NIC.ARPA. A 10.0.0.51"


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("SRI-NIC.ARPA. A", ["NOERROR", "AA", *NIC]),  # 6.2.1
        ("SRI-NIC.ARPA. ANY", ["NOERROR", "AA", *NIC]),  # 6.2.2, now by RFC 8482
        ("SRI-NIC.ARPA. MX", ["NOERROR", "AA", "SRI-NIC.ARPA. MX 0 SRI-NIC.ARPA."]),  # 6.2.3
        ("SRI-NIC.ARPA. NS", ["NOERROR", "AA", "^. SOA 86400"]),  # 6.2.4
        ("SIR-NIC.ARPA. A", ["NXDOMAIN", "AA", "^. SOA 86400"]),  # 6.2.5
        (
            "BRL.MIL. A",  # 6.2.6
            ["NOERROR", "^MIL. NS SRI-NIC.ARPA.", "^MIL. NS A.ISI.EDU."],
        ),
        (
            "USC-ISIC.ARPA. A",  # 6.2.7: C.ISI.EDU has both zones
            ["NOERROR", "AA", "USC-ISIC.ARPA. CNAME C.ISI.EDU.", "C.ISI.EDU. A 10.0.0.52"],
        ),
        ("USC-ISIC.ARPA. CNAME", ["NOERROR", "AA", "USC-ISIC.ARPA. CNAME C.ISI.EDU."]),  # 6.2.8
    ],
)
def test_the_examples_of_rfc_1034(question: str, answer: list[str]) -> None:
    """8.3: The standard queries of RFC 1034 6.2, asked of C.ISI.EDU."""
    parts = [part for part in ask(question, ROOT, EDU, ISI).split(" | ") if part[0] != "+"]
    assert parts == answer


def test_the_additional_data_of_rfc_1034() -> None:
    """8.3: Referrals with glue: of MIL (RFC 1034 6.2.6) and UCI, below the cut."""
    referral = ask("BRL.MIL. A", ROOT, EDU, ISI)
    assert set(referral.split(" | ")) >= {"+A.ISI.EDU. A 26.3.0.103", *(f"+{line}" for line in NIC)}
    assert ask("x.UCI.EDU. A", ROOT, EDU, ISI) == (
        "NOERROR | ^UCI.EDU. NS ICS.UCI.EDU. | ^UCI.EDU. NS ROME.UCI.EDU."
        " | +ICS.UCI.EDU. A 192.5.19.1 | +ROME.UCI.EDU. A 192.5.19.31"
    )


# ---- RFC 4592 ----

WILD = zone(
    """\
* TXT "this is a wildcard"
* MX 10 host1
sub.* TXT "this is not a wildcard"
host1 A 192.0.2.1
_ssh._tcp.host1 SRV 0 0 22 host1
_ssh._tcp.host2 SRV 0 0 22 host1
subdel NS ns.example.com.
subdel NS ns.example.net.
""",
    "example.",
)
NONE = "^example. SOA 60"
GLUE = "+host1.example. A 192.0.2.1"


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("host3.example. MX", f"NOERROR | AA | host3.example. MX 10 host1.example. | {GLUE}"),
        ("host3.example. A", f"NOERROR | AA | {NONE}"),
        ("foo.bar.example. TXT", 'NOERROR | AA | foo.bar.example. TXT "this is a wildcard"'),
        ("host1.example. MX", f"NOERROR | AA | {NONE}"),
        ("sub.*.example. MX", f"NOERROR | AA | {NONE}"),
        ("_telnet._tcp.host1.example. SRV", f"NXDOMAIN | AA | {NONE}"),
        (
            "host.subdel.example. A",
            "NOERROR | ^subdel.example. NS ns.example.com. | ^subdel.example. NS ns.example.net.",
        ),
        ("ghost.*.example. MX", f"NXDOMAIN | AA | {NONE}"),
        # The owner of the wildcard itself, and the empty names of the zone (2.2.2).
        ("*.example. TXT", 'NOERROR | AA | *.example. TXT "this is a wildcard"'),
        ("_tcp.host1.example. SRV", f"NOERROR | AA | {NONE}"),
        ("host2.example. TXT", f"NOERROR | AA | {NONE}"),
    ],
)
def test_the_answers_of_rfc_4592(question: str, answer: str) -> None:
    """8.3: Wildcards and empty non-terminals: RFC 4592 2.2.1."""
    assert ask(question, WILD) == answer


@pytest.mark.parametrize(
    ("name", "fit", "key"),
    [
        ("host3.example.", Fit.WILDCARD, "*.example."),
        ("_telnet._tcp.host1.example.", Fit.MISSING, "_tcp.host1.example."),
        ("_dns._udp.host2.example.", Fit.MISSING, "host2.example."),
        ("_telnet._tcp.host3.example.", Fit.WILDCARD, "*.example."),
        ("_chat._udp.host3.example.", Fit.WILDCARD, "*.example."),
        ("foobar.*.example.", Fit.MISSING, "*.example."),
    ],
)
def test_the_closest_enclosers_of_rfc_4592(name: str, fit: Fit, key: str) -> None:
    """8.3: The closest encloser and the source of synthesis: RFC 4592 3.3.2."""
    place = WILD.place(wire(name))
    assert (place.fit, place.key) == (fit, wire(key))


def test_a_zone_at_a_wildcard() -> None:
    """8.3: RFC 4592 4.1: at the apex of a zone the asterisk has no other sense."""
    at = zone('www TXT "the www txt record"\n', "*.example.")
    assert ask("www.*.example. TXT", at) == (
        'NOERROR | AA | www.*.example. TXT "the www txt record"'
    )
    assert ask("www.x.example. TXT", at) == "REFUSED"


@pytest.mark.parametrize(
    ("text", "question", "answer"),
    [
        # 4.2 leaves the NS of a wildcard undefined: data like other data, as NSD and PowerDNS do.
        ("* NS ns.y.\n", "a.z. NS", "NOERROR | AA | a.z. NS ns.y."),
        ("* NS ns.y.\n", "a.z. A", "NOERROR | AA | ^z. SOA 60"),
        ("* NS ns.y.\n", "a.*.z. A", "NOERROR | ^*.z. NS ns.y."),
        # 4.3, a CNAME: with another type it leads on, and to itself it ends.
        (
            "* CNAME t\nt A 192.0.2.1\n",
            "a.z. A",
            "NOERROR | AA | a.z. CNAME t.z. | t.z. A 192.0.2.1",
        ),
        ("* CNAME t\nt A 192.0.2.1\n", "a.z. CNAME", "NOERROR | AA | a.z. CNAME t.z."),
        # 4.4, a DNAME, which redirects nothing that the wildcard stands for.
        ("* DNAME y.\n", "a.z. DNAME", "NOERROR | AA | a.z. DNAME y."),
        ("* DNAME y.\n", "b.a.z. A", "NOERROR | AA | ^z. SOA 60"),
        # 4.5, SRV, and 4.6, DS, are data like other data.
        ("* SRV 0 0 1 t\n", "_a._b.z. SRV", "NOERROR | AA | _a._b.z. SRV 0 0 1 t.z."),
        ("* A 192.0.2.1\n", "a.z. DS", "NOERROR | AA | ^z. SOA 60"),
        # 4.7 and 4.8, an empty non-terminal below which the names are: 3.3.2 in other words.
        ("a.* A 192.0.2.1\n", "b.z. A", "NOERROR | AA | ^z. SOA 60"),
        ("a.* A 192.0.2.1\n", "a.b.z. A", "NOERROR | AA | ^z. SOA 60"),
        # 2.1.3: an asterisk in the middle stands for itself.
        ("a.*.c A 192.0.2.1\n", "a.b.c.z. A", "NOERROR | AA | ^z. SOA 60"),
        # 2.1.1: a wildcard below a wildcard.
        ("*.* A 192.0.2.1\n", "a.*.z. A", "NOERROR | AA | a.*.z. A 192.0.2.1"),
        ("*.* A 192.0.2.1\n", "a.b.z. A", "NOERROR | AA | ^z. SOA 60"),
    ],
)
def test_types_at_a_wildcard(text: str, question: str, answer: str) -> None:
    """8.3: Wildcards by the types that they own: RFC 4592 4."""
    assert ask(question, zone(text)) == answer


# ---- RFC 6672 ----


@pytest.mark.parametrize(
    ("qname", "owner", "target", "result"),
    [
        ("com.", "example.com.", "example.net.", None),
        ("example.com.", "example.com.", "example.net.", None),
        ("a.example.com.", "example.com.", "example.net.", "a.example.net."),
        ("a.b.example.com.", "example.com.", "example.net.", "a.b.example.net."),
        ("ab.example.com.", "b.example.com.", "example.net.", None),
        ("foo.example.com.", "example.com.", "example.net.", "foo.example.net."),
        ("a.x.example.com.", "x.example.com.", "example.net.", "a.example.net."),
        ("a.example.com.", "example.com.", "y.example.net.", "a.y.example.net."),
        ("cyc.example.com.", "example.com.", "example.com.", "cyc.example.com."),
        ("cyc.example.com.", "example.com.", "c.example.com.", "cyc.c.example.com."),
        ("shortloop.x.x.", "x.", ".", "shortloop.x."),
        ("shortloop.x.", "x.", ".", "shortloop."),
    ],
)
def test_the_substitutions_of_rfc_6672(
    qname: str, owner: str, target: str, result: str | None
) -> None:
    """8.3: DNAME chains: the table of RFC 6672 2.2."""
    at = zone(f"{owner} DNAME {target}\n", "x." if owner == "x." else "com.")
    made = ask(f"{qname} CNAME", at).split(" | ")[2:]
    wanted = [f"{owner} DNAME {target}", f"{qname} CNAME {result}"]
    assert made == wanted if result else not any("CNAME" in part for part in made)


def test_a_dname_at_the_apex_beside_other_data() -> None:
    """8.3: RFC 6672 6.1: a renamed organisation, whose old zone has its own SOA, NS and MX."""
    old = zone(
        "@ DNAME frobozz-division.acme.example.\n@ MX 10 mailhub.acme.example.\n", "frobozz."
    )
    new = zone(
        "www.frobozz-division A 192.0.2.1\nmailhub A 192.0.2.2\n",
        "acme.example.",
    )
    assert ask("frobozz. MX", old, new) == ("NOERROR | AA | frobozz. MX 10 mailhub.acme.example.")
    assert ask("frobozz. DNAME", old, new) == (
        "NOERROR | AA | frobozz. DNAME frobozz-division.acme.example."
    )
    assert ask("www.frobozz. A", old, new) == (
        "NOERROR | AA | frobozz. DNAME frobozz-division.acme.example."
        " | www.frobozz. CNAME www.frobozz-division.acme.example."
        " | www.frobozz-division.acme.example. A 192.0.2.1"
    )


def test_a_dname_into_a_delegation() -> None:
    """8.3: RFC 6672 6.2: classless delegation; the chain ends with the referral of the cut."""
    at = zone(
        "8/22 NS ns.slash-22-holder.example.\n"
        + "".join(f"{n} DNAME {n}.8/22\n" for n in (8, 9, 10, 11)),
        "0.192.in-addr.arpa.",
    )
    assert ask("1.9.0.192.in-addr.arpa. PTR", at) == (
        "NOERROR | AA | 9.0.192.in-addr.arpa. DNAME 9.8/22.0.192.in-addr.arpa."
        " | 1.9.0.192.in-addr.arpa. CNAME 1.9.8/22.0.192.in-addr.arpa."
        " | ^8/22.0.192.in-addr.arpa. NS ns.slash-22-holder.example."
    )


def test_the_ttl_of_a_made_cname() -> None:
    """8.3: RFC 6672 3.1: the CNAME that is made has the TTL of the DNAME."""
    answer = look("a.d.z. A", zone("d 77 DNAME y.\n")).answer
    assert [owned.rrset.ttl for owned in answer] == [77, 77]
