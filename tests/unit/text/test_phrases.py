"""-force_words and -ban_words, checked against the output text with regular expressions."""

import itertools
import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import translate
from onmt_lite import Translator
from onmt_lite.checkpoints.checkpoint import Checkpoint
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import DataError, OptionError
from onmt_lite.models.table_model import TableModel
from onmt_lite.search.presets import PRESETS
from onmt_lite.text.bpe import detokenize_bpe
from onmt_lite.text.phrases import SurfaceForms, contains_phrase, parse_phrases
from onmt_lite.text.tokenizers import (
    SpaceTokenizer,
    detokenize_joiner,
    detokenize_sentencepiece,
    detokenize_spacer,
)
from onmt_lite.text.vocab import Vocab
from tests.support.table_models import make_checkpoint, make_source

BAN = [name for name, preset in PRESETS.items() if "ban_words" in preset.options]
PIECES = "</s> ▁cat egory s ▁the ▁ c at . ▁a".split()
BPE = "</s> cat cat@@ egory s the c@@ at . a".split()
JOINED = "</s> cat cat￭ ￭egory ￭s the c ￭at ￭. a".split()


class GreedyTokenizer:
    """A greedy longest-match tokenizer; with a mark, the marked tokens do not end a word."""

    def __init__(self, tokens, join, space="", mark=""):
        self.decode, self.space = join, space
        self.tokens = {t.removesuffix(mark): t for t in tokens if not mark or t.endswith(mark)}
        self.whole = {*tokens} if mark else set()

    def encode(self, line):
        return line.split()

    def encode_target(self, line):
        found = []
        for word in line.split():
            rest = f"{self.space}{word}"
            while rest and rest not in self.whole:
                fits = [t for t in self.tokens if t and rest.startswith(t)]
                if not fits:
                    break
                best = max(fits, key=len)
                found.append(self.tokens[best])
                rest = rest[len(best) :]
            found += [rest] if rest else []
        return found


class TokenizedLines(SpaceTokenizer):
    """A tokenizer for tokenized lines with a separate detokenizer."""

    def __init__(self, join):
        super().__init__()
        self.decode = join


KINDS = {
    "pieces": (PIECES, GreedyTokenizer(PIECES, detokenize_sentencepiece, "▁")),
    "bpe": (BPE, GreedyTokenizer(BPE, detokenize_bpe, mark="@@")),
    "joiner": (JOINED, GreedyTokenizer(JOINED, detokenize_joiner)),
    "pieces of lines of tokens": (PIECES, TokenizedLines(detokenize_sentencepiece)),
    "spacers of lines of tokens": (PIECES, TokenizedLines(detokenize_spacer)),
    "bpe of lines of tokens": (BPE, TokenizedLines(detokenize_bpe)),
    "joiners of lines of tokens": (JOINED, TokenizedLines(detokenize_joiner)),
}


def contains_words(text, phrase):
    """Return True if a regular expression finds the phrase as whole words."""
    return re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", text) is not None


rows = st.lists(st.floats(-4, 4, width=16), min_size=len(PIECES), max_size=len(PIECES))
tables = st.fixed_dictionaries({"default": rows, "first": rows, "second": rows})
phrases = st.sampled_from(["cat", "the", "category", "the cat", "cats", "at", "cat.", "s", "a cat"])


EVEN, ENDING = [0.0] * len(PIECES), [2.0] + [0.0] * (len(PIECES) - 1)


def make_translator(kind, *given) -> Translator:
    """Make a translator from a table model.

    Either all source words select the same table, or the first two have separate tables.
    """
    sources = []
    for table in given:
        if isinstance(table, dict):
            by_row = {"": table["first"], "1": table["second"], "6": table["second"]}
            table = make_source(by_row, table["default"])
        sources.append(make_source({}, table) if isinstance(table, list) else table)
    tokens, tokenizer = KINDS[kind]
    checkpoint = Checkpoint(
        TableModel(sources, len(tokens)),
        src_vocab=Vocab([f"s{i}" for i in range(len(sources))]),
        tgt_vocab=Vocab(tokens, eos_id=0),
        tokenizers={kind: tokenizer},
        start_id=-1,
    )
    return Translator(checkpoint, TranslateOptions.of(device="cpu"))


