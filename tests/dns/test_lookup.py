"""Proves smartgw_dns/lookup.py on real reports and on corners that no RFC has an example of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartgw_dns.catalog import Catalog
from smartgw_dns.lookup import MOST_STEPS
from smartgw_dns.names import ASTERISK, parent, starts
from smartgw_dns.zone import CNAME, DNAME, NS, Fit, Zone
from tests.dns.zones import NAMES, TYPES, ask, look, wire, zone, zones

SOA = "^z. SOA 60"

# Zone, question, answer; the names of the first group are those of the reports in replay.md.
REPORTS = {
    "D01 a wildcard that is an empty non-terminal": (
        "f.*.e A 192.0.2.1\n",
        {"x.e.z. A": f"NOERROR | AA | {SOA}", "y.x.e.z. A": f"NOERROR | AA | {SOA}"},
    ),
    "D03 an encloser without a wildcard of its own": (
        "*.d A 192.0.2.1\nr.c.d A 192.0.2.2\n",
        {
            "x.c.d.z. A": f"NXDOMAIN | AA | {SOA}",
            "x.r.c.d.z. A": f"NXDOMAIN | AA | {SOA}",
            "x.d.z. A": "NOERROR | AA | x.d.z. A 192.0.2.1",
        },
    ),
    "D04 a name below takes the name above from the wildcard": (
        "* A 192.0.2.1\n_443._tcp.www TXT x\n",
        {
            "www.z. A": f"NOERROR | AA | {SOA}",
            "_tcp.www.z. A": f"NOERROR | AA | {SOA}",
            "x.www.z. A": f"NXDOMAIN | AA | {SOA}",
        },
    ),
    "D06 a question for the CNAME of a wildcard is not chased": (
        "* CNAME a.b\na.b A 192.0.2.1\n",
        {
            "x.z. CNAME": "NOERROR | AA | x.z. CNAME a.b.z.",
            "x.z. A": "NOERROR | AA | x.z. CNAME a.b.z. | a.b.z. A 192.0.2.1",
        },
    ),
    "D07 loops end with the chain so far": (
        "a CNAME b\nb CNAME a\ns CNAME s\n*.w CNAME x.w\nd DNAME e\ne DNAME d\n",
        {
            "a.z. A": "NOERROR | AA | a.z. CNAME b.z. | b.z. CNAME a.z.",
            "s.z. A": "NOERROR | AA | s.z. CNAME s.z.",
            "y.w.z. A": "NOERROR | AA | y.w.z. CNAME x.w.z. | x.w.z. CNAME x.w.z.",
            "x.d.z. A": "NOERROR | AA | d.z. DNAME e.z. | x.d.z. CNAME x.e.z. | e.z. DNAME d.z."
            " | x.e.z. CNAME x.d.z.",
        },
    ),
    "D08 a CNAME to a name of ours that is missing": (
        "a CNAME b\nc CNAME a\n",
        {
            "a.z. A": f"NXDOMAIN | AA | a.z. CNAME b.z. | {SOA}",
            "c.z. A": f"NXDOMAIN | AA | c.z. CNAME a.z. | a.z. CNAME b.z. | {SOA}",
        },
    ),
    "D09 a CNAME out of our zones": (
        "a CNAME www.example.org.\n",
        {"a.z. A": "NOERROR | AA | a.z. CNAME www.example.org."},
    ),
    "D11 a wildcard that owns a DNAME": (
        "* DNAME some.domain.\n* A 192.0.2.1\n",
        {
            "a.*.z. DNAME": "NOERROR | AA | *.z. DNAME some.domain. | a.*.z. CNAME a.some.domain.",
            "a.z. A": "NOERROR | AA | a.z. A 192.0.2.1",
            "b.a.z. TXT": f"NOERROR | AA | {SOA}",
        },
    ),
    "D12 names below a cut": (
        "s NS ns.s\ns NS ns.t\ns A 192.0.2.9\nns.s A 192.0.2.1\nx.s A 192.0.2.2\nu.s NS ns.u.s\n"
        "t NS ns.t\nns.t AAAA 2001:db8::1\n",
        {
            question: "NOERROR | ^s.z. NS ns.s.z. | ^s.z. NS ns.t.z. | +ns.s.z. A 192.0.2.1"
            " | +ns.t.z. AAAA 2001:db8::1"
            for question in ("s.z. A", "x.s.z. A", "n.s.z. TXT", "u.s.z. NS", "u.s.z. DS")
        },
    ),
    "D14 a wildcard stands for several labels": (
        "* A 192.0.2.1\n",
        {"a.b.c.z. A": "NOERROR | AA | a.b.c.z. A 192.0.2.1"},
    ),
    "D15 off-zone": ("", {"y. A": "REFUSED", ". NS": "REFUSED", "az. A": "REFUSED"}),
    "an address and more for what MX, SRV and SVCB name": (
        "m MX 1 t\nv SRV 1 1 443 t\nh HTTPS 1 t\nt A 192.0.2.1\n",
        {
            "m.z. MX": "NOERROR | AA | m.z. MX 1 t.z. | +t.z. A 192.0.2.1",
            "v.z. SRV": "NOERROR | AA | v.z. SRV 1 1 443 t.z. | +t.z. A 192.0.2.1",
            "h.z. HTTPS": "NOERROR | AA | h.z. HTTPS 1 t.z. | +t.z. A 192.0.2.1",
        },
    ),
    "a chain that comes to the DNAME that it began with": (
        "d DNAME t\nx.t CNAME d\n",
        {
            "x.d.z. DNAME": "NOERROR | AA | d.z. DNAME t.z. | x.d.z. CNAME x.t.z. | "
            "x.t.z. CNAME d.z."
        },
    ),
    "no address of what a DNAME hides": (
        "d DNAME t\ns.d A 192.0.2.1\nm MX 1 s.d\nc NS s.d\nc NS s.c\ns.c A 192.0.2.2\n",
        {
            "m.z. MX": "NOERROR | AA | m.z. MX 1 s.d.z.",
            "x.c.z. A": "NOERROR | ^c.z. NS s.d.z. | ^c.z. NS s.c.z. | +s.c.z. A 192.0.2.2",
        },
    ),
    "ANY is one rrset, the smallest (RFC 8482)": (
        "a TXT longer-than-an-address\na A 192.0.2.1\nc CNAME a\n* MX 1 a\ne.n A 192.0.2.1\n"
        "d DNAME a\n",
        {
            "a.z. ANY": "NOERROR | AA | a.z. A 192.0.2.1",
            "c.z. ANY": "NOERROR | AA | c.z. CNAME a.z.",
            "x.z. ANY": "NOERROR | AA | x.z. MX 1 a.z. | +a.z. A 192.0.2.1",
            "n.z. ANY": f"NOERROR | AA | {SOA}",
            "x.d.z. ANY": "NOERROR | AA | d.z. DNAME a.z. | x.d.z. CNAME x.a.z.",
        },
    ),
    "the parent answers for the DS of a cut": (
        "s NS ns.s\ns DS 1 13 2 " + "ab" * 32 + "\nt NS ns.t\n",
        {
            "s.z. DS": f"NOERROR | AA | s.z. DS 1 13 2 {'ab' * 32}",
            "t.z. DS": f"NOERROR | AA | {SOA}",
            "x.t.z. DS": "NOERROR | ^t.z. NS ns.t.z.",
        },
    ),
    "case is kept and does not matter": (
        "UPPER A 192.0.2.1\nc CNAME MiXed.Z.\nmixed A 192.0.2.2\n",
        {
            "upper.z. A": "NOERROR | AA | upper.z. A 192.0.2.1",
            "UpPer.Z. A": "NOERROR | AA | UpPer.Z. A 192.0.2.1",
            "C.z. A": "NOERROR | AA | C.z. CNAME MiXed.Z. | MiXed.Z. A 192.0.2.2",
        },
    ),
    "types of messages": (
        "",
        {f"z. {kind}": "REFUSED" for kind in ("AXFR", "IXFR", "OPT", "TSIG", "TYPE0", "MAILA")},
    ),
    "an unknown type": ("a A 192.0.2.1\n", {"a.z. TYPE65535": f"NOERROR | AA | {SOA}"}),
}
CASES = [
    pytest.param(text, question, answer, id=f"{name}: {question}")
    for name, (text, questions) in REPORTS.items()
    for question, answer in questions.items()
]


@pytest.mark.parametrize(("text", "question", "answer"), CASES)
def test_an_answer_is_right(text: str, question: str, answer: str) -> None:
    """8.3: Answers are those of the best authoritative servers."""
    assert ask(question, zone(text)) == answer


def test_a_chain_goes_through_all_our_zones() -> None:
    """8.3: CNAME and DNAME chains inside our zones; the last name decides the rcode (RFC 6604)."""
    z = zone("a CNAME a.y.\nn CNAME n.y.\nc CNAME x.s.y.\nd DNAME y.\n")
    y = zone("a A 192.0.2.1\ns NS ns.s\nns.s A 192.0.2.2\n", "y.")
    assert ask("a.z. A", z, y) == "NOERROR | AA | a.z. CNAME a.y. | a.y. A 192.0.2.1"
    assert ask("n.z. A", z, y) == "NXDOMAIN | AA | n.z. CNAME n.y. | ^y. SOA 60"
    assert ask("c.z. A", z, y) == (
        "NOERROR | AA | c.z. CNAME x.s.y. | ^s.y. NS ns.s.y. | +ns.s.y. A 192.0.2.2"
    )
    assert ask("a.d.z. A", z, y) == (
        "NOERROR | AA | d.z. DNAME y. | a.d.z. CNAME a.y. | a.y. A 192.0.2.1"
    )
    assert ask("a.z. A", z) == "NOERROR | AA | a.z. CNAME a.y."


def test_parent_and_child_are_both_ours() -> None:
    """8.3: The longest zone answers, but for the DS of its apex its parent."""
    parent_, child = zone("c NS ns.elsewhere.\nc A 192.0.2.9\n"), zone("@ A 192.0.2.1\n", "c.z.")
    assert ask("c.z. A", parent_, child) == "NOERROR | AA | c.z. A 192.0.2.1"
    assert ask("c.z. DS", parent_, child) == f"NOERROR | AA | {SOA}"
    assert ask("c.z. DS", child) == "NOERROR | AA | ^c.z. SOA 60"
    assert ask("x.c.z. DS", parent_, child) == "NXDOMAIN | AA | ^c.z. SOA 60"


def test_nothing_is_said_of_a_zone_that_cannot_be_read() -> None:
    """11.2: no name is said not to be there, or to be another zone's, for lack of knowledge."""
    found = zone("* A 192.0.2.1\na CNAME x.u\n"), Zone.unknown(wire("u.z."))
    for question in ("u.z. SOA", "x.u.z. A", "u.z. ANY"):
        assert ask(question, *found) == "SERVFAIL"
    # The parent's, and known.
    assert ask("u.z. DS", *found).startswith("NOERROR | AA")
    # Whoever asks goes on from there, and is told then.
    assert ask("a.z. A", *found) == "NOERROR | AA | a.z. CNAME x.u.z."


