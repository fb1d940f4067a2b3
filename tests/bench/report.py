"""The results as Markdown tables and as the JSON of contract 12.7.

Pure. Owns the layout, and the ratios: against the best variant of nginx in that case, and
against Caddy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from tests.bench.cases import CASES, CROWDS, IDLE, IDLE_WHAT
from tests.bench.stats import Row

_FORWARDING = ("smartgw_forward", "smartgw_dead-owner")
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
WHAT = {
    **{case.name: case.what for case in CASES},
    IDLE: IDLE_WHAT,
    **{crowd.name: crowd.what for crowd in CROWDS},
}
_HEADS = (
    *("proxy", "CPU µs a request", "lowest to highest", "x nginx", "x Caddy", "requests/s"),
    *("p50 µs", "p99 µs", "core", "PSS MiB", "samples"),
)


def figure(row: Row) -> float | None:
    """What a row is compared by: CPU a request, or the memory of an idle connection."""
    return row.idle_kib if row.case == IDLE else row.cpu_us


def family(row: Row) -> str:
    """The proxy without its variant."""
    return row.proxy.partition("_")[0]


def best(rows: Sequence[Row], case: str, proxy: str) -> float | None:
    """The lowest figure among the variants of a proxy in a case, None without any."""
    found = [figure(row) for row in rows if row.case == case and family(row) == proxy]
    return min((value for value in found if value is not None), default=None)


def ratio(value: float | None, base: float | None) -> str:
    """`1.52`, or nothing where one of the two was not measured."""
    return f"{value / base:.2f}" if value is not None and base else ""


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table, the first column to the left and the others to the right."""
    rule = ["---", *("---:" for _ in heads[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *lines))


def overview(rows: Sequence[Row]) -> str:
    """One line a case: the others' best figures, ours as it comes, and the ratios."""
    proxies = tuple(dict.fromkeys(map(family, rows)))
    lines = []
    for case in dict.fromkeys(row.case for row in rows):
        ours = (row for row in rows if (row.case, row.proxy) == (case, "smartgw"))
        own = next(map(figure, ours), None)
        values = [own if proxy == "smartgw" else best(rows, case, proxy) for proxy in proxies]
        ratios = [ratio(own, best(rows, case, proxy)) for proxy in ("nginx", "haproxy", "caddy")]
        lines.append([case, *(_number(value) for value in values), *ratios])
    return table(["case", *proxies, "x nginx", "x HAProxy", "x Caddy"], lines)


def forwards(rows: Sequence[Row]) -> str:
    """What forwards cost beside a local request, one line a case and variant; empty without any.

    CPU is that of both gateways; both run on one core here, so the rate of forwards is of half a
    core each.
    """
    lines = []
    for row in rows:
        if not row.proxy.startswith(_FORWARDING):
            continue
        local = _row(rows, row.case, "smartgw")
        healthy = _row(rows, row.case, "smartgw_forward")
        hop = None
        if local is not None and local.p50_us is not None and row.p50_us is not None:
            hop = row.p50_us - local.p50_us
        lines.append(
            [
                f"{row.case}: {row.proxy.partition('_')[2]}",
                _number(row.cpu_us),
                ratio(row.cpu_us, None if local is None else local.cpu_us),
                _number(hop),
                ratio(row.rps, None if healthy is None else healthy.rps),
            ]
        )
    heads = ["case", "CPU µs a request", "x local", "p50 of the hop µs", "rate, x plain forward"]
    return table(heads, lines) if lines else ""


def _row(rows: Sequence[Row], case: str, proxy: str) -> Row | None:
    return next((row for row in rows if (row.case, row.proxy) == (case, proxy)), None)


def case_table(rows: Sequence[Row], case: str) -> str:
    """All figures of one case."""
    nginx, caddy = best(rows, case, "nginx"), best(rows, case, "caddy")
    rows = [row for row in rows if row.case == case]
    if case == IDLE:
        heads = ["proxy", "KiB a connection", "x nginx", "x Caddy", "PSS MiB with all"]
        return table(heads, [_idle_line(row, nginx, caddy) for row in rows])
    return table(_HEADS, [_line(row, nginx, caddy) for row in rows])


def _line(row: Row, nginx: float | None, caddy: float | None) -> list[str]:
    aside = f", {row.set_aside} set aside" if row.set_aside else ""
    return [
        row.proxy,
        _number(row.cpu_us),
        f"{_number(row.cpu_us_min)} to {_number(row.cpu_us_max)}",
        ratio(row.cpu_us, nginx),
        ratio(row.cpu_us, caddy),
        _number(row.rps),
        _number(row.p50_us),
        _number(row.p99_us),
        f"{100 * (row.used or 0):.0f} %",
        _number(row.pss_mib),
        f"{row.samples}{aside}{', noisy' if row.noisy else ''}"
        + (f", **{row.errors} errors**" if row.errors else ""),
    ]


def _idle_line(row: Row, nginx: float | None, caddy: float | None) -> list[str]:
    value = row.idle_kib
    return [
        row.proxy,
        _number(value),
        ratio(value, nginx),
        ratio(value, caddy),
        _number(row.pss_mib),
    ]


def _number(value: float | None) -> str:
    """Three digits at least: 3.21, 32.1, 321, 32100."""
    if value is None:
        return ""
    return f"{value:.{max(0, 2 - len(str(int(abs(value)))) + 1)}f}"


def document(
    machine: Mapping[str, str], rows: Sequence[Row], skipped: Mapping[str, str], how: str
) -> str:
    """All tables, as they stand on the page."""
    facts = "; ".join(f"{name}: {value}" for name, value in machine.items())
    parts = [f"{how} {facts}.", *(f"{name} is missing: {why}." for name, why in skipped.items())]
    if rows:
        parts += [
            f"CPU µs a request ({IDLE}: KiB a connection), of the others the best variant:",
            overview(rows),
        ]
    if told := forwards(rows):
        parts += ["Forwards to another cluster, both gateways together:", told]
    for case in dict.fromkeys(row.case for row in rows):
        parts += [f"### {case}: {WHAT[case]}", case_table(rows, case)]
    return "\n\n".join(parts) + "\n"


def limiter(cost: Mapping[str, float]) -> str:
    """What limits on callers cost a request (limiter.py); empty when it was not measured."""
    if not cost:
        return ""
    what = {
        "memory": "in memory, CPU µs",
        "shared": "with a Valkey, CPU µs of the gateway",
        "store": "with a Valkey, CPU µs of its own",
        "trips": "round trips to the Valkey",
    }
    lines = [[text, f"{cost[name]:.2f}"] for name, text in what.items()]
    return f"\n### limiter: its share of a request\n\n{table(['part', 'a request'], lines)}\n"


def replaced(page: str, text: str) -> str:
    """The page with `text` between its markers. Raises ValueError for a page without them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


def results(machine: Mapping[str, str], rows: Sequence[Row]) -> dict[str, object]:
    """The JSON object of contract 12.7; more members tell more."""

    def rounded(row: Row) -> dict[str, object]:
        values: Mapping[str, object] = asdict(row)
        return {k: round(v, 3) if isinstance(v, float) else v for k, v in values.items()}

    return {"machine": dict(machine), "rows": [rounded(row) for row in rows]}