@pytest.mark.parametrize(
    "text, phrase, is_there",
    [
        ("The cat.", "cat", True),
        ("the cat's tail", "cat", True),
        ("the category", "cat", False),
        ("concat", "cat", False),
        ("a category and a cat", "cat", True),
        ("Cat", "cat", False),
        ("cat_1 cat2", "cat", False),
        ("the U.S. army", "U.S.", True),
        ("it's", "'s", True),
        ("我有一只猫。", "猫", True),
        ("क्या", "क", False),
        ("", "cat", False),
    ],
)
def test_contains_phrase_matches_whole_words(text, phrase, is_there):
    assert contains_phrase(text, phrase) == is_there


def test_parse_phrases_splits_at_tabs():
    assert parse_phrases(" the  cat\tdog\t\tdog\t") == ("the cat", "dog")


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_surface_forms_add_up_to_detokenized_text(kind, data):
    tokens, tokenizer = KINDS[kind]
    surface_forms = SurfaceForms(tokenizer, Vocab(tokens, eos_id=0))
    ids = data.draw(st.lists(st.integers(1, len(tokens) - 1), max_size=8))
    text, joined = "", True
    for i in ids:
        piece, joined = surface_forms.get_added_text(i, joined)
        text += piece
    assert text.split() == tokenizer.decode([tokens[i] for i in ids]).split()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("phrase", ["cat", "cats", "the cat", "category", "cat.", "a cat", "dog"])
def test_tokenize_phrase_spells_phrase_after_another_word(kind, phrase):
    """For tokenized lines, the tokenization is the shortest of all."""
    tokens, tokenizer = KINDS[kind]
    surface_forms = SurfaceForms(tokenizer, Vocab(tokens, eos_id=0))
    the = next(t for t in ("the", "▁the") if t in tokens)
    ways = [
        ids
        for n in range(1, 4)
        for ids in itertools.product(range(1, len(tokens)), repeat=n)
        if tokenizer.decode([the, *(tokens[i] for i in ids), the]).strip() == f"the {phrase} the"
    ]
    ids = tuple(surface_forms.tokenize_phrase(phrase))
    if isinstance(tokenizer, TokenizedLines):
        assert ids in [way for way in ways if len(way) == len(ways[0])] if ways else not ids
    else:
        assert not ids or ids in ways


