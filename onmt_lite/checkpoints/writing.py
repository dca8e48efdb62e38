"""Exports a Transformer as a transformers Marian directory or as an OpenNMT-py file.

The inverse of `huggingface/bart.py` and `opennmt/models.py`.  transformers 4 and 5 load the
directory (`MarianMTModel`, `MarianTokenizer`).  The `.pt` file for OpenNMT-py 3 contains weights,
vocabularies, and the model options without a default (3.5.1: `onmt/model_builder.py`,
`onmt/utils/parse.py`).
"""

import argparse
import io
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from onmt_lite.checkpoints import safetensors
from onmt_lite.checkpoints.checkpoint import Checkpoint
from onmt_lite.checkpoints.config_reader import load_yaml
from onmt_lite.checkpoints.huggingface.bart import HEAD, SHARED, SOURCE, TARGET
from onmt_lite.checkpoints.huggingface.directory import ACTIVATIONS, CONFIG
from onmt_lite.checkpoints.opennmt.models import MAX_POSITIONS
from onmt_lite.checkpoints.opennmt.reader import BOS, EOS, PAD, UNK
from onmt_lite.checkpoints.subwords import SIDE_MODELS
from onmt_lite.checkpoints.weight_names import load_weight_names, translate_name
from onmt_lite.errors import CheckpointError
from onmt_lite.models.config import TransformerConfig
from onmt_lite.models.positions import make_sinusoids
from onmt_lite.models.transformer import Transformer
from onmt_lite.text.tokenizers import MarianTokenizer, SentencePieceTokenizer
from onmt_lite.text.vocab import Vocab

ALL_CAPS_NOTICE = (
    "onmt_lite lowercases uppercase lines and words before translation; other programs do not: "
    "lowercase them yourself"
)


class ExportedFiles(NamedTuple):
    """Files of a model by name, and notices for the user.

    The last file is the one that readers look for, so they never find a partial model.
    """

    files: dict[str, bytes]
    notices: tuple[str, ...]


def find_obstacles(checkpoint: Checkpoint, cfg: TransformerConfig, target: str) -> list[str]:
    """List the properties of a Transformer that the target format does not support.

    Args:
        checkpoint: the model with its vocabularies.
        cfg: configuration of the Transformer.
        target: "Marian" or "OpenNMT-py".
    """
    obstacles = [
        f"{name} {getattr(cfg, name)} (must be {value})"
        for name, value in load_yaml("exports.yaml")[target]["required"].items()
        if getattr(cfg, name) != value
    ]
    checks = CHECKS[target](checkpoint, cfg)
    return obstacles + [name for name, applies in checks.items() if applies]


def _get_options(cfg: TransformerConfig, target: str) -> dict[str, Any]:
    """Return the options that exports.yaml defines for a format."""
    table = load_yaml("exports.yaml")[target]
    fields = {name: getattr(cfg, field) for name, field in table["fields"].items()}
    return {**table["options"], **fields}


def _get_transformer(checkpoint: Checkpoint, target: str) -> Transformer:
    """Return the model; raise CheckpointError if the target format does not support it."""
    model = checkpoint.model
    if not isinstance(model, Transformer) or model.has_copy_mechanism:
        architecture = type(model).__name__ + " with copy attention" * model.has_copy_mechanism
        raise CheckpointError(
            f"model: only a Transformer can be exported for {target}, not a {architecture}; use "
            "another model"
        )
    if reasons := find_obstacles(checkpoint, model.cfg, target):
        raise _make_unsupported_error(target, "; ".join(reasons))
    return model


def _make_unsupported_error(target: str, reason: str) -> CheckpointError:
    message = f"{target} does not support this model: {reason}; choose another format or model"
    return CheckpointError(message)


def _rename_special_tokens(
    vocab: Vocab, special: Mapping[int | None, str], target: str
) -> list[str]:
    """Return the tokens of a vocabulary, with special tokens named as in the target format.

    Args:
        vocab: the vocabulary.
        special: new names by ID.
        target: the target format, for error messages.

    Raises:
        CheckpointError: if another token already has one of the new names.
    """
    tokens = [special.get(i, token) for i, token in enumerate(vocab.tokens)]
    if len(set(tokens)) < len(tokens):
        duplicate = next(token for i, token in enumerate(tokens) if token in tokens[:i])
        raise _make_unsupported_error(target, f"the vocabulary has {duplicate[:50]!r} twice")
    return tokens


