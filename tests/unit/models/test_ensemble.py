"""Several models as one: by hand, beside each alone, and where they do not fit together."""

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
from tests.support import random_models, tables, tiny
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


def mean_by_hand(rows: list[list[float]], avg_raw_probs=False, weights=None) -> list[float]:
    """Logits of each model for one next token -> what the ensemble says."""
    weights = weights or [1.0] * len(rows)
    probs = []
    for row in rows:
        exps = [math.exp(x) for x in row]
        probs.append([x / sum(exps) for x in exps])
    means = []
    for of_models in zip(*probs, strict=True):
        pairs = list(zip(weights, of_models, strict=True))
        if avg_raw_probs:
            mean = sum(w * p for w, p in pairs) / sum(weights)
            means.append(math.log(mean) if mean else -math.inf)
        elif min(of_models) == 0:
            means.append(-math.inf)
        else:
            means.append(sum(w * math.log(p) for w, p in pairs) / sum(weights))
    return means


@pytest.mark.parametrize("options", MEANS.values(), ids=MEANS)
class TestNumbers:
    def test_each_token_is_the_mean_by_hand(self, options):
        ensemble = random_models.make_ensemble(**options)
        found = ensemble.forward(ensemble.encode(SRC, LENGTHS), TGT)
        members = [m.forward(m.encode(SRC, LENGTHS), TGT).tolist() for m in ensemble.members]
        for b, t in itertools.product(range(2), range(4)):
            expected = mean_by_hand([logits[b][t] for logits in members], **options)
            assert found[b, t].tolist() == pytest.approx(expected, abs=ATOL)

    def test_step_by_step_too_and_attention_is_the_mean(self, options):
        ensemble = random_models.make_ensemble(**options)
        memory = ensemble.encode(SRC, LENGTHS)
        full, state = ensemble.forward(memory, TGT), ensemble.init_state(memory)
        own = [m.init_state(m.encode(SRC, LENGTHS)) for m in ensemble.members]
        for t, tokens in enumerate(TGT.unbind(1)):
            scores, attn = ensemble.step(tokens, state)
            torch.testing.assert_close(scores, full[:, t], atol=ATOL, rtol=0)
            each = [m.step(tokens, s)[1] for m, s in zip(ensemble.members, own, strict=True)]
            weights = options.get("weights", [1.0] * 5)
            mean = sum(w * a for w, a in zip(weights, each, strict=True)) / sum(weights)
            torch.testing.assert_close(attn, mean, atol=ATOL, rtol=0)


def test_a_word_that_only_one_member_can_copy():
    """Impossible in a mean of log-probabilities, half as likely in one of probabilities."""
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
    """Two models that disagree, under one vocabulary."""
    other = tmp_path_factory.mktemp("other")
    model = tiny.make_model(seed=7, tie_output=False)
    model.output.weight.mul_(2)
    tiny.native.save(other, model, tiny_pieces)
    return str(tiny_checkpoint), str(other)


@pytest.fixture(scope="module")
def together(pair):
    return Translator.from_pretrained(model=pair, device="cpu", tokenizer="space")


LINES = ["▁der ▁hund", "▁das ▁rote ▁haus ▁der ▁stadt", "▁a", "▁der ▁see ▁der ▁see"]


def ended(translations) -> list:
    """Pairs of a translation and each of its hypotheses that are not cut off."""
    return [(t, hyp) for t in translations for hyp in t.hyps if hyp.ended]


