"""-force_words and -ban_words: what the phrases say is read off the text, by a pattern."""

import itertools
import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import translate
from onmt_lite import Translator
from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import DataError, OptionError
from onmt_lite.models.table import TableModel
from onmt_lite.search.presets import PRESETS
from onmt_lite.text.bpe import join_bpe
from onmt_lite.text.phrases import Surfaces, occurs, parse_phrases
from onmt_lite.text.tokenizers import SpaceTokenizer, join_joiner, join_pieces, join_spacer
from onmt_lite.text.vocab import Vocab
from tests.support.tables import make_checkpoint, make_source

BAN = [name for name, preset in PRESETS.items() if "ban_words" in preset.options]
PIECES = "</s> ▁cat egory s ▁the ▁ c at . ▁a".split()
BPE = "</s> cat cat@@ egory s the c@@ at . a".split()
JOINED = "</s> cat cat￭ ￭egory ￭s the c ￭at ￭. a".split()


class Cutter:
    """Greedy: the longest token that comes next."""

    def __init__(self, tokens, join, space=""):
        self.tokens, self.decode, self.space = tokens, join, space

    def encode(self, line):
        return line.split()

    def encode_target(self, line):
        found = []
        for word in line.split():
            rest = f"{self.space}{word}"
            while rest:
                fits = [t for t in self.tokens if rest.startswith(t) and t]
                found.append(max(fits, key=len) if fits else rest)
                rest = rest[len(found[-1]) :]
        return found


class BpeCutter(Cutter):
    def encode_target(self, line):
        found = []
        for word in line.split():
            while word and word not in self.tokens:
                fits = [t for t in self.tokens if t.endswith("@@") and word.startswith(t[:-2])]
                if not fits:
                    break
                found.append(max(fits, key=len))
                word = word[len(found[-1]) - 2 :]
            found.append(word)
        return found


class Uncut(SpaceTokenizer):
    """Lines hold tokens, which other rules join."""

    def __init__(self, join):
        super().__init__()
        self.decode = join


KINDS = {
    "pieces": (PIECES, Cutter(PIECES, join_pieces, "▁")),
    "bpe": (BPE, BpeCutter(BPE, join_bpe)),
    "joiner": (JOINED, Cutter(JOINED, join_joiner)),
    "pieces of lines of tokens": (PIECES, Uncut(join_pieces)),
    "spacers of lines of tokens": (PIECES, Uncut(join_spacer)),
    "bpe of lines of tokens": (BPE, Uncut(join_bpe)),
    "joiners of lines of tokens": (JOINED, Uncut(join_joiner)),
}


def holds(text, phrase):
    """Words by a pattern of Python's."""
    return re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", text) is not None


rows = st.lists(st.floats(-4, 4, width=16), min_size=len(PIECES), max_size=len(PIECES))
tables = st.fixed_dictionaries({"default": rows, "first": rows, "second": rows})
phrases = st.sampled_from(["cat", "the", "category", "the cat", "cats", "at", "cat.", "s", "a cat"])


def make_translator(kind, *given) -> Translator:
    sources = []
    for table in given:
        by_row = {"": table["first"], "1": table["second"], "6": table["second"]}
        sources.append(make_source(by_row, table["default"]))
    return translator_of(kind, sources)


def translator_of(kind, sources) -> Translator:
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
def test_whole_words_as_they_are_spelt(text, phrase, is_there):
    assert occurs(text, phrase) == is_there


def test_a_line_of_phrases_is_cut_at_tabs():
    assert parse_phrases(" the  cat\tdog\t\tdog\t") == ("the cat", "dog")


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_pieces_of_tokens_make_the_text(kind, data):
    tokens, tokenizer = KINDS[kind]
    surfaces = Surfaces(tokenizer, Vocab(tokens, eos_id=0))
    ids = data.draw(st.lists(st.integers(1, len(tokens) - 1), max_size=8))
    text, joined = "", True
    for i in ids:
        piece, joined = surfaces.piece(i, joined)
        text += piece
    assert text.split() == tokenizer.decode([tokens[i] for i in ids]).split()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("phrase", ["cat", "cats", "the cat", "category", "cat.", "a cat", "dog"])
def test_tokens_of_a_phrase_make_it_behind_another_word(kind, phrase):
    """The fewest that do, of all there are, where lines hold tokens."""
    tokens, tokenizer = KINDS[kind]
    surfaces = Surfaces(tokenizer, Vocab(tokens, eos_id=0))
    the = next(t for t in ("the", "▁the") if t in tokens)
    ways = [
        ids
        for n in range(1, 4)
        for ids in itertools.product(range(1, len(tokens)), repeat=n)
        if tokenizer.decode([the, *(tokens[i] for i in ids), the]).strip() == f"the {phrase} the"
    ]
    ids = tuple(surfaces.spelt(phrase))
    if isinstance(tokenizer, Uncut):
        assert ids in [way for way in ways if len(way) == len(ways[0])] if ways else not ids
    else:
        assert not ids or ids in ways


