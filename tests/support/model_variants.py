"""Small random models of every architecture, with each switch turned on."""

from functools import partial
from itertools import product
from random import Random

from onmt_lite.models.table_model import TableModel, TableSource
from tests.support import random_models, tiny
from tests.support.random_models import CNNS, COPYING_RNNS, FCONVS, RNNS
from tests.support.state_rows import LENGTHS

WITH_TORCH_MODULE = {
    "default": {},
    "post_norm": dict(pre_norm=False, final_norm=False),
    "post_norm_with_final": dict(pre_norm=False),
    "no_final_norm": dict(final_norm=False),
    "no_attention_bias": dict(attn_bias=False),
    "no_ffn_bias": dict(ffn_bias=False),
    "no_output_bias": dict(output_bias=False),
    "concat": dict(positions="concat"),
    "learned": dict(positions="learned"),
    "offset": dict(position_offset=2),
    "learned_offset": dict(positions="learned", position_offset=2),
    "gelu": dict(activation="gelu"),
    "silu": dict(activation="silu"),
    "no_scale": dict(scale_embedding=False),
    "embedding_norm": dict(embedding_norm=True),
    "untied": dict(tie_output=False),
    "unshared": dict(share_embeddings=False, src_vocab_size=30),
    "separate_weights": dict(share_embeddings=False, tie_output=False),
    "other_eps": dict(norm_eps=0.1),
    "uneven_depth": dict(enc_layers=3, dec_layers=1),
}
# torch.nn has no modules for these; they are compared with OpenNMT-py instead
WITHOUT_TORCH_MODULE = {
    "fairseq_positions": dict(positions="fairseq", position_offset=2),
    "gelu_tanh": dict(activation="gelu_tanh"),
    "gelu_sigmoid": dict(activation="gelu_sigmoid"),
    "tanh": dict(activation="tanh"),
    "rms": dict(norm="rms", embedding_norm=True),
    "gated": dict(gated_ffn=True, activation="silu"),
    "parallel": dict(parallel_residual=True),
    "shared_keys": dict(kv_heads=2),
    "one_key": dict(kv_heads=1, relative="rotary", positions="none"),
    "separate_decoder_sizes": dict(dec_heads=2, dec_d_ff=24),
    "shaw": dict(relative="shaw", relative_limit=2, positions="none"),
    "shaw_values": dict(relative="shaw", relative_values=True, relative_limit=2),
    "shaw_and_sinusoids": dict(relative="shaw", relative_limit=2),
    "buckets": dict(relative="buckets", relative_limit=5, relative_buckets=6, positions="none"),
    "rotary": dict(relative="rotary", positions="none"),
    "rotary_pairs": dict(relative="rotary", rotary_interleave=True, rotary_theta=100.0),
    "rotary_part": dict(relative="rotary", rotary_dim=2),
    "alibi": dict(relative="alibi", positions="none"),
    "alibi_6": dict(relative="alibi", d_model=24, heads=6),
    "average": dict(dec_self_attn="average"),
    "average_ffn": dict(dec_self_attn="average_ffn"),
}

TRANSFORMERS = {**WITH_TORCH_MODULE, **WITHOUT_TORCH_MODULE}

# Transformers with different decoder states
STATE_TRANSFORMERS = {
    "learned": dict(positions="learned", position_offset=2),
    "shaw": dict(relative="shaw", relative_limit=2, positions="none"),
    "shaw_values": dict(relative="shaw", relative_limit=3, relative_values=True),
    "buckets": dict(relative="buckets", relative_limit=5, relative_buckets=6, positions="none"),
    "rotary": dict(relative="rotary", kv_heads=2),
    "alibi": dict(relative="alibi", positions="none", pre_norm=False),
    "average": dict(dec_self_attn="average"),
    "average_ffn": dict(dec_self_attn="average_ffn"),
    "parallel": dict(parallel_residual=True, kv_heads=1),
    "aligned": dict(align_layer=1, align_head=2, align_heads=2, dec_heads=8),
}


def make_table_model() -> TableModel:
    """Make a table model whose logits depend on the whole prefix, so that any error shows."""
    random, n_tokens = Random(0), range(1, 4)
    prefixes = [" ".join(map(str, p)) for n in range(4) for p in product(n_tokens, repeat=n)]

    def make_row(n: int) -> list[float]:
        return [random.random() for _ in range(n)]

    def make_table(n: int) -> dict[str, list[float]]:
        return {prefix: make_row(n) for prefix in prefixes}

    return TableModel(
        [TableSource(n, make_table(4), make_row(4), make_table(n), make_row(n)) for n in LENGTHS],
        4,
    )


MODELS = {
    "transformer": tiny.make_model,
    **{f"transformer_{k}": partial(tiny.make_model, **v) for k, v in STATE_TRANSFORMERS.items()},
    "table": make_table_model,
    **{f"rnn_{k}": partial(random_models.make_rnn, **v) for k, v in RNNS.items()},
    **{
        f"fconv_{name}": partial(random_models.make_fconv, **options)
        for name, options in FCONVS.items()
    },
    **{f"cnn_{k}": partial(random_models.make_cnn, **v) for k, v in CNNS.items()},
    **{f"copy_{k}": partial(random_models.make_copying_rnn, **v) for k, v in COPYING_RNNS.items()},
    "copy_transformer": random_models.make_copying_transformer,
    "ensemble": random_models.make_ensemble,
    "ensemble_of_probs": partial(
        random_models.make_ensemble, avg_raw_probs=True, weights=[1, 2, 3, 4, 5]
    ),
}