class TestBanWords:
    @pytest.mark.parametrize("search", BAN)
    @pytest.mark.filterwarnings("ignore::onmt_lite.OptionWarning")
    @settings(max_examples=10)
    @given(
        kind=st.sampled_from([*KINDS]),
        first=tables,
        second=tables,
        banned=st.lists(phrases, min_size=1, max_size=3, unique=True),
        k=st.integers(1, 4),
        block=st.sampled_from([0, 2]),
        drawn=st.booleans(),
    )
    def test_ban_words_appear_in_no_hypothesis(
        self, search, kind, first, second, banned, k, block, drawn
    ):
        given = {"block_ngram_repeat": block, "do_sample": drawn}
        given = {name: value for name, value in given.items() if name in PRESETS[search].options}
        given |= dict(search=search, beam_size=k, n_best=k, max_length=7)
        translator = make_translator(kind, first, second)
        lines = ["s0 s0", "s1 s1"]
        plain = translator.translate(lines, **given)
        found = translator.translate(lines, ban_words=["\t".join(banned), ""], **given)
        assert found[1] == plain[1]
        for hyp in found[0].hyps:
            assert not any(contains_words(hyp.text, phrase) for phrase in banned)
        assert_scored(translator, found[0].hyps)
        (alone,) = translator.translate(lines[:1], ban_words="\t".join(banned), **given)
        assert [h.tokens for h in alone.hyps] == [h.tokens for h in found[0].hyps]

    @pytest.mark.parametrize("n_lines", [1, 4])
    def test_ban_words_with_unused_rows(self, n_lines):
        """The beam is wider than the number of continuations."""
        checkpoint = make_checkpoint([make_source({}, [0.0, 1.0], {}, 2)] * n_lines)
        translator = Translator(checkpoint, TranslateOptions.of(device="cpu"))
        lines = [f"s{i} s{i}" for i in range(n_lines)]
        options = dict(beam_size=5, n_best=5, max_length=5, block_ngram_repeat=2)
        for banned, texts in (("a a a a", {"", "a", "a a"}), ("a a", {"", "a"})):
            for found in translator.translate(lines, ban_words=banned, **options):
                assert {h.text for h in found.hyps} == texts

    @pytest.mark.parametrize("kind", KINDS)
    def test_ban_words_select_next_best_word(self, kind):
        """After `the` comes `cat` or `a`; the model has no other words."""
        tokens = KINDS[kind][0]
        the, cat, a = map([t.strip("▁") for t in tokens].index, ("the", "cat", "a"))
        first, then, last = ([-9.0] * len(tokens) for _ in range(3))
        first[the], then[cat], then[a], last[0] = 9.0, 5.0, 4.0, 9.0
        translator = make_translator(kind, make_source({"": first, str(the): then}, last))
        for k in (1, 3):
            (found,) = translator.translate(["s0 s0"], ban_words="cat", beam_size=k)
            assert (found.text, found.notes) == ("the a", ())

    def test_ban_words_allow_longer_words(self):
        cat, egory = [-9.0] * len(PIECES), [-9.0] * len(PIECES)
        cat[1], egory[2], egory[0] = 5.0, 4.0, 1.0
        table = dict(first=cat, second=egory, default=[9.0, *EVEN[1:]])
        translator = make_translator("pieces", table)
        for banned, text in ((None, "category"), ("cat", "category"), ("category", "cat")):
            assert translator.translate(["s0 s0"], ban_words=banned)[0].text == text


def assert_scored(translator, hyps):
    """Assert that the log-probabilities of ended hypotheses are the ones of the table."""
    source = translator.checkpoint.model.sources[0]
    for hyp in (hyp for hyp in hyps if hyp.ended):
        ids, log_prob = [*translator.checkpoint.tgt_vocab.encode(list(hyp.tokens)), 0], 0.0
        for i, token in enumerate(ids):
            row = source.rows.get(" ".join(map(str, ids[:i])), source.default)
            log_prob += row[token] - math.log(sum(map(math.exp, row)))
        assert hyp.log_prob == pytest.approx(log_prob, abs=1e-4)


