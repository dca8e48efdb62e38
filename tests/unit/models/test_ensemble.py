"""Ensembles: against formulas, against single models, and errors for incompatible models."""

import copy
import dataclasses
import itertools
import json
import math
from random import Random

import pytest
import torch

import translate
from onmt_lite import Translator
from onmt_lite.checkpoints.checkpoint import Checkpoint
from onmt_lite.checkpoints.loading import combine
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import CheckpointError, OptionError
from onmt_lite.models.ensemble import Ensemble
from onmt_lite.models.table_model import TableModel
from onmt_lite.search.presets import PRESETS
from onmt_lite.text.tokenizers import SpaceTokenizer
from onmt_lite.text.vocab import Vocab
from tests.support import random_models, table_models, tiny
from tests.support.files import DATA

ATOL = 1e-5
TOY = "data/toy.json"
SRC, LENGTHS = torch.tensor([[5, 6, 7, 8], [9, 10, 1, 1]]), torch.tensor([4, 2])
TGT = torch.tensor([[2, 7, 8, 9], [2, 11, 12, 3]])
MEANS = {
    "log_probs": {},
    "probs": {"avg_raw_probs": True},
    "weighted": {"weights": [1.0, 2.0, 3.0, 4.0, 0.5]},
    "weighted_probs": {"avg_raw_probs": True, "weights": [1.0, 2.0, 3.0, 4.0, 0.5]},
}
# Three models of one training set: two with RNNs, one convolutional
FILES = [DATA / f"m12_{name}_step_2.pt" for name in ("grumlp", "nofeed", "cnn")]


def compute_mean(rows: list[list[float]], avg_raw_probs=False, weights=None) -> list[float]:
    """Compute the ensemble's log-probabilities of one next token.

    Args:
        rows: logits of each model
        avg_raw_probs: average probabilities instead of log-probabilities
        weights: weights of the models; None: equal
    """
    weights = weights or [1.0] * len(rows)
    probs = []
    for row in rows:
        exps = [math.exp(x) for x in row]
        probs.append([x / sum(exps) for x in exps])
    means = []
    for token_probs in zip(*probs, strict=True):
        pairs = list(zip(weights, token_probs, strict=True))
        if avg_raw_probs:
            mean = sum(w * p for w, p in pairs) / sum(weights)
            means.append(math.log(mean) if mean else -math.inf)
        elif min(token_probs) == 0:
            means.append(-math.inf)
        else:
            means.append(sum(w * math.log(p) for w, p in pairs) / sum(weights))
    return means


@pytest.mark.parametrize("options", MEANS.values(), ids=MEANS)
class TestNumbers:
    def test_forward_equals_the_mean_of_members(self, options):
        ensemble = random_models.make_ensemble(**options)
        found = ensemble.forward(ensemble.encode(SRC, LENGTHS), TGT)
        members = [m.forward(m.encode(SRC, LENGTHS), TGT).tolist() for m in ensemble.members]
        for b, t in itertools.product(range(2), range(4)):
            expected = compute_mean([logits[b][t] for logits in members], **options)
            assert found[b, t].tolist() == pytest.approx(expected, abs=ATOL)

    def test_step_equals_forward_and_averages_attention(self, options):
        ensemble = random_models.make_ensemble(**options)
        memory = ensemble.encode(SRC, LENGTHS)
        full, state = ensemble.forward(memory, TGT), ensemble.init_state(memory)
        states = [m.init_state(m.encode(SRC, LENGTHS)) for m in ensemble.members]
        for t, tokens in enumerate(TGT.unbind(1)):
            scores, attn = ensemble.step(tokens, state)
            torch.testing.assert_close(scores, full[:, t], atol=ATOL, rtol=0)
            attentions = [
                m.step(tokens, s)[1] for m, s in zip(ensemble.members, states, strict=True)
            ]
            weights = options.get("weights", [1.0] * 5)
            mean = sum(w * a for w, a in zip(weights, attentions, strict=True)) / sum(weights)
            torch.testing.assert_close(attn, mean, atol=ATOL, rtol=0)


