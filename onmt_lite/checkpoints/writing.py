"""Writes a Transformer as transformers' Marian directory or as OpenNMT-py's file.

The inverse of `huggingface/bart.py` and `opennmt/models.py`.  transformers 4 and 5 read the
directory (`MarianMTModel`, `MarianTokenizer`).  The `.pt` file of OpenNMT-py 3 holds weights,
vocabularies, and options of its model builder that have no default (3.5.1: `onmt/model_builder.py`,
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

CAPITALS = (
    "lines and words in capitals are put into lowercase here before the model reads them; "
    "elsewhere, do so yourself"
)


class ExportedFiles(NamedTuple):
    """Files of a model by name, the one that readers look for last, and notes for its user."""

    files: dict[str, bytes]
    notes: tuple[str, ...]


def find_obstacles(checkpoint: Checkpoint, cfg: TransformerConfig, target: str) -> list[str]:
    """Return the properties of a Transformer that the format cannot hold."""
    found = [
        f"{name} {getattr(cfg, name)} (must be {needed})"
        for name, needed in load_yaml("exports.yaml")[target]["needs"].items()
        if getattr(cfg, name) != needed
    ]
    more = OBSTACLES[target](checkpoint, cfg)
    return found + [name for name, is_there in more.items() if is_there]


def _described(cfg: TransformerConfig, target: str) -> dict[str, Any]:
    """Options of the format that need no computation."""
    table = load_yaml("exports.yaml")[target]
    fields = {name: getattr(cfg, field) for name, field in table["fields"].items()}
    return {**table["options"], **fields}


def _checked(checkpoint: Checkpoint, target: str) -> Transformer:
    """Return the model.  Raises CheckpointError if the format cannot hold it."""
    model = checkpoint.model
    if not isinstance(model, Transformer) or model.has_copy_mechanism:
        kind = type(model).__name__ + " that copies" * model.has_copy_mechanism
        raise CheckpointError(
            f"only a Transformer can be written for {target}, this is a {kind}; give another model"
        )
    if reasons := find_obstacles(checkpoint, model.cfg, target):
        raise _unsuitable(target, "; ".join(reasons))
    return model


def _unsuitable(target: str, reason: str) -> CheckpointError:
    message = f"{target} cannot hold this model: {reason}; choose another format or model"
    return CheckpointError(message)


def _named_as(vocab: Vocab, special: Mapping[int | None, str], target: str) -> list[str]:
    """Rename special tokens.  Raises CheckpointError where two tokens would be equal."""
    tokens = [special.get(i, token) for i, token in enumerate(vocab.tokens)]
    if len(set(tokens)) < len(tokens):
        twice = next(token for i, token in enumerate(tokens) if token in tokens[:i])
        raise _unsuitable(target, f"its vocabulary has {twice[:50]!r} twice")
    return tokens


def rename_weights(ours: Mapping[str, Tensor], model: str) -> dict[str, Tensor]:
    """Split and rename the weights that a table of weight_names.yaml has: undo `Weights.rename`."""
    renamed: dict[str, Tensor] = {}
    for name, stacked in ours.items():
        theirs = translate_name(name, load_weight_names(model).theirs)
        if len(theirs) < 2:
            renamed |= dict.fromkeys(theirs, stacked)
            continue
        # Queries, as wide as the model, then keys and values
        rows, width = stacked.size(0), ours[f"{name.rpartition('.')[0]}.weight"].size(-1)
        sizes = {2: [rows // 2] * 2, 3: [width] + [(rows - width) // 2] * 2}
        pieces = stacked.split(sizes[len(theirs)])
        renamed |= {name: piece.clone() for name, piece in zip(theirs, pieces)}
    return renamed


# -- Marian ----------------------------------------------------------------------------------------

ACTIVATION_NAMES = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
BEAMS = 5  # what transformers searches with where it is not told; ours is the same


def export_marian(checkpoint: Checkpoint) -> ExportedFiles:
    """The files of the directory.  CheckpointError names what Marian cannot hold."""
    model = _checked(checkpoint, "Marian")
    weights = {name: w.float() for name, w in _marian_weights(model).items()}
    # transformers does not open a file that does not say where its tensors come from
    files = {"model.safetensors": safetensors.dump(weights, {"format": "pt"})}
    notes = [CAPITALS] * checkpoint.lowercase_all_caps
    tokenizer = checkpoint.tokenizers.get("sentencepiece")
    if isinstance(tokenizer, SentencePieceTokenizer):
        files |= dict.fromkeys(SIDE_MODELS, tokenizer.processor.serialized_model_proto())
    elif isinstance(tokenizer, MarianTokenizer):
        sides = (tokenizer.source, tokenizer.target)
        files |= {name: side.serialized_model_proto() for name, side in zip(SIDE_MODELS, sides)}
    else:
        notes.append("without pieces: the MarianTokenizer of transformers needs source.spm")
    for name, table in _marian_tables(checkpoint, model.cfg).items():
        files[name] = (json.dumps(table, ensure_ascii=False, indent=1) + "\n").encode()
    return ExportedFiles(files, tuple(notes))


def _marian_obstacles(checkpoint: Checkpoint, cfg: TransformerConfig) -> dict[str, bool]:
    src, tgt = checkpoint.src_vocab, checkpoint.tgt_vocab
    return {
        "fewer heads of keys than of queries": cfg.kv_heads not in (0, cfg.heads),
        "no token for padding or unknown words": None in (tgt.pad_id, tgt.unk_id),
        "special tokens with other ids in source and target": (
            (src.eos_id, src.pad_id) != (tgt.eos_id, tgt.pad_id)
        ),
        "source lines without the end token": checkpoint.src_end != (tgt.eos_id,),
        "several end tokens": any(len(rules.eos_ids) > 1 for rules in checkpoint.rules.values()),
    }


def _marian_weights(model: Transformer) -> dict[str, Tensor]:
    cfg, ours = model.cfg, model.state_dict()
    bias = ours.get("output.bias", torch.zeros(cfg.tgt_vocab_size))
    theirs = {"final_logits_bias": bias[None]}
    if cfg.share_embeddings:
        theirs[SHARED] = ours["tgt_embedding.token.weight"]
    else:
        theirs[SOURCE] = ours["src_embedding.token.weight"]
        theirs[TARGET] = ours["tgt_embedding.token.weight"]
    if not cfg.tie_output:
        theirs[HEAD] = ours["output.weight"]
    return theirs | rename_weights(ours, "bart")


def _marian_tables(checkpoint: Checkpoint, cfg: TransformerConfig) -> dict[str, dict[str, Any]]:
    """The JSON files, that of the configuration last."""
    vocabs = {"vocab.json": checkpoint.src_vocab}
    if separate := checkpoint.src_vocab.tokens != checkpoint.tgt_vocab.tokens:
        vocabs["target_vocab.json"] = checkpoint.tgt_vocab
    tables: dict[str, dict[str, Any]] = {}
    for name, vocab in vocabs.items():
        special = {vocab.unk_id: "<unk>", vocab.pad_id: "<pad>", vocab.eos_id: "</s>"}
        tokens = _named_as(vocab, special, "Marian")
        tables[name] = {token: i for i, token in enumerate(tokens)}
    tables["tokenizer_config.json"] = {
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
    tables["generation_config.json"] = ids | {
        "bad_words_ids": [[i] for i in checkpoint.banned_ids] or None,
        "max_length": cfg.max_positions,
        "num_beams": BEAMS,
    }
    tables[CONFIG] = ids | {
        **_described(cfg, "Marian"),
        "decoder_attention_heads": cfg.decoder_config.heads,
        "decoder_ffn_dim": cfg.decoder_config.d_ff,
        "activation_function": ACTIVATION_NAMES[cfg.activation],
    }
    return tables


# -- OpenNMT-py ------------------------------------------------------------------------------------

# By activation and whether it is gated
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
    """STEM.pt, and STEM.model of pieces.  CheckpointError names what OpenNMT-py 3.5.1 lacks."""
    model = _checked(checkpoint, "OpenNMT-py")
    weights = _opennmt_weights(model)
    src, tgt = (
        _named_as(v, {v.pad_id: PAD, v.unk_id: UNK, v.bos_id: BOS, v.eos_id: EOS}, "OpenNMT-py")
        for v in (checkpoint.src_vocab, checkpoint.tgt_vocab)
    )
    start = tgt[checkpoint.start_id]
    root = {
        "model": weights,
        "generator": {name: weights.pop(f"generator.{name}") for name in ("weight", "bias")},
        "vocab": {"src": src, "tgt": tgt, "data_task": "seq2seq", "decoder_start_token": start},
        "opt": argparse.Namespace(**_options(model.cfg, bool(checkpoint.src_end))),
        "optim": None,
    }
    data = io.BytesIO()
    torch.save(root, data)
    files = {}
    tokenizer = checkpoint.tokenizers.get("sentencepiece")
    if isinstance(tokenizer, SentencePieceTokenizer):
        files[f"{stem}.model"] = tokenizer.processor.serialized_model_proto()
    files[f"{stem}.pt"] = data.getvalue()
    return ExportedFiles(files, _notes(checkpoint, model.cfg, list(files)))


def _opennmt_obstacles(checkpoint: Checkpoint, cfg: TransformerConfig) -> dict[str, bool]:
    src, tgt = checkpoint.src_vocab, checkpoint.tgt_vocab
    vectors = cfg.positions != "none"
    return {
        f"positions computed as {cfg.positions}": cfg.positions == "concat",
        f"lines of more than {MAX_POSITIONS} tokens": cfg.max_positions > MAX_POSITIONS,
        "position vectors beside relative positions": vectors and cfg.relative != "none",
        "embeddings scaled without position vectors": cfg.scale_embedding and not vectors,
        "position vectors on embeddings that are not scaled": vectors and not cfg.scale_embedding,
        f"the {'gated ' * cfg.gated_ffn}activation {cfg.activation}": (
            (cfg.activation, cfg.gated_ffn) not in ACTIVATIONS_AND_GATES
        ),
        "heads of the decoder other than the encoder's": cfg.decoder_config.heads != cfg.heads,
        "d_ff of the decoder other than the encoder's": cfg.decoder_config.d_ff != cfg.d_ff,
        "no token for padding or unknown words": None
        in (src.pad_id, src.unk_id, tgt.pad_id, tgt.unk_id),
        "no start token": tgt.bos_id is None,
        "source lines that end in another token": checkpoint.src_end not in ((), (src.eos_id,)),
    }


OBSTACLES = {"OpenNMT-py": _opennmt_obstacles, "Marian": _marian_obstacles}


def _options(cfg: TransformerConfig, ends_sources: bool) -> dict[str, Any]:
    """Options of OpenNMT-py's model builder."""
    limit = {"rotary": -1, "alibi": -2, "none": 0}.get(cfg.relative, cfg.relative_limit)
    options = _described(cfg, "OpenNMT-py") | dict(
        pos_ffn_activation_fn=ACTIVATIONS_AND_GATES[cfg.activation, cfg.gated_ffn],
        self_attn_type=SELF_ATTENTION[cfg.dec_self_attn],
        aan_useffn=cfg.dec_self_attn == "average_ffn",
        layer_norm={"layer": "standard", "rms": "rms"}[cfg.norm],
        position_encoding=cfg.positions != "none",
        position_encoding_type=LAYOUTS.get(cfg.positions, "SinusoidalInterleaved"),
        max_relative_positions=limit,
        relative_positions_buckets=cfg.relative_buckets if cfg.relative == "buckets" else 0,
    )
    if ends_sources:
        options |= dict(transforms=["suffix"], src_suffix=EOS, tgt_suffix="")
    if cfg.report_layer:
        options |= {"alignment_layer": cfg.report_layer - 1, "alignment_heads": cfg.report_heads}
    return options