class TestForceWords:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("phrase", ["cat", "cats", "the cat", "category", "dog"])
    @pytest.mark.parametrize("k", [1, 5])
    def test_force_words_are_met_with_every_tokenizer(self, kind, phrase, k):
        spelt = SurfaceForms(KINDS[kind][1], Vocab(KINDS[kind][0], eos_id=0)).tokenize_phrase(
            phrase
        )
        translator, options = make_translator(kind, ENDING), dict(beam_size=k, max_length=9)
        (found,) = translator.translate(["s0 s0"], force_words=phrase, **options)
        assert contains_words(found.text, phrase) == bool(spelt)
        assert found.unmet == (() if spelt else (phrase,))
        if not spelt:
            assert found.hyps == translator.translate(["s0 s0"], **options)[0].hyps

    @pytest.mark.parametrize("kind", [kind for kind in KINDS if "lines" not in kind])
    @settings(max_examples=20)
    @given(
        first=tables,
        second=tables,
        forced=st.lists(phrases, min_size=1, max_size=2, unique=True),
        k=st.integers(1, 5),
        block=st.sampled_from([0, 2]),
    )
    def test_force_words_are_met_or_listed_in_unmet(self, kind, first, second, forced, k, block):
        translator = make_translator(kind, first, second)
        given = dict(beam_size=k, n_best=k, max_length=14, max_length_ratio=0)
        given["block_ngram_repeat"] = block
        lines = ["s0 s0", "s1 s1"]
        plain = translator.translate(lines, **given)
        found = translator.translate(lines, force_words=["\t".join(forced), ""], **given)
        assert found[1] == plain[1]
        for phrase in forced:
            assert contains_words(found[0].text, phrase) != (phrase in found[0].unmet)
        surface_forms = translator.checkpoint.surface_forms
        if not block:
            sayable = [p for p in found[0].unmet if surface_forms.tokenize_phrase(p)]
            assert all(p.endswith(".") for p in sayable)  # a letter may follow punctuation
        assert_scored(translator, found[0].hyps)
        (alone,) = translator.translate(lines[:1], force_words="\t".join(forced), **given)
        assert [h.tokens for h in alone.hyps] == [h.tokens for h in found[0].hyps]

    def test_force_words_with_ban_words(self):
        (found,) = make_translator("pieces", EVEN).translate(
            ["s0 s0"], force_words="category", ban_words="cat\tthe", max_length=9, n_best=5
        )
        assert contains_words(found.text, "category") and not found.unmet
        assert not any(
            contains_words(h.text, "cat") or contains_words(h.text, "the") for h in found.hyps
        )

    def test_force_words_are_rejected_by_other_presets(self):
        for search in set(PRESETS) - {"opennmt"}:
            with pytest.raises(
                OptionError, match=f"force_words: is not supported by search={search} "
            ):
                make_translator("pieces", EVEN).translate(["s0"], force_words="a", search=search)
        with pytest.raises(OptionError, match="force_words cannot be combined with sampling"):
            TranslateOptions.of(force_words="a", do_sample=True)


@pytest.mark.parametrize(
    "forced, banned, message",
    [
        (["a"], None, "more lines than force_words (1)"),
        (None, ["a", "b", "c"], "more ban_words than lines (2)"),
        ("the cat", "cat", "line 1: 'the cat' is forced and contains 'cat', which is banned"),
        (["", "a"], ["", "a"], "line 2: 'a' is both forced and banned"),
    ],
)
def test_contradictory_phrases_are_rejected(forced, banned, message):
    with pytest.raises(DataError, match=re.escape(message)):
        make_translator("pieces", EVEN).translate(["s0"] * 2, force_words=forced, ban_words=banned)


@pytest.mark.parametrize("phrases", [["a\tb", ["the", "cat"]], ["a", None], 7, {"a": "b"}])
def test_phrases_that_are_not_strings_are_rejected(phrases):
    with pytest.raises(TypeError, match=r"^force_words(\[1\])?: expected a l[^\n]*$"):
        make_translator("pieces", EVEN).translate(["s0"] * 2, force_words=phrases)


class Array(list):
    """A list without a truth value, like a NumPy array of several elements."""

    def __bool__(self):
        raise ValueError("ambiguous")


def test_phrases_from_array_and_with_lone_surrogates():
    translator = make_translator("pieces", EVEN)
    for forced, unmet in ((Array(["the cat\tdog"]), ("dog",)), (["a\ud800b"], ("a?b",))):
        (found,) = translator.translate(["s0"], force_words=forced)
        assert found.unmet[-1:] == unmet


