"""-tgt_file_prefix: translations that start with forced tokens."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import translate
from onmt_lite import Translator
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import DataError, OptionError
from onmt_lite.search.beam_search import decode
from onmt_lite.search.presets import PRESETS
from onmt_lite.search.slots import Sentence
from onmt_lite.search.spec import SentenceLimits
from tests.support import cases, tiny
from tests.support.random_models import SRC_VOCAB, TGT_VOCAB
from tests.support.sweeps import mark_sweeps
from tests.support.table_models import (
    Settings,
    hypotheses,
    make_checkpoint,
    make_source,
    make_spec,
    sources,
)

# Output of pymarian 1.12.42 with --force-decode --n-best --word-scores and a beam of 3
WORD_SCORES = [-5.38524, -4.08668, -1.69248, -0.43930, -0.35721, -0.37092, -0.42285, -0.42210,
               -0.36529, -0.36775, -0.38696, -0.40199]  # fmt: skip
SUPPORTED = [name for name, preset in PRESETS.items() if "tgt_file_prefix" in preset.options]
SPECIAL = ("table", "ensemble_of_probs")  # needs other lines; copies words
FAMILIES = sorted(n for n in cases.FAMILIES if n not in SPECIAL and "copy" not in n)
words = st.lists(st.sampled_from(["a", "b"]), max_size=4)


def make_translator(*group) -> Translator:
    return Translator(make_checkpoint(group), TranslateOptions.of(device="cpu"))


def make_lines(group) -> list[str]:
    return [" ".join([f"s{i}"] * source.length) for i, source in enumerate(group)]


class TestEveryPreset:
    @pytest.mark.parametrize("name", SUPPORTED)
    @settings(deadline=None, max_examples=25)
    @given(
        group=st.lists(sources(vocab_sizes=[4], holes=False), min_size=3, max_size=3),
        prefixes=st.lists(words, min_size=3, max_size=3),
        beam_size=st.integers(1, 3),
        sampled=st.booleans(),
    )
    def test_prefix_starts_output_counts_in_scores_and_is_batch_independent(
        self, name, group, prefixes, beam_size, sampled
    ):
        translator = make_translator(*group)
        sampled = sampled and "do_sample" in PRESETS[name].options
        texts = list(map(" ".join, prefixes))
        options = dict(search=name, beam_size=beam_size, n_best=beam_size, max_length=9)
        together = translator.translate(make_lines(group), texts, do_sample=sampled, **options)
        for i, (line, text) in enumerate(zip(make_lines(group), texts)):
            found = together[i].hyps
            assert found and all(hyp.tokens[: len(prefixes[i])] == prefixes[i] for hyp in found)
            if found[0].ended:
                (score,) = translator.score([line], [found[0].text])
                assert found[0].log_prob == pytest.approx(score, abs=1e-4)
            if not sampled:  # samples depend on the line number
                (alone,) = translator.translate([line], [text], **options)
                assert [h.tokens for h in alone.hyps] == [h.tokens for h in found]

    @pytest.mark.parametrize("name", sorted(set(SUPPORTED) - {"marian"}))  # it has no masks
    def test_prefix_overrides_block_ngram_repeat(self, name):
        source = make_source({}, [0.0, 1.0, 0.5, 0.2])
        (found,) = make_translator(source).translate(
            ["s0 s0"], ["a a a a a"], search=name, block_ngram_repeat=2, beam_size=2
        )
        assert found.hyps[0].text.startswith("a a a a a")

    @pytest.mark.parametrize("name", sorted(set(PRESETS) - set(SUPPORTED)))
    def test_prefix_in_unsupported_search_is_rejected(self, name):
        with pytest.raises(OptionError, match=f"prefixes: is not supported by search={name} "):
            make_translator(make_source({}, [0.0] * 3)).translate(["s0"], ["a"], search=name)


class TestForcedTokens:
    """Each prefix token takes a decoding step; the search continues as if it had chosen it."""

    PREFIXES = ["w20 w21 w22 w23 w24", "", "w30", "", "w25 w21", "w20 w20"]

    @pytest.mark.parametrize("refills", [False, True])
    @pytest.mark.parametrize("family", mark_sweeps(FAMILIES, cases.DAILY_FAMILIES & {*FAMILIES}))
    def test_prefix_then_greedy_tokens_equal_full_forward_passes(self, family, refills):
        """Each token is the argmax of a forward pass over all earlier tokens."""
        translator = cases.make_translator(cases.FAMILIES[family]())
        translator.pipeline.runner.refills, model = refills, translator.model
        found = cases.translate(translator, prefixes=self.PREFIXES, beam_size=1)
        for translation, line, text in zip(found, cases.LINES, self.PREFIXES):
            src = torch.tensor([SRC_VOCAB.encode(line.split())])
            lengths = torch.tensor([src.size(1)])
            tokens, log_probs = TGT_VOCAB.encode(text.split()), []
            (hyp,), n = translation.hyps, len(tokens)
            while len(log_probs) < len(hyp.token_log_probs):
                inputs = torch.tensor([[tiny.BOS, *tokens]])
                logits = model.forward(model.encode(src, lengths), inputs)[0].float()
                if translator.checkpoint.needs_log_softmax:
                    logits = logits.log_softmax(1)
                if not log_probs:
                    log_probs = [logits[i, y].item() for i, y in enumerate(tokens)]
                log_probs.append(logits[-1].max().item())
                tokens.append(int(logits[-1].argmax()))
            assert hyp.token_log_probs == pytest.approx(log_probs, abs=1e-4)
            words = TGT_VOCAB.decode(tokens[:-1] if hyp.ended else tokens)
            assert (hyp.tokens, hyp.tokens[:n]) == (words, text.split())
            assert not hyp.ended or tokens[-1] == TGT_VOCAB.eos_id

    @pytest.mark.parametrize("beam_size", mark_sweeps([1, 2, 3, 5], [1, 5]))
    def test_prefixes_of_other_lines_change_no_bit(self, beam_size):
        """In int8, because its rounding would amplify a difference in the last bit."""
        translator = Translator.from_pretrained("data/de-en", precision="int8", device="cpu")
        sentences = [
            "Guten Morgen!",
            "Wo ist der Bahnhof?",
            "Das ist sehr schön.",
            "Ich gehe.",
            "Nein.",
        ]
        starts = ["A very good", "", "That"]
        starts += ["I am going to go to the station, because I want to see"]
        lines, prefixes = sentences * 4, starts * 5
        options = dict(n_best=beam_size, beam_size=beam_size, max_length=30)
        together = translator.translate(lines, prefixes, **options)
        for found, line, prefix in zip(together, lines, prefixes):
            (alone,) = translator.translate([line], [prefix], **options)
            assert found.hyps == alone.hyps

    @pytest.mark.parametrize("name", SUPPORTED)
    def test_impossible_prefix_token_ends_search_before_it(self, name):
        """ "b" has probability 0 after "a"."""
        source = make_source({"1": [0.0, 1.0, -math.inf]}, [0.0, 1.0, 2.0])
        options = dict(search=name, beam_size=2, max_length=6)
        first, second = make_translator(source, source).translate(
            ["s0", "s1"], ["a b b", "a a"], **options
        )
        assert [(h.tokens, h.ended) for h in first.hyps] == [(["a"], False)]
        assert "search-empty" in first.notes and second.hyps[0].tokens[:2] == ["a", "a"]

    def test_eos_in_prefix_finishes_hypothesis(self):
        model = make_checkpoint([make_source({}, [0.5, 1.0, 2.0])]).model
        spec = make_spec(Settings(beam_size=2, max_length=6))
        sentence = Sentence([0, 0], SentenceLimits(6, prefix=(1, 0, 2)))
        ((_, beam),) = decode(model, [sentence], spec)
        assert [(hyp.tokens, hyp.ended) for hyp in hypotheses(beam)] == [((1, 0), True)]


PREFIX_IN_SCORE = {
    "opennmt": "all",
    "opennmt-3": "all",
    "fairseq": "all",
    "transformers": "nothing",
    "transformers-5": "nothing",
    "ctranslate2": "length",
    "marian": "all",
}


class TestScores:
    @pytest.mark.parametrize("name", SUPPORTED)
    @pytest.mark.parametrize("alpha", [0.0, 1.0, 2.0])
    def test_score_with_prefix_sums_and_divides_as_the_original(self, name, alpha):
        translator = make_translator(make_source({}, [0.3, 1.0, 0.5, 0.2]))
        options = dict(length_penalty="avg", alpha=alpha, min_length=0, n_best=2, beam_size=2)
        (found,) = translator.translate(["s0 s0"], ["a b b"], search=name, max_length=9, **options)
        for hyp in found.hyps:
            n, rest = len(hyp.token_log_probs), sum(hyp.token_log_probs[3:])
            total, length = {
                "all": (hyp.log_prob, n + (name == "opennmt-3")),
                "length": (rest, n),
                "nothing": (rest, n - 3),
            }[PREFIX_IN_SCORE[name]]
            assert hyp.log_prob == pytest.approx(sum(hyp.token_log_probs), abs=1e-5)
            assert hyp.score == pytest.approx(total / length**alpha, abs=1e-5)

    @pytest.mark.parametrize("groups", [2, 4])
    def test_prefix_has_no_diversity_penalty(self, groups):
        """After the prefix, one token is left to choose, so a token is penalized at most once."""
        translator = make_translator(make_source({}, [0.3, 1.0, 0.5, 0.2]))
        options = dict(search="transformers", beam_size=4, n_best=4, max_length=4, alpha=0.0)
        options |= dict(beam_groups=groups, diversity_rate=100.0)
        (found,) = translator.translate(["s0"], ["a b"], **options)
        assert len(found.hyps) >= 3 and min(hyp.score for hyp in found.hyps) > -150

    @pytest.mark.parametrize("normalize, score", [(0.0, -14.6988), (1.0, -1.2249)])
    def test_marian_counts_prefix_in_score(self, normalize, score):
        """The first two words are the prefix."""
        n, logits = len(WORD_SCORES), {}
        for t, x in enumerate(WORD_SCORES):
            logits[" ".join("1" * t)] = [math.log(-math.expm1(x)), x, -30.0, -30.0]
        translator = make_translator(make_source(logits, [0.0] * 4))
        options = dict(search="marian", beam_size=3, n_best=3, alpha=normalize, max_length=n)
        (found,) = translator.translate(["s0"], ["a a"], **options)
        scores = [h.score for h in found.hyps if h.tokens == ["a"] * n]
        assert scores == [pytest.approx(score, abs=1e-4)]

    def test_marian_has_full_beam_after_prefix(self):
        endless = make_translator(make_source({}, [-9.0, 1.0, 0.9, 0.8]))
        options = dict(search="marian", beam_size=3, n_best=3, max_length=4)
        (found,) = endless.translate(["s0"], ["a b c"], **options)
        assert {hyp.tokens[3] for hyp in found.hyps} == {"a", "b", "c"}


class TestTranslator:
    def test_unknown_prefix_word_names_line(self):
        with pytest.raises(DataError, match="tgt line 1: 'x' is not in the vocabulary"):
            make_translator(make_source({}, [0.0] * 3)).translate(["s0"], ["x"])

    def test_empty_prefix_has_no_effect_and_empty_line_stays_empty(self):
        translator = make_translator(make_source({}, [0.2, 1.0, 0.5]))
        assert translator.translate(["s0"], [""]) == translator.translate(["s0"])
        (found,) = translator.translate([" "], ["a"])
        assert (found.hyps[0].text, found.notes) == ("", ("empty",))

    def test_prefix_beyond_limit_is_kept_with_warning(self):
        (found,) = make_translator(make_source({}, [0.0, 1.0, 2.0])).translate(
            ["s0"], ["a a a"], max_length=2, beam_size=1
        )
        assert found.hyps[0].tokens[:3] == ["a", "a", "a"] and len(found.hyps[0].tokens) <= 4
        assert "prefix-over-limit" in found.notes

    def test_opennmt_3_limits_do_not_count_prefix(self):
        """Except its last token, as in the original."""
        endless = make_translator(make_source({}, [-9.0, 1.0, 2.0]))
        options = dict(search="opennmt-3", beam_size=1)
        for prefix, n in [("", 4), ("a", 4), ("a a a", 6)]:
            (found,) = endless.translate(
                ["s0"], [prefix], max_length=4, max_length_ratio=0, **options
            )
            assert len(found.hyps[0].tokens) == n
            assert "prefix-over-limit" not in found.notes
        eager = make_translator(make_source({}, [5.0, 1.0, 2.0]))
        for values, n in ((options, 2 + 3 - 1), (dict(beam_size=1), 3)):
            (found,) = eager.translate(["s0"], ["a a a"], min_length=2, **values)
            assert len(found.hyps[0].tokens) == n


class TestCommandLine:
    @pytest.fixture
    def run(self, tmp_path, capfd):
        def run_once(words, tgt="the\n\na\n"):
            (tmp_path / "src").write_text("katze\n\nkatze\n")
            (tmp_path / "tgt").write_text(tgt)
            argv = f"-model data/toy.json -src {tmp_path}/src -tgt_file_prefix {words}"
            code = translate.main(argv.replace("TGT", f"{tmp_path}/tgt").split())
            return code, *capfd.readouterr()

        return run_once

    def test_prefixes_are_lines_of_tgt(self, run):
        code, out, err = run("-tgt TGT -verbose")
        first, empty, last = out.split("\n")[:3]
        assert (code, first.split()[0], empty, last.split()[0]) == (0, "the", "", "a")
        assert "GOLD" not in err
        _, out, _ = run("-tgt TGT -output_format jsonl")
        records = [json.loads(line) for line in out.splitlines()]
        assert [record["hyps"][0]["tokens"][:1] for record in records] == [["the"], [], ["a"]]
        assert not any("gold_log_prob" in record for record in records)

    def test_missing_tgt_or_other_number_of_lines_is_rejected(self, run):
        code, _, err = run("")
        assert code == 2 and "tgt_file_prefix requires tgt" in err
        code, _, err = run("-tgt TGT", "the\n")
        assert code == 3 and "src has 3 lines, tgt has 1" in err


def test_prefix_with_unknown_character_has_warning(translator):
    known, unknown = translator.translate(["der hund"] * 2, prefixes=["the", "the §"])
    assert "prefix-unknown" not in known.notes and "prefix-unknown" in unknown.notes