def test_a_chain_ends_after_some_steps() -> None:
    """8.3: A chain is bounded; a resolver goes on from where it ends."""
    long = zone("".join(f"c{n} CNAME c{n + 1}\n" for n in range(99)))
    answer = look("c0.z. A", long)
    assert (answer.rcode, len(answer.answer), answer.authority) == (0, MOST_STEPS + 1, ())


def test_a_name_that_grows_too_long() -> None:
    """8.3: A DNAME that makes a name longer than 255 octets: YXDOMAIN (RFC 6672 2.2)."""
    label = "a" * 60
    text = f"d DNAME {label}.{label}.{label}.z.\n"
    short, long = f"{'b' * 60}.d.z. A", f"{'b' * 63}.{'b' * 10}.d.z. A"
    assert ask(short, zone(text)).startswith("NXDOMAIN | AA | d.z. DNAME")
    assert ask(long, zone(text)) == f"YXDOMAIN | AA | d.z. DNAME {label}.{label}.{label}.z."


def test_the_ttl_of_a_negative_answer() -> None:
    """8.3: TTLs bounded as RFC 2308 says: the lower of the SOA's own and its MINIMUM."""
    assert ask("x.z. A", zone("")) == "NXDOMAIN | AA | ^z. SOA 60"
    low = zone("").apex.get(6)
    assert low is not None
    assert ask("z. SOA", zone("")) == "NOERROR | AA | z. SOA 600"
    assert look("x.z. A", zone("")).authority[0].rrset.rdatas == low.rdatas


