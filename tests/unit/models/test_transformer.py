"""The Transformer against `torch.nn` modules with the same weights, and its switches."""

import math

import pytest
import torch
from torch import nn

from onmt_lite.models.attention import CrossAttention, SelfAttention
from onmt_lite.models.layers import Dropout, TransformerLayer
from onmt_lite.models.positions import make_sinusoids
from onmt_lite.models.transformer import Transformer
from tests.support import tiny
from tests.support.model_variants import WITH_TORCH_MODULE, WITHOUT_TORCH_MODULE

ATOL = 1e-5

SRC = torch.tensor([[5, 6, 7, 8, 3], [9, 10, 3, 1, 1]])
SRC_LENGTHS = torch.tensor([5, 3])
TGT = torch.tensor([[2, 11, 12, 11, 13, 4], [2, 7, 7, 8, 9, 5]])


@pytest.mark.parametrize("switches", WITH_TORCH_MODULE.values(), ids=WITH_TORCH_MODULE)
def test_model_equals_torch_modules(switches):
    model = tiny.make_model(**switches).double()  # on some CPUs float32 differs by more
    expected = compute_logits(model, SRC, SRC_LENGTHS, TGT)
    logits = model.forward(model.encode(SRC, SRC_LENGTHS), TGT)
    torch.testing.assert_close(logits, expected, atol=ATOL, rtol=0)


@pytest.mark.parametrize("switches", WITHOUT_TORCH_MODULE.values(), ids=WITHOUT_TORCH_MODULE.keys())
def test_each_switch_changes_the_result(switches):
    """The model has the weights of the default model if shapes are equal."""
    default, model = tiny.make_model(), tiny.make_model(**switches)
    weights = default.state_dict()
    shared = {n: w for n, w in model.state_dict().items() if n in weights}
    with torch.no_grad():
        for name, weight in shared.items():
            if weight.shape == weights[name].shape:
                weight.copy_(weights[name])
    expected, changed = (m.forward(m.encode(SRC, SRC_LENGTHS), TGT) for m in (default, model))
    assert (expected - changed).abs().max() > 0.01


