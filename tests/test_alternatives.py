"""-alternatives against brute force, longer prefixes and CTranslate2's own."""

import itertools
import json
import math
import signal
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import translate
from onmt_lite import OptionError, Translator
from onmt_lite.config.interrupt import Interrupted
from onmt_lite.config.options import TranslateOptions, load_options
from onmt_lite.inference.alternatives import first_word, log_add
from onmt_lite.output import Output
from onmt_lite.search.presets import PRESETS
from onmt_lite.text.tokenizers import SpaceTokenizer
from tests.support import tables
from tests.support.files import DATA

WITH = [name for name, preset in PRESETS.items() if "tgt_file_prefix" in preset.options]
LIMIT = 4  # tokens
USUAL = dict(max_length=LIMIT, max_length_ratio=0.0)
TOY = "data/toy.json"


def make_translator(*group, tokenizer=None) -> Translator:
    checkpoint = tables.make_checkpoint(group)
    checkpoint = replace(checkpoint, tokenizers={"space": tokenizer or SpaceTokenizer()})
    return Translator(checkpoint, TranslateOptions.of(device="cpu"))


def by_hand(source, prefix, n, form, alpha):
    """For each of the n most probable tokens behind the prefix the best of all sequences."""
    s = tables.Settings(100, LIMIT, length_penalty=form, alpha=alpha)
    log_probs = tables.log_softmax(source.logits(prefix))
    chosen = sorted(range(1, len(log_probs)), key=lambda i: -log_probs[i])[:n]
    begins = [(*prefix, i) for i in chosen]
    every = tables.brute_force(source, s)
    best = [next(h for h in every if h.tokens[: len(begin)] == begin) for begin in begins]
    return sorted(best, key=lambda hyp: -hyp.score)


