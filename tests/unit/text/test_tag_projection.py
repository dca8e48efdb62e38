"""Inline markup: the line that the model reads, and tags, links and list marks in the output."""

import re
from collections import Counter
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onmt_lite import Translator
from onmt_lite.text.sentence_splitter import split_sentences
from onmt_lite.text.tag_projection import AlignedText, restore_spans
from tests.unit.text.test_placeholders import GERMAN, encode, make_translator, mask_line

HEADS = [
    # line, list marks at its start
    ("- Wie heißt du?", "- "),
    ("  - Unterpunkt", "  - "),
    ("\t* [X] Brot", "\t* [X] "),
    ("+ Brot", "+ "),
    ("•Brot", "•"),
    ("– Brot", "– "),
    ("—Brot", "—"),
    ("-Und du?", "-"),
    ("--„Brot“", "--"),
    ("1. [ ] Brot", "1. [ ] "),
    ("12)  Brot", "12)  "),
    ("(3) Brot", "(3) "),
    ("b) die Katze", "b) "),
    ("iv) die Katze", "iv) "),
    ("###### Anhang", "###### "),
    (">> Brot", ">> "),
    ("> - [x] Brot", "> - [x] "),
    ("&gt; Brot", "&gt; "),
    ("## 3. Brot", "## 3. "),
    ("- 5 Grad", "- "),
    ("1. FC Brot", "1. "),
    ("- 3. Oktober", "- "),
    # no list marks
    ("3. Oktober ist ein Feiertag.", ""),
    ("24. Juli - 13. August", ""),
    ("2. und 3. Klasse", ""),
    ("1. - 3. Platz", ""),
    ("1995. Das war schön.", ""),
    ("[x] Brot kaufen", "[x] "),
    ("[ ] Brot kaufen", "[ ] "),
    ("[leise] Brot kaufen", ""),
    ("-5 Grad", ""),
    ("-er ist eine Endung", ""),
    ("*Brot* und Butter", ""),
    ("#Brot", ""),
    ("A. Meier", ""),
    ("Brot (a) und (b) Butter", ""),
    ("- ", ""),
    ("1.", ""),
]


@pytest.mark.parametrize("line, head", HEADS)
def test_find_line_head_list_marks(line, head):
    masked_line = mask_line(line)
    assert (masked_line.head if masked_line else "") == head
    if head:
        alone = mask_line(line.removeprefix(head))
        assert masked_line.text == (alone.text if alone else line.removeprefix(head))


INLINE = [
    # line, text for the model, masked spans
    ("Siehe [hier](https://a.de/b).", "Siehe hier.", ["[", "](https://a.de/b)"]),
    ('Das [alte Haus](a.md "Ein Haus") hier', None, ["[", '](a.md "Ein Haus")']),
    ("Das [Haus](<a b.md> 'x') und [hier](a_(b))", None, ["[", "](<a b.md> 'x')", "[", "](a_(b))"]),
    ("Das [FAQ][faq] und [Haus][] hier", "Das FAQ und Haus hier", ["[", "][faq]", "[", "][]"]),
    ("![Ein Bild](bild.png)", "Ein Bild", ["![", "](bild.png)"]),
    ("[![Bild](b.png)](a.html)", "Bild", ["[", "![", "](b.png)", "](a.html)"]),
    ("Siehe <https://a.de/b> hier", "Siehe Tom hier", ["<https://a.de/b>"]),
    ("Siehe &lt;https://a.de/b&gt; hier", "Siehe Tom hier", ["&lt;https://a.de/b&gt;"]),
    ("An <m@a.de> hier", "An Tom hier", ["<m@a.de>"]),
    ("Nimm `x y_z – „a“`.", "Nimm Tom.", ["`x y_z – „a“`"]),
    ("Nimm ``a `b` &amp; c`` hier", "Nimm Tom hier", ["``a `b` &amp; c``"]),
    ("Das ist **so *sehr* gut**: ja", "Das ist so sehr gut: ja", ["**", "*", "*", "**"]),
    ("**Achtung:** __so__ ~~nicht~~", "Achtung: so nicht", ["**", "**", "__", "__", "~~", "~~"]),
    ("**H**allo", "Hallo", ["**", "**"]),
    ("Haus<b>tür</b>", "Haustür", ["<b>", "</b>"]),
    ("Die [Haus](a.html)tür", "Die Haustür", ["[", "](a.html)"]),
    ("Donau<wbr>dampf", "Donaudampf", ["<wbr>"]),
    ("&lt;b&gt;Hallo&lt;/b&gt;", "Hallo", ["&lt;b&gt;", "&lt;/b&gt;"]),
    ("&#60;i&#x3E;Ja&#60;/i&#x3E;", "Ja", ["&#60;i&#x3E;", "&#60;/i&#x3E;"]),
    ("&amp;lt;b class=&amp;quot;x&amp;quot;&amp;gt;Ja", "Ja", None),
    ("Eins&lt;br/&gt;Zwei", "Eins Zwei", ["&lt;br/&gt;"]),
    ("&lt;p&gt;Ja.&lt;/p&gt;&lt;p&gt;Nein.&lt;/p&gt;", "Ja. Nein.", None),
    ("Wenn a &lt;b und c&gt; d ist", "Wenn a b und c d ist", ["&lt;", "&gt;"]),
    ("Das steht hier[^1].", "Das steht hier.", ["[^1]"]),
    # the next speaker, after a dash at the start
    ("- Kommst du? - Nein.", "Kommst du? Nein.", ["-"]),
]


