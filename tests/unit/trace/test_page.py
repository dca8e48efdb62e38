"""The page of -dump_beam: complete by itself, and it says why."""

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
    """Its tags, attributes, text by class of the cell around it, and whether tags are closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids, self.targets, self.texts = [], [], [], [], []
        self.best = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append((tag, given))
        self.ids += [given["id"]] if "id" in given else []
        self.targets += [given["href"][1:]] if "href" in given else []
        if tag not in VOID:
            self.open.append((tag, "best" in (given.get("class") or "").split()))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, text):
        self.texts.append(text)
        if any(best for tag, best in self.open if tag == "td"):
            self.best.append(text)


@pytest.fixture(scope="module")
def made():
    translator = Translator.from_pretrained("de-en", precision="fp32")
    options = TranslateOptions.of(beam_size=5, block_ngram_repeat=2)
    lines = [Line(i, text, traced=True) for i, text in enumerate(LINES)]
    found = translator.pipeline.translate_lines(lines, None, options)
    traces = [t.trace or Trace(t.id, t.src) for t in found]
    return traces, found, to_html(traces)


def test_it_needs_nothing_else(made):
    """By keyboard too, in light and dark; what is in a line is text."""
    _, _, text = made
    page = Page(text)
    assert {tag for tag, _ in page.tags}.isdisjoint({"link", "img", "iframe", "base", "use"})
    assert not re.search(r"https?:|//|@import|url\(|\bon\w+=", text)
    assert all(given.get("charset", "utf-8") == "utf-8" for _, given in page.tags)
    assert "src" not in {name for _, given in page.tags for name in given}
    assert text.startswith("<!DOCTYPE html>") and 'charset="utf-8"' in text[:200]
    assert "prefers-color-scheme:dark" in text and ":focus-visible" in text
    scrolling = [given for _, given in page.tags if given.get("class") == "scroll"]
    assert scrolling and all(given["tabindex"] == "0" for given in scrolling)
    (script,) = (given for tag, given in page.tags if tag == "script")
    assert not script and "</script></body>" in text
    assert all(given["aria-label"] for given in scrolling)
    assert "<Buch>" not in text and "&lt;Buch&gt; &amp;" in text
    of_controls = to_html([Trace(0, "a\x00\ud800<b")])
    assert Page(of_controls).texts and "\x00" not in of_controls


def test_source_tokens_and_scores_are_text(made):
    traces, found, text = made
    shown = "".join(Page(text).texts)
    for line, trace, translation in zip(LINES, traces, found):
        assert line in shown
        assert translation.text in shown
        for cells in [*trace.steps, *trace.others]:
            for cell in cells:
                assert cell.text in shown and cell.why in shown
                assert cell.state == "none" or f"{cell.score:.4f}".replace("-", "\u2212") in shown
        for token in trace.src_tokens:
            assert token in shown


def test_links_lead_to_rows_and_ids_are_unique(made):
    page = Page(made[2])
    assert len(set(page.ids)) == len(page.ids)
    assert page.targets and set(page.targets) <= set(page.ids)


def test_the_winning_path_is_marked(made):
    traces, _, text = made
    page = Page(text)
    stars = [text for text in page.best if text.startswith("\N{BLACK STAR}")]
    assert len(stars) == sum(len(trace.path) for trace in traces)
    for trace in traces:
        for t, k in enumerate(trace.path):
            (start,) = re.finditer(f'id="line{trace.id}step{t + 1}row{k + 1}"', text)
            assert text[start.end() : start.end() + 40].startswith(">\N{BLACK STAR}")


def ending(tokens, log_probs, score, norm):
    return TracedHypothesis(" ".join(tokens), tokens, log_probs, score, norm, True, len(tokens), 0)


def why(*endings):
    trace = Trace(0, "x")
    trace.endings.extend(ending(*each) for each in endings)
    return explain_second_best(trace)


def test_why_the_sum_decides():
    first, sums, parting = why(
        (["a", "b"], [-0.1, -0.2], -0.15, 2.0), (["a", "c"], [-0.1, -0.9], -0.5, 2.0)
    )
    assert "lower by 0.3500" in first
    assert "\u22120.3000 for the winner and \u22121.0000 for the other" in sums
    assert "length decided" not in sums and "Penalties" not in sums
    assert "Their first 1 are equal; from token 2 on" in parting


def test_what_else_decides():
    """The length, or penalties; or there is no second."""
    by_length = (["a", "b", "c", "d"], [-0.3] * 4, -0.3, 4.0), (["a", "d"], [-0.3, -0.7], -0.5, 2.0)
    assert "its length decided against it" in why(*by_length)[1]
    assert "coverage" in why((["a"], [-0.3], -0.4, 1.0), (["b"], [-0.2], -0.5, 1.0))[1]
    assert "No other hypothesis has finished" in why((["a"], [-0.3], -0.4, 1.0))[0]


# -- the drawing ----------------------------------------------------------------------------------


class Node(NamedTuple):
    """A row as it is drawn: its box, and where a text of its may be seen."""

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
    """An SVG, read as XML: its nodes, and its lines as (kind, start, end)."""

    def __init__(self, text):
        root = ElementTree.fromstring(text)
        self.width, self.height = (float(root.get(name)) for name in ("width", "height"))
        assert root.get("viewBox").split() == ["0", "0", root.get("width"), root.get("height")]
        assert root.get("aria-label")
        self.nodes = [self.node(each) for each in root.iter("a")]
        self.lines = []
        for path in root.iter("path"):
            kind = path.get("class").split()
            places = [float(x) for x in re.findall(r"-?[\d.]+", path.get("d"))]
            self.lines += [(kind[1], places[:2], places[-2:])] if kind[0] == "edge" else []
        (circle,) = root.iter("circle")
        self.start = [float(circle.get("cx")), float(circle.get("cy"))]

    @staticmethod
    def node(link):
        title, box = link
        rect, label, score = box
        x, y, width, height = (float(box.get(name)) for name in ("x", "y", "width", "height"))
        left = x + float(rect.get("x")) - 2
        assert link.get("href").endswith(
            f"step{link.get('data-step')}row{link.get('data-row')}"
        )  # focusable without a script, and leads to the row's cell
        return Node(
            *(int(link.get(f"data-{name}")) for name in ("step", "row", "from")),
            frozenset(link.get("class").split()),
            *("".join(each.itertext()) for each in (label, score)),
            "".join(title.itertext()),
            left,
            left + float(rect.get("width")) + 4,
            y + float(rect.get("y")) + float(rect.get("height")) / 2,
            (x, x + width, y, y + height),
        )

    def check(self):
        """Each node has its line, from the right of its parent; nothing meets or is cut off."""
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
        assert thickness == sorted(thickness)  # the winner's lines lie above the others
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
        assert all(one[1] <= next_one[0] for one, next_one in pairwise(sides))
        assert all(right <= self.width + 20 for _, right in sides)
        assert all(clip[3] <= self.height for clips in columns.values() for clip in clips)
        return places


def drawings(text):
    return [Drawing(each) for each in re.findall(SVG, text, re.S)]


MORE = [{"force_words": "old\tmorning"}, {"n_best": 5, "beam_size": 10}, {"alpha": 0.0}]


@pytest.mark.parametrize(
    "given", CASES + MORE, ids=lambda given: " ".join(map(str, given.values()))
)
def test_the_drawing_is_the_search(given, monkeypatch):
    """Rows, parents and the winner, as the `Beam` of each sentence has them."""
    beams, add_trace = {}, Tracer.add_trace

    def watch(self, number, beam, found):
        beams[self.examples[number].line.id] = beam
        return add_trace(self, number, beam, found)

    monkeypatch.setattr(Tracer, "add_trace", watch)
    translator = Translator.from_pretrained("de-en", precision="fp32")
    lines = [Line(i, text, traced=True) for i, text in enumerate(SENTENCES)]
    options = TranslateOptions.of(**given)
    found = [t for t in translator.pipeline.translate_lines(lines, None, options) if t.trace]
    drawn = drawings(to_html([t.trace for t in found]))
    assert len(drawn) == len(found) == len(SENTENCES) - 1  # one is blank
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
            score = translation.trace.steps[t - 1][row].score  # as ranked: 2018 subtracts later
            assert f"score {score:.4f}".replace("-", "\u2212") in node.title
        check_hypotheses(beam, drawing, vocab)


def check_hypotheses(beam, drawing, vocab):
    """What is kept, thick or pale follows from walking back from each hypothesis."""
    hyps = [hyp for hyp in beam.rank_finished() if hyp.step]
    best = [node for node in drawing.nodes if "best" in node.states]
    tokens = [vocab[i] for i in beam.backtrack(hyps[0])[0]]
    assert [re.findall("\u2068(.*)\u2069", node.title) for node in best] == [[x] for x in tokens]
    assert [node.step for node in best] == list(range(1, len(tokens) + 1))
    assert all(a.row == b.origin for a, b in pairwise(best))
    kept = set()
    for hyp in hyps:
        row = hyp.row
        for t in range(hyp.step - 1, 0, -1):  # of the tokens before the last
            kept.add((t, row + 1))
            row = beam.prev_ks[t - 1][row]
    ends = {(hyp.step, hyp.row + 1, vocab[hyp.token]) for hyp in hyps}
    ranked = [node for node in drawing.nodes if "ranked" in node.states]
    named = {(n.step, n.origin, *re.findall("\u2068(.*)\u2069", n.title)) for n in ranked}
    assert named == ends
    assert all("finished" in node.states and node.label[0] == "\u25a0" for node in ranked)
    pale = {(n.step, n.row) for n in drawing.nodes if "pale" in n.states}
    everything = {(n.step, n.row) for n in drawing.nodes}
    assert pale == everything - kept - {(n.step, n.row) for n in ranked}


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
    """A search whose tokens, parents and ends are anything."""
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
def test_whatever_the_tokens_are_it_can_be_read(trace):
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


def test_the_page_grows_with_the_search_and_no_faster():
    def size(n_steps):
        row = Continuation(0, 5, -1.5, -0.5, text="token")
        best = TracedHypothesis(
            "x", ["token"] * n_steps, [-0.5] * n_steps, -0.5, 1.0, True, n_steps, 0
        )
        steps = [[row] * 10 for _ in range(n_steps)]
        return len(to_html([Trace(0, "x", (), 10, steps, [[]] * n_steps, [0] * n_steps, [best])]))

    assert math.isclose(size(200) - size(100), size(300) - size(200), rel_tol=0.05)
    assert (size(200) - size(100)) / 1000 < 1200  # bytes for a row, its cell of the table included