def test_word_that_one_member_can_copy():
    """Log-probability -inf, or half the probability with avg_raw_probs."""
    plain, copying = random_models.make_rnn(), random_models.make_copying_rnn("general")
    ids = torch.tensor([[40, 41, 7, 8], [40, 3, 1, 1]])
    copied = copying.forward(copying.encode(SRC, LENGTHS, ids), TGT)[:, :, 40:]
    for avg_raw_probs in (False, True):
        ensemble = Ensemble([plain, copying], avg_raw_probs=avg_raw_probs)
        found = ensemble.forward(ensemble.encode(SRC, LENGTHS, ids), TGT)
        assert found.size(2) == 42
        expected = copied - math.log(2) if avg_raw_probs else torch.full_like(copied, -math.inf)
        torch.testing.assert_close(found[:, :, 40:], expected, atol=ATOL, rtol=0)


@pytest.fixture(scope="module")
def pair(tmp_path_factory, tiny_checkpoint, tiny_pieces):
    """Two different models with one vocabulary."""
    directory = tmp_path_factory.mktemp("second")
    model = tiny.make_model(seed=7, tie_output=False)
    model.output.weight.mul_(2)
    tiny.native.save(directory, model, tiny_pieces)
    return str(tiny_checkpoint), str(directory)


@pytest.fixture(scope="module")
def together(pair):
    return Translator.from_pretrained(model=pair, device="cpu", tokenizer="space")


LINES = ["▁der ▁hund", "▁das ▁rote ▁haus ▁der ▁stadt", "▁a", "▁der ▁see ▁der ▁see"]


def list_finished(translations) -> list:
    """Return pairs of a translation and a finished hypothesis."""
    return [(t, hyp) for t in translations for hyp in t.hyps if hyp.ended]


class TestTranslating:
    @pytest.mark.parametrize("search", PRESETS)
    def test_ensemble_of_identical_models_equals_the_model_in_every_search(self, search):
        single, double = (
            Translator.from_pretrained(model=paths, device="cpu", search=search, n_best=2)
            for paths in ([TOY], [TOY, TOY])
        )
        assert isinstance(double.model, Ensemble)
        (a,), (b,) = (t.translate(["katze"]) for t in (single, double))
        assert [h.text for h in b.hyps] == [h.text for h in a.hyps]
        assert [h.score for h in b.hyps] == pytest.approx([h.score for h in a.hyps], abs=ATOL)

    @pytest.mark.parametrize("search", ["opennmt", "opennmt-3"])
    @pytest.mark.parametrize("avg_raw_probs", [False, True])
    def test_avg_raw_probs_search_scores_equal_teacher_forced_scores(
        self, pair, avg_raw_probs, search
    ):
        """The search's log_prob equals the teacher-forced score and the mean of the members.

        OpenNMT-py 3.5.1 averages logits before its softmax, so its mean is normalized again.
        """
        options = dict(search=search, avg_raw_probs=avg_raw_probs, device="cpu", tokenizer="space")
        translator = Translator.from_pretrained(model=pair, **options)
        vocabs = translator.checkpoint.src_vocab, translator.checkpoint.tgt_vocab
        for t, hyp in list_finished(translator.translate(LINES, n_best=3)):
            (scored,) = translator.score([t.src], [" ".join(hyp.tokens)])
            assert hyp.log_prob == pytest.approx(scored, abs=1e-4)
            src, tgt = vocabs[0].encode(t.src.split()), vocabs[1].encode(hyp.tokens)
            src, out = torch.tensor([[*src, tiny.EOS]]), [*tgt, tiny.EOS]
            fed, lengths = torch.tensor([[tiny.BOS, *tgt]]), torch.tensor([src.size(1)])
            rows = [m.forward(m.encode(src, lengths), fed)[0] for m in translator.model.members]
            if search == "opennmt-3" and not avg_raw_probs:
                steps = torch.stack(rows).mean(0).log_softmax(-1).tolist()
            else:
                by_step = torch.stack(rows, 1).tolist()  # (T, members, V)
                steps = [compute_mean(step, avg_raw_probs) for step in by_step]
            expected = [step[y] for step, y in zip(steps, out, strict=True)]
            assert hyp.token_log_probs == pytest.approx(expected, abs=1e-4)

    def test_ensemble_search_finds_the_best_of_all_sequences(self):
        """Scores are means of log-probabilities that are not normalized again."""
        random = random_models.RandomTensors(5)
        rows = [{key: random(3, std=2.0).tolist() for key in ("", "1", "2")} for _ in range(2)]
        models = [table_models.make_source(row, random(3, std=2.0).tolist()) for row in rows]
        checkpoint = combine(
            [table_models.make_checkpoint([source]) for source in models], ["a", "b"]
        )
        options = TranslateOptions.of(beam_size=20, n_best=5, max_length=3, alpha=0.0)
        (found,) = Translator(checkpoint, options).translate(["s0"])
        sums = []
        for ids in [(0,), (1, 0), (2, 0), *itertools.product([1, 2], [1, 2], range(3))]:
            rows = [[source.logits(ids[:t]) for source in models] for t in range(len(ids))]
            sums.append(sum(compute_mean(row)[y] for row, y in zip(rows, ids)))
        expected = sorted(sums, reverse=True)[:5]
        assert [h.score for h in found.hyps] == pytest.approx(expected, abs=ATOL)

    def test_ensemble_of_different_architectures(self):
        translator = Translator.from_pretrained(model=FILES, device="cpu")
        words = translator.checkpoint.src_vocab.tokens[4:9]
        found = translator.translate([" ".join(words), words[0]], n_best=2, max_length=9)
        for t, hyp in list_finished(found):
            (scored,) = translator.score([t.src], [hyp.text])
            assert hyp.log_prob == pytest.approx(scored, abs=1e-4)
        classes = [type(member).__name__ for member in translator.model.members]
        assert classes == ["Rnn", "Rnn", "Convolution"]


