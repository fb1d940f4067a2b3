"""Every row of tests/data/ratelimit/sequences.tsv has a test that names it."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[2]
ROWS = TESTS / "data/ratelimit/sequences.tsv"
# A batch of eleven queries: refused by its form, before any window (8.1).
OF_THE_DNS_API = {"R15"}


def test_every_row_is_tried() -> None:
    """6: the sequences are tried against the pure core, a real Valkey, or over real sockets."""
    rows = set(re.findall(r"^(R[0-9]+)\t", ROWS.read_text(), re.MULTILINE))
    named: set[str] = set()
    for path in (*TESTS.glob("smartgw/admission/*.py"), *TESTS.glob("smartgw/proxy/test_limits*")):
        named.update(re.findall(r"\bR[0-9]{2}\b", path.read_text()))
    assert len(rows) == 16
    assert rows - OF_THE_DNS_API <= named
