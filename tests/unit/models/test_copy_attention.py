"""Copy attention: the pointer-generator against its formula, word by word."""

import math
from pathlib import Path

import pytest
import torch

from onmt_lite import Translator
from onmt_lite.checkpoints.checkpoint import Checkpoint
from onmt_lite.checkpoints.loading import combine
from onmt_lite.checkpoints.opennmt import models as opennmt
from onmt_lite.checkpoints.opennmt.models import build_rnn
from onmt_lite.checkpoints.weights import Weights
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import CheckpointError
from onmt_lite.text.tokenizers import SpaceTokenizer
from onmt_lite.text.vocab import Vocab
from tests.support import archives, random_models, rnn_reference, tiny
from tests.support.random_models import (
    COPYING_RNNS,
    SRC_VOCAB,
    TGT_VOCAB,
    add_copying,
    build,
    make_copy_weights,
    make_copying_rnn,
    make_copying_rnn_weights,
    make_copying_transformer,
)
from tests.support.state_rows import select

ATOL = 1e-5
UNK, PAD, BOS = 0, 1, 2
V = len(TGT_VOCAB)
# Words in both vocabularies, in the source only (w3), in neither (x, y), repeated, none at all
LINES = ["w20 w3 x w20 y", "x w30 x", "</s>"]
TGT = torch.tensor([[2, 11, 12, 11, 13, 4], [2, 7, 7, 8, 9, 5], [2, 3, 3, 6, 4, 9]])
MODELS = {
    **{f"rnn_{name}": (make_copying_rnn, options) for name, options in COPYING_RNNS.items()},
    "transformer": (make_copying_transformer, {}),
}
SRC, SRC_LENGTHS = archives.pad_batch([SRC_VOCAB.encode(line.split()) for line in LINES], PAD)
ENCODED = [TGT_VOCAB.encode_copied(line.split()) for line in LINES]
IDS, _ = archives.pad_batch([ids for ids, _ in ENCODED], PAD)


@pytest.fixture(params=MODELS)
def model(request):
    make, options = MODELS[request.param]
    return make(**options)


def compute_mixture(tokens, vocab, logits, copied, z) -> dict[str, float]:
    """Compute the probability of each word by the formula.

    Args:
        tokens: S source tokens
        vocab: target vocabulary
        logits: logits of the vocabulary (V,)
        copied: attention to the source tokens (S,)
        z: the gate
    """
    logits = logits.clone()
    logits[vocab.pad_id] = -math.inf
    probs = dict(zip(vocab.tokens, ((1 - z) * logits.softmax(0)).tolist(), strict=True))
    for token, weight in zip(tokens, (z * copied).tolist(), strict=True):
        name = f"literal {token}" if token in ("<s>", "</s>", "<blank>", "<unk>") else token
        probs[name] = probs.get(name, 0.0) + weight
    return probs


def assert_same(
    log_probs: torch.Tensor, vocab: Vocab, source_words: list[str], expected: dict[str, float]
):
    names = [f"literal {w}" if w in vocab.ids else w for w in source_words]
    found = dict(zip([*vocab.tokens, *names], log_probs.exp().tolist(), strict=False))
    assert found == pytest.approx(expected, abs=ATOL)
    assert log_probs[len(vocab) + len(source_words) :].exp().sum() == 0  # words of other sentences


@pytest.mark.parametrize("options", COPYING_RNNS.values(), ids=COPYING_RNNS)
def test_copy_rnn_matches_the_formula(options):
    model = make_copying_rnn(**options)
    assert model.has_attention and not make_copying_rnn("general", attention="none").has_attention
    structure = {**options, "global_attention": options.get("attention", "general")}
    check_rnn(model, make_copying_rnn_weights(**options), structure, LINES, SRC_VOCAB, TGT_VOCAB)