@pytest.mark.parametrize("line, text, taken", INLINE)
def test_mask_inline_markup_as_whole_spans(line, text, taken):
    masked_line = mask_line(line)
    assert text is None or masked_line.text == text
    assert taken is None or [item.text for item in masked_line.spans] == taken


def test_mask_keeps_dash_without_dash_at_line_start():
    assert mask_line("Er sagt ja. - Nein.") is None


@pytest.mark.parametrize("line", ["Wie geht`s dir? Mir geht`s", "Kolleg*innen und Schüler*innen"])
def test_mask_marks_inside_words_are_not_paired(line):
    assert all(item.partner is None for item in mask_line(line).spans)


WHOLE = ["[Haus]: https://a.de/b 'Das Haus'", "```python", "~~~", "- `x y`", "* {name}"]


@pytest.mark.parametrize("line", WHOLE)
def test_mask_line_of_only_markup_is_passed_through(line):
    assert mask_line(line).is_passed_through


# -- random markup, translations and alignments ----------------------------------------------------

# One end of each pair is numbered
PAIRS = [("<b x=0>", "</b>"), ("<i x='0'>", "</i>"), ("&lt;u x=0&gt;", "&lt;/u&gt;")]
PAIRS += [("[", "](a0.md)"), ("![", "](b_c0.png 'x')"), ("<td x=0>", "</td>")]
CLOSING = {opening.replace("0", ""): closing.replace("0", "") for opening, closing in PAIRS}
TAGS = [re.escape(tag).replace("0", r"\d+") for pair in PAIRS for tag in pair]
ANY_TAG = re.compile("|".join([*TAGS, "<br/>", "🙂", r"\{x\}"]))


def nest_markup(children):
    def joined(drawn):
        (opening, closing), parts = drawn
        if "[" in opening:  # links are not nested
            parts = [part for part in parts if "[" not in part]
        return opening + "".join(parts) + closing

    return st.tuples(st.sampled_from(PAIRS), st.lists(children, max_size=3)).map(joined)


TEXTS = st.sampled_from(
    ["Hund", " rote ", "Haus ", " und", ". ", " <br/> ", "🙂", " x. Ja ", "{x}"]
)
LINES = st.lists(st.recursive(TEXTS, nest_markup, max_leaves=8), min_size=1, max_size=4).map(
    "".join
)


MANY_NAMES = replace(GERMAN, names=("Tom", *(f"Name{char}" for char in "abcdefghijklmnopqrst")))


def number_tags(line):
    numbers = count(10)
    return re.sub("0", lambda zero: str(next(numbers)), line)


@settings(max_examples=300)
@given(
    line=LINES.map(number_tags),
    words=st.lists(st.sampled_from("Hund ab cd. ef, Haus Tom x".split())),
    data=st.data(),
)
def test_restore_tags_complete_and_nested_for_any_alignment(line, words, data):
    masked_line = mask_line(line, MANY_NAMES)
    if masked_line is None or masked_line.is_passed_through:
        return
    translation = " ".join(words)
    src_tokens, tokens = encode(masked_line.text), encode(translation)
    renders = [data.draw(st.integers(0, len(src_tokens) - 1)) for _ in tokens]
    aligned = AlignedText(src_tokens, tokens, renders)
    text, is_empty = restore_spans(masked_line, encode, aligned, translation)
    assert Counter(ANY_TAG.findall(text)) == Counter(ANY_TAG.findall(line))
    if "{x}" not in line:
        assert "".join(ANY_TAG.sub("", text).split()) == "".join(words)
    assert is_empty == bool(empty_pairs(text) - empty_pairs(line))


