"""OpenNMT-py models over all model options: log-probabilities equal OpenNMT-py.

Runs with the installed OpenNMT-py (3.5, 2.3 or 1.2). With a recent torch, it needs
TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1.
"""

import itertools

import pytest
import torch

from onmt_lite import Translator
from onmt_lite.checkpoints.loading import load_checkpoint

onmt = pytest.importorskip("onmt")

from onmt import model_builder, opts  # noqa: E402
from onmt.utils.parse import ArgumentParser  # noqa: E402

IS_V3 = onmt.__version__.startswith("3")
IS_V1 = onmt.__version__.startswith("1")
ATOL = 2e-5
SPECIAL = ["<unk>", "<blank>", "<s>", "</s>"]
SIDES = {
    "src": [*SPECIAL, *(f"s{i}" for i in range(14))],
    "tgt": [*SPECIAL, *(f"t{i}" for i in range(10)), "s1", "s3"],
}
SRC, LENGTHS = torch.tensor([[5, 6, 7, 9, 5], [9, 4, 1, 1, 1], [8, 1, 1, 1, 1]]), [5, 2, 1]
TGT = torch.tensor([[2, 8, 9, 10, 4], [2, 5, 7, 4, 4], [2, 4, 4, 0, 6]])
SIZE = "-hidden_size 16 -word_vec_size 16" if IS_V3 else "-rnn_size 16 -word_vec_size 16"
TRANSFORMER = "-encoder_type transformer -decoder_type transformer -heads 4 -transformer_ff 24"
TRANSFORMERS = [
    "-layers 2 -position_encoding",
    "-enc_layers 1 -dec_layers 3 -position_encoding",
    "-layers 2",
    "-layers 2 -max_relative_positions 3",
    "-layers 2 -position_encoding -share_decoder_embeddings",
    "-layers 2 -position_encoding -self_attn_type average",
    "-layers 2 -position_encoding -self_attn_type average -aan_useffn",
    "-layers 2 -position_encoding -copy_attn",
]
TRANSFORMERS_2 = [
    "-layers 1 -position_encoding -pos_ffn_activation_fn gelu",
    "-layers 1 -position_encoding -max_relative_positions 3",
]
TRANSFORMERS_3 = [
    "-layers 2 -position_encoding -pos_ffn_activation_fn gelu -add_qkvbias -add_ffnbias",
    "-layers 2 -position_encoding -pos_ffn_activation_fn silu -layer_norm rms",
    "-layers 2 -position_encoding -pos_ffn_activation_fn gated-gelu -add_ffnbias",
    "-layers 1 -position_encoding -position_encoding_type SinusoidalConcat",
    "-layers 2 -max_relative_positions -1 -add_qkvbias",
    "-layers 2 -max_relative_positions -1 -rotary_interleave False -rotary_theta 500",
    "-layers 2 -max_relative_positions -1 -rotary_dim 2",
    "-layers 2 -max_relative_positions -2",
    "-layers 2 -max_relative_positions 8 -relative_positions_buckets 6",
    "-layers 2 -position_encoding -multiquery",
    "-layers 2 -position_encoding -num_kv 2 -layer_norm rms -norm_eps 1e-5",
    "-layers 2 -position_encoding -parallel_residual",
    "-layers 2 -position_encoding -parallel_residual -shared_layer_norm",
    "-layers 2 -max_relative_positions -1 -num_kv 2 -parallel_residual -copy_attn",
]
RNN = "-decoder_type rnn -layers 2"
CELLS = ["-encoder_type rnn -rnn_type LSTM", "-encoder_type brnn -rnn_type GRU"]
RNNS = [
    *(f"-global_attention {score} -input_feed {n}"
      for score, n in itertools.product(["dot", "general", "mlp"], [0, 1])),
    "-bridge",
    "-bridge -input_feed 0 -share_decoder_embeddings",
    "-context_gate source",
    "-context_gate target -input_feed 0",
    "-context_gate both -global_attention mlp",
    "-coverage_attn",
    "-copy_attn",
    "-copy_attn -reuse_copy_attn -global_attention mlp",
    "-copy_attn -copy_attn_type dot -coverage_attn",
    "-layers 1",
    "-layers 3",
    "-global_attention none",
    "-global_attention_function sparsemax",
]  # fmt: skip
CNNS = ["-layers 1 -cnn_kernel_width 3", "-layers 3 -cnn_kernel_width 5 -position_encoding"]
GRID = [f"{TRANSFORMER} {flags}" for flags in TRANSFORMERS]
GRID += [f"{TRANSFORMER} {flags}" for flags in TRANSFORMERS_2 * (not IS_V1 and not IS_V3)]
GRID += [f"{TRANSFORMER} {flags}" for flags in TRANSFORMERS_3 * IS_V3]
GRID += [f"{RNN} {cell} {flags}" for flags, cell in itertools.product(RNNS, CELLS)]
GRID += [f"-encoder_type cnn -decoder_type cnn {flags}" for flags in CNNS]