@pytest.mark.parametrize("name", ["m12_copyrnn_step_2.pt", "m35_lstm_step_2.pt"])
def test_copy_opennmt_py_checkpoint_matches_the_formula(name):
    weights, options = archives.read_opennmt(name)
    src_vocab, tgt_vocab = (
        Vocab(tokens, pad_id=tokens.index("<blank>"), unk_id=tokens.index("<unk>"))
        for tokens in (archives.read_opennmt_vocab(name, side) for side in ("src", "tgt"))
    )
    plain = Weights(dict(weights), Path("weights"))
    copy_tensors = opennmt.split_copy_weights(plain).tensors
    inner = build(build_rnn, plain.tensors, options)
    model = add_copying(inner, copy_tensors, options, src_vocab, tgt_vocab)
    copying = None if options["reuse_copy_attn"] else options["copy_attn_type"]
    lines = [f"{src_vocab.tokens[5]} x {src_vocab.tokens[6]} x y", "x", src_vocab.tokens[7]]
    check_rnn(model, weights, {**options, "copying": copying}, lines, src_vocab, tgt_vocab)


def check_rnn(model, weights, options, lines, src_vocab, tgt_vocab):
    src, lengths = archives.pad_batch([src_vocab.encode(line.split()) for line in lines], PAD)
    encoded = [tgt_vocab.encode_copied(line.split()) for line in lines]
    ids, _ = archives.pad_batch([ids for ids, _ in encoded], PAD)
    log_probs = model.forward(model.encode(src, lengths, ids), TGT)
    w = {name: weight.double() for name, weight in weights.items()}
    for b, line in enumerate(lines):
        hidden, attentions, bank = rnn_reference.decode(
            weights, options, src[b, : lengths[b]], TGT[b]
        )
        for t, (h, attn) in enumerate(zip(hidden, attentions, strict=True)):
            if options["copying"]:
                attn = rnn_reference.compute_attention(
                    w, "decoder.copy_attn", options["copying"], h, bank
                )
            z = rnn_reference.apply_linear(w, "generator.linear_copy", h).sigmoid()
            logits = rnn_reference.apply_linear(w, "generator.linear", h)
            expected = compute_mixture(line.split(), tgt_vocab, logits, attn, z)
            assert_same(log_probs[b, t], tgt_vocab, encoded[b][1], expected)


def test_copy_transformer_copies_by_its_alignment_attention():
    model = make_copying_transformer()
    inner, copy_tensors = tiny.make_model(), make_copy_weights(None, d=16)
    seen = []
    inner.output.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    log_probs = model.forward(model.encode(SRC, SRC_LENGTHS, IDS), TGT)
    memory = inner.encode(SRC, SRC_LENGTHS)
    state = inner.init_state(memory)
    for t, tokens in enumerate(TGT.unbind(1)):
        logits, attn = inner.step(tokens, state)
        for b, line in enumerate(LINES):
            gate = copy_tensors["generator.linear_copy.weight"] @ seen[t][b, 0]
            z = (gate + copy_tensors["generator.linear_copy.bias"]).sigmoid()
            copied = attn[b, : SRC_LENGTHS[b]]
            expected = compute_mixture(line.split(), TGT_VOCAB, logits[b], copied, z)
            assert_same(log_probs[b, t], TGT_VOCAB, ENCODED[b][1], expected)


def test_copy_step_equals_forward(model):
    memory = model.encode(SRC, SRC_LENGTHS, IDS)
    full = model.forward(memory, TGT)
    assert full.size(2) == memory.copy_inputs.width == V + 3
    state = model.init_state(memory)
    for t in range(TGT.size(1)):
        log_probs, attn = model.step(TGT[:, t], state)
        torch.testing.assert_close(log_probs, full[:, t], atol=ATOL, rtol=0)
        torch.testing.assert_close(attn.sum(1), torch.ones(3))
        torch.testing.assert_close(log_probs.logsumexp(1), torch.zeros(3), atol=ATOL, rtol=0)


def test_copy_forward_does_not_depend_on_the_batch(model):
    batched = model.forward(model.encode(SRC, SRC_LENGTHS, IDS), TGT)
    for b, n in enumerate(SRC_LENGTHS.tolist()):
        memory = model.encode(SRC[b : b + 1, :n], SRC_LENGTHS[b : b + 1], IDS[b : b + 1, :n])
        single = model.forward(memory, TGT[b : b + 1])[0]
        n_words = single.size(1)
        torch.testing.assert_close(batched[b, :, :n_words], single, atol=ATOL, rtol=0)
        assert (batched[b, :, n_words:] == -math.inf).all()