def empty_pairs(text: str) -> set[str]:
    """Check that all tags are nested, and return the pairs around no words."""
    opened, empty, end = [], set(), 0
    for found in ANY_TAG.finditer(text):
        has_words = any(map(str.isalnum, text[end : found.start()])) or found[0] == "{x}"
        for pair in opened:
            pair[1] |= has_words
        tag, end = found[0], found.end()
        bare = re.sub(r"\d", "", tag)
        if bare in CLOSING:
            opened.append([tag, False])
        elif bare in CLOSING.values():
            opening, is_full = opened.pop()
            assert CLOSING[re.sub(r"\d", "", opening)] == bare, text
            empty |= set() if is_full else {opening + tag}
    assert not opened
    return empty


RESTORED = [
    # line, translation, aligned source word of each target word, output
    (
        "<b>Hund</b> und <i>Haus</i>",
        "house and dog",
        "Haus und Hund",
        "<i>house</i> and <b>dog</b>",
    ),
    ("H<sub>2</sub>O ist da", "here is H2O", "da ist H2O", "here is H<sub>2</sub>O"),
    ("Die Haus<b>tür</b> da", "the front door", "Die Haustür Haustür", "the <b>front door</b>"),
    ("**Er** isst *gern*", "he he likes likes", "Er gern Er gern", "**he** *he likes likes*"),
    ("<b>Er <i>isst</i></b> da", "eats there he", "isst da Er", "<b><i>eats</i> there he</b>"),
    ("- [Er](a.md) isst", "he eats", "Er isst", "- [he](a.md) eats"),
    ("Er <b>ist</b> da", "he here", "Er da", "he <b></b> here"),
]


@pytest.mark.parametrize("line, translation, sources, expected", RESTORED)
def test_restore_pairs_enclose_translation_of_content(line, translation, sources, expected):
    masked_line = mask_line(line)
    src_tokens, tokens = encode(masked_line.text), encode(translation)
    starts = [i for i, token in enumerate(src_tokens) if token == "▁"]
    words = masked_line.text.split()
    renders = []
    for word, source in zip(translation.split(), sources.split()):
        renders += [starts[words.index(source)] + 1] * (len(word) + 1)
    text, is_empty = restore_spans(
        masked_line, encode, AlignedText(src_tokens, tokens, renders), translation
    )
    assert (text, is_empty) == (expected, "<b></b>" in expected)


@pytest.mark.timeout(30)  # quadratic time would take minutes
@pytest.mark.parametrize(
    "line",
    ["<b>" * 3000 + "Hund" + "</b>" * 3000, "<b></b>" * 3000 + "Hund", "*a " * 9000, "[a" * 9000],
    ids=len,
)
def test_restore_thousands_of_tags_in_order(line):
    masked_line = mask_line(line)
    tokens = encode(masked_line.text)
    aligned = AlignedText(tokens, tokens, range(len(tokens)))
    text, _ = restore_spans(masked_line, encode, aligned, masked_line.text)
    assert text.split() == line.split()


def test_restore_pair_encloses_partially_aligned_word():
    masked_line = mask_line("Das <b>ist</b> gut")
    src_tokens, tokens = encode(masked_line.text), encode("That's good")
    # 's is aligned to "ist"
    renders = [0] * 6 + [src_tokens.index("i")] + [len(src_tokens) - 1] * 5
    found = restore_spans(
        masked_line, encode, AlignedText(src_tokens, tokens, renders), "That's good"
    )
    assert found == ("<b>That's</b> good", False)


# -- truncated lines, references and the rule drop -------------------------------------------------


def test_split_sentences_keeps_indent_and_code():
    line = "  - Das ist `a. B` hier. Siehe [da](a.md 'Ein. Titel'). Und &lt;a b='C. D'&gt;Ja."
    first, *others = split_sentences(line)
    assert first == "  - Das ist `a. B` hier."
    assert others == ["Siehe [da](a.md 'Ein. Titel').", "Und &lt;a b='C. D'&gt;Ja."]


def test_mask_target_removes_head():
    masked_line = mask_line("- [x] Brot - kaufen")
    assert masked_line.mask_target("- [x] Buy - bread") == "Buy - bread"
    assert masked_line.mask_target("Buy - [x] bread") == "Buy - [x] bread"


