"""A plot of the results as SVG: for each case a bar a proxy, in units of nginx's best.

Pure, and needs nothing but text. Owns the looks; what the figures are is report.py's.
"""

from collections.abc import Sequence
from xml.sax.saxutils import escape

from tests.bench.report import best, family, figure
from tests.bench.stats import Row

_COLOURS = {"smartgw": "#d1495b", "nginx": "#00798c", "haproxy": "#66a182", "caddy": "#edae49"}
_OTHER = "#8d96a3"
_BAR, _GAP, _HEAD = 14, 16, 34
_LEFT, _WIDTH, _RIGHT = 130, 560, 110
_LONGEST = 8
"""Multiple of nginx that the longest bar stands for; some of Caddy's are far above it."""


def svg(rows: Sequence[Row]) -> str:
    """Bars of CPU time a request (idle: memory a connection) over that of the best nginx.

    Cases without nginx are left out: there is nothing to be a multiple of.
    """
    cases = [
        (case, base)
        for case in dict.fromkeys(row.case for row in rows)
        if (base := best(rows, case, "nginx"))
    ]
    bars = [
        (case, row.proxy, family(row), value, value / base)
        for case, base in cases
        for row in rows
        if row.case == case and (value := figure(row)) is not None
    ]
    parts: list[str] = []
    y = _HEAD
    for case, _ in cases:
        y += _GAP
        parts.append(_text(8, y, case, "bold"))
        y += 6
        for name, proxy, group, value, times in bars:
            if name != case:
                continue
            width = min(times / _LONGEST, 1.0) * _WIDTH
            colour = _COLOURS.get(group, _OTHER)
            parts.append(
                f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR - 2}" '
                f'fill="{colour}"/>'
            )
            parts.append(_text(16, y + _BAR - 4, proxy))
            label = f"{times:.2f}x ({value:.1f})"
            parts.append(_text(round(_LEFT + width) + 5, y + _BAR - 4, label))
            y += _BAR
    width, height = _LEFT + _WIDTH + _RIGHT, y + _GAP
    title = (
        "CPU time a request over that of the best nginx (in µs; idle: KiB a connection); "
        f"bars end at {_LONGEST}x"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'font-family="sans-serif" font-size="11">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            _text(8, 20, title, "bold"),
            *parts,
            "</svg>",
            "",
        ]
    )


def _text(x: int, y: int, text: str, weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" font-weight="{weight}">{escape(text)}</text>'