def _opennmt_weights(model: Transformer) -> dict[str, Tensor]:
    cfg, ours = model.cfg, model.state_dict()
    # OpenNMT-py's output layer always has a bias
    ours.setdefault("output.bias", torch.zeros(cfg.tgt_vocab_size))
    offset, tables = cfg.position_offset, ("src_embedding.position", "tgt_embedding.position")
    if cfg.positions == "learned":
        for name in tables:
            table = ours[name][offset:]
            # OpenNMT-py's tables have one size
            rest = table[-1:].expand(MAX_POSITIONS - len(table), -1)
            ours[name] = torch.cat([table, rest])[:, None]
    elif cfg.positions != "none":
        table = make_sinusoids(MAX_POSITIONS + offset, cfg.d_model, cfg.positions)
        ours |= dict.fromkeys(tables, table[offset:, None])
    if cfg.parallel_residual:  # a norm that is not used
        for i in range(cfg.dec_layers):
            ours[f"decoder.{i}.cross_attn_residual.norm.weight"] = torch.ones(cfg.d_model)
            if cfg.norm == "layer":
                ours[f"decoder.{i}.cross_attn_residual.norm.bias"] = torch.zeros(cfg.d_model)
    theirs = rename_weights(ours, "opennmt_transformer")
    if cfg.relative == "buckets":
        return {name.replace(SHAW, BUCKETS): weight for name, weight in theirs.items()}
    return theirs