@pytest.mark.parametrize("rule", ["copy", "drop"])
def test_unknown_copy_and_drop_restore_head(tiny_checkpoint, rule):
    translator = make_translator(tiny_checkpoint, unknown=rule, n_best=3, beam_size=3)
    alone, marked = translator.translate(["der hund liest", "> 1. der hund liest"])
    assert [hyp.text for hyp in marked.hyps] == [f"> 1. {hyp.text}" for hyp in alone.hyps]
    assert [hyp.tokens for hyp in marked.hyps] == [hyp.tokens for hyp in alone.hyps]


# -- the shipped model -----------------------------------------------------------------------------

# Lines with a stable translation
EXACT = {
    "Siehe [hier](https://example.org/a).": "See [here](https://example.org/a).",
    "- Wie heißt du?": "- What's your name?",
    "–Wie heißt du?": "–What's your name?",
    "- [x] Milch kaufen": "- [x] Buy milk",
    "1. Milch kaufen": "1. Buy milk",
    "- Brot": "- Bread",
    "&lt;b&gt;Hallo&lt;/b&gt;": "&lt;b&gt;Hello&lt;/b&gt;",
    "&amp;lt;b&amp;gt;Hallo&amp;lt;/b&amp;gt;": "&amp;lt;b&amp;gt;Hello&amp;lt;/b&amp;gt;",
    "Klicke &lt;a href=&quot;x.html&quot;&gt;hier&lt;/a&gt; bitte.": (
        "Please click &lt;a href=&quot;x.html&quot;&gt;here&lt;/a&gt;."
    ),
    "Der Befehl `ls -l /tmp` zeigt alle Dateien.": "The command `ls -l /tmp` shows all the files.",
    "<b>H</b>allo": "<b>Hello</b>",
}
# Lines, and their markup in output order, without spaces
ORDERED = {
    "![Ein Hund im Garten](img/hund.jpg 'Unser Hund')": "![ ](img/hund.jpg_'Unser_Hund')",
    "[![Logo](logo.png)](https://example.org)": "[ ![ ](logo.png) ](https://example.org)",
    "Lies die [FAQ](https://a.de/faq) und die [AGB](agb.html).": (
        "[ ](https://a.de/faq) [ ](agb.html)"
    ),
    "Besuchen Sie <https://example.org/start> bitte.": "<https://example.org/start>",
    "Führe `pip install onmt` aus.": "`pip_install_onmt`",
    "**Achtung:** Der Boden ist *sehr* nass.": "** ** * *",
    "1. Öffne die Datei `config.yaml`.": "1. `config.yaml`",
    "> - [ ] Ich kaufe **Brot**.": "> - [_] ** **",
    "    * Noch ein Punkt": "____*",
    "## 3. Installation": "## 3.",
    "- Kommst du mit? - Nein, ich habe keine Zeit.": "- -",
    "Haus<b>tür</b>": "<b> </b>",
    "Wasser<sup>stoff</sup>": "<sup> </sup>",
    "H<sub>2</sub>O ist Wasser.": "H<sub>2</sub>O",
    "Der <b><i>kleine</i> Hund</b> schläft.": "<b> <i> </i> </b>",
    "&lt;p&gt;Ich wohne in &lt;b&gt;Berlin&lt;/b&gt;.&lt;/p&gt;": (
        "&lt;p&gt; &lt;b&gt; &lt;/b&gt; &lt;/p&gt;"
    ),
}


@pytest.fixture(scope="module")
def shipped():
    return Translator.from_pretrained(device="cpu")


def test_shipped_model_restores_markup(shipped):
    for found, expected in zip(shipped.translate([*EXACT]), EXACT.values()):
        assert found.text == expected
    for found, markup in zip(shipped.translate([*ORDERED]), ORDERED.values()):
        at = 0
        for item in markup.replace("_", "\0").split():
            item = item.replace("\0", " ")
            assert item in found.text[at:], (found.text, item)
            at = found.text.index(item, at) + len(item)
        assert "empty-markup" not in found.notes


def test_empty_markup_warning_for_tags_without_text(shipped):
    lines = [
        "<b>Rufen</b> Sie mich bitte <i>an</i>.",
        "<b>Rufen Sie mich bitte an.</b>",
        "<b></b>Ja.",
    ]
    lost, *others = shipped.translate(lines)
    assert "<i></i>" in lost.text and "empty-markup" in lost.notes
    assert not any("empty-markup" in found.notes for found in others)