@pytest.mark.parametrize("layout", ["interleaved", "concat", "fairseq"])
def test_make_sinusoids_matches_the_formula(layout):
    n, d = 50, 6
    table = make_sinusoids(n, d, layout)
    assert table.shape == (n, d)
    for position in range(n):
        for i in range(d // 2):
            exponent = i / (d // 2 - 1) if layout == "fairseq" else 2 * i / d
            angle = position / 10000**exponent
            sine, cosine = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, d // 2 + i)
            assert table[position, sine].item() == pytest.approx(math.sin(angle), abs=ATOL)
            assert table[position, cosine].item() == pytest.approx(math.cos(angle), abs=ATOL)


@pytest.mark.parametrize(
    "wrong",
    [
        *(dict(relative="shaw", relative_limit=n) for n in (0, 10**12)),
        *(dict(relative="buckets", relative_limit=5, relative_buckets=n) for n in (2, 40)),
        *(dict(relative="rotary", rotary_dim=n) for n in (3, 6)),
        *(dict(relative="rotary", d_model=20), dict(relative="near"), dict(rotary_theta=0)),
        *(dict(kv_heads=3), dict(dec_heads=3), dict(align_heads=5), dict(norm="batch")),
    ],
    ids=str,
)
def test_invalid_config_is_rejected(wrong):
    with pytest.raises(ValueError, match="config"):
        tiny.make_model(**wrong)


class TestDropout:
    def test_dropout_is_off_in_eval_mode(self):
        plain = tiny.make_model()
        dropping = Transformer(plain.cfg, dropout=0.5)
        dropping.load_state_dict(plain.state_dict())
        memory = dropping.eval().encode(SRC, SRC_LENGTHS)
        logits = plain.forward(plain.encode(SRC, SRC_LENGTHS), TGT)
        assert torch.equal(dropping.forward(memory, TGT), logits)
        dropping.train()
        dropped = dropping.forward(dropping.encode(SRC, SRC_LENGTHS), TGT)
        assert (dropped - logits).abs().max() > 0.1

    def test_dropout_mask_is_shared_by_all_positions(self):
        torch.manual_seed(0)
        x = Dropout(0.25).train()(torch.ones(3, 5, 1000))
        assert torch.equal(x, x[:, :1].expand_as(x))
        assert not torch.equal(x[0], x[1])
        # Other values are scaled up, so that the mean is unchanged
        assert x.unique().tolist() == pytest.approx([0, 1 / 0.75])
        assert (x == 0).float().mean().item() == pytest.approx(0.25, abs=0.05)


# ---- The same computation with torch.nn layers ----


def copy_linear(target: nn.Linear, source: nn.Linear) -> None:
    target.weight.copy_(source.weight)
    target.bias.copy_(0 if source.bias is None else source.bias)


def copy_attention(target: nn.MultiheadAttention, source: SelfAttention | CrossAttention) -> None:
    stacked = [source.qkv] if isinstance(source, SelfAttention) else [source.q, source.kv]
    target.in_proj_weight.copy_(torch.cat([linear.weight for linear in stacked]))
    biases = [torch.zeros(x.out_features) if x.bias is None else x.bias for x in stacked]
    target.in_proj_bias.copy_(torch.cat(biases))
    copy_linear(target.out_proj, source.out)


@torch.no_grad()
def make_torch_layer(layer_class: type[nn.Module], model: Transformer, layer: TransformerLayer):
    cfg = model.cfg
    activation = {"silu": nn.functional.silu}.get(cfg.activation, cfg.activation)
    copy = layer_class(
        cfg.d_model,
        cfg.heads,
        cfg.d_ff,
        dropout=0.0,
        activation=activation,
        layer_norm_eps=cfg.norm_eps,
        batch_first=True,
        norm_first=cfg.pre_norm,
    ).to(next(model.parameters()).dtype)
    copy_attention(copy.self_attn, layer.self_attn)
    copy_linear(copy.linear1, layer.ffn.up)
    copy_linear(copy.linear2, layer.ffn.down)
    residuals = [layer.self_attn_residual, layer.ffn_residual]
    if layer_class is nn.TransformerDecoderLayer:
        copy_attention(copy.multihead_attn, layer.cross_attn)
        residuals.insert(1, layer.cross_attn_residual)
    for i, residual in enumerate(residuals, 1):
        getattr(copy, f"norm{i}").load_state_dict(residual.norm.state_dict())
    return copy.eval()


def embed(embedding: nn.Module, model: Transformer, ids: torch.Tensor) -> torch.Tensor:
    cfg = model.cfg
    scale = math.sqrt(cfg.d_model) if cfg.scale_embedding else 1.0
    first = cfg.position_offset
    if cfg.positions == "learned":
        table = embedding.position
    else:
        table = make_sinusoids(first + ids.size(1), cfg.d_model, cfg.positions)
    x = embedding.token.weight[ids] * scale + table[first : first + ids.size(1)]
    if cfg.embedding_norm:
        x = nn.functional.layer_norm(
            x, (cfg.d_model,), embedding.norm.weight, embedding.norm.bias, cfg.norm_eps
        )
    return x


def apply_final_norm(norm: nn.Module, model: Transformer, x: torch.Tensor) -> torch.Tensor:
    cfg = model.cfg
    if not cfg.final_norm:
        return x
    return nn.functional.layer_norm(x, (cfg.d_model,), norm.weight, norm.bias, cfg.norm_eps)


def compute_logits(model, src, src_lengths, tgt) -> torch.Tensor:
    """Compute the logits of a model with torch.nn layers.

    Args:
        model: the model
        src: source ids (B, S), int64
        src_lengths: lengths (B,), int64
        tgt: decoder input (B, T), int64

    Returns:
        Logits (B, T, V).
    """
    padding = torch.arange(src.size(1)) >= src_lengths[:, None]
    bank = embed(model.src_embedding, model, src)
    for layer in model.encoder:
        copy = make_torch_layer(nn.TransformerEncoderLayer, model, layer)
        bank = copy(bank, src_key_padding_mask=padding)
    bank = apply_final_norm(model.enc_norm, model, bank)
    causal = torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool).triu(1)
    x = embed(model.tgt_embedding, model, tgt)
    for layer in model.decoder:
        copy = make_torch_layer(nn.TransformerDecoderLayer, model, layer)
        x = copy(x, bank, tgt_mask=causal, memory_key_padding_mask=padding)
    x = apply_final_norm(model.dec_norm, model, x)
    bias = model.output.bias if model.cfg.output_bias else 0.0
    tied = model.tgt_embedding.token.weight if model.cfg.tie_output else model.output.weight
    return x @ tied.T + bias