class TestBanned:
    @pytest.mark.parametrize("search", BAN)
    @pytest.mark.filterwarnings("ignore::onmt_lite.OptionWarning")
    @settings(deadline=None, max_examples=10)
    @given(
        kind=st.sampled_from([*KINDS]),
        first=tables,
        second=tables,
        banned=st.lists(phrases, min_size=1, max_size=3, unique=True),
        k=st.integers(1, 4),
        block=st.sampled_from([0, 2]),
        drawn=st.booleans(),
    )
    def test_are_in_no_hypothesis_and_other_lines_are_as_ever(
        self, search, kind, first, second, banned, k, block, drawn
    ):
        given = dict(search=search, beam_size=k, n_best=k, max_length=7)
        if "block_ngram_repeat" in PRESETS[search].options:
            given["block_ngram_repeat"] = block
        if drawn and "do_sample" in PRESETS[search].options:
            given["do_sample"] = True
        translator = make_translator(kind, first, second)
        lines = ["s0 s0", "s1 s1"]
        plain = translator.translate(lines, **given)
        found = translator.translate(lines, ban_words=[banned, None], **given)
        assert found[1] == plain[1]
        for hyp in found[0].hyps:
            assert not any(holds(hyp.text, phrase) for phrase in banned)
            if hyp.ended:
                want = sum(log_probs_of(translator, 0, hyp.tokens))
                assert hyp.log_prob == pytest.approx(want, abs=1e-4)
        (alone,) = translator.translate(lines[:1], ban_words=[banned], **given)
        assert [h.tokens for h in alone.hyps] == [h.tokens for h in found[0].hyps]

    @pytest.mark.parametrize("n_lines", [1, 4])
    def test_beside_rows_that_no_candidate_has_taken(self, n_lines):
        """The beam is wider than what may follow: no line of `a` says `a a` twice."""
        checkpoint = make_checkpoint([make_source({}, [0.0, 1.0], {}, 2)] * n_lines)
        translator = Translator(checkpoint, TranslateOptions.of(device="cpu"))
        lines = [f"s{i} s{i}" for i in range(n_lines)]
        options = dict(beam_size=5, n_best=5, max_length=5, block_ngram_repeat=2)
        for found in translator.translate(lines, ban_words="a a a a", **options):
            assert {h.text for h in found.hyps} == {"", "a", "a a"}
        for found in translator.translate(lines, ban_words="a a", **options):
            assert {h.text for h in found.hyps} == {"", "a"}

    @pytest.mark.parametrize("kind", KINDS)
    def test_leave_the_next_best_word(self, kind):
        """After `the` comes `cat`, or else `a`; the model knows no other words."""
        tokens = KINDS[kind][0]
        bare = [token.strip("▁") for token in tokens]
        the, cat, a = map(bare.index, ("the", "cat", "a"))
        first, then, last = ([-9.0] * len(tokens) for _ in range(3))
        first[the], then[cat], then[a], last[0] = 9.0, 5.0, 4.0, 9.0
        translator = translator_of(kind, [make_source({"": first, str(the): then}, last)])
        for k in (1, 3):
            (found,) = translator.translate(["s0 s0"], ban_words="cat", beam_size=k)
            assert (found.text, found.notes) == ("the a", ())

    def test_are_parts_of_other_words_in_a_beam(self):
        first = [-9.0] * len(PIECES)
        first[1] = 5.0  # ▁cat
        then = [-9.0] * len(PIECES)
        then[2], then[0] = 4.0, 1.0  # egory, and else the end
        table = dict(first=first, second=then, default=[9.0, *[0.0] * (len(PIECES) - 1)])
        translator = make_translator("pieces", table)
        (plain,) = translator.translate(["s0 s0"])
        (found,) = translator.translate(["s0 s0"], ban_words="cat")
        assert plain.text == found.text == "category"
        (found,) = translator.translate(["s0 s0"], ban_words="category")
        assert found.text == "cat"


def log_probs_of(translator, number, tokens):
    """Of the tokens and the end token, by the table itself."""
    model, vocab = translator.checkpoint.model, translator.checkpoint.tgt_vocab
    source = model.sources[number]
    ids = [*vocab.encode(list(tokens)), 0]
    for i, token in enumerate(ids):
        row = source.rows.get(" ".join(map(str, ids[:i])), source.default)
        yield row[token] - log_sum(row)


def log_sum(row):
    return math.log(sum(math.exp(x) for x in row))


