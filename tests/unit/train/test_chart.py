"""SVG charts, parsed as XML: lines, axes and bars match the data."""

import re
from xml.etree import ElementTree

import pytest

from benchmarks.report import draw_chart
from onmt_lite.train.chart import draw_training_chart
from onmt_lite.train.run_directory import Row
from tests.unit.benchmarks.test_benchmark import RECORD, WORK

pytest.importorskip("matplotlib")

SVG = "{http://www.w3.org/2000/svg}"


def texts(chart):
    root = ElementTree.fromstring(chart)
    return ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]


def points_of(chart, name):
    """The points of a line, as the browser counts: y grows downwards."""
    (group,) = (g for g in ElementTree.fromstring(chart).iter(f"{SVG}g") if g.get("id") == name)
    path = next(group.iter(f"{SVG}path")).get("d", "")
    return [tuple(map(float, point)) for point in re.findall(r"[ML] (\S+) (\S+)", path)]


def tick_labels(chart, panel, axis):
    """The numbers on an axis of a panel, counted from 1."""
    found = {g.get("id", ""): g for g in ElementTree.fromstring(chart).iter(f"{SVG}g")}
    ids = {g.get("id", "") for g in found[f"axes_{panel}"].iter(f"{SVG}g")}
    shown = [next(found[i].iter(f"{SVG}text"), None) for i in ids if i.startswith(f"{axis}tick_")]
    return sorted(float("".join(text.itertext())) for text in shown if text is not None)


def widths_of_bars(chart):
    """The widths of the bars, by color."""
    found = {}
    for path in ElementTree.fromstring(chart).iter(f"{SVG}path"):
        drawn = path.get("d", "").strip()
        if path.get("clip-path") and drawn.endswith("z"):
            xs = [float(x) for x in re.findall(r"[ML] (\S+)", drawn)]
            found.setdefault(path.get("style", ""), []).append(max(xs) - min(xs))
    return list(found.values())


def row(minutes, train_loss, valid_loss=None, bleu=None):
    return Row(9, 0, minutes, 99, 9.0, 0.1, train_loss, valid_loss, None, bleu)


ROWS = [row(1.0, 4.0, 4.5, 12.5), row(2.0, 3.0), row(4.0, 2.5, 3.5, 31.0)]


def test_training_chart_draws_lines_to_scale():
    chart = draw_training_chart(ROWS)
    train, valid, bleu = (points_of(chart, name) for name in ("training", "held out", "BLEU"))
    assert (len(train), len(valid), len(bleu)) == (3, 2, 2)
    assert [x for x, _ in valid] == [x for x, _ in bleu] == [train[0][0], train[2][0]]
    assert train[2][0] - train[1][0] == pytest.approx(2 * (train[1][0] - train[0][0]), abs=0.1)
    # 4.0 - 3.0 is twice 3.0 - 2.5, and 4.5 - 4.0 as much as 3.0 - 2.5
    down = [y for _, y in train]
    assert down[1] - down[0] == pytest.approx(2 * (down[2] - down[1]), abs=0.1)
    assert down[0] - valid[0][1] == pytest.approx(down[2] - down[1], abs=0.1)
    labels = {"wall-clock minutes", "loss, nats per token", "training", "held out", "BLEU"}
    assert labels <= set(texts(chart))


def test_training_chart_axes_of_time_and_bleu_begin_at_zero():
    chart = draw_training_chart(ROWS)
    assert min(tick_labels(chart, 1, "y")) >= 2.5
    assert min(tick_labels(chart, 2, "y")) == min(tick_labels(chart, 2, "x")) == 0


@pytest.mark.parametrize("score", [None, 0.0])
def test_training_draw_chart_one_row_shows_it(score):
    chart = draw_training_chart([row(0.4, 3.0, 3.1, score)])
    assert len(points_of(chart, "training")) == len(points_of(chart, "held out")) == 1
    assert ("BLEU" in texts(chart)) == (score is not None)


def test_training_chart_of_equal_rows_is_the_same_file():
    assert draw_training_chart(ROWS) == draw_training_chart(ROWS)
    assert b"dc:date" not in draw_training_chart(ROWS)


def test_speed_chart_has_a_bar_for_each_ratio():
    record = {**RECORD, "workloads": {"base": WORK, "tiny": WORK}}
    chart = draw_chart(record)
    shown = texts(chart)
    assert shown.count("0.44") == 2 and shown.count("2.00") >= 2  # of which one may be a tick
    assert {"speed relative to CTranslate2 int8", "base", "tiny", *WORK["systems"]} <= set(shown)
    base, tiny = widths_of_bars(chart)
    assert base == pytest.approx(tiny, abs=0.01)
    assert base == pytest.approx([base[2] * 2, base[2] * 4 / 9, base[2]], abs=0.01)
