"""Charts: read back as XML, their shapes must say what was drawn."""

import math
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.report import bar_chart
from onmt_lite.train.chart import WIDTH, line_chart, number, ticks

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


NUMBERS = st.one_of(st.floats(-1e9, 1e9).map(lambda x: round(x, 6)), st.floats())
POINTS = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=60)
DRAWN = 1e300  # whatever is smaller has a place


@given(st.lists(NUMBERS.filter(lambda x: abs(x) < DRAWN), max_size=5))
def test_ticks_are_few_and_span_the_values(values):
    found = ticks(values)
    assert 3 <= len(found) <= 9
    slack = 1e-6 * max(map(abs, found))
    assert all(found[0] - slack <= value <= found[-1] + slack for value in values)
    distances = [b - a for a, b in zip(found, found[1:])]
    assert all(d == pytest.approx(distances[0], rel=1e-3, abs=slack) for d in distances)
    digit, zeros = f"{distances[0]:.2e}".split("e")[0].split(".")
    assert (digit in "125" and zeros == "00") or max(map(abs, found)) > 1e6 * distances[0]


def extent(text):
    """Left and right end of a text, in the widest of the usual fonts (DejaVu: 0.636 em a digit)."""
    width = 0.636 * 13 * len("".join(text.itertext()))
    x = float(text.get("x", "nan"))
    left = x - {"start": 0, "middle": width / 2, "end": width}[text.get("text-anchor", "")]
    return left, left + width


@given(POINTS, POINTS)
def test_points_lie_between_the_axes_and_labels_are_not_cut(a, b):
    chart = line_chart("t", "x", {"y": {"a": a, "b": b}})
    root = read(chart)
    axes = [line for line in root.iter(f"{SVG}line") if line.get("stroke") == "#222222"]
    xs, ys = ([float(line.get(c, "nan")) for line in axes] for c in ("x1", "y1"))
    places = [place for line in lines(chart) for place in line]
    drawable = [p for p in a + b if all(abs(c) < DRAWN for c in p)]
    assert len(places) == len(drawable)
    assert all(min(xs) - 0.1 <= x <= WIDTH - 20 and min(ys) <= y <= max(ys) for x, y in places)
    labels = {}
    for text in root.iter(f"{SVG}text"):
        left, right = extent(text)
        if text.get("transform") is None and text.get("font-weight") is None:
            assert 24 <= left < right <= WIDTH  # beside the name of the y axis
            labels.setdefault(text.get("y"), []).append((left, right))
    for row in labels.values():
        assert all(end < start for (_, end), (start, _) in zip(row, row[1:]))


def test_ticks_of_a_scale_have_labels_that_differ():
    for scale in ([1e15, 1e15 + 1], [0.0, 3e-9], [9.9e6, 1.01e7], [0.0, 1e200], [1e6, 1e6 + 0.004]):
        ours = ticks(scale)
        labels = [number(value, ours) for value in ours]
        assert [float(label.replace(",", "")) for label in labels] == pytest.approx(ours)
        assert len(set(labels)) == len(ours)


@pytest.mark.parametrize("points", [[(0.4, 0.0)], [(0.4, 3.0)], [(0.4, 3.0), (0.5, 3.0)]])
def test_time_begins_at_zero_and_no_value_below_zero_is_made_up(points):
    labels = texts(line_chart("t", "minutes", {"BLEU": {"BLEU": points}}))
    numbers = [float(label) for label in labels if label[0].isdigit()]
    assert numbers.count(0) >= 1 and not any(label.startswith("-") for label in labels)


@pytest.mark.parametrize("values", [[31.0, 33.0], [0.0, 0.0], [12.5]])
def test_axis_from_zero_begins_at_zero_for_its_panel_only(values):
    points = list(enumerate(values))
    panels = {"loss": {"loss": [(0.0, 2.6), (1.0, 4.4)]}, "BLEU": {"BLEU": points}}
    chart = read(line_chart("t", "minutes", panels, from_zero=("BLEU",)))
    places = [(float(t.get("y", "nan")), "".join(t.itertext())) for t in chart.iter(f"{SVG}text")]
    is_tick = [t.get("text-anchor") == "end" for t in chart.iter(f"{SVG}text")]
    labels = [place for place, kept in zip(places, is_tick) if kept]
    loss, bleu = ([float(text) for y, text in labels if (y < 260) == upper] for upper in (1, 0))
    assert min(loss) == 2.5
    assert min(bleu) == 0 and max(bleu) >= max(values)


def test_a_long_title_keeps_both_ends():
    title = f"Training of {'/very/long/path' * 20}/mine"
    assert texts(line_chart("Training of runs/mine", "x", {}))[0] == "Training of runs/mine"
    chart = line_chart(title, "x", {})
    shown = texts(chart)[0]
    assert shown.startswith("Training of /") and shown.endswith("/mine") and len(shown) < 90
    assert read(chart).findtext(f"{SVG}title") == title


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