class TestWholeWords:
    """Where each token is a word."""

    @settings(deadline=None, max_examples=12)
    @given(
        source=tables.sources(vocab_sizes=[4, 5], holes=False, depth=3),
        prefix=st.lists(st.integers(1, 3), max_size=2),
        n=st.integers(1, 4),
        penalty=st.sampled_from([("none", 1.0), ("avg", 1.0), ("wu", 0.7)]),
    )
    def test_best_translation_with_each_of_the_best_words(self, source, prefix, n, penalty):
        form, alpha = penalty
        text = " ".join(tables.WORDS[i] for i in prefix)
        (found,) = make_translator(source).translate(
            [" ".join(["s0"] * source.length)],
            [text],
            alternatives=n,
            beam_size=100,
            length_penalty=form,
            alpha=alpha,
            **USUAL,
        )
        expected = by_hand(source, tuple(prefix), n, form, alpha)
        assert len(found.hyps) == min(n, len(source.default) - 1)
        for hyp, other in zip(found.hyps, expected, strict=True):
            ids = [i for i in other.tokens if i != tables.EOS]
            assert hyp.tokens == [tables.WORDS[i] for i in ids]
            assert hyp.score == pytest.approx(other.score, abs=1e-5)
            assert hyp.ended == other.ended

    @pytest.mark.parametrize("search", WITH)
    @settings(deadline=None, max_examples=4)
    @given(
        group=st.lists(
            tables.sources(vocab_sizes=[5], holes=False, depth=3), min_size=3, max_size=3
        ),
        prefixes=st.lists(st.lists(st.sampled_from("ab"), max_size=2), min_size=3, max_size=3),
        beam_size=st.integers(1, 3),
    )
    def test_every_search_every_line_alone(self, search, group, prefixes, beam_size):
        """Different words, in order; a line's result does not depend on the others."""
        translator = make_translator(*group)
        lines = [" ".join([f"s{i}"] * source.length) for i, source in enumerate(group)]
        given = dict(search=search, beam_size=beam_size, alternatives=3, max_length=6)
        together = translator.translate(lines, map(" ".join, prefixes), **given)
        for line, prefix, each in zip(lines, prefixes, together):
            words = [hyp.tokens[len(prefix)] for hyp in each.hyps]
            assert len(words) == len(set(words)) == 3
            assert all(hyp.tokens[: len(prefix)] == prefix for hyp in each.hyps)
            scores = [hyp.score for hyp in each.hyps]
            assert scores == sorted(scores, reverse=True)
            (alone,) = translator.translate([line], [" ".join(prefix)], **given)
            assert [h.tokens for h in alone.hyps] == [h.tokens for h in each.hyps]
            assert [h.score for h in alone.hyps] == pytest.approx(scores, abs=1e-5)

    @pytest.mark.parametrize("search", sorted({*WITH} - {"transformers", "transformers-5"}))
    def test_scores_are_those_of_a_plain_search(self, search):
        """The best translation of all is one of the alternatives, and counts what it counts."""
        source = tables.make_source({"*2": [2.0, 0.0, 0.1, 0.2]}, [-5.0, 1.0, 0.5, 0.2])
        translator = make_translator(source)
        given = dict(search=search, beam_size=2, max_length=6, alpha=0.5)
        (plain,) = translator.translate(["s0 s0"], ["a"], **given)
        (found,) = translator.translate(["s0 s0"], ["a"], alternatives=3, **given)
        assert found.hyps[0].tokens == plain.hyps[0].tokens
        assert found.hyps[0].score == pytest.approx(plain.hyps[0].score, abs=1e-5)
        assert found.hyps[0].token_log_probs == pytest.approx(plain.hyps[0].token_log_probs)

    def test_as_many_as_exist(self):
        translator = make_translator(tables.make_source({}, tables.logits(0.3, 0.6, 0.0, 0.1)))
        (found,) = translator.translate(["s0"], ["a"], alternatives=9, **USUAL)
        assert sorted(hyp.tokens[1] for hyp in found.hyps) == ["a", "c"]

    def test_where_the_end_alone_can_follow(self):
        source = tables.make_source({"1": tables.logits(1, 0, 0)}, tables.logits(0.2, 0.5, 0.3))
        (found,) = make_translator(source).translate(["s0"], ["a"], alternatives=2, **USUAL)
        assert [(hyp.text, hyp.ended) for hyp in found.hyps] == [("a", True)]

    @pytest.mark.parametrize("search", WITH)
    @pytest.mark.parametrize("max_length", [1, 2, 3])
    def test_little_room(self, search, max_length):
        """One word at least behind each prefix, as long as the limit or one token longer."""
        translator = make_translator(tables.make_source({}, tables.logits(0.1, 0.5, 0.3, 0.1)))
        given = dict(search=search, alternatives=2, max_length=max_length, beam_size=2)
        for prefix in ("", "a", "a b"):
            (plain,) = translator.translate(
                ["s0"], [prefix], search=search, max_length=max_length, beam_size=2
            )
            (found,) = translator.translate(["s0"], [prefix], **given)
            longest = max(max_length, len(plain.hyps[0].tokens)) + 1
            assert all(len(hyp.tokens) <= longest for hyp in found.hyps)
            words = [tuple(hyp.tokens[len(prefix.split()) :][:1]) for hyp in found.hyps]
            assert len(set(words)) == len(words) > 0


PIECES = ["$", "▁go", "ing", "▁to", "!", "es"]


class Pieces(SpaceTokenizer):
    """Tokens are pieces of words."""

    def decode(self, tokens):
        pieces = [PIECES[tables.WORDS.index(token)] for token in tokens]
        return "".join(pieces).replace("▁", " ").strip()


def random_pieces(seed):
    """A table in which no mark comes first, so that a word is spelt in one way."""
    random = Random(seed)
    words = range(1, len(PIECES))
    begins = [p for n in range(LIMIT) for p in itertools.product(words, repeat=n)]
    rows = {" ".join(map(str, b)): [random.gauss(0, 1.5) for _ in PIECES] for b in begins}
    rows[""][PIECES.index("!")] = -math.inf
    return tables.make_source(rows, [0.0] * len(PIECES))


def kind_of(tokens):
    """The first word of a sequence, without the mark behind it."""
    text = Pieces().decode([tables.WORDS[i] for i in tokens if i != tables.EOS])
    word = text.split()[0] if text else ""
    return word.strip("!") or word