class TestTranslating:
    @pytest.mark.parametrize("search", PRESETS)
    def test_in_every_search(self, search):
        alone, twice = (
            Translator.from_pretrained(model=paths, device="cpu", search=search, n_best=2)
            for paths in ([TOY], [TOY, TOY])
        )
        assert isinstance(twice.model, Ensemble)
        (a,), (b,) = (t.translate(["katze"]) for t in (alone, twice))
        assert [h.text for h in b.hyps] == [h.text for h in a.hyps]
        assert [h.score for h in b.hyps] == pytest.approx([h.score for h in a.hyps], abs=ATOL)

    @pytest.mark.parametrize("search", ["opennmt", "opennmt-3"])
    @pytest.mark.parametrize("avg_raw_probs", [False, True])
    def test_scores_can_be_checked(self, pair, avg_raw_probs, search):
        """The search's log_prob is the teacher-forced one, and that of the members by hand.

        3.5.1 makes its mean sum to one again: it averages logits before its softmax."""
        options = dict(search=search, avg_raw_probs=avg_raw_probs, device="cpu", tokenizer="space")
        translator = Translator.from_pretrained(model=pair, **options)
        vocabs = translator.checkpoint.src_vocab, translator.checkpoint.tgt_vocab
        for t, hyp in ended(translator.translate(LINES, n_best=3)):
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
                steps = [mean_by_hand(step, avg_raw_probs) for step in by_step]
            by_hand = [step[y] for step, y in zip(steps, out, strict=True)]
            assert hyp.token_log_probs == pytest.approx(by_hand, abs=1e-4)

    def test_the_best_of_all_sequences(self):
        """Scores are means of log-probabilities as they stand, not normalised once more."""
        dice = random_models.Dice(5)
        rows = [{key: dice(3, std=2.0).tolist() for key in ("", "1", "2")} for _ in range(2)]
        models = [tables.make_source(row, dice(3, std=2.0).tolist()) for row in rows]
        checkpoint = combine([tables.make_checkpoint([source]) for source in models], ["a", "b"])
        options = TranslateOptions.of(beam_size=20, n_best=5, max_length=3, alpha=0.0)
        (found,) = Translator(checkpoint, options).translate(["s0"])
        sums = []
        for ids in [(0,), (1, 0), (2, 0), *itertools.product([1, 2], [1, 2], range(3))]:
            rows = [[source.logits(ids[:t]) for source in models] for t in range(len(ids))]
            sums.append(sum(mean_by_hand(row)[y] for row, y in zip(rows, ids)))
        expected = sorted(sums, reverse=True)[:5]
        assert [h.score for h in found.hyps] == pytest.approx(expected, abs=ATOL)

    def test_files_of_several_families(self):
        translator = Translator.from_pretrained(model=FILES, device="cpu")
        words = translator.checkpoint.src_vocab.tokens[4:9]
        found = translator.translate([" ".join(words), words[0]], n_best=2, max_length=9)
        for t, hyp in ended(found):
            (scored,) = translator.score([t.src], [hyp.text])
            assert hyp.log_prob == pytest.approx(scored, abs=1e-4)
        kinds = [type(member).__name__ for member in translator.model.members]
        assert kinds == ["Rnn", "Rnn", "Convolution"]


def checkpoint_of(model, src_tokens: list[str]) -> Checkpoint:
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

    def renumbered(self, rng):
        """Models and their words, the second's in another order with its embeddings alike."""
        one, other = random_models.make_rnn(), random_models.make_rnn(cell="GRU", seed=4)
        n_words = random_models.VOCAB_SIZE
        order = [0, 1, 2, 3, *rng.sample(range(4, n_words), n_words - 4)]
        moved = copy.deepcopy(other)
        moved.encoder.embedding.weight.data.copy_(other.encoder.embedding.weight[order])
        return one, other, moved, [self.WORDS[i] for i in order]

    def test_the_order_of_words_is_a_members_own_matter(self):
        one, other, moved, words = self.renumbered(Random(1))
        options = TranslateOptions.of(device="cpu", n_best=3)
        found, expected = (
            Translator(combine([checkpoint_of(one, self.WORDS), second], ["x", "y"]), options)
            for second in (checkpoint_of(moved, words), checkpoint_of(other, self.WORDS))
        )
        assert found.translate(self.LINES) == expected.translate(self.LINES)

    def test_a_word_that_only_one_knows_is_unknown_to_the_other(self):
        one, other, *_ = self.renumbered(Random(1))
        theirs = [*self.WORDS[:-1], "new"]
        both = combine([checkpoint_of(one, self.WORDS), checkpoint_of(other, theirs)], ["x", "y"])
        src = torch.tensor([both.src_vocab.encode(["s39", "new", "s8"])])
        memory = both.model.encode(src, torch.tensor([3]))
        for model, ids, own in zip((one, other), ([39, 0, 8], [0, 39, 8]), memory):
            expected = model.encode(torch.tensor([ids]), torch.tensor([3]))
            tgt = torch.tensor([[2, 5, 6]])
            torch.testing.assert_close(model.forward(own, tgt), model.forward(expected, tgt))

    def test_pieces_must_be_the_same(self):
        """A line is cut once: pieces of another model would be unknown to it."""
        one, other, *_ = self.renumbered(Random(1))
        cut = dataclasses.replace(
            checkpoint_of(other, [*self.WORDS[:-1], "new"]),
            tokenizers={"sentencepiece": SpaceTokenizer(), "space": SpaceTokenizer()},
        )
        with pytest.raises(CheckpointError, match="source vocabularies: ID 39"):
            combine([checkpoint_of(one, self.WORDS), cut], ["x", "y"])


