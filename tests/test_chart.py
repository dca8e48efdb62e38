"""Charts: read back as XML, their shapes must say what was drawn."""

import math
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.report import bar_chart
from onmt_lite.train.chart import WIDTH, line_chart, ticks

SVG = "{http://www.w3.org/2000/svg}"
LOSS = {"train": [(1.0, 4.0), (2.0, 3.0), (3.0, 2.5)], "valid": [(1.0, 4.5), (3.0, 3.5)]}


def read(chart):
    return ElementTree.fromstring(chart)


def texts(chart):
    return ["".join(text.itertext()) for text in read(chart).iter(f"{SVG}text")]


def lines(chart):
    """The places of each line, as the browser counts: y grows downwards."""
    found = [line.get("points", "").split() for line in read(chart).iter(f"{SVG}polyline")]
    return [[tuple(map(float, place.split(","))) for place in places] for places in found]


def test_lines_are_drawn_to_the_scale_of_their_ticks():
    chart = line_chart("Run", "minutes", {"loss": LOSS, "BLEU": {"BLEU": [(2.0, 10.0)]}})
    train, valid, bleu = lines(chart)
    assert (len(train), len(valid), len(bleu)) == (3, 2, 1)
    assert train[0][0] == valid[0][0] < train[1][0] == bleu[0][0] < train[2][0] == valid[1][0]
    assert train[1][0] == pytest.approx((train[0][0] + train[2][0]) / 2, abs=0.1)
    # As the values: 4.0 - 3.0 is twice 3.0 - 2.5, and 4.5 - 4.0 as much as 3.0 - 2.5
    down = [y for _, y in train]
    assert (down[1] - down[0]) == pytest.approx(2 * (down[2] - down[1]), abs=0.2)
    assert (down[0] - valid[0][1]) == pytest.approx(down[2] - down[1], abs=0.2)
    # A label stands beside its place on the scale
    labels = {
        "".join(t.itertext()): float(t.get("y", "nan")) - 4 for t in read(chart).iter(f"{SVG}text")
    }
    assert labels["4.0"] == pytest.approx(down[0], abs=0.2)
    assert {"Run", "minutes", "loss", "BLEU", "train", "valid"} <= set(texts(chart))


def test_bars_are_as_long_as_their_values():
    chart = bar_chart("Speed", "lines/s", {"a": {"ours": 10.0, "theirs": 5.0}, "b": {"ours": 0.0}})
    root = read(chart)
    bars = [r for r in root.iter(f"{SVG}rect") if r.get("height") == "18"]
    widths = [float(bar.get("width", "nan")) for bar in bars]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.1) and widths[2] == 0
    colours = [bar.get("fill") for bar in bars]
    assert colours[0] == colours[2] != colours[1]
    said = ["Speed", "lines/s", "a", "b", "ours", "theirs", "10", "5", "0"]
    assert set(said) <= set(texts(chart))


@pytest.mark.parametrize("chart", [line_chart, bar_chart])
def test_nothing_to_draw_is_an_empty_chart(chart):
    assert texts(chart("Nothing", "x", {}))[0] == "Nothing"


def test_labels_are_escaped_whatever_they_hold():
    odd = 'a<b>&"c"\0\ud800\x1b'
    line = line_chart(odd, odd, {odd: {odd: [(0.0, 1.0)], "other": [(1.0, 1.0)]}})
    bar = bar_chart(odd, odd, {odd: {odd: 1.0, "other": 2.0}})
    for chart in (line, bar):
        chart.encode("utf-8")
        assert texts(chart).count('a<b>&"c"\ufffd\ufffd\ufffd') == 4


def test_what_is_not_finite_is_left_out():
    points = [(0.0, 1.0), (1.0, math.inf), (2.0, math.nan), (3.0, 2.0)]
    assert len(lines(line_chart("t", "x", {"y": {"a": points}}))[0]) == 2


@given(st.lists(st.floats(-1e9, 1e9).map(lambda x: round(x, 6)), max_size=5))
def test_ticks_are_few_and_span_the_values(values):
    found = ticks(values)
    assert 3 <= len(found) <= 9
    slack = 1e-6 * max(1.0, *map(abs, found))
    assert all(found[0] - slack <= value <= found[-1] + slack for value in values)
    distances = [b - a for a, b in zip(found, found[1:])]
    assert all(d == pytest.approx(distances[0], rel=1e-3) for d in distances)


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), max_size=60))
def test_every_point_lies_inside_the_picture(points):
    chart = line_chart("t", "x", {"y": {"a": points}})
    height = float(read(chart).get("height", "nan"))
    assert all(0 <= x <= WIDTH and 0 <= y <= height for line in lines(chart) for x, y in line)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 10.0], [0, 2, 4, 6, 8, 10]),
        ([2.6, 4.4], [2.5, 3.0, 3.5, 4.0, 4.5]),
        ([7.0], [3, 4, 5, 6, 7, 8, 9, 10, 11]),
    ],
)
def test_ticks_are_round(values, expected):
    if len(values) > 1:
        assert ticks(values) == pytest.approx(expected)
    else:
        assert ticks(values)[0] < values[0] < ticks(values)[-1]