class TestPieces:
    """Words of several tokens, and several words that begin with the same tokens."""

    @pytest.mark.parametrize("seed", range(12))
    def test_best_translation_with_each_word(self, seed):
        source, best = random_pieces(seed), {}
        for hyp in tables.brute_force(source, tables.Settings(100, 3)):
            best.setdefault(kind_of(hyp.tokens), hyp)
        best.pop("", None)
        (found,) = make_translator(source, tokenizer=Pieces()).translate(
            ["s0"], [""], alternatives=100, beam_size=100, max_length=3
        )
        texts = {}
        for hyp in found.hyps:
            word = hyp.text.split()[0]
            texts[word.strip("!") or word] = hyp
        assert len(texts) == len(found.hyps)
        assert set(texts) == set(best)
        for word, hyp in texts.items():
            assert hyp.score == pytest.approx(best[word].score, abs=1e-5)

    @pytest.mark.parametrize("n", [1, 2, 3])
    @pytest.mark.parametrize("seed", range(6))
    def test_words_are_the_most_probable_ones(self, seed, n):
        """By the probability of all sequences that begin with a word."""
        source, mass = random_pieces(seed), {}
        for hyp in tables.brute_force(source, tables.Settings(400, LIMIT, length_penalty="none")):
            word = kind_of(hyp.tokens)
            mass[word] = log_add(mass.get(word, -math.inf), hyp.score)
        mass.pop("", None)
        ranks = sorted(mass.values(), reverse=True)
        assert math.exp(ranks[0]) < 1
        (found,) = make_translator(source, tokenizer=Pieces()).translate(
            ["s0"], [""], alternatives=n, beam_size=9, **USUAL
        )
        assert len(found.hyps) == n
        # Of words with marks a part may be counted, where that suffices to choose
        words = [hyp.text.split()[0] for hyp in found.hyps]
        plain = [mass[word.strip("!") or word] for word in words]
        assert min(plain) >= ranks[n - 1] - math.log(2)

    def test_a_word_that_others_begin_with(self):
        """Greedy search goes on to "going"; "go" itself comes with what ends it."""
        rows = {
            "": tables.logits(0.0, 0.7, 0.0, 0.3, 0.0, 0.0),
            "1": tables.logits(0.1, 0.0, 0.6, 0.3, 0.0, 0.0),
            "1 2": tables.logits(1, 0, 0, 0, 0, 0),
            "3": tables.logits(1, 0, 0, 0, 0, 0),
        }
        translator = make_translator(
            tables.make_source(rows, tables.logits(1, 0, 0, 0, 0, 0)), tokenizer=Pieces()
        )
        (found,) = translator.translate(
            ["s0"], [""], alternatives=3, beam_size=1, length_penalty="none", **USUAL
        )
        texts = {hyp.text: math.exp(hyp.score) for hyp in found.hyps}
        assert texts == pytest.approx({"going": 0.42, "to": 0.3, "go to": 0.21})

    def test_a_word_that_only_the_end_follows(self):
        rows = {
            "": tables.logits(0.0, 1, 0.0, 0.0, 0.0, 0.0),
            "1": tables.logits(0.4, 0.0, 0.6, 0.0, 0.0, 0.0),
        }
        translator = make_translator(
            tables.make_source(rows, tables.logits(1, 0, 0, 0, 0, 0)), tokenizer=Pieces()
        )
        (found,) = translator.translate(["s0"], [""], alternatives=3, beam_size=1, **USUAL)
        assert [hyp.text for hyp in found.hyps] == ["going", "go"]
        assert found.hyps[1].score == pytest.approx(math.log(0.4) / 2)
        assert all(hyp.ended for hyp in found.hyps)


@pytest.mark.parametrize(
    ("before", "text", "word", "complete"),
    [
        ("", "", (False, ""), False),
        ("", "going", (False, "going"), False),
        ("", "going to", (False, "going"), True),
        ("", "“Going”, he", (False, "Going"), True),
        ("", "l'homme est", (False, "l'homme"), True),
        ("Yes", "Yes, I", (True, ","), True),
        ("Yes", "Yes I do", (False, "I"), True),
        ("Yes", "Yesterday", (True, "terday"), False),
        ("Yes", "Yes", (False, ""), False),
        ("", "今天很好", (False, "今"), True),
        ("", "ABC公司", (False, "ABC"), True),
    ],
)
def test_first_word(before, text, word, complete):
    assert first_word(before, text) == (word, complete)


LINES = ["Ich gehe heute ins Kino, weil es regnet.", "Das Haus ist alt.", "Wo wohnst du?"]
BEGIN = ["", "The house", "Where"]


@pytest.fixture(scope="module")
def translator():
    return Translator.from_pretrained(device="cpu", precision="fp32", threads=1)


