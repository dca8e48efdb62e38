"""Reads T5 models of transformers: T5, Flan-T5, mT5, MADLAD-400.

T5 does not scale attention scores, so the query weights are multiplied by sqrt(head width).  All
layers of the encoder or decoder use the relative position bias of its first layer.
"""

import re

from torch import Tensor

from onmt_lite.checkpoints.checkpoint import Checkpoint, Languages
from onmt_lite.checkpoints.huggingface.added_tokens import NAMED_T5
from onmt_lite.checkpoints.huggingface.directory import (
    ACTIVATIONS,
    Directory,
    TokenizerReader,
    find_language_ids,
    make_checkpoint,
    make_vocab,
    read_start_id,
)
from onmt_lite.checkpoints.weights import Weights, assemble_transformer, has_same_values
from onmt_lite.errors import CheckpointError
from onmt_lite.models.transformer import Transformer

SHARED, HEAD = "shared.weight", "lm_head.weight"
TABLES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
BIAS = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
MAX_POSITIONS = 1 << 14  # the model has no limit
SENTINELS = 100  # default number of sentinel tokens
ADDED_TOKEN = r"<2(\w+)>|<extra_id_\d+>"
LANGUAGE = r"<2(\w+)>"  # MADLAD: target language token before the source line


def load(directory: Directory) -> Checkpoint:
    """Load a T5 model."""
    config = directory.config
    reader = TokenizerReader(directory, ADDED_TOKEN)
    tokens = reader.merge_added_tokens(dict(enumerate(reader.subwords)))
    ids = find_language_ids(tokens, LANGUAGE)
    languages = Languages(ids, source="none", target="text") if ids else None
    directory.check(languages)
    model = _read_model(directory, directory.read_weights())
    # If no file lists the sentinels, they are the last tokens, in reverse order
    is_listed = reader.has_final_ids or any(
        re.fullmatch(r"<extra_id_\d+>", t) for t in tokens.values()
    )
    default = SENTINELS if directory.family == "t5" else 0
    n = 0 if is_listed else directory.tokenizer.get_int("extra_ids", default)
    first = len(reader.subwords)
    if first + n <= model.vocab_size:
        tokens |= {first + n - 1 - i: f"<extra_id_{i}>" for i in range(n)}
    vocab = make_vocab(config, tokens, model.vocab_size, reader.get_file, reader.unk_token)
    start = read_start_id(directory, config.get_int("pad_token_id"))
    if config.get("forced_bos_token_id") is not None:
        raise CheckpointError(
            f"{config.get_file('forced_bos_token_id')}: forced_bos_token_id is not supported for T5"
        )
    n_sentinels = directory.tokenizer.get_int("extra_ids", default)
    sentinels = [f"<extra_id_{i}>" for i in range(n_sentinels)]
    added = reader.added.list_tokens(NAMED_T5, vocab.ids, sentinels)
    tokenizers = {
        "sentencepiece": reader.make_tokenizer(vocab, added, [tokens[i] for i in ids.values()])
    }
    return make_checkpoint(
        directory, model, (vocab, vocab), tokenizers, start, reader.added, languages=languages
    )


def _read_model(directory: Directory, weights: Weights) -> Transformer:
    config, default = directory.config, "gated-gelu" if directory.family == "mt5" else "relu"
    weights.drop(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight")
    if not any(name.startswith("decoder.block.") for name in weights.tensors):
        raise CheckpointError(f"{config.path}: the model has no decoder; use a complete T5 model")
    internal, factor = _read_embeddings(directory, weights)
    d_model = internal["tgt_embedding.token.weight"].size(1)
    heads, width = config.get_int("num_heads"), config.get_int("d_kv", 64)
    if min(heads, width) < 1:
        file = config.get_file("num_heads" if heads < 1 else "d_kv")
        raise CheckpointError(f"{file}: num_heads ({heads}) and d_kv ({width}) must be positive")
    gated_gelu = {"gated-gelu": "gelu_tanh"}
    gated_names = {f"gated-{name}": value for name, value in ACTIVATIONS.items()}
    choices = ACTIVATIONS | gated_names | gated_gelu
    activation = config.get_choice("feed_forward_proj", choices, default)
    is_gated = config.get_str("feed_forward_proj", default).startswith("gated-")
    weights.rename("t5")
    weights.tensors |= internal
    internal = weights.tensors
    for side in ("encoder", "decoder"):
        bias = weights.pop(f"{side}.{BIAS}")
        layers = range(weights.count_layers(f"{side}."))
        internal |= {f"{side}.{i}.self_attn.relation.weight": bias for i in layers}
    for name in internal:
        if name.endswith("self_attn.qkv.weight"):
            internal[name][: heads * width] *= width**0.5  # stacked from three matrices: a copy
        elif name.endswith("cross_attn.q.weight"):
            internal[name] = internal[name] * width**0.5
    internal["enc_norm.weight"] = weights.pop("encoder.final_layer_norm.weight")
    internal["dec_norm.weight"] = weights.pop("decoder.final_layer_norm.weight") * factor
    model = assemble_transformer(
        weights,
        config.path,
        heads=heads,
        head_width=0 if heads * width == d_model else width,
        positions="none",
        max_positions=MAX_POSITIONS,
        activation=activation,
        gated_ffn=is_gated,
        attn_bias=False,
        ffn_bias=False,
        scale_embedding=False,
        norm="rms",
        norm_eps=config.get_float("layer_norm_epsilon", 1e-6),
        relative="buckets",
        relative_buckets=config.get_int("relative_attention_num_buckets", 32),
        relative_limit=config.get_int("relative_attention_max_distance", 128),
    )
    cfg = model.cfg
    directory.check_sizes(
        d_model=cfg.d_model,
        vocab_size=cfg.tgt_vocab_size,
        num_layers=cfg.enc_layers,
        num_decoder_layers=cfg.dec_layers,
    )
    return model


def _read_embeddings(directory: Directory, weights: Weights) -> tuple[dict[str, Tensor], float]:
    """Return the embedding tables and output matrix under our names, and the scale of the logits.

    Whether the output matrix is tied depends on the weights only, because transformers 5 also
    writes `tie_word_embeddings: true` for untied models.
    """
    config = directory.model
    name = next((name for name in (SHARED, *TABLES) if name in weights), SHARED)
    for copy in TABLES:
        if copy in weights and not has_same_values(weights.tensors[name], weights.tensors[copy]):
            raise CheckpointError(f"{config.path}: encoder and decoder embeddings must be equal")
    weights.get_shape(name)
    head = weights.tensors.get(HEAD)
    is_untied = head is not None and not has_same_values(weights.tensors[name], head)
    table = weights.pop(name)
    internal = {f"{side}_embedding.token.weight": table for side in ("src", "tgt")}
    internal["output.weight"] = weights.pop(HEAD) if is_untied else table
    weights.drop("|".join(re.escape(n) for n in (SHARED, *TABLES, HEAD)))
    scales = False  # never for mT5 in transformers 5, even if the output matrix is tied
    if directory.family == "t5":
        tied = config.get_bool("tie_word_embeddings", True)
        scales = config.get_bool("scale_decoder_outputs", tied)
    return internal, table.size(1) ** -0.5 if scales else 1.0