class TestForced:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("phrase", ["cat", "cats", "the cat", "category"])
    @pytest.mark.parametrize("k", [1, 5])
    def test_are_said_whoever_cuts_lines(self, kind, phrase, k):
        surfaces = Surfaces(KINDS[kind][1], Vocab(KINDS[kind][0], eos_id=0))
        table = dict.fromkeys(("default", "first", "second"), [2.0] + [0.0] * (len(PIECES) - 1))
        found = make_translator(kind, table).translate(
            ["s0 s0"], force_words=phrase, beam_size=k, max_length=9
        )
        assert holds(found[0].text, phrase) == bool(surfaces.spelt(phrase))
        assert found[0].unmet == (() if surfaces.spelt(phrase) else (phrase,))

    @pytest.mark.parametrize("kind", [kind for kind in KINDS if "lines" not in kind])
    @settings(deadline=None, max_examples=20)
    @given(
        first=tables,
        second=tables,
        forced=st.lists(phrases, min_size=1, max_size=2, unique=True),
        k=st.integers(1, 5),
        block=st.sampled_from([0, 2]),
    )
    def test_are_in_the_text_or_told(self, kind, first, second, forced, k, block):
        translator = make_translator(kind, first, second)
        given = dict(beam_size=k, n_best=k, max_length=14, max_length_ratio=0)
        given["block_ngram_repeat"] = block
        lines = ["s0 s0", "s1 s1"]
        plain = translator.translate(lines, **given)
        found = translator.translate(lines, force_words=[forced, ""], **given)
        assert found[1] == plain[1]
        for phrase in forced:
            assert holds(found[0].text, phrase) != (phrase in found[0].unmet)
        surfaces = translator.checkpoint.surfaces
        if not block:
            sayable = [p for p in found[0].unmet if surfaces.spelt(p)]
            assert all(p.endswith(".") for p in sayable)  # a letter may follow a mark
        for hyp in found[0].hyps:
            if hyp.ended:
                want = sum(log_probs_of(translator, 0, hyp.tokens))
                assert hyp.log_prob == pytest.approx(want, abs=1e-4)
        (alone,) = translator.translate(lines[:1], force_words="\t".join(forced), **given)
        assert [h.tokens for h in alone.hyps] == [h.tokens for h in found[0].hyps]

    def test_go_with_banned_ones(self):
        table = dict.fromkeys(("default", "first", "second"), [0.0] * len(PIECES))
        (found,) = make_translator("pieces", table).translate(
            ["s0 s0"], force_words="category", ban_words="cat\tthe", max_length=9, n_best=5
        )
        assert holds(found.text, "category") and not found.unmet
        assert not any(holds(h.text, "cat") or holds(h.text, "the") for h in found.hyps)

    def test_that_the_model_cannot_say_are_told(self):
        table = dict.fromkeys(("default", "first", "second"), [2.0] + [0.0] * (len(PIECES) - 1))
        translator = make_translator("pieces", table)
        (plain,) = translator.translate(["s0"])
        (found,) = translator.translate(["s0"], force_words="dog")
        assert found.unmet == ("dog",) and found.hyps == plain.hyps

    @pytest.mark.parametrize("search", sorted(set(PRESETS) - {"opennmt"}))
    def test_are_refused_by_searches_of_other_systems(self, search):
        with pytest.raises(OptionError, match=f"force_words: -search {search} has no such"):
            TranslateOptions.of(force_words="a", search=search)
        table = dict.fromkeys(("default", "first", "second"), [0.0] * len(PIECES))
        with pytest.raises(OptionError, match="force_words"):
            make_translator("pieces", table).translate(["s0"], force_words="a", search=search)

    def test_do_not_go_with_drawing(self):
        with pytest.raises(OptionError, match="force_words and drawing"):
            TranslateOptions.of(force_words="a", do_sample=True)


@pytest.mark.parametrize(
    "forced, banned, said",
    [
        ([["a"]], None, "force_words has 1 entries, but there are more lines"),
        (None, ["a", "b", "c"], "ban_words has more entries than the 2 lines"),
        ("the cat", "cat", "line 1: 'the cat' is forced, of which 'cat' is a part, and banned"),
        ([[], ["a"]], [[], "a"], "line 2: 'a' is forced, and banned"),
    ],
)
def test_phrases_that_do_not_fit_are_refused(forced, banned, said):
    table = dict.fromkeys(("default", "first", "second"), [0.0] * len(PIECES))
    with pytest.raises(DataError, match=re.escape(said)):
        make_translator("pieces", table).translate(["s0"] * 2, force_words=forced, ban_words=banned)


class Array(list):
    """Is neither true nor false, as arrays of several elements are not."""

    def __bool__(self):
        raise ValueError("ambiguous")


def test_phrases_of_an_array_and_halves_of_characters():
    table = dict.fromkeys(("default", "first", "second"), [0.0] * len(PIECES))
    translator = make_translator("pieces", table)
    words = Array(["the cat", "dog"])
    as_list, as_array, halved = (
        translator.translate(["s0"], force_words=[phrases])[0].unmet
        for phrases in ([*words], words, "a\ud800b")
    )
    assert as_array == as_list and halved == ("a?b",)


