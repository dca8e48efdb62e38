"""Translation with the Python API on a tiny Transformer."""

import dataclasses
import math
from random import Random

import pytest
import torch

from onmt_lite import Translator
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import DataError, OptionError
from onmt_lite.text.lines import Line
from onmt_lite.text.tokenizers import SpaceTokenizer
from onmt_lite.text.vocab import Vocab
from tests.support import table_models, tiny

TOLERANCE = 1e-5
HALF_TOLERANCE = 0.2  # for bfloat16 scores of a model with random weights
LINES = [*tiny.SENTENCES, "der see", "", "a", " \t ", "das rote haus der stadt regnet heute gern"]


def assert_same(found, expected):
    """Compare translations except their ids."""
    for f, e in zip(found, expected, strict=True):
        assert (f.src, f.notes) == (e.src, e.notes)
        assert [(h.text, h.tokens, h.ended) for h in f.hyps] == [
            (h.text, h.tokens, h.ended) for h in e.hyps
        ]
        assert [h.score for h in f.hyps] == pytest.approx([h.score for h in e.hyps], abs=TOLERANCE)


def compute_forced_log_probs(translator: Translator, src: str, tokens: list[str], ended: bool):
    """Return the log-probability of each token from a full forward pass over one sentence."""
    ids = {token: i for i, token in enumerate(translator.checkpoint.tgt_vocab.tokens)}
    src_ids = [ids.get(t, tiny.UNK) for t in translator.tokenizer.encode(src)] + [tiny.EOS]
    out = [ids[token] for token in tokens] + [tiny.EOS] * ended
    model = translator.model
    memory = model.encode(torch.tensor([src_ids]), torch.tensor([len(src_ids)]))
    log_probs = model.forward(memory, torch.tensor([[tiny.BOS, *out[:-1]]])).log_softmax(2)[0]
    return [log_probs[t, y].item() for t, y in enumerate(out)]


@pytest.fixture(scope="module")
def alone(translator):
    return [translator.translate([line], n_best=3)[0] for line in LINES]


@pytest.fixture(scope="module")
def found(translator):
    found = [t for t in translator.translate(LINES, n_best=5) if t.src.strip()]
    # The tests need hypotheses with and without an end token
    assert {h.ended for t in found for h in t.hyps} == {True, False}
    return found


class TestBatchIndependence:
    @pytest.mark.parametrize("batch_type", ["sents", "tokens"])
    @pytest.mark.parametrize("batch_size", [None, 1, 3, 64])
    def test_results_do_not_depend_on_batch_size(self, translator, alone, batch_type, batch_size):
        found = translator.translate(LINES, n_best=3, batch_type=batch_type, batch_size=batch_size)
        assert_same(found, alone)
        assert [t.id for t in found] == list(range(len(LINES)))

    def test_results_do_not_depend_on_order(self, translator, alone):
        order = Random(0).sample(range(len(LINES)), len(LINES))
        found = translator.translate([LINES[i] for i in order], n_best=3, batch_size=64)
        assert_same(found, [alone[i] for i in order])