def test_select_moves_copy_inputs_with_their_sentence(model):
    state = model.init_state(model.encode(SRC, SRC_LENGTHS, IDS))
    state = select(state, 1, [[0, 0], [1, 1], [2, 2]])
    model.step(torch.tensor([2, 2, 2, 2, 2, 2]), state)
    state = select(state, 2, [[1, 0], [5, 4]])
    log_probs, _ = model.step(torch.tensor([4, 5, 6, 7]), state)
    b = [0, 0, 2, 2]
    memory = model.encode(SRC[b], SRC_LENGTHS[b], IDS[b])
    full = model.forward(memory, torch.tensor([[2, 4], [2, 5], [2, 6], [2, 7]]))
    torch.testing.assert_close(log_probs, full[:, -1], atol=ATOL, rtol=0)


def test_copied_word_is_fed_back_as_unknown(model):
    memory = model.encode(SRC, SRC_LENGTHS, IDS)
    copied, unknown = TGT.clone(), TGT.clone()
    copied[:, 2], unknown[:, 2] = V, UNK
    assert torch.equal(model.forward(memory, copied), model.forward(memory, unknown))


def test_copy_without_ids_counts_copied_words_as_unknown(model):
    """No id is outside the vocabulary, and no probability is lost."""
    known = model.forward(model.encode(SRC, SRC_LENGTHS), TGT).exp()
    extended = model.forward(model.encode(SRC, SRC_LENGTHS, IDS), TGT).exp()
    assert known.size(2) == V and (known[:, :, PAD] == 0).all()
    expected = extended[:, :, :V].clone()
    expected[:, :, UNK] += extended[:, :, V:].sum(2)
    torch.testing.assert_close(known, expected, atol=ATOL, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_copy_half_precision_is_close_to_float32(model, dtype):
    exact = model.forward(model.encode(SRC, SRC_LENGTHS, IDS), TGT).exp()
    near = model.to(dtype).forward(model.encode(SRC, SRC_LENGTHS, IDS), TGT).exp()
    assert (near - exact).abs().max() < 0.05


def test_encode_copied_numbers_unknown_words_after_the_vocabulary():
    """Even special tokens: a copied EOS does not end a translation."""
    vocab = Vocab(["<unk>", "<s>", "</s>", "a", "b"], unk_id=0, bos_id=1, eos_id=2)
    assert vocab.encode_copied(["b", "x", "a", "y", "x"]) == ([4, 5, 3, 6, 5], ["x", "y"])
    words = ["</s>", "<unk>", "<s>"]
    assert vocab.encode_copied(words) == ([5, 6, 7], words)


def add_mlp_copying(copying, tgt_vocab=TGT_VOCAB, **options):
    options = {"copy_attn_type": "mlp", **options}
    return add_copying(random_models.make_rnn(), copying, options, SRC_VOCAB, tgt_vocab)


MLP = make_copy_weights("mlp", d=8)


@pytest.mark.parametrize(
    "copying, options, message",
    [
        *(({k: w for k, w in MLP.items() if k != name}, {}, "") for name in sorted(MLP)),
        ({**MLP, "decoder.copy_attn.more": torch.ones(1)}, {}, "copy_attn.more"),
        (make_copy_weights(None, d=8), {}, "missing"),
        (MLP, dict(reuse_copy_attn=True), "unexpected"),
        (MLP, dict(copy_attn_type=["x"]), "copy_attn_type is a list"),
        (MLP, dict(tgt_vocab=Vocab(["a"])), "padding"),
    ],
)
def test_missing_or_unexpected_copy_weight_is_rejected(copying, options, message):
    if any("linear_out" in name for name in MLP.keys() - copying.keys()) and not message:
        add_mlp_copying(copying)  # the output layer of the copy attention is not used
        return
    with pytest.raises(CheckpointError, match=message or "."):
        add_mlp_copying(copying, **options)


def make_checkpoint(model) -> Checkpoint:
    return Checkpoint(model, SRC_VOCAB, TGT_VOCAB, {"space": SpaceTokenizer()}, start_id=BOS)


@pytest.fixture(scope="module")
def translator():
    model = make_copying_rnn("general")
    with torch.no_grad():
        model.output.gate.bias.fill_(3.0)  # mostly copies
    return Translator(make_checkpoint(model), TranslateOptions.of(max_length=6, n_best=3))


class TestTranslating:
    """Copied words, in search and in teacher forcing."""

    LINES = ["w20 w3 x w20 y", "x w30 x", "zz", "w21 </s> w3"]

    def test_unknown_source_words_are_copied(self, translator):
        found = translator.translate(self.LINES)
        predicted = [{token for hyp in t.hyps for token in hyp.tokens} for t in found]
        for line, tokens in zip(self.LINES, predicted, strict=True):
            assert tokens - set(TGT_VOCAB.tokens) <= set(line.split())
        assert {"x", "y", "w3", "zz"} & set.union(*predicted)

    def test_search_scores_equal_teacher_forced_scores(self, translator):
        n_copied = 0
        for t in translator.translate(self.LINES):
            for hyp in (hyp for hyp in t.hyps if "</s>" not in hyp.tokens):
                n_copied += not set(hyp.tokens) <= set(TGT_VOCAB.tokens)
                expected = self.compute_log_probs(translator, t.src, hyp)
                assert hyp.token_log_probs == pytest.approx(expected, abs=1e-4)
                if hyp.ended:
                    (scored,) = translator.score([t.src], [hyp.text])
                    assert hyp.log_prob == pytest.approx(scored, abs=1e-4)
        assert n_copied

    @staticmethod
    def compute_log_probs(translator, line, hyp) -> list[float]:
        """Compute token log-probabilities with one forward pass over the sentence."""
        ids, source_words = TGT_VOCAB.encode_copied(line.split())
        names = [*TGT_VOCAB.tokens, *source_words]
        out = [names.index(token) for token in hyp.tokens] + [TGT_VOCAB.eos_id] * hyp.ended
        model, src = translator.model, torch.tensor([SRC_VOCAB.encode(line.split())])
        memory = model.encode(src, torch.tensor([len(ids)]), torch.tensor([ids]))
        log_probs = model.forward(memory, torch.tensor([[BOS, *out[:-1]]]))[0]
        return [log_probs[t, y].item() for t, y in enumerate(out)]

    @pytest.mark.parametrize("options", [{}, {"do_sample": True}, {"block_ngram_repeat": 1}])
    def test_copy_results_do_not_depend_on_the_batch(self, translator, options):
        batched = translator.translate(self.LINES, **options)
        for i, line in enumerate(self.LINES):
            lines = [""] * i + [line]  # samples depend on the line number
            single = translator.translate(lines, **options)[i]
            assert [h.tokens for h in single.hyps] == [h.tokens for h in batched[i].hyps]

    def test_copied_eos_is_a_word(self, translator):
        (found,) = translator.translate(["</s>"])
        assert any("</s>" in hyp.tokens for hyp in found.hyps)

    def test_copy_models_in_ensembles(self, translator):
        """Two copies equal one model; with a model that cannot copy, avg_raw_probs is needed."""
        copying, plain = translator.checkpoint, make_checkpoint(random_models.make_rnn())
        double = Translator(combine([copying, copying], ["a", "b"]), translator.options)
        pairs = zip(translator.translate(self.LINES), double.translate(self.LINES))
        for expected, found in pairs:
            assert [h.tokens for h in found.hyps] == [h.tokens for h in expected.hyps]
        for avg_raw_probs in (True, False):
            mixed = combine([plain, copying], ["a", "b"], avg_raw_probs=avg_raw_probs)
            assert mixed.model.has_copy_mechanism == avg_raw_probs
            results = Translator(mixed, translator.options).translate(self.LINES)
            tokens = {token for t in results for hyp in t.hyps for token in hyp.tokens}
            assert bool(tokens - set(TGT_VOCAB.tokens)) == avg_raw_probs