class TestShippedModel:
    def test_each_is_what_a_longer_prefix_gives(self, translator):
        n_same = 0
        found = translator.translate(LINES, BEGIN, alternatives=6)
        for line, begin, each in zip(LINES, BEGIN, found):
            words = [hyp.text[len(begin) :].split()[0] for hyp in each.hyps]
            assert len(set(words)) == 6
            for hyp, word in zip(each.hyps, words):
                longer = hyp.text[: hyp.text.index(word, len(begin)) + len(word)]
                (other,) = translator.translate([line], [longer])
                same = other.hyps[0].tokens == hyp.tokens
                n_same += same
                if same:
                    assert hyp.score == pytest.approx(other.hyps[0].score, abs=1e-4)
        # A plain search may go on within the word, or cut the longer prefix otherwise
        assert n_same >= 14

    def test_best_first_and_as_good_as_the_plain_translation(self, translator):
        found = translator.translate(LINES, BEGIN, alternatives=3)
        for each, plain in zip(found, translator.translate(LINES, BEGIN)):
            scores = [hyp.score for hyp in each.hyps]
            assert scores == sorted(scores, reverse=True)
            assert scores[0] >= plain.hyps[0].score - 1e-4  # its first word was never pruned

    def test_batches_do_not_matter(self, translator):
        given = dict(alternatives=3, batch_type="sents")
        one = translator.translate(LINES, BEGIN, batch_size=1, **given)
        three = translator.translate(LINES, BEGIN, batch_size=3, **given)
        for each, other in zip(one, three):
            assert [h.text for h in each.hyps] == [h.text for h in other.hyps]
            scores = [h.score for h in each.hyps]
            assert scores == pytest.approx([h.score for h in other.hyps], abs=1e-4)
        stream = list(translator.translate_stream(LINES, BEGIN, alternatives=3))
        assert [[h.text for h in t.hyps] for t in stream] == [[h.text for h in t.hyps] for t in one]


def test_words_are_those_of_ctranslate2():
    """The same translations; CTranslate2's log_probs are without the end token's share, which
    it forbids as the first token: a constant of the line."""
    name = "ct2_opennmt_int16"
    file = DATA.parent / "ct2_alternatives.json"
    translator = Translator.from_pretrained(
        DATA / "ct2" / name[4:], device="cpu", precision="fp32", tokenizer="space", threads=1
    )
    for case in json.loads(file.read_text("utf-8")):
        words = f"-search ctranslate2 {case['options']} -max_length_ratio 0".split()
        words = [*words, *([] if "-max_length" in words else ["-max_length", "24"])]
        pairs = zip(words[::2], words[1::2])
        given = {k[1:]: v if k == "-search" else json.loads(v) for k, v in pairs}
        lines = case["lines"]
        found = translator.translate(
            [line["source"] for line in lines], [line["prefix"] for line in lines], **given
        )
        for line, each in zip(lines, found):
            theirs = sorted(line["hyps"], key=lambda pair: -pair[1])
            assert [hyp.text for hyp in each.hyps] == [text for text, _ in theirs], case
            gaps = [score - hyp.score for hyp, (_, score) in zip(each.hyps, theirs)]
            assert gaps == pytest.approx([gaps[0]] * len(gaps), abs=2e-4)
            assert -1e-4 < gaps[0] < 0.5