class TestScores:
    def test_log_probs_equal_forward_pass(self, translator, found):
        for t in found:
            for hyp in t.hyps:
                expected = compute_forced_log_probs(translator, t.src, hyp.tokens, hyp.ended)
                assert hyp.token_log_probs == pytest.approx(expected, abs=TOLERANCE)
                assert hyp.log_prob == pytest.approx(sum(expected), abs=len(expected) * TOLERANCE)
                assert hyp.score == pytest.approx(hyp.log_prob / len(expected), abs=TOLERANCE)
            scores = [hyp.score for hyp in t.hyps]
            assert len({hyp.text for hyp in t.hyps}) == len(scores)
            assert scores == sorted(scores, reverse=True)

    def test_log_prob_equals_score_of_output(self, space_translator):
        encode = space_translator.checkpoint.tokenizers["sentencepiece"].encode
        found = space_translator.translate([" ".join(encode(line)) for line in LINES], n_best=5)
        pairs = [(t.src, hyp) for t in found for hyp in t.hyps if hyp.ended]
        assert len(pairs) > 5
        scores = space_translator.score([src for src, _ in pairs], [hyp.text for _, hyp in pairs])
        assert scores == pytest.approx([hyp.log_prob for _, hyp in pairs], abs=1e-4)

    def test_gold_log_prob_equals_forward_pass(self, translator):
        targets = [*reversed(tiny.SENTENCES), "", "the dog", "a", "red", "book"]
        lines = [Line(i + 100, text) for i, text in enumerate(LINES)]
        references = [Line(i + 100, text) for i, text in enumerate(targets)]
        found = translator.pipeline.translate_lines(lines, references)
        for t, target in zip(found, targets, strict=True):
            tokens = translator.tokenizer.encode(target)
            known = [y if y in translator.checkpoint.tgt_vocab.ids else "<unk>" for y in tokens]
            expected = None
            if t.src.strip():
                expected = pytest.approx(
                    sum(compute_forced_log_probs(translator, t.src, known, True)), abs=1e-4
                )
            assert t.gold_log_prob == expected
            assert t.has_gold
        assert translator.score(LINES, targets) == [
            None if t.gold_log_prob is None else pytest.approx(t.gold_log_prob, abs=1e-4)
            for t in found
        ]
        assert_same(found, translator.translate(LINES))

    def test_score_of_impossible_end_ignores_padding(self):
        never_ends = table_models.make_source(
            {"": table_models.logits(0.5, 0.5)}, table_models.logits(0, 1)
        )
        checkpoint = table_models.make_checkpoint([never_ends])
        translator = Translator(checkpoint, TranslateOptions.of())
        # Padding after the first, empty target must not count
        scores = translator.score(["s0 s0", "s0 s0"], ["", "a a a"])
        assert scores == [pytest.approx(math.log(0.5)), -math.inf]

    def test_n_best_shorter_list_is_prefix(self, translator):
        longest = translator.translate(LINES, n_best=5)
        for n in (1, 2, 4):
            shorter = [dataclasses.replace(t, hyps=t.hyps[:n]) for t in longest]
            assert translator.translate(LINES, n_best=n) == shorter

    def test_n_best_keeps_better_segmentation_of_same_text(self):
        class Glued(SpaceTokenizer):
            def decode(self, tokens: list[str]) -> str:
                return "".join(tokens)

        # `a b` has .6 over three tokens, `ab` .4 over two
        rows = {"": table_models.logits(0, 0.6, 0, 0.4), "1": table_models.logits(0, 0, 1, 0)}
        checkpoint = dataclasses.replace(
            table_models.make_checkpoint(
                [table_models.make_source(rows, table_models.logits(1, 0, 0, 0))]
            ),
            tgt_vocab=Vocab(["$", "a", "b", "ab"], eos_id=0),
            tokenizers={"glued": Glued()},
        )
        translator = Translator(checkpoint, TranslateOptions.of())
        ((hyp,),) = [t.hyps for t in translator.translate(["s0 s0"], beam_size=2, n_best=2)]
        assert (hyp.text, hyp.tokens) == ("ab", ["a", "b"])
        assert hyp.score == pytest.approx(math.log(0.6) / 3, abs=TOLERANCE)


class TestLines:
    def test_uppercase_line_is_lowercased_and_restored(self, translator, space_translator):
        lines = ["DER HUND SIEHT DEN GARTEN", "der hund sieht den garten"]
        loud, quiet = translator.translate(lines)
        assert ["capitals" in t.notes for t in (loud, quiet)] == [True, False]
        assert loud.hyps[0].tokens == quiet.hyps[0].tokens
        assert loud.hyps[0].text == quiet.hyps[0].text.upper()
        scores = translator.score(lines, [loud.hyps[0].text, quiet.hyps[0].text])
        assert scores[0] == pytest.approx(scores[1], abs=TOLERANCE)
        assert "capitals" not in space_translator.translate(["HUND HUND"])[0].notes

    def test_empty_lines_are_not_encoded(self, translator, monkeypatch):
        encoded = []
        encode = translator.model.encode
        monkeypatch.setattr(
            translator.model,
            "encode",
            lambda src, n, *more: encoded.extend(n.tolist()) or encode(src, n, *more),
        )
        found = translator.translate(["", "a", "  ", "\t", "\u3000"])
        assert len(encoded) == 1
        assert found[1].hyps[0].tokens
        assert all(t.hyps == found[0].hyps for t in found[2:])
        assert [t.notes == ("empty",) for t in found] == [True, False, True, True, True]
        assert "empty" not in found[1].notes

    @pytest.mark.parametrize("char", "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")
    def test_line_separators_are_read_as_spaces(self, translator, char):
        text = f"das{char}haus steht{char} neben"
        spaced = text.replace(char, " ")
        (found,), (expected,) = translator.translate([text]), translator.translate([spaced])
        assert found.src == text and found.hyps == expected.hyps
        assert translator.score([text], [text]) == translator.score([spaced], [spaced])
        (begun,) = translator.translate(["der hund"], [text])
        (expected,) = translator.translate(["der hund"], [spaced])
        assert begun.hyps == expected.hyps

    def test_empty_lines_only_and_no_lines(self, translator):
        for t in translator.translate(["", ""], n_best=3):
            (hyp,) = t.hyps
            assert (hyp.text, hyp.tokens, hyp.token_log_probs, hyp.ended) == ("", [], [], False)
        assert translator.translate([]) == []

    def test_line_too_long_is_truncated_with_warning(self, space_translator):
        room = tiny.MAX_POSITIONS - 1  # one position is for the end token
        full, longer = " ".join(["s"] * room), " ".join(["s"] * room + ["t"] * 30)
        fits, cut = space_translator.translate([full, longer], max_length=8)
        assert ["truncated" in t.notes for t in (fits, cut)] == [False, True]
        assert cut.src == longer
        assert_same([dataclasses.replace(cut, src=full, notes=fits.notes)], [fits])

    def test_output_stops_at_last_position_of_model(self, space_translator):
        (found,) = space_translator.translate(["s"], max_length_ratio=0, min_length=100)
        assert [len(hyp.tokens) for hyp in found.hyps] == [tiny.MAX_POSITIONS]

    def test_max_length_ratio_uses_source_length_of_line(self, space_translator):
        options = dict(max_length_ratio=1.5, min_length=100, batch_size=64)
        found = space_translator.translate(["s", "s s s s s"], **options)
        assert [len(t.hyps[0].tokens) for t in found] == [int(1.5 + 5), int(7.5 + 5)]


