"""The page of -dump_beam: complete by itself, and it says why."""

import re
from html.parser import HTMLParser

import pytest

from onmt_lite import Translator
from onmt_lite.config.options import TranslateOptions
from onmt_lite.inference.records import Ending, Trace
from onmt_lite.inference.trace_page import to_html, why_second_lost
from onmt_lite.text.lines import Line

LINES = ["Ich habe das <Buch> & 'den' Brief.", "", "Das ist sehr, sehr, sehr gut."]
VOID = {"meta", "hr", "br"}


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
    _, _, text = made
    page = Page(text)
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "img", "iframe", "base"})
    assert not re.search(r"https?:|//|@import|url\(", text)
    assert all(given.get("charset", "utf-8") == "utf-8" for _, given in page.tags)
    assert "src" not in {name for _, given in page.tags for name in given}
    assert text.startswith("<!DOCTYPE html>") and 'charset="utf-8"' in text[:200]


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


def test_by_keyboard_in_light_and_dark(made):
    page, text = Page(made[2]), made[2]
    assert "prefers-color-scheme:dark" in text and ":focus-visible" in text
    scrolling = [given for _, given in page.tags if given.get("class") == "scroll"]
    assert scrolling and all(given["tabindex"] == "0" for given in scrolling)
    assert all(given["aria-label"] for given in scrolling)


def test_text_is_escaped(made):
    assert "<Buch>" not in made[2] and "&lt;Buch&gt; &amp;" in made[2]


def test_a_line_of_controls_can_be_shown():
    Page(to_html([Trace(0, "a\x00\ud800<b")])).texts  # noqa: B018 - it parses
    assert "\x00" not in to_html([Trace(0, "a\x00\ud800<b")])


def ending(tokens, log_probs, score, norm):
    return Ending(" ".join(tokens), tokens, log_probs, score, norm, True, len(tokens), 0)


class TestWhy:
    def test_the_sum_decides(self):
        trace = Trace(0, "x")
        best = ending(["a", "b"], [-0.1, -0.2], -0.15, 2.0)
        second = ending(["a", "c"], [-0.1, -0.9], -0.5, 2.0)
        trace.endings.extend([best, second])
        first, sums, parting = why_second_lost(trace)
        assert "lower by 0.3500" in first
        assert "\u22120.3000 for the winner and \u22121.0000 for the other" in sums
        assert "length decided" not in sums and "Penalties" not in sums
        assert "Their first 1 are equal; from token 2 on" in parting
        assert "\N{LEFT DOUBLE QUOTATION MARK}c\N{RIGHT DOUBLE QUOTATION MARK}" in parting

    def test_the_length_decides(self):
        trace = Trace(0, "x")
        trace.endings.append(ending(["a", "b", "c", "d"], [-0.3] * 4, -0.3, 4.0))
        trace.endings.append(ending(["a", "d"], [-0.3, -0.7], -0.5, 2.0))
        assert "its length decided against it" in why_second_lost(trace)[1]

    def test_penalties_are_named(self):
        trace = Trace(0, "x")
        trace.endings.append(ending(["a"], [-0.3], -0.4, 1.0))
        trace.endings.append(ending(["b"], [-0.2], -0.5, 1.0))
        assert "coverage" in why_second_lost(trace)[1]

    def test_there_is_no_second(self):
        trace = Trace(0, "x")
        trace.endings.append(ending(["a"], [-0.3], -0.4, 1.0))
        assert "No other hypothesis has finished" in why_second_lost(trace)[0]
