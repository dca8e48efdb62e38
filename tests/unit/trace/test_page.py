"""The HTML page of -dump_beam: self-contained, accessible, correct drawing and explanation."""

import math
import re
import unicodedata
from html.parser import HTMLParser
from itertools import pairwise
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onmt_lite import Translator
from onmt_lite.config.options import TranslateOptions
from onmt_lite.inference.records import Continuation, Trace, TracedHypothesis
from onmt_lite.text.lines import Line
from onmt_lite.trace.page import explain_second_best, render_drawing, to_html
from onmt_lite.trace.tracer import NO_ROW_SCORE, Tracer
from tests.unit.trace.test_tracer import CASES
from tests.unit.trace.test_tracer import LINES as SENTENCES

LINES = ["Ich habe das <Buch> & 'den' Brief.", "", "Das ist sehr, sehr, sehr gut."]
VOID = {"meta", "hr", "br"}
SVG = r"<svg class=\"search\".*?</a>\s*</svg>"


class Page(HTMLParser):
    """Tags, attributes, IDs, link targets and text of a page; checks that all tags are closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids, self.targets, self.texts = [], [], [], [], []
        self.best = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.targets += [attributes["href"][1:]] if "href" in attributes else []
        if tag not in VOID:
            self.open.append((tag, "best" in (attributes.get("class") or "").split()))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, text):
        self.texts.append(text)
        if any(best for tag, best in self.open if tag == "td"):
            self.best.append(text)


@pytest.fixture(scope="module")
def dump():
    translator = Translator.from_pretrained("de-en", precision="fp32")
    options = TranslateOptions.of(beam_size=5, block_ngram_repeat=2)
    lines = [Line(i, text, traced=True) for i, text in enumerate(LINES)]
    found = translator.pipeline.translate_lines(lines, None, options)
    traces = [t.trace or Trace(t.id, t.src) for t in found]
    return traces, found, to_html(traces)


def test_page_is_self_contained_accessible_and_escaped(dump):
    _, _, text = dump
    page = Page(text)
    assert {tag for tag, _ in page.tags}.isdisjoint({"link", "img", "iframe", "base", "use"})
    assert not re.search(r"https?:|//|@import|url\(|\bon\w+=", text)
    assert all(a.get("charset", "utf-8") == "utf-8" for _, a in page.tags)
    assert "src" not in {name for _, attributes in page.tags for name in attributes}
    assert text.startswith("<!DOCTYPE html>") and 'charset="utf-8"' in text[:200]
    assert "prefers-color-scheme:dark" in text and ":focus-visible" in text
    scrolling = [a for _, a in page.tags if a.get("class") == "scroll"]
    assert scrolling and all(a["tabindex"] == "0" for a in scrolling)
    (script,) = (a for tag, a in page.tags if tag == "script")
    assert not script and "</script></body>" in text
    assert all(a["aria-label"] for a in scrolling)
    assert "<Buch>" not in text and "&lt;Buch&gt; &amp;" in text
    control_characters = to_html([Trace(0, "a\x00\ud800<b")])
    assert Page(control_characters).texts and "\x00" not in control_characters


def test_page_shows_source_tokens_scores_and_reasons(dump):
    traces, found, text = dump
    shown = "".join(Page(text).texts)
    for line, trace, translation in zip(LINES, traces, found):
        assert line in shown
        assert translation.text in shown
        for cells in [*trace.steps, *trace.pruned]:
            for cell in cells:
                assert cell.text in shown and cell.why in shown
                assert cell.state == "none" or f"{cell.score:.4f}".replace("-", "\u2212") in shown
        for token in trace.src_tokens:
            assert token in shown


def test_page_links_have_targets_and_ids_are_unique(dump):
    page = Page(dump[2])
    assert len(set(page.ids)) == len(page.ids)
    assert page.targets and set(page.targets) <= set(page.ids)


def test_page_marks_best_path(dump):
    traces, _, text = dump
    page = Page(text)
    stars = [text for text in page.best if text.startswith("\N{BLACK STAR}")]
    assert len(stars) == sum(len(trace.path) for trace in traces)
    for trace in traces:
        for t, k in enumerate(trace.path):
            (start,) = re.finditer(f'id="line{trace.id}step{t + 1}row{k + 1}"', text)
            assert text[start.end() : start.end() + 40].startswith(">\N{BLACK STAR}")


def make_hypothesis(tokens, log_probs, score, norm):
    return TracedHypothesis(" ".join(tokens), tokens, log_probs, score, norm, True, len(tokens), 0)


def explain(*hypotheses):
    trace = Trace(0, "x")
    trace.hypotheses.extend(make_hypothesis(*hyp) for hyp in hypotheses)
    return explain_second_best(trace)


def test_explanation_names_gap_sums_and_first_difference():
    first, sums, difference = explain(
        (["a", "b"], [-0.1, -0.2], -0.15, 2.0), (["a", "c"], [-0.1, -0.9], -0.5, 2.0)
    )
    assert "lower by 0.3500" in first
    assert "\u22120.3000 for the winner and \u22121.0000 for the second" in sums
    assert "length norm decided" not in sums and "Penalties" not in sums
    assert "The two differ from token 2 on." in difference


def test_explanation_names_length_norm_penalties_or_missing_second():
    by_length = (["a", "b", "c", "d"], [-0.3] * 4, -0.3, 4.0), (["a", "d"], [-0.3, -0.7], -0.5, 2.0)
    assert "the length norm decided" in explain(*by_length)[1]
    assert "coverage" in explain((["a"], [-0.3], -0.4, 1.0), (["b"], [-0.2], -0.5, 1.0))[1]
    assert "No other hypothesis finished" in explain((["a"], [-0.3], -0.4, 1.0))[0]


# -- the drawing ----------------------------------------------------------------------------------


class Node(NamedTuple):
    """A drawn row: its box, its texts and the area that clips them."""

    step: int
    row: int
    origin: int
    states: frozenset[str]
    label: str
    score: str
    title: str
    left: float
    right: float
    middle: float
    clip: tuple[float, float, float, float]  # left, right, top, bottom


class Drawing:
    """An SVG parsed as XML: its nodes, and its edges as (style, start, end)."""

    def __init__(self, text):
        root = ElementTree.fromstring(text)
        self.width, self.height = (float(root.get(name)) for name in ("width", "height"))
        assert root.get("viewBox").split() == ["0", "0", root.get("width"), root.get("height")]
        assert root.get("aria-label")
        self.nodes = [self.read_node(link) for link in root.iter("a")]
        self.lines = []
        for path in root.iter("path"):
            kind = path.get("class").split()
            points = [float(x) for x in re.findall(r"-?[\d.]+", path.get("d"))]
            self.lines += [(kind[1], points[:2], points[-2:])] if kind[0] == "edge" else []
        (circle,) = root.iter("circle")
        self.start = [float(circle.get("cx")), float(circle.get("cy"))]

    @staticmethod
    def read_node(link):
        title, box = link
        rect, label, score = box
        x, y, width, height = (float(box.get(name)) for name in ("x", "y", "width", "height"))
        left = x + float(rect.get("x")) - 2
        assert link.get("href").endswith(
            f"step{link.get('data-step')}row{link.get('data-row')}"
        )  # focusable without a script; links to the cell of the row
        return Node(
            *(int(link.get(f"data-{name}")) for name in ("step", "row", "from")),
            frozenset(link.get("class").split()),
            *("".join(element.itertext()) for element in (label, score)),
            "".join(title.itertext()),
            left,
            left + float(rect.get("width")) + 4,
            y + float(rect.get("y")) + float(rect.get("height")) / 2,
            (x, x + width, y, y + height),
        )

    def check(self):
        """Check edges, overlaps and clipping; return the nodes by (step, row)."""
        places = {(node.step, node.row): node for node in self.nodes}
        expected = []
        for node in self.nodes:
            begin = self.start
            if node.step > 1:
                parent = places[node.step - 1, node.origin]
                begin = [parent.right, parent.middle]
            (kind,) = node.states & {"best", "kept", "pale"}
            expected.append((kind, begin, [node.left, node.middle]))
        assert sorted(self.lines) == sorted(expected)
        thickness = [("pale", "kept", "best").index(kind) for kind, _, _ in self.lines]
        assert thickness == sorted(thickness)  # edges of the best path are drawn last
        columns = {}
        for node in self.nodes:
            columns.setdefault(node.step, []).append(node.clip)
        for clips in columns.values():
            clips.sort(key=lambda clip: clip[2])
            assert all(above[3] <= below[2] for above, below in pairwise(clips))
        sides = [
            (min(clip[0] for clip in columns[step]), max(clip[1] for clip in columns[step]))
            for step in sorted(columns)
        ]
        assert all(left[1] <= right[0] for left, right in pairwise(sides))
        assert all(right <= self.width + 20 for _, right in sides)
        assert all(clip[3] <= self.height for clips in columns.values() for clip in clips)
        return places


def read_drawings(text):
    return [Drawing(svg) for svg in re.findall(SVG, text, re.S)]


MORE_CASES = [{"force_words": "old\tmorning"}, {"n_best": 5, "beam_size": 10}, {"alpha": 0.0}]


@pytest.mark.parametrize(
    "options", CASES + MORE_CASES, ids=lambda options: " ".join(map(str, options.values()))
)
def test_drawing_has_rows_parents_and_best_path_of_beam(options, monkeypatch):
    beams, add_trace = {}, Tracer.add_trace

    def keep_beam(self, index, beam, result):
        beams[self.examples[index].line.id] = beam
        return add_trace(self, index, beam, result)

    monkeypatch.setattr(Tracer, "add_trace", keep_beam)
    translator = Translator.from_pretrained("de-en", precision="fp32")
    lines = [Line(i, text, traced=True) for i, text in enumerate(SENTENCES)]
    resolved = TranslateOptions.of(**options)
    found = [t for t in translator.pipeline.translate_lines(lines, None, resolved) if t.trace]
    drawn = read_drawings(to_html([t.trace for t in found]))
    assert len(drawn) == len(found) == len(SENTENCES) - 1  # one line is empty
    vocab = translator.checkpoint.tgt_vocab.tokens
    for translation, drawing in zip(found, drawn):
        beam, places = beams[translation.id], drawing.check()
        k = beam.spec.beam_size
        rows = {
            (t, row): beam.prev_ks[t - 1][row] + 1
            for t in range(1, len(translation.trace.steps) + 1)
            for row in range(k)
            if beam.scores[t - 1][row] > NO_ROW_SCORE
        }
        assert {(n.step, n.row - 1): n.origin for n in drawing.nodes if n.row <= k} == rows
        for t, row in rows:
            node, token = places[t, row + 1], vocab[beam.next_ys[t][row]]
            shown = node.label.removeprefix("\u25a0 ").removeprefix("\u00d7 ")
            assert shown == token or (shown[-1] == "\u2026" and token.startswith(shown[:-1]))
            assert f"\u2068{token}\u2069" in node.title
            score = translation.trace.steps[t - 1][
                row
            ].score  # before opennmt-2018 subtracts penalties
            assert f"score {score:.4f}".replace("-", "\u2212") in node.title
        check_hypotheses(beam, drawing, vocab)


def check_hypotheses(beam, drawing, vocab):
    """Check the styles of nodes against the back-pointers of each finished hypothesis.

    Args:
        beam: the beam of a sentence.
        drawing: its drawing.
        vocab: target tokens by ID.
    """
    hyps = [hyp for hyp in beam.rank_finished() if hyp.step]
    best = [node for node in drawing.nodes if "best" in node.states]
    tokens = [vocab[i] for i in beam.backtrack(hyps[0])[0]]
    assert [re.findall("\u2068(.*)\u2069", node.title) for node in best] == [[x] for x in tokens]
    assert [node.step for node in best] == list(range(1, len(tokens) + 1))
    assert all(a.row == b.origin for a, b in pairwise(best))
    kept = set()
    for hyp in hyps:
        row = hyp.row
        for t in range(hyp.step - 1, 0, -1):  # tokens before the last
            kept.add((t, row + 1))
            row = beam.prev_ks[t - 1][row]
    ends = {(hyp.step, hyp.row + 1, vocab[hyp.token]) for hyp in hyps}
    ranked = [node for node in drawing.nodes if "ranked" in node.states]
    named = {(n.step, n.origin, *re.findall("\u2068(.*)\u2069", n.title)) for n in ranked}
    assert named == ends
    assert all("finished" in node.states and node.label[0] == "\u25a0" for node in ranked)
    pale = {(n.step, n.row) for n in drawing.nodes if "pale" in n.states}
    all_nodes = {(n.step, n.row) for n in drawing.nodes}
    assert pale == all_nodes - kept - {(n.step, n.row) for n in ranked}


TOKENS = st.text(max_size=40) | st.sampled_from(
    [
        "</text>",
        "]]>&amp;",
        '" onload="x',
        "\u0645\u0631\u062d\u0628\u0627" * 9,
        "\u202eabc",
        " ",
        "",
    ]
)


@st.composite
def traces(draw):
    """Draw a random trace with arbitrary tokens and back-pointers."""
    size, n_steps = draw(st.integers(1, 12)), draw(st.integers(1, 6))
    rows = st.integers(0, size - 1)
    steps = [
        [
            Continuation(
                draw(rows), 5, -1.5, -0.5, draw(st.sampled_from(["open", "ended"])), text=x
            )
            for x in draw(st.lists(TOKENS, min_size=size, max_size=2 * size))
        ]
        for _ in range(n_steps)
    ]
    end, path = draw(rows), []
    for row in steps[::-1]:
        path.insert(0, end)
        end = row[end].parent
    tokens = [row[k].text for row, k in zip(steps, path)]
    best = TracedHypothesis("x", tokens, [-0.5] * n_steps, -0.5, 1.0, True, n_steps, path[-1])
    return Trace(3, "x", (), size, steps, [[] for _ in steps], path, [best])


@given(traces())
def test_drawing_of_arbitrary_tokens_is_valid(trace):
    drawing = Drawing(render_drawing(trace))
    places = drawing.check()
    assert len(places) == sum(map(len, trace.steps))
    assert drawing.width <= 60 + len(trace.steps) * 200
    for (t, k), node in places.items():
        token = trace.steps[t - 1][k - 1].text
        letters = [c for c in node.label if unicodedata.category(c)[0] not in "MC"]
        assert len(letters) <= 16 and not re.search(r"[\t\n]", node.label)
        assert len(letters) * 8 <= node.right - node.left
        if token.isalnum() and token.isascii():
            assert f"\u2068{token}\u2069" in node.title
    assert [places[t, k + 1].states >= {"best"} for t, k in enumerate(trace.path, 1)]
    assert sum("best" in node.states for node in drawing.nodes) == len(trace.path)
    Page(to_html([trace]))


def test_page_size_is_linear_in_steps():
    def measure(n_steps):
        row = Continuation(0, 5, -1.5, -0.5, text="token")
        best = TracedHypothesis(
            "x", ["token"] * n_steps, [-0.5] * n_steps, -0.5, 1.0, True, n_steps, 0
        )
        steps = [[row] * 10 for _ in range(n_steps)]
        return len(to_html([Trace(0, "x", (), 10, steps, [[]] * n_steps, [0] * n_steps, [best])]))

    assert math.isclose(measure(200) - measure(100), measure(300) - measure(200), rel_tol=0.05)
    assert (measure(200) - measure(100)) / 1000 < 1200  # bytes per row, table cell included