def test_glue_that_cannot_be_found_elsewhere_comes_first() -> None:
    """8.3: Referrals with glue: that below the cut first, for it must fit or TC be set."""
    text = "s NS t.z.\ns NS a.s\nt A 192.0.2.1\na.s A 192.0.2.2\na.s AAAA 2001:db8::2\n"
    answer = look("x.s.z. A", zone(text))
    assert answer.glue == 2
    assert [owned.owner for owned in answer.additional] == [*[wire("a.s.z.")] * 2, wire("t.z.")]


def test_an_answer_tells_what_served_it() -> None:
    """8: Lookup, signing and caching are separable: each step names the zone and the entry."""
    found = zone("* CNAME a\na A 192.0.2.1\n")
    steps = look("X.z. A", found).steps
    assert [(s.name, s.place.fit, s.place.key) for s in steps] == [
        (wire("X.z."), Fit.WILDCARD, wire("*.z.")),
        (wire("a.z."), Fit.EXACT, wire("a.z.")),
    ]
    assert all(step.zone is found for step in steps)


def test_a_positive_answer_names_the_servers_of_its_zone() -> None:
    """8.3: The NS of the apex stand beside an answer, as all four servers have it in the cases."""
    answer = look("a.z. A", zone("a A 192.0.2.1\n@ NS a\n"))
    assert [owned.owner for owned in answer.authority] == [wire("z.")]
    assert answer.additional == ()  # its address is the answer
    assert look("z. NS", zone("")).authority == ()