def _notes(checkpoint: Checkpoint, cfg: TransformerConfig, files: list[str]) -> tuple[str, ...]:
    """Return lines for OpenNMT-py's YAML, and differences between the two programs."""
    pieces = files[0] if len(files) > 1 else None
    transforms = ["sentencepiece"] * (pieces is not None) + ["suffix"] * bool(checkpoint.src_end)
    lines = [f"transforms: [{', '.join(transforms)}]"] if transforms else []
    if pieces is not None:
        lines += [f'src_subword_model: "{pieces}"', f'tgt_subword_model: "{pieces}"']
    if checkpoint.src_end:
        lines.append(f'src_suffix: "{EOS}"')
    lines.append(f"self_attn_type: {SELF_ATTENTION[cfg.dec_self_attn]}")
    notes = ["in the YAML of OpenNMT-py's onmt_translate:", *(f"  {line}" for line in lines)]
    if checkpoint.banned_ids:
        never = " and ".join(checkpoint.tgt_vocab.tokens[i] for i in checkpoint.banned_ids)
        notes.append(f"OpenNMT-py does not forbid {never} in outputs, as is done here")
    if cfg.positions == "learned":
        notes.append(f"OpenNMT-py gives the position of token {cfg.max_positions} to all after it")
    return tuple(notes + [CAPITALS] * checkpoint.lowercase_all_caps)
