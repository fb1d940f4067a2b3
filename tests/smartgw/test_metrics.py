"""The metrics' text: what Prometheus reads, exactly."""

import math

import pytest

from smartgw.metrics import Family, Histogram, by_label, counter, gauge, render


def test_families_have_help_type_and_samples() -> None:
    """11.3: Prometheus metrics."""
    text = render(
        [
            counter("smartgw_requests_total", "Requests, whatever came of them.", 7),
            gauge("smartgw_ready", "Whether the gateway is ready.", True),
            by_label("smartgw_hosts", "Hosts by state.", "state", {"healthy": 2, "x": 0}, "gauge"),
        ]
    )
    assert text == (
        "# HELP smartgw_requests_total Requests, whatever came of them.\n"
        "# TYPE smartgw_requests_total counter\n"
        "smartgw_requests_total 7\n"
        "# HELP smartgw_ready Whether the gateway is ready.\n"
        "# TYPE smartgw_ready gauge\n"
        "smartgw_ready 1\n"
        "# HELP smartgw_hosts Hosts by state.\n"
        "# TYPE smartgw_hosts gauge\n"
        'smartgw_hosts{state="healthy"} 2\n'
        'smartgw_hosts{state="x"} 0\n'
    )


def test_a_histogram_is_cumulative_and_its_bounds_are_inclusive() -> None:
    """11.3: buckets count what is at most their bound, the last one everything."""
    histogram = Histogram((0.5, 1.0))
    for value in (0.25, 0.5, 0.75, 8.0):
        histogram.observe(value)
    text = render([by_label("d_seconds", "D.", "kind", {"a": histogram}, "histogram")])
    assert text.splitlines()[2:] == [
        'd_seconds_bucket{kind="a",le="0.5"} 2',
        'd_seconds_bucket{kind="a",le="1.0"} 3',
        'd_seconds_bucket{kind="a",le="+Inf"} 4',
        'd_seconds_sum{kind="a"} 9.5',
        'd_seconds_count{kind="a"} 4',
    ]


def test_text_is_escaped() -> None:
    """11.3: no value or help can end its line or its quotes."""
    text = render([by_label("m", 'back\\slash "and"\nline', "l", {'a"b\\c\nd': 1})])
    assert text.splitlines() == [
        '# HELP m back\\\\slash "and"\\nline',
        "# TYPE m counter",
        'm{l="a\\"b\\\\c\\nd"} 1',
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1 << 70, str(1 << 70)), (0.1, "0.1"), (-math.inf, "-Inf"), (math.nan, "NaN")],
)
def test_numbers(value: float, text: str) -> None:
    """11.3: numbers are written as Prometheus reads them, counters exactly."""
    assert render([gauge("m", "M.", value)]).splitlines()[-1] == f"m {text}"


@pytest.mark.parametrize(
    "families",
    [
        [counter("a-b", "", 1)],
        [counter("a", "", 1), counter("a", "", 2)],
        [by_label("a", "", "__name__", {"x": 1})],
        [Family("a", "", "histogram", {(): 1})],
        [Family("a", "", "counter", {(): Histogram()})],
    ],
)
def test_what_the_format_does_not_allow_is_refused(families: list[Family]) -> None:
    """11.3: a scrape is never half valid."""
    with pytest.raises(ValueError, match=r"name|is a"):
        render(families)


@pytest.mark.parametrize("bounds", [(), (1.0, 1.0), (2.0, 1.0)])
def test_bounds_must_rise(bounds: tuple[float, ...]) -> None:
    """11.3: a histogram's buckets are ordered."""
    with pytest.raises(ValueError, match="must rise"):
        Histogram(bounds)


def test_nothing_renders_as_nothing() -> None:
    """11.3: no family, no line."""
    assert render([]) == ""