class TestCommandLine:
    @pytest.fixture
    def run(self, tmp_path, capfd):
        (tmp_path / "src").write_text("katze\n\nkatze\n")
        (tmp_path / "tgt").write_text("the\n\n\n")

        def run_once(*words, tgt=True):
            begin = ["-tgt", str(tmp_path / "tgt"), "-tgt_file_prefix"] if tgt else []
            argv = ["-model", TOY, "-src", str(tmp_path / "src"), *begin, *words]
            return translate.main(argv), capfd.readouterr()

        return run_once

    def test_text(self, run):
        code, said = run("-alternatives", "3")
        lines = said.out.splitlines()
        assert code == 0 and len(lines) == 9
        assert [line.split()[:1] for line in lines[:3] if line] == [["the"]] * 3
        words = [line.split()[1] for line in lines[:3]]
        assert len(set(words)) == 3
        assert lines[3:6] == [""] * 3
        assert len({line.split()[0] for line in lines[6:] if line}) >= 2

    @pytest.mark.parametrize("output_format", ["jsonl", "moses", "tsv"])
    def test_formats_have_the_same(self, run, output_format):
        _, text = run("-alternatives", "2", "-with_score")
        code, said = run("-alternatives", "2", "-output_format", output_format)
        assert code == 0
        pairs = [line.split("\t") for line in text.out.splitlines()]
        if output_format == "jsonl":
            records = map(json.loads, said.out.splitlines())
            hyps = [(h["text"], h["score"]) for r in records for h in r["hyps"] if h["text"]]
        elif output_format == "tsv":
            rows = [line.split("\t") for line in said.out.splitlines()]
            hyps = [(row[4], float(row[2])) for row in rows if row[4]]
        else:
            rows = [line.split(" ||| ") for line in said.out.splitlines()]
            hyps = [(row[1], float(row[3])) for row in rows if row[1]]
        expected = [(text, float(score)) for text, *rest in pairs if text for score in rest]
        assert [text for text, _ in hyps] == [text for text, _ in expected]
        assert [s for _, s in hyps] == pytest.approx([s for _, s in expected], abs=1e-4)

    @pytest.mark.parametrize(
        ("words", "why"),
        [
            ("-n_best 2", "both say how many hypotheses"),
            ("-do_sample", "drawing at random exclude"),
            ("-random_sampling_topk 5 -random_sampling_topp 0.5", "drawing at random exclude"),
            ("-n_best_unique -n_best 3", "differ by their first words already"),
            ("-replace_unk", "may be equal once they are replaced"),
            ("-dump_beam x.html", "several searches find"),
            ("-split_longer 90", "those of the whole line"),
            ("-search tensorflow", "has no such option"),
        ],
    )
    def test_contradictions(self, run, words, why):
        code, said = run("-alternatives", "3", *words.split())
        assert code == 2 and why in said.err and said.out == ""

    @pytest.mark.parametrize("output_format", ["text", "jsonl"])
    def test_of_parts(self, tmp_path, capfd, monkeypatch, output_format):
        """By two processes, in two shards, or after a stop: the same bytes."""
        model = Path(TOY).absolute()
        (tmp_path / "src").write_text("katze\nkatze\n\nkatze\n" * 2)
        (tmp_path / "tgt").write_text("the\n\n\na\nthe cat\n\n\na\n")
        monkeypatch.chdir(tmp_path)

        def run(out, *words):
            argv = f"-model {model} -src src -tgt tgt -tgt_file_prefix -device cpu -quiet"
            argv += f" -alternatives 3 -bucket_lines 3 -output_format {output_format}"
            code = translate.main([*argv.split(), "-output", out, *words])
            return code, (tmp_path / out).read_bytes() if code == 0 else b""

        code, whole = run("whole", "-workers", "1")
        assert code == 0 and whole.count(b"\n") == {"text": 24, "jsonl": 8}[output_format]
        assert run("two", "-workers", "2") == (0, whole)
        shards = [run(f"part{i}", "-workers", "1", "-shard", f"{i}/2")[1] for i in (1, 2)]
        assert all(shards) and b"".join(shards) == whole
        append = Output.append

        def stop(self, done):
            if self.n_done == 2:
                raise Interrupted(signal.SIGTERM)
            append(self, done)

        with monkeypatch.context() as patch:
            patch.setattr(Output, "append", stop)
            assert run("stopped", "-workers", "1")[0] == 143
        kept = (tmp_path / "stopped.part").read_bytes()
        assert kept and kept != whole and whole.startswith(kept)
        assert run("stopped", "-workers", "1", "-resume") == (0, whole)

    def test_needs_a_prefix(self, run):
        code, said = run("-alternatives", "3", tgt=False)
        assert code == 2 and "alternatives needs tgt_file_prefix" in said.err
        assert said.err.count("\n") == 1

    def test_n_best_of_as_many_is_no_contradiction(self, run):
        assert run("-alternatives", "3", "-n_best", "3") == run("-alternatives", "3")

    def test_yaml(self, tmp_path):
        path = tmp_path / "c.yaml"
        path.write_text("alternatives: 4\ntgt: x\ntgt_file_prefix: true\n")
        assert load_options(["-config", str(path)])[0].editing.alternatives == 4


def test_python_refuses_searches_without_prefixes():
    translator = make_translator(tables.make_source({}, [0.0] * 3))
    with pytest.raises(OptionError, match="alternatives: -search opennmt-2018 has no"):
        translator.translate(["s0"], alternatives=2, search="opennmt-2018")


def test_logarithms_of_sums():
    for a, b in itertools.product([0.2, 0.5, 1e-9], repeat=2):
        assert log_add(math.log(a), math.log(b)) == pytest.approx(math.log(a + b))
    assert log_add(-math.inf, -math.inf) == -math.inf