class TestPhraseFiles:
    @pytest.fixture
    def run(self, tmp_path, capfd):
        """Return a function (words, file=text) -> (exit code, stdout, stderr)."""

        def run_once(words, src="katze\n\nkatze\n", **files):
            for name, text in {"src": src, **files}.items():
                (tmp_path / name).write_text(text, "utf-8")
            words = words.format(**{name: tmp_path / name for name in files})
            code = translate.main(f"-model data/toy.json -src {tmp_path}/src {words}".split())
            return code, *capfd.readouterr()

        return run_once

    @pytest.mark.parametrize(
        "text, n_phrases, unmet",
        [("the\n", 3, [[], ["the"], []]), ("\n\nthe\tdog", 2, [None, None, ["dog"]])],
    )
    def test_phrase_file_of_one_line_applies_to_all_lines(self, run, text, n_phrases, unmet):
        code, out, err = run("-force_words {phrases} -output_format jsonl", phrases=text)
        records = [json.loads(line) for line in out.splitlines()]
        assert code == 0 and f"force_words: 1 of {n_phrases} phrases not met" in err
        assert [r.get("unmet") for r in records] == unmet
        assert "the" in records[2]["hyps"][0]["text"].split()
        if unmet[0] is None:
            _, plain, _ = run("-output_format jsonl")
            assert out.splitlines()[:2] == plain.splitlines()[:2]

    @pytest.mark.parametrize("more", ["-workers 2", "", *(f"-shard {i}/3" for i in (1, 2, 3))])
    def test_phrase_file_is_read_with_buckets(self, run, more):
        _, whole, _ = run("-ban_words {phrases}", phrases="a\n\nthe\n")
        code, out, _ = run(f"-ban_words {{phrases}} -bucket_lines 1 {more}", phrases="a\n\nthe\n")
        lines = whole.splitlines(keepends=True)
        assert code == 0 and "a" not in lines[0].split() and "the" not in lines[2].split()
        assert out == (lines[int(more[7]) - 1] if "shard" in more else whole)

    @pytest.mark.parametrize("text", ["a\nb\n", "", "a\nb\nc\nd\n"])
    def test_phrase_file_with_wrong_line_count_is_rejected(self, run, text):
        code, out, err = run("-force_words {phrases}", phrases=text)
        assert (code, out) == (3, "") and "lines" in err and "force_words" in err
        assert err.count("\n") == 1

    def test_phrase_files_contradictory_or_missing_are_rejected(self, run):
        words = "-force_words {phrases} -ban_words {banned}"
        code, out, err = run(words, phrases="a\n", banned="\n\na\n")
        assert (code, out) == (3, "") and "line 3: 'a' is both forced and banned" in err
        code, out, err = run("-ban_words missing.txt")
        assert (code, out, err.count("\n")) == (5, "", 1)
        assert "ban_words missing.txt: the file does not exist; ban_words must be a file of " in err
        assert "write the phrases to a file and pass its path" in err

    def test_prefix_with_banned_phrase_is_dropped(self, run):
        words = "-ban_words {banned} -tgt {tgt} -tgt_file_prefix -output_format jsonl"
        code, out, _ = run(words, src="katze\n", banned="the\n", tgt="the\n")
        record = json.loads(out)
        assert code == 0 and record["notes"] == ["prefix-banned"]
        assert "the" not in record["hyps"][0]["text"].split()

    def test_dump_beam_explains_banned_and_forced_tokens(self, run, tmp_path):
        dump = tmp_path / "beam.html"
        code, _, _ = run(f"-ban_words {{banned}} -dump_beam {dump}", src="katze\n", banned="a\n")
        assert code == 0 and "excluded by force_words or ban_words" in dump.read_text("utf-8")


def test_shipped_model_meets_force_words_and_ban_words():
    translator = Translator.from_pretrained("data/de-en", threads=1)
    lines = ["Guten Morgen!", "Die Katze schläft auf dem Sofa.", "DIE KATZE SCHLÄFT HEUTE NICHT."]
    forced = [["day"], ["is asleep", "couch"], ["CAT"]]
    found = translator.translate(lines, force_words=map("\t".join, forced), n_best=2)
    for translation, own in zip(found, forced):
        assert all(contains_words(translation.text, phrase) for phrase in own)
        assert translation.unmet == () and translation.n_forced == len(own)
    for translation in translator.translate(lines, ban_words="the\tThe\tTHE\tcat\tCAT", n_best=5):
        for hyp in translation.hyps:
            assert not any(contains_words(hyp.text, word) for word in "the The THE cat CAT".split())