def make_checkpoint(model, src_tokens: list[str]) -> Checkpoint:
    special = dict(unk_id=0, pad_id=1, bos_id=2, eos_id=3)
    tgt_tokens = [f"t{i}" for i in range(random_models.VOCAB_SIZE)]
    return Checkpoint(
        model,
        src_vocab=Vocab(src_tokens, **special),
        tgt_vocab=Vocab(tgt_tokens, **special),
        tokenizers={"space": SpaceTokenizer()},
        start_id=2,
    )


class TestSourceVocabularies:
    WORDS = [f"s{i}" for i in range(random_models.VOCAB_SIZE)]
    LINES = ["s9 s5 s30", "s4 s4 s39 s12 s8", "nothing that s7 knows"]

    def make_permuted(self, rng):
        """Return two models, and the second with permuted source words and embeddings."""
        first, second = random_models.make_rnn(), random_models.make_rnn(cell="GRU", seed=4)
        n_words = random_models.VOCAB_SIZE
        order = [0, 1, 2, 3, *rng.sample(range(4, n_words), n_words - 4)]
        permuted = copy.deepcopy(second)
        permuted.encoder.embedding.weight.data.copy_(second.encoder.embedding.weight[order])
        return first, second, permuted, [self.WORDS[i] for i in order]

    def test_source_vocabularies_may_have_different_orders(self):
        first, second, permuted, words = self.make_permuted(Random(1))
        options = TranslateOptions.of(device="cpu", n_best=3)
        found, expected = (
            Translator(
                combine([make_checkpoint(first, self.WORDS), checkpoint], ["x", "y"]), options
            )
            for checkpoint in (
                make_checkpoint(permuted, words),
                make_checkpoint(second, self.WORDS),
            )
        )
        assert found.translate(self.LINES) == expected.translate(self.LINES)

    def test_word_missing_in_one_source_vocabulary_is_unknown_there(self):
        first, second, *_ = self.make_permuted(Random(1))
        second_words = [*self.WORDS[:-1], "new"]
        both = combine(
            [make_checkpoint(first, self.WORDS), make_checkpoint(second, second_words)], ["x", "y"]
        )
        src = torch.tensor([both.src_vocab.encode(["s39", "new", "s8"])])
        memory = both.model.encode(src, torch.tensor([3]))
        for model, ids, encoded in zip((first, second), ([39, 0, 8], [0, 39, 8]), memory):
            expected = model.encode(torch.tensor([ids]), torch.tensor([3]))
            tgt = torch.tensor([[2, 5, 6]])
            torch.testing.assert_close(model.forward(encoded, tgt), model.forward(expected, tgt))

    def test_subword_vocabularies_must_be_equal(self):
        """A line is tokenized once, so the subwords of another model would be unknown."""
        first, second, *_ = self.make_permuted(Random(1))
        subword = dataclasses.replace(
            make_checkpoint(second, [*self.WORDS[:-1], "new"]),
            tokenizers={"sentencepiece": SpaceTokenizer(), "space": SpaceTokenizer()},
        )
        with pytest.raises(CheckpointError, match="source vocabularies: ID 39"):
            combine([make_checkpoint(first, self.WORDS), subword], ["x", "y"])