class TestFiles:
    @pytest.fixture
    def run(self, tmp_path, capfd):
        def run_once(words, src="katze\n\nkatze\n", **files):
            for name, text in {"src": src, **files}.items():
                (tmp_path / name).write_text(text, "utf-8")
            words = words.format(**{name: tmp_path / name for name in files})
            argv = f"-model data/toy.json -src {tmp_path / 'src'} {words}".split()
            code = translate.main(argv)
            out, err = capfd.readouterr()
            return code, out, err

        return run_once

    def test_of_one_line_hold_for_all(self, run):
        code, out, err = run("-force_words {phrases} -output_format jsonl", phrases="the\n")
        records = [json.loads(line) for line in out.splitlines()]
        assert code == 0 and "force_words: 1 of 3 phrases not met" in err
        assert [r["unmet"] for r in records] == [[], ["the"], []]
        assert all("the" in records[i]["hyps"][0]["text"].split() for i in (0, 2))

    def test_of_several_lines_go_line_by_line(self, run):
        code, out, err = run("-force_words {phrases} -output_format jsonl", phrases="\n\nthe\tdog")
        records = [json.loads(line) for line in out.splitlines()]
        assert code == 0 and "force_words: 1 of 2 phrases not met" in err
        assert "unmet" not in records[0] and records[2]["unmet"] == ["dog"]
        _, plain, _ = run("-output_format jsonl")
        assert out.splitlines()[:2] == plain.splitlines()[:2]

    @pytest.mark.parametrize("more", ["-workers 2 -bucket_lines 1", "-bucket_lines 1"])
    def test_are_read_beside_buckets(self, run, more):
        code, out, _ = run(f"-ban_words {{phrases}} {more}", phrases="a\n\nthe\n")
        lines = out.splitlines()
        assert code == 0 and "a" not in lines[0].split() and "the" not in lines[2].split()

    def test_are_read_beside_shards(self, run):
        parts = [
            run(f"-ban_words {{phrases}} -bucket_lines 1 -shard {i}/3", phrases="\n\na\n")[1]
            for i in (1, 2, 3)
        ]
        assert "".join(parts) == run("-ban_words {phrases}", phrases="\n\na\n")[1]
        assert parts[0] != parts[2]

    @pytest.mark.parametrize("text", ["a\nb\n", "", "a\nb\nc\nd\n"])
    def test_of_another_number_of_lines_are_refused(self, run, text):
        code, out, err = run("-force_words {phrases}", phrases=text)
        assert (code, out) == (3, "") and "lines" in err and "force_words" in err
        assert err.count("\n") == 1

    def test_that_contradict_each_other_are_refused(self, run):
        words = "-force_words {phrases} -ban_words {banned}"
        code, out, err = run(words, phrases="a\n", banned="\n\na\n")
        assert (code, out) == (3, "") and "line 3: 'a' is forced, and banned" in err

    def test_that_are_not_there_are_told(self, run):
        code, out, err = run("-ban_words missing.txt")
        assert (code, out) == (5, "") and "cannot read missing.txt" in err

    def test_prefixes_with_a_banned_phrase_are_not_used(self, run):
        words = "-ban_words {banned} -tgt {tgt} -tgt_file_prefix -output_format jsonl"
        code, out, _ = run(words, src="katze\n", banned="the\n", tgt="the\n")
        record = json.loads(out)
        assert code == 0 and record["notes"] == ["prefix-banned"]
        assert "the" not in record["hyps"][0]["text"].split()

    def test_a_search_that_is_watched_says_why(self, run, tmp_path):
        dump = tmp_path / "beam.html"
        code, _, _ = run(f"-ban_words {{banned}} -dump_beam {dump}", src="katze\n", banned="a\n")
        assert code == 0 and "a phrase that is banned" in dump.read_text("utf-8")


def test_shipped_model_says_what_it_must_and_not_what_it_must_not():
    translator = Translator.from_pretrained("data/de-en", threads=1)
    lines = ["Guten Morgen!", "Die Katze schläft auf dem Sofa.", "DIE KATZE SCHLÄFT HEUTE NICHT."]
    forced = [["day"], ["is asleep", "couch"], ["CAT"]]
    found = translator.translate(lines, force_words=forced, n_best=2)
    for translation, own in zip(found, forced):
        assert all(holds(translation.text, phrase) for phrase in own)
        assert translation.unmet == () and translation.n_forced == len(own)
    for translation in translator.translate(lines, ban_words="the\tThe\tTHE\tcat\tCAT", n_best=5):
        for hyp in translation.hyps:
            assert not any(holds(hyp.text, word) for word in "the The THE cat CAT".split())
