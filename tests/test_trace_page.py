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
    """By keyboard too, in light and dark; what is in a line is text."""
    _, _, text = made
    page = Page(text)
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "img", "iframe", "base"})
    assert not re.search(r"https?:|//|@import|url\(", text)
    assert all(given.get("charset", "utf-8") == "utf-8" for _, given in page.tags)
    assert "src" not in {name for _, given in page.tags for name in given}
    assert text.startswith("<!DOCTYPE html>") and 'charset="utf-8"' in text[:200]
    assert "prefers-color-scheme:dark" in text and ":focus-visible" in text
    scrolling = [given for _, given in page.tags if given.get("class") == "scroll"]
    assert scrolling and all(given["tabindex"] == "0" for given in scrolling)
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
    return Ending(" ".join(tokens), tokens, log_probs, score, norm, True, len(tokens), 0)


def why(*endings):
    trace = Trace(0, "x")
    trace.endings.extend(ending(*each) for each in endings)
    return why_second_lost(trace)


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