def rename_weights(internal: Mapping[str, Tensor], model: str) -> dict[str, Tensor]:
    """Rename and split weights by a table of weight_names.yaml: the inverse of `Weights.rename`."""
    renamed: dict[str, Tensor] = {}
    for name, stacked in internal.items():
        external = translate_name(name, load_weight_names(model).external)
        if len(external) < 2:
            renamed |= dict.fromkeys(external, stacked)
            continue
        # Rows of the query (model width), then of key and value
        rows, width = stacked.size(0), internal[f"{name.rpartition('.')[0]}.weight"].size(-1)
        sizes = {2: [rows // 2] * 2, 3: [width] + [(rows - width) // 2] * 2}
        blocks = stacked.split(sizes[len(external)])
        renamed |= {name: block.clone() for name, block in zip(external, blocks)}
    return renamed


# -- Marian ----------------------------------------------------------------------------------------

ACTIVATION_NAMES = {internal: external for external, internal in ACTIVATIONS.items()}
NUM_BEAMS = 5  # our default beam_size


def export_marian(checkpoint: Checkpoint) -> ExportedFiles:
    """Return the files of a Marian directory for transformers.

    Raises:
        CheckpointError: if Marian does not support the model; the message lists the reasons.
    """
    model = _get_transformer(checkpoint, "Marian")
    weights = {name: w.float() for name, w in _make_marian_weights(model).items()}
    # transformers rejects a file without this metadata
    files = {"model.safetensors": safetensors.dump(weights, {"format": "pt"})}
    notices = [ALL_CAPS_NOTICE] * checkpoint.lowercase_all_caps
    tokenizer = checkpoint.tokenizers.get("sentencepiece")
    if isinstance(tokenizer, SentencePieceTokenizer):
        files |= dict.fromkeys(SIDE_MODELS, tokenizer.processor.serialized_model_proto())
    elif isinstance(tokenizer, MarianTokenizer):
        sides = (tokenizer.source, tokenizer.target)
        files |= {name: side.serialized_model_proto() for name, side in zip(SIDE_MODELS, sides)}
    else:
        notices.append(
            "no sentencepiece model was exported; MarianTokenizer in transformers needs source.spm"
        )
    for name, values in _make_marian_configs(checkpoint, model.cfg).items():
        files[name] = (json.dumps(values, ensure_ascii=False, indent=1) + "\n").encode()
    return ExportedFiles(files, tuple(notices))


def _check_marian(checkpoint: Checkpoint, cfg: TransformerConfig) -> dict[str, bool]:
    """Return True for each unsupported property that the model has."""
    src, tgt = checkpoint.src_vocab, checkpoint.tgt_vocab
    return {
        "fewer key heads than query heads": cfg.kv_heads not in (0, cfg.heads),
        "no padding token or no unknown token": None in (tgt.pad_id, tgt.unk_id),
        "special tokens with different IDs in source and target": (
            (src.eos_id, src.pad_id) != (tgt.eos_id, tgt.pad_id)
        ),
        "source lines without EOS": checkpoint.src_end != (tgt.eos_id,),
        "several EOS tokens": any(len(rules.eos_ids) > 1 for rules in checkpoint.rules.values()),
    }


def _make_marian_weights(model: Transformer) -> dict[str, Tensor]:
    cfg, internal = model.cfg, model.state_dict()
    bias = internal.get("output.bias", torch.zeros(cfg.tgt_vocab_size))
    external = {"final_logits_bias": bias[None]}
    if cfg.share_embeddings:
        external[SHARED] = internal["tgt_embedding.token.weight"]
    else:
        external[SOURCE] = internal["src_embedding.token.weight"]
        external[TARGET] = internal["tgt_embedding.token.weight"]
    if not cfg.tie_output:
        external[HEAD] = internal["output.weight"]
    return external | rename_weights(internal, "bart")


def _make_marian_configs(
    checkpoint: Checkpoint, cfg: TransformerConfig
) -> dict[str, dict[str, Any]]:
    """Return the contents of the JSON files by name, config.json last."""
    vocabs = {"vocab.json": checkpoint.src_vocab}
    if separate := checkpoint.src_vocab.tokens != checkpoint.tgt_vocab.tokens:
        vocabs["target_vocab.json"] = checkpoint.tgt_vocab
    configs: dict[str, dict[str, Any]] = {}
    for name, vocab in vocabs.items():
        special = {vocab.unk_id: "<unk>", vocab.pad_id: "<pad>", vocab.eos_id: "</s>"}
        tokens = _rename_special_tokens(vocab, special, "Marian")
        configs[name] = {token: i for i, token in enumerate(tokens)}
    configs["tokenizer_config.json"] = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": separate,
        "model_max_length": cfg.max_positions,
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
    }
    ids = {
        "decoder_start_token_id": checkpoint.start_id,
        "eos_token_id": checkpoint.eos_id,
        "pad_token_id": checkpoint.tgt_vocab.pad_id,
        "forced_eos_token_id": checkpoint.eos_id if checkpoint.forced_eos else None,
    }
    configs["generation_config.json"] = ids | {
        "bad_words_ids": [[i] for i in checkpoint.banned_ids] or None,
        "max_length": cfg.max_positions,
        "num_beams": NUM_BEAMS,
    }
    configs[CONFIG] = ids | {
        **_get_options(cfg, "Marian"),
        "decoder_attention_heads": cfg.decoder_config.heads,
        "decoder_ffn_dim": cfg.decoder_config.d_ff,
        "activation_function": ACTIVATION_NAMES[cfg.activation],
    }
    return configs


# -- OpenNMT-py ------------------------------------------------------------------------------------

# By activation function and gating
ACTIVATIONS_AND_GATES = {
    ("relu", False): "relu",
    ("gelu", False): "gelu",
    ("silu", True): "silu",
    ("gelu", True): "gated-gelu",
}
LAYOUTS = {"interleaved": "SinusoidalInterleaved", "fairseq": "SinusoidalConcat"}
SHAW, BUCKETS = "relative_positions_embeddings", "relative_attention_bias"
SELF_ATTENTION = {"dot": "scaled-dot", "average": "average", "average_ffn": "average"}


def export_opennmt(checkpoint: Checkpoint, stem: str) -> ExportedFiles:
    """Return the files of an OpenNMT-py model: STEM.pt, and the subword model STEM.model if any.

    Raises:
        CheckpointError: if OpenNMT-py 3.5.1 does not support the model; the message lists the
            reasons.
    """
    model = _get_transformer(checkpoint, "OpenNMT-py")
    weights = _make_opennmt_weights(model)
    src, tgt = (
        _rename_special_tokens(
            v, {v.pad_id: PAD, v.unk_id: UNK, v.bos_id: BOS, v.eos_id: EOS}, "OpenNMT-py"
        )
        for v in (checkpoint.src_vocab, checkpoint.tgt_vocab)
    )
    start = tgt[checkpoint.start_id]
    root = {
        "model": weights,
        "generator": {name: weights.pop(f"generator.{name}") for name in ("weight", "bias")},
        "vocab": {"src": src, "tgt": tgt, "data_task": "seq2seq", "decoder_start_token": start},
        "opt": argparse.Namespace(**_make_options(model.cfg, bool(checkpoint.src_end))),
        "optim": None,
    }
    data = io.BytesIO()
    torch.save(root, data)
    files = {}
    tokenizer = checkpoint.tokenizers.get("sentencepiece")
    if isinstance(tokenizer, SentencePieceTokenizer):
        files[f"{stem}.model"] = tokenizer.processor.serialized_model_proto()
    files[f"{stem}.pt"] = data.getvalue()
    return ExportedFiles(files, _list_notices(checkpoint, model.cfg, list(files)))


def _check_opennmt(checkpoint: Checkpoint, cfg: TransformerConfig) -> dict[str, bool]:
    """Return True for each unsupported property that the model has."""
    src, tgt = checkpoint.src_vocab, checkpoint.tgt_vocab
    has_positions = cfg.positions != "none"
    return {
        f"position layout {cfg.positions}": cfg.positions == "concat",
        f"more than {MAX_POSITIONS} positions": cfg.max_positions > MAX_POSITIONS,
        "both absolute and relative positions": has_positions and cfg.relative != "none",
        "scaled embeddings without absolute positions": cfg.scale_embedding and not has_positions,
        "absolute positions without scaled embeddings": has_positions and not cfg.scale_embedding,
        f"activation function {'gated ' * cfg.gated_ffn}{cfg.activation}": (
            (cfg.activation, cfg.gated_ffn) not in ACTIVATIONS_AND_GATES
        ),
        "different numbers of heads in encoder and decoder": cfg.decoder_config.heads != cfg.heads,
        "different d_ff in encoder and decoder": cfg.decoder_config.d_ff != cfg.d_ff,
        "no padding token or no unknown token": None
        in (src.pad_id, src.unk_id, tgt.pad_id, tgt.unk_id),
        "no start token": tgt.bos_id is None,
        "source lines with a suffix other than EOS": checkpoint.src_end not in ((), (src.eos_id,)),
    }


CHECKS = {"OpenNMT-py": _check_opennmt, "Marian": _check_marian}


def _make_options(cfg: TransformerConfig, adds_src_eos: bool) -> dict[str, Any]:
    """Return the options for the model builder of OpenNMT-py."""
    limit = {"rotary": -1, "alibi": -2, "none": 0}.get(cfg.relative, cfg.relative_limit)
    options = _get_options(cfg, "OpenNMT-py") | dict(
        pos_ffn_activation_fn=ACTIVATIONS_AND_GATES[cfg.activation, cfg.gated_ffn],
        self_attn_type=SELF_ATTENTION[cfg.dec_self_attn],
        aan_useffn=cfg.dec_self_attn == "average_ffn",
        layer_norm={"layer": "standard", "rms": "rms"}[cfg.norm],
        position_encoding=cfg.positions != "none",
        position_encoding_type=LAYOUTS.get(cfg.positions, "SinusoidalInterleaved"),
        max_relative_positions=limit,
        relative_positions_buckets=cfg.relative_buckets if cfg.relative == "buckets" else 0,
    )
    if adds_src_eos:
        options |= dict(transforms=["suffix"], src_suffix=EOS, tgt_suffix="")
    if cfg.report_layer:
        options |= {"alignment_layer": cfg.report_layer - 1, "alignment_heads": cfg.report_heads}
    return options


def _make_opennmt_weights(model: Transformer) -> dict[str, Tensor]:
    cfg, internal = model.cfg, model.state_dict()
    # The output layer of OpenNMT-py always has a bias (Vtgt,)
    internal.setdefault("output.bias", torch.zeros(cfg.tgt_vocab_size))
    offset, tables = cfg.position_offset, ("src_embedding.position", "tgt_embedding.position")
    if cfg.positions == "learned":
        for name in tables:
            table = internal[name][offset:]
            # OpenNMT-py has a fixed table size: repeat the last position
            rest = table[-1:].expand(MAX_POSITIONS - len(table), -1)
            internal[name] = torch.cat([table, rest])[:, None]  # (P, 1, E)
    elif cfg.positions != "none":
        table = make_sinusoids(MAX_POSITIONS + offset, cfg.d_model, cfg.positions)
        internal |= dict.fromkeys(tables, table[offset:, None])
    if cfg.parallel_residual:  # OpenNMT-py has an unused norm here
        for i in range(cfg.dec_layers):
            internal[f"decoder.{i}.cross_attn_residual.norm.weight"] = torch.ones(cfg.d_model)
            if cfg.norm == "layer":
                internal[f"decoder.{i}.cross_attn_residual.norm.bias"] = torch.zeros(cfg.d_model)
    external = rename_weights(internal, "opennmt_transformer")
    if cfg.relative == "buckets":
        return {name.replace(SHAW, BUCKETS): weight for name, weight in external.items()}
    return external


def _list_notices(
    checkpoint: Checkpoint, cfg: TransformerConfig, files: list[str]
) -> tuple[str, ...]:
    """List the settings for OpenNMT-py's YAML file and the differences in behavior.

    Args:
        checkpoint: the exported model.
        cfg: configuration of the Transformer.
        files: names of the exported files; the subword model, if any, is first.
    """
    subword_model = files[0] if len(files) > 1 else None
    transforms = ["sentencepiece"] * (subword_model is not None) + ["suffix"] * bool(
        checkpoint.src_end
    )
    lines = [f"transforms: [{', '.join(transforms)}]"] if transforms else []
    if subword_model is not None:
        lines += [f'{side}_subword_model: "{subword_model}"' for side in ("src", "tgt")]
    if checkpoint.src_end:
        lines.append(f'src_suffix: "{EOS}"')
    lines.append(f"self_attn_type: {SELF_ATTENTION[cfg.dec_self_attn]}")
    notices = ["add to the YAML file of onmt_translate:", *(f"  {line}" for line in lines)]
    if checkpoint.banned_ids:
        banned = " and ".join(checkpoint.tgt_vocab.tokens[i] for i in checkpoint.banned_ids)
        notices.append(f"unlike onmt_lite, OpenNMT-py may generate {banned}")
    if cfg.positions == "learned":
        notices.append(f"OpenNMT-py reuses position {cfg.max_positions} for all later tokens")
    return tuple(notices + [ALL_CAPS_NOTICE] * checkpoint.lowercase_all_caps)