class TestWhatFits:
    @pytest.mark.parametrize(
        "change, words",
        [
            ({"tgt_vocab": Vocab(["$", "b", "a"], eos_id=0)}, "target vocabularies: ID 1 is 'a'"),
            ({"tgt_vocab": Vocab(["$", "a"], eos_id=0)}, "target vocabularies: 3 and 2 tokens"),
            ({"tgt_vocab": Vocab(["$", "a", "b"], eos_id=1)}, "eos_id of their target"),
            ({"src_vocab": Vocab(["s1"])}, "source vocabularies: ID 0 is 's0' and 's1'"),
            ({"start_id": 2}, "have different start tokens: ID -1 and 2"),
            ({"src_end": (0,)}, "have different source end tokens"),
        ],
    )
    def test_what_differs_is_told_with_the_models(self, change, words):
        one = tables.make_checkpoint([tables.make_source({}, [0.0, 1.0, 2.0])])
        with pytest.raises(CheckpointError) as caught:
            combine([one, one, dataclasses.replace(one, **change)], ["x", "y", "z"])
        assert words in str(caught.value) and "'x' and 'z'" in str(caught.value)

    def test_the_command_line_exits_with_4(self, tmp_path, capfd):
        twin = json.loads(open(TOY, encoding="utf-8").read())
        twin["vocab"][3:5] = ["cats", "cat"]
        path = tmp_path / "swapped.json"
        path.write_text(json.dumps(twin))
        assert translate.main(["-model", TOY, str(path), "-src", TOY]) == 4
        err = capfd.readouterr().err
        assert TOY in err and str(path) in err and "'cat' and 'cats'" in err
        assert err.count("\n") == 1

    def test_what_one_may_not_produce_none_does(self):
        one = tables.make_checkpoint([tables.make_source({}, [0.0, 1.0, 2.0])])
        pair = [dataclasses.replace(one, banned_ids=(i,)) for i in (2, 1)]
        assert combine(pair, ["x", "y"]).banned_ids == (1, 2)

    def test_one_weight_for_each_model(self):
        with pytest.raises(OptionError, match="3 weights for 2 models"):
            TranslateOptions.of(model=[TOY, TOY], model_weights=[1.0, 2.0, 3.0])
        with pytest.raises(OptionError, match="above 0"):
            TranslateOptions.of(model=[TOY, TOY], model_weights=[1.0, 0.0])

    def test_how_models_are_combined_is_settled_by_loading_them(self, together):
        with pytest.raises(OptionError, match="avg_raw_probs"):
            together.translate(["a"], avg_raw_probs=True)

    def test_a_single_model_is_no_ensemble(self):
        translator = Translator.from_pretrained(TOY, device="cpu", avg_raw_probs=True)
        assert isinstance(translator.model, TableModel)
