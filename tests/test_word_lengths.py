"""min_words, max_words, block_ngram_unit and word_penalty against every text there can be."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import translate
from onmt_lite import OptionError, TranslateOptions, Translator
from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.models.table import TableModel
from onmt_lite.search.presets import PRESETS
from onmt_lite.text.detokenize import DETOKENIZERS
from onmt_lite.text.tokenizers import SpaceTokenizer
from onmt_lite.text.transforms import TransformTokenizer
from onmt_lite.text.vocab import Vocab
from tests.support.tables import EOS, START, log_softmax, make_source, sources

# Target tokens behind the end token, and the rule that joins them
VOCABULARIES = {
    "space": "$ a b c d",
    "sentencepiece": "$ ▁a b ▁ab ▁b",
    "spacer": "$ ▁a ▁ b ▁c",
    "bpe": "$ a b@@ b a@@",
    "joiner": "$ a ￭b a￭ b",
}
L = 4
BLOCKING = sorted(n for n, preset in PRESETS.items() if "block_ngram_repeat" in preset.options)
UNMET = {"word-rules-unmet", "min-words-over-limit"}
UNIGRAMS = sorted(n for n in BLOCKING if PRESETS[n].policy.ngrams_of_one)


def spoken(tokens, decode, group) -> Checkpoint:
    """A table model whose target tokens are joined by `decode`; source i is the line `s<i>`."""
    spaces = SpaceTokenizer()
    return Checkpoint(
        TableModel(group, len(tokens)),
        src_vocab=Vocab([f"s{i}" for i in range(len(group))]),
        tgt_vocab=Vocab(tokens, eos_id=EOS),
        tokenizers={"rule": TransformTokenizer(spaces.encode, spaces.encode, decode)},
        start_id=START,
    )


def translator_of(rule, group, tokens=None):
    tokens = (tokens or VOCABULARIES[rule]).split()
    checkpoint = spoken(tokens, DETOKENIZERS[rule], group)
    return Translator(checkpoint, TranslateOptions.of(device="cpu", max_length_ratio=0))


def lines_of(group):
    return [" ".join([f"s{i}"] * source.length) for i, source in enumerate(group)]


def has_repeats(text, n):
    words = text.split()
    ngrams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return len(set(ngrams)) < len(ngrams)


def all_texts(source, rule, penalty, length, alpha):
    """Every text of up to `length` tokens with its best score, restated."""
    tokens, decode = VOCABULARIES[rule].split(), DETOKENIZERS[rule]
    best: dict[str, float] = {}
    for n in range(1, length + 1):
        for ids in itertools.product(range(1, len(tokens)), repeat=n - 1):
            for last in range(len(tokens)) if n == length else [EOS]:
                whole = (*ids, last)
                total = sum(log_softmax(source.logits(whole[:t]))[y] for t, y in enumerate(whole))
                text = decode([tokens[i] for i in whole if i != EOS])
                score = (total + penalty * len(text.split())) / n**alpha
                best[text] = max(best.get(text, -math.inf), score)
    return best


bounds = st.tuples(st.integers(0, 3), st.integers(1, 4)).filter(lambda b: b[0] <= b[1])


class TestAgainstEveryText:
    @pytest.mark.parametrize("rule", VOCABULARIES)
    @settings(deadline=None, max_examples=8)
    @given(
        source=sources(vocab_sizes=[5], holes=False),
        bounds=bounds,
        n=st.integers(0, 2),
        penalty=st.sampled_from([0.0, -1.0, 0.7]),
        alpha=st.sampled_from([0.0, 1.0]),
    )
    def test_a_beam_that_drops_nothing_finds_what_keeps_the_rules(
        self, rule, source, bounds, n, penalty, alpha
    ):
        least, most = bounds
        (found,) = translator_of(rule, [source]).translate(
            lines_of([source]), beam_size=345, n_best=345, max_length=L, alpha=alpha,
            min_words=least, max_words=most, word_penalty=penalty,
            block_ngram_repeat=n, block_ngram_unit="words",
        )  # fmt: skip
        expected = {
            text: score
            for text, score in all_texts(source, rule, penalty, L, alpha).items()
            if least <= len(text.split()) <= most and not (n and has_repeats(text, n))
        }
        if expected:
            assert {hyp.text: hyp.score for hyp in found.hyps} == pytest.approx(expected, abs=1e-4)
        else:
            assert UNMET & {*found.notes}


class TestEverySearch:
    @pytest.mark.parametrize("search", PRESETS)
    @pytest.mark.parametrize("rule", ["sentencepiece", "bpe", "joiner"])
    @settings(deadline=None, max_examples=5)
    @given(
        group=st.lists(sources(vocab_sizes=[5], holes=False), min_size=2, max_size=2),
        bounds=bounds,
        beam_size=st.integers(1, 4),
        sampled=st.booleans(),
    )
    def test_every_hypothesis_has_as_many_words(
        self, search, rule, group, bounds, beam_size, sampled
    ):
        least, most = bounds
        sampled = sampled and "do_sample" in PRESETS[search].options
        options = dict(search=search, beam_size=beam_size, n_best=beam_size, max_length=8)
        options |= dict(min_words=least, max_words=most, do_sample=sampled)
        translator = translator_of(rule, group)
        together = translator.translate(lines_of(group), **options)
        for i, found in enumerate(together):
            assert found.hyps and not UNMET & {*found.notes}
            for hyp in found.hyps:
                assert least <= len(hyp.text.split()) <= most
            if not sampled and search != "opennmt-2018":
                (alone,) = translator.translate([lines_of(group)[i]], **options)
                assert [h.tokens for h in alone.hyps] == [h.tokens for h in found.hyps]

    @pytest.mark.parametrize("search", BLOCKING)
    @pytest.mark.parametrize("rule", VOCABULARIES)
    @settings(deadline=None, max_examples=5)
    @given(
        source=sources(vocab_sizes=[5], holes=False),
        n=st.integers(1, 3),
        beam_size=st.integers(1, 4),
        sampled=st.booleans(),
    )
    def test_no_words_come_again(self, search, rule, source, n, beam_size, sampled):
        n = n if search in UNIGRAMS else max(n, 2)
        sampled = sampled and "do_sample" in PRESETS[search].options
        (found,) = translator_of(rule, [source]).translate(
            lines_of([source]), search=search, beam_size=beam_size, n_best=beam_size, min_length=5,
            max_length=9, do_sample=sampled, block_ngram_repeat=n, block_ngram_unit="words",
        )  # fmt: skip
        assert found.hyps
        if "word-rules-unmet" not in found.notes:
            assert not any(has_repeats(hyp.text, n) for hyp in found.hyps)

    @settings(deadline=None, max_examples=40)
    @given(
        source=sources(vocab_sizes=[3, 4], holes=False),
        least=st.integers(1, 6),
        n=st.integers(1, 2),
        beam_size=st.integers(1, 4),
    )
    def test_words_that_are_tokens_are_as_many_as_tokens(self, source, least, n, beam_size):
        """Also where all that may follow repeats something: what is least bad survives."""
        tokens = " ".join(VOCABULARIES["space"].split()[: len(source.default)])
        translator = translator_of("space", [source], tokens)
        options = dict(beam_size=beam_size, n_best=beam_size, block_ngram_repeat=n, max_length=8)
        by_words, by_tokens = (
            translator.translate(lines_of([source]), **options, **{name: least})[0]
            for name in ("min_words", "min_length")
        )
        assert (by_words.hyps, by_words.notes) == (by_tokens.hyps, by_tokens.notes)
        assert all(len(hyp.text.split()) >= least for hyp in by_words.hyps)

    @pytest.mark.parametrize("search", PRESETS)
    @settings(deadline=None, max_examples=5)
    @given(source=sources(vocab_sizes=[5], holes=False), penalty=st.sampled_from([-0.8, 0.5]))
    def test_each_word_adds_to_the_sum_that_is_divided(self, search, source, penalty):
        """The divisor is what the search itself divides by without the penalty."""
        translator = translator_of("sentencepiece", [source])
        options = dict(search=search, beam_size=20, n_best=20, max_length=4)
        if "min_length" in PRESETS[search].options:  # what is forbidden changes probabilities
            options["min_length"] = 0
        (plain,) = translator.translate(lines_of([source]), **options)
        (paid,) = translator.translate(lines_of([source]), word_penalty=penalty, **options)
        before = {(*hyp.tokens, hyp.ended): hyp for hyp in plain.hyps}
        both = [hyp for hyp in paid.hyps if (*hyp.tokens, hyp.ended) in before]
        assert both
        for hyp in both:
            old = before[(*hyp.tokens, hyp.ended)]
            assert hyp.log_prob == pytest.approx(old.log_prob, abs=1e-5)
            assert hyp.token_log_probs == pytest.approx(old.token_log_probs, abs=1e-5)
            gained = penalty * len(hyp.text.split()) * old.score / old.log_prob
            assert hyp.score == pytest.approx(old.score + gained, abs=1e-4)


class TestWorkedExamples:
    """`▁the`, `▁their` and `▁the ir`: what may stand again."""

    TOKENS = "$ ▁the ir ▁cat"

    def search(self, rows, default, **options):
        translator = translator_of("sentencepiece", [make_source(rows, default)], self.TOKENS)
        (found,) = translator.translate(["s0 s0"], **options)
        return found

    def test_a_word_may_go_on_that_may_not_end(self):
        """`the the` is likely, `the theirs` less so, and all else unlikely."""
        rows = {"": [-9.0, 0.0, -9.0, -9.0], "1": [-5.0, 2.0, -5.0, -5.0]}
        rows |= {"1 1": [3.0, -5.0, 0.0, -5.0], "1 1 2": [3.0, -5.0, -5.0, -5.0]}
        options = dict(beam_size=2, max_length=5, block_ngram_repeat=1)
        by_words = self.search(rows, [3.0, -5.0, -5.0, -5.0], block_ngram_unit="words", **options)
        assert by_words.hyps[0].text == "the their"
        assert self.search(rows, [3.0, -5.0, -5.0, -5.0], **options).hyps[0].text != "the their"

    def test_greedy_search_does_not_begin_it(self):
        rows = {"": [-9.0, 0.0, -9.0, -9.0], "1": [-5.0, 2.0, -5.0, 0.0]}
        found = self.search(
            rows, [3.0, -5.0, 0.0, -5.0], beam_size=1, max_length=5, block_ngram_repeat=1,
            block_ngram_unit="words",
        )  # fmt: skip
        assert found.hyps[0].text == "the cat"

    def test_words_that_are_passed_over_may_repeat(self):
        options = dict(beam_size=1, max_length=6, min_length=4, block_ngram_repeat=1)
        found = self.search(
            {}, [0.0, 2.0, -5.0, 1.0], block_ngram_unit="words", ignore_when_blocking=("the",),
            **options,
        )  # fmt: skip
        assert found.hyps[0].text.startswith("the the the the")

    def test_the_last_word_of_a_row_that_is_cut_off_is_one_too(self):
        found = self.search(
            {}, [-9.0, 2.0, 0.0, 1.0], beam_size=3, n_best=3, max_length=3, block_ngram_repeat=1,
            block_ngram_unit="words",
        )  # fmt: skip
        assert found.hyps and not any(has_repeats(hyp.text, 1) for hyp in found.hyps)
        assert not any(hyp.ended for hyp in found.hyps)

    def test_a_word_that_has_begun_is_finished(self):
        rows = {"1": [-5.0, 1.0, 2.0, -5.0], "1 2": [-5.0, 1.0, -5.0, 2.0]}
        found = self.search(rows, [-5.0, 2.0, 0.0, -5.0], beam_size=1, max_words=1, max_length=9)
        assert (found.hyps[0].text, found.hyps[0].ended) == ("their", True)

    def test_words_of_a_prefix_count(self):
        translator = translator_of(
            "sentencepiece", [make_source({}, [0.0, 2.0, -5.0, 1.0])], self.TOKENS
        )
        for text, n in [("▁cat ▁cat", 3), ("▁cat", 3)]:
            (found,) = translator.translate(["s0"], [text], max_words=n, min_words=n, max_length=9)
            assert found.hyps[0].text.startswith(text.replace("▁", ""))
            assert len(found.hyps[0].text.split()) == n
        (found,) = translator.translate(["s0"], ["▁cat ▁cat ▁cat"], max_words=2, max_length=9)
        assert found.hyps[0].text == "cat cat cat" and found.hyps[0].ended

    def test_a_line_without_such_a_translation_says_so(self):
        never = [-math.inf, 1.0, -math.inf, -math.inf]
        found = self.search({}, never, beam_size=1, max_length=4, block_ngram_repeat=1,
                            block_ngram_unit="words")  # fmt: skip
        assert "search-empty" in found.notes or "word-rules-unmet" in found.notes

    def test_the_limit_by_length_gives_way_to_words(self):
        source = make_source({}, [2.0, 0.0, -5.0, 1.0])
        (found,) = translator_of("sentencepiece", [source], self.TOKENS).translate(
            ["s0"], max_length_ratio=1, min_words=20
        )
        assert len(found.hyps[0].text.split()) >= 20
        assert not UNMET & {*found.notes}


class TestOptions:
    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (dict(min_words=5, max_words=4), "min_words 5 is more than max_words 4"),
            (dict(min_words=9, max_length=9), "min_words 9 leaves max_length 9"),
        ],
    )
    def test_contradictions_are_refused(self, given, message):
        with pytest.raises(OptionError, match=message):
            TranslateOptions.of(**given)

    def test_the_command_line_refuses_them_too(self, capsys):
        assert translate.main("-min_words 5 -max_words 4".split()) == 2
        assert "lower min_words or raise max_words" in capsys.readouterr().err


class TestShippedModel:
    LINES = ("Guten Morgen!", "Ich habe heute leider keine Zeit 🎉 für dich 🎉.", "WO BIST DU?")

    @pytest.fixture
    def translator(self):
        return Translator.from_pretrained(device="cpu", threads=1)

    def test_keeps_to_limits_where_symbols_are_put_back(self, translator):
        for found in translator.translate(self.LINES, n_best=3, min_words=4, max_words=6):
            assert not UNMET & {*found.notes}
            assert all(4 <= len(hyp.text.split()) <= 6 for hyp in found.hyps)

    def test_a_penalty_shortens_and_a_reward_lengthens(self, translator):
        def n_words(penalty):
            found = translator.translate(self.LINES, word_penalty=penalty)
            return sum(len(each.text.split()) for each in found)

        counts = [n_words(penalty) for penalty in (-8, -4, 0, 4, 8)]
        assert counts == sorted(counts) and counts[0] < counts[2] < counts[4]

    def test_says_why_in_a_trace(self, tmp_path):
        (tmp_path / "in").write_text("Guten Morgen, mein Freund!\n")
        given = f"-src {tmp_path}/in -output {tmp_path}/out -dump_beam {tmp_path}/beam.html"
        assert translate.main([*given.split(), "-max_words", "2", "-device", "cpu"]) == 0
        page = (tmp_path / "beam.html").read_text("utf-8")
        assert "as many as max_words allows" in page
        assert len((tmp_path / "out").read_text("utf-8").split()) <= 2