def plain_place(zone: Zone, key: bytes) -> tuple[Fit, bytes]:
    """RFC 4592 and 1034 in the words of their definitions, by search through all owners."""
    owners = {owner: entry for owner, entry in zone.entries.items() if entry.rrsets}
    above = [key[at:] for at in starts(key)[::-1]]

    def exists(name: bytes) -> bool:
        return any(owner == name or owner.endswith(name) for owner in owners)

    for name in above:
        entry = owners.get(name)
        if entry and name != zone.origin and entry.get(NS):
            return Fit.CUT, name
        if entry and name != key and entry.get(DNAME):
            return Fit.DNAME, name
    if exists(key):
        return Fit.EXACT, key
    encloser = parent(key)
    while not exists(encloser):
        encloser = parent(encloser)
    if exists(ASTERISK + encloser):
        return Fit.WILDCARD, ASTERISK + encloser
    return Fit.MISSING, encloser


@given(zones(), NAMES)
def test_a_place_is_what_the_definitions_say(zone: Zone, name: bytes) -> None:
    """8.3: Wildcards and empty non-terminals (RFC 4592), and never the occluded data."""
    place = zone.place(name.lower())
    assert (place.fit, place.key) == plain_place(zone, name.lower())
    assert zone.entries.get(place.key) is place.entry


@given(zones(), NAMES, TYPES | st.just(255))
def test_an_answer_is_whole_and_bounded(zone: Zone, name: bytes, rdtype: int) -> None:
    """8.3: Whatever the zone, an answer ends, has an SOA if negative, and repeats no set."""
    answer = Catalog.of([zone]).lookup_wire(name, rdtype)
    assert len(answer.steps) <= MOST_STEPS + 1
    kinds = {owned.rrset.rdtype for owned in answer.authority}
    last = answer.steps[-1].place
    if answer.rcode == 3 or (not answer.answer and answer.authoritative):
        assert kinds == {6}
    if not answer.authoritative:
        assert (last.fit, kinds, answer.answer) == (Fit.CUT, {2}, ())
    everything = [*answer.answer, *answer.authority, *answer.additional]
    shown = [(owned.owner.lower(), owned.rrset.rdtype) for owned in everything]
    assert len(set(shown)) == len(shown)
    for owned in answer.answer[:-1]:
        assert owned.rrset.rdtype in (CNAME, DNAME)