class TestCompatibility:
    @pytest.mark.parametrize(
        "change, words",
        [
            ({"tgt_vocab": Vocab(["$", "b", "a"], eos_id=0)}, "target vocabularies: ID 1 is 'a'"),
            ({"tgt_vocab": Vocab(["$", "a"], eos_id=0)}, "target vocabularies: 3 and 2 tokens"),
            ({"tgt_vocab": Vocab(["$", "a", "b"], eos_id=1)}, "eos_id of their target"),
            ({"src_vocab": Vocab(["s1"])}, "source vocabularies: ID 0 is 's0' and 's1'"),
            ({"start_id": 2}, "have different start tokens: ID -1 and 2"),
            ({"src_end": (0,)}, "have different source EOS tokens"),
        ],
    )
    def test_incompatible_models_error_names_the_difference(self, change, words):
        one = table_models.make_checkpoint([table_models.make_source({}, [0.0, 1.0, 2.0])])
        with pytest.raises(CheckpointError) as caught:
            combine([one, one, dataclasses.replace(one, **change)], ["x", "y", "z"])
        assert words in str(caught.value) and "'x' and 'z'" in str(caught.value)

    def test_incompatible_models_exit_code_is_4(self, tmp_path, capfd):
        twin = json.loads(open(TOY, encoding="utf-8").read())
        twin["vocab"][3:5] = ["cats", "cat"]
        path = tmp_path / "swapped.json"
        path.write_text(json.dumps(twin))
        assert translate.main(["-model", TOY, str(path), "-src", TOY]) == 4
        err = capfd.readouterr().err
        assert TOY in err and str(path) in err and "'cat' and 'cats'" in err
        assert err.count("\n") == 1

    def test_banned_ids_of_all_members_are_banned(self):
        one = table_models.make_checkpoint([table_models.make_source({}, [0.0, 1.0, 2.0])])
        pair = [dataclasses.replace(one, banned_ids=(i,)) for i in (2, 1)]
        assert combine(pair, ["x", "y"]).banned_ids == (1, 2)

    def test_model_weights_must_match_the_models(self):
        with pytest.raises(OptionError, match="3 weights for 2 models"):
            TranslateOptions.of(model=[TOY, TOY], model_weights=[1.0, 2.0, 3.0])
        with pytest.raises(OptionError, match="above 0"):
            TranslateOptions.of(model=[TOY, TOY], model_weights=[1.0, 0.0])

    def test_avg_raw_probs_cannot_change_after_loading(self, together):
        with pytest.raises(OptionError, match="avg_raw_probs"):
            together.translate(["a"], avg_raw_probs=True)

    def test_avg_raw_probs_with_single_model_makes_no_ensemble(self):
        translator = Translator.from_pretrained(TOY, device="cpu", avg_raw_probs=True)
        assert isinstance(translator.model, TableModel)