def parse_options(flags):
    parser = ArgumentParser()
    opts.model_opts(parser)
    if IS_V3:
        opts._add_train_general_opts(parser)
    opt, _ = parser.parse_known_args(f"{SIZE} {flags} -dropout 0".split())
    opt.gpu, opt.gpu_ranks, opt.world_size, opt.parallel_mode = -1, [], 1, "data_parallel"
    for name, side in itertools.product(("freeze", "fix"), ("enc", "dec")):
        setattr(opt, f"{name}_word_vecs_{side}", False)
        setattr(opt, f"pre_word_vecs_{side}", None)
    opt.update_vocab, opt.optim, opt.param_init, opt.param_init_glorot = False, "sgd", 0, False
    ArgumentParser.update_model_opts(opt)
    ArgumentParser.validate_model_opts(opt)
    opt.attention_dropout = [0.0]
    opt.dropout = [0.0]
    return opt


def make_vocabularies():
    """Return the vocabularies for the model builder and for the checkpoint file."""
    if IS_V3:
        from onmt.inputters.inputter import dict_to_vocabs

        stored = {**SIDES, "data_task": "seq2seq", "decoder_start_token": "<s>"}
        return dict_to_vocabs(stored), stored
    from collections import Counter, defaultdict

    from onmt.inputters.text_dataset import text_fields
    from torchtext.vocab import Vocab

    fields = {}
    for side, tokens in SIDES.items():
        special = dict(pad="<blank>", bos=None if side == "src" else "<s>")
        special["eos"] = None if side == "src" else "</s>"
        special |= dict(n_feats=0, feats=None, include_lengths=side == "src", base_name=side)
        field = text_fields(**special)
        vocab = Vocab(Counter(), specials=[])
        vocab.itos, vocab.stoi = list(tokens), defaultdict(int)
        vocab.stoi.update({token: i for i, token in enumerate(tokens)})
        field.base_field.vocab = vocab
        fields[side] = field
    return fields, fields


def build_model(flags, path):
    """Build an OpenNMT-py model with random weights and save it like the trainer."""
    opt = parse_options(flags)
    vocabs, stored = make_vocabularies()
    torch.manual_seed(1)
    if IS_V3:
        model = model_builder.build_base_model(opt, vocabs)
    else:
        model = model_builder.build_base_model(opt, vocabs, gpu=False)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    averages = dict(model.named_buffers())
    for name, weight in model.named_parameters(remove_duplicate=False):
        if f"{name}_avg" in averages:  # OpenNMT-py continues to average during translation
            averages[f"{name}_avg"].copy_(weight.detach())
    model.eval()
    weights = {name: w for name, w in model.state_dict().items() if "generator" not in name}
    content = dict(model=weights, generator=model.generator.state_dict(), vocab=stored, opt=opt)
    torch.save(content | {"optim": {}}, path)
    return model