class TestControlTokens:
    TEXT = "<s> </s> <pad> s </s>"

    @pytest.mark.parametrize("tokenizer", ["space", "sentencepiece"])
    def test_control_tokens_in_text_are_not_ids(self, tiny_checkpoint, tokenizer, monkeypatch):
        translator = Translator.from_pretrained(tiny_checkpoint, tokenizer=tokenizer, device="cpu")
        seen, model = [], translator.model
        encode, forward = model.encode, model.forward

        def encoded(src, n, *more):
            seen.extend(src[0, : n[0] - 1].tolist())
            return encode(src, n, *more)

        def forwarded(memory, tgt):
            seen.extend(tgt[0, 1:].tolist())
            return forward(memory, tgt)

        monkeypatch.setattr(model, "encode", encoded)
        monkeypatch.setattr(model, "forward", forwarded)
        translator.translate([self.TEXT])
        translator.score([self.TEXT], [self.TEXT])
        assert len(seen) >= 15
        assert not {tiny.BOS, tiny.EOS, tiny.PAD} & set(seen)

    def test_control_tokens_are_never_generated(self, space_translator):
        options = dict(beam_size=40, n_best=40, max_length=3)
        for banned in ({}, dict(ban_unk_token=True)):
            (found,) = space_translator.translate(["s t s"], **options, **banned)
            tokens = {token for hyp in found.hyps for token in hyp.tokens}
            assert ("<unk>" in tokens) == (not banned)
            assert not {"<s>", "</s>", "<pad>"} & tokens


class TestOptions:
    def test_invalid_options_are_rejected(self, translator, tiny_checkpoint):
        """All errors of a call are reported at once."""
        with pytest.raises(OptionError, match="did you mean beam_size") as caught:
            translator.translate(["a"], beem_size=3, alpha=math.nan, n_best=0)
        assert len(caught.value.problems) == 3
        with pytest.raises(OptionError, match="model, gpu: cannot be changed per call"):
            translator.translate(["a"], model="other", gpu=0)
        with pytest.raises(OptionError, match="output, verbose: is only supported on the command"):
            translator.translate(["a"], output="file", verbose=True)
        with pytest.raises(OptionError, match="precision: must be one of"):
            Translator.from_pretrained(tiny_checkpoint, precision="half")
        with pytest.raises(DataError, match="2 source lines but 1 target"):
            translator.score(["a", "a"], ["a"])

    def test_from_pretrained_options_are_defaults(self, tiny_checkpoint, translator):
        mine = Translator.from_pretrained(tiny_checkpoint, device="cpu", beam_size=2, n_best=2)
        expected = translator.translate(LINES, beam_size=2, n_best=2)
        assert mine.translate(LINES) == expected
        assert mine.translate(LINES, n_best=1) == translator.translate(LINES, beam_size=2)

    def test_ignore_when_blocking_exempts_tokens(self, space_translator):
        words = space_translator.checkpoint.tgt_vocab.tokens
        options = dict(beam_size=1, max_length_ratio=0, max_length=30, min_length=29)
        blocking = dict(block_ngram_repeat=1)
        free, blocked, exempt = (
            space_translator.translate(["s t s t"], **options, **more)[0].hyps[0].tokens
            for more in ({}, blocking, blocking | dict(ignore_when_blocking=words))
        )
        assert len(set(free)) < len(free)
        assert len(set(blocked)) == len(blocked)
        assert exempt == free


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_precision_half_scores_are_close(tiny_checkpoint, translator, precision):
    half = Translator.from_pretrained(tiny_checkpoint, precision=precision, device="cpu")
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    assert {p.dtype for p in half.model.parameters()} == {dtype}
    for f, e in zip(half.translate(LINES), translator.translate(LINES), strict=True):
        assert len(f.hyps) == len(e.hyps)
        for hyp, full in zip(f.hyps, e.hyps, strict=True):
            assert hyp.score == pytest.approx(full.score, abs=HALF_TOLERANCE)
    scores = half.score(LINES[:3], tiny.SENTENCES[:3])
    assert scores == pytest.approx(translator.score(LINES[:3], tiny.SENTENCES[:3]), rel=0.05)
