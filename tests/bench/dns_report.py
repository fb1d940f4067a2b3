"""The results of DNS as Markdown tables, CPU time a query against BIND's and Knot's.

Pure. Owns the layout; the rest of the page is report.py's.
"""

from collections.abc import Sequence

from tests.bench.dns_stage import CASES
from tests.bench.report import ratio, table
from tests.bench.stats import Row

_HEADS = (
    *("server", "CPU µs a query", "lowest to highest", "x BIND", "x Knot", "queries/s"),
    *("core", "PSS MiB", "samples"),
)


def document(rows: Sequence[Row]) -> str:
    """All tables, as they stand on the page; empty without rows."""
    parts = []
    for case in CASES:
        found = [row for row in rows if row.case == case.name]
        if found:
            bind, knot = (
                next((row.cpu_us for row in found if row.proxy == name), None)
                for name in ("bind", "knot")
            )
            lines = [_line(row, bind, knot) for row in found]
            parts += [f"### {case.name}: {case.what}", table(_HEADS, lines)]
    return "\n" + "\n\n".join(parts) + "\n" if parts else ""


def _line(row: Row, bind: float | None, knot: float | None) -> list[str]:
    aside = f", {row.set_aside} set aside" if row.set_aside else ""
    errors = f", **{row.errors} errors**" if row.errors else ""
    return [
        row.proxy,
        f"{row.cpu_us:.2f}",
        f"{row.cpu_us_min:.2f} to {row.cpu_us_max:.2f}",
        ratio(row.cpu_us, bind),
        ratio(row.cpu_us, knot),
        f"{row.rps:.0f}",
        f"{100 * (row.used or 0):.0f} %",
        f"{row.pss_mib:.1f}",
        f"{row.samples}{aside}{', noisy' if row.noisy else ''}{errors}",
    ]