@torch.no_grad()
def compute_opennmt_log_probs(model, opt):
    """Return log-probabilities (B, T, V), one sentence at a time.

    Some models mix the sentences of a batch.
    """
    rows = []
    for i, n in enumerate(LENGTHS):
        src, tgt, n_src = SRC[i, None, :n, None], TGT[i, None, :, None], torch.tensor([n])
        # OpenNMT-py drops the last target token
        tgt = torch.cat([tgt, torch.ones(1, 1, 1, dtype=torch.long)], 1)
        if IS_V3:
            hidden, attns = model(src, tgt, n_src)
        else:
            hidden, attns = model(src.transpose(0, 1), tgt.transpose(0, 1), n_src)
            hidden = hidden.transpose(0, 1)
        if not opt.copy_attn:
            scores = model.generator(hidden)
            rows.append(scores.log_softmax(-1) if IS_V3 else scores)
            continue
        rows.append(
            compute_copy_log_probs(model, hidden[0], attns["copy"].reshape(-1, n), SRC[i, :n])
        )
    return torch.cat(rows)


def compute_copy_log_probs(model, hidden, attn, src):
    """Combine the copy distribution with the distribution over the target vocabulary.

    Args:
        model: the OpenNMT-py model.
        hidden: decoder states (T, D).
        attn: copy attention (T, S).
        src: source ids (S,).

    Returns:
        Log-probabilities (1, T, V).
    """
    src_map = torch.eye(src.size(0))  # each source position is a separate copy target
    out = model.generator(hidden, attn, src_map[None] if IS_V3 else src_map[:, None])
    words = SIDES["tgt"]
    probs, copy_probs = out[:, : len(words)].clone(), out[:, len(words) :]
    for i, token in enumerate(src.tolist()):
        if (word := SIDES["src"][token]) in words:
            probs[:, words.index(word)] += copy_probs[:, i]
    return probs.log()[None]


@torch.no_grad()
def compute_our_log_probs(model):
    memory = model.encode(SRC, torch.tensor(LENGTHS))
    return model.forward(memory, TGT)[..., : len(SIDES["tgt"])].log_softmax(-1)


@pytest.mark.parametrize("flags", GRID)
def test_log_probs_equal_opennmt(flags, tmp_path):
    opennmt_model = build_model(flags, tmp_path / "m.pt")
    opt = parse_options(flags)
    checkpoint = load_checkpoint(tmp_path / "m.pt")
    if opt.copy_attn:
        memory = checkpoint.model.encode(SRC, torch.tensor(LENGTHS))
        ours = checkpoint.model.forward(memory, TGT)[..., : len(SIDES["tgt"])]
    else:
        ours = compute_our_log_probs(checkpoint.model)
    expected = compute_opennmt_log_probs(opennmt_model, opt)
    kept = expected.exp() > 1e-9  # OpenNMT-py clamps words that can only be copied
    kept[..., 0] &= not opt.copy_attn  # its copy generator has no probability for <unk>
    torch.testing.assert_close(ours[kept], expected[kept], atol=ATOL, rtol=1e-4)


LINES = ["s1 s2 s3 s5 s1", "s5 s0", "s4", "s9 s8 s7 s6 s5 s4 s3 s2 s1", "s3 s3 s3", "x s1 y"] * 11


@pytest.mark.parametrize("flags", GRID)
def test_translations_do_not_depend_on_batch_size(flags, tmp_path):
    build_model(flags, tmp_path / "m.pt")
    translator = Translator.from_pretrained(tmp_path / "m.pt", device="cpu", threads=1)
    hyps_by_batch_size = []
    for size in (1, 3, 64):
        options = dict(batch_type="sents", batch_size=size, max_length=8, beam_size=3, n_best=3)
        translations = translator.translate(LINES, **options)
        hyps_by_batch_size.append([hyp for t in translations for hyp in t.hyps])
    single = hyps_by_batch_size[0]
    for batched in hyps_by_batch_size[1:]:
        assert [h.text for h in batched] == [h.text for h in single]
        assert [h.score for h in batched] == pytest.approx([h.score for h in single], abs=1e-4)
