"""Loads fairseq models: a checkpoint file and one dictionary per language in the same directory.

The checkpoint is a dict with the weights in `model` and the options in `args` (a Namespace, before
0.10) or `cfg` (nested dicts, since 0.10). `dict.LANG.txt` has one token and its count per line.
"""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onmt_lite.checkpoints import archive
from onmt_lite.checkpoints.checkpoint import Checkpoint, LanguagePair
from onmt_lite.checkpoints.config_reader import (
    ConfigReader,
    check_tokens,
    format_value,
    read_limited,
    refuse_unsupported_options,
)
from onmt_lite.checkpoints.huggingface.directory import ACTIVATIONS
from onmt_lite.checkpoints.pickle_check import InertObject
from onmt_lite.checkpoints.weights import (
    MAX_POSITIONS,
    Weights,
    assemble_convolution,
    assemble_transformer,
    fold_weight_norm,
)
from onmt_lite.errors import CheckpointError
from onmt_lite.models.base import EncoderDecoder
from onmt_lite.models.convolution import Convolution
from onmt_lite.models.positions import make_sinusoids
from onmt_lite.models.transformer import Transformer
from onmt_lite.text.tokenizers import SpaceTokenizer
from onmt_lite.text.vocab import Vocab

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
BOS, PAD, EOS, UNK = range(4)
OVERWRITE = b"#fairseq:overwrite"
MAX_DICTIONARY = 256 << 20
DICTIONARIES = "dict.*.txt"
# Related architectures have the same weight names but a different forward pass
ARCHITECTURES = re.compile("transformer(?!_lm)|m?bart")
LAYER_0 = "encoder.layers.0.fc1.weight"
LANGUAGES = ("source_lang", "target_lang")
SOURCE_NAMES, TARGET_NAMES = ("src", "source"), ("tgt", "trg", "target")


def can_load(path: Path) -> bool:
    """Return True if a directory has fairseq dictionaries."""
    return path.is_dir() and any(path.glob(DICTIONARIES))


def load(path: Path) -> Checkpoint:
    """Load the only checkpoint of a directory; raise CheckpointError if that fails."""
    files = sorted(path.glob("*.pt"))
    if not files:
        raise CheckpointError(
            f"{path}: the directory has dictionaries but no .pt file; copy the checkpoint into it"
        )
    if len(files) > 1:
        names = [shlex.quote(str(file)) for file in files[:4]]
        ellipsis = " ..." if len(files) > 4 else ""
        raise CheckpointError(
            f"{path}: the directory has {len(files)} .pt files; choose one (-model {names[0]}) or "
            f"use several as an ensemble (-model {' '.join(names)}{ellipsis})"
        )
    return load_from_state(archive.load(files[0]), files[0])


def is_checkpoint(state: Any, file: Path) -> bool:
    """Return True if the content of a .pt file is a fairseq checkpoint."""
    if not isinstance(state, dict) or "model" not in state:
        return False
    return not {"args", "cfg"}.isdisjoint(state) or any(file.parent.glob(DICTIONARIES))


def load_from_state(state: Any, file: Path) -> Checkpoint:
    """Build the model from the loaded content of a checkpoint file.

    Args:
        state: the loaded object; large entries are removed from it to free memory.
        file: the checkpoint file; the dictionaries are in the same directory.

    Raises:
        CheckpointError: if the checkpoint is damaged, incomplete or not supported.
    """
    if not isinstance(state, dict) or "model" not in state:
        raise CheckpointError(f"{file}: not a fairseq checkpoint")
    directory = file.parent
    if not any(directory.glob(DICTIONARIES)):
        raise CheckpointError(
            f"{file}: the fairseq dictionaries are missing; copy dict.SOURCE.txt and "
            "dict.TARGET.txt into the directory"
        )
    state.pop("last_optimizer_state", None)
    options = _read_options(state, file)
    weights = Weights(archive.check_state_dict(state.pop("model"), file), file)
    build_model: Callable[[Weights, ConfigReader], EncoderDecoder] = build_transformer
    name = options.get("arch") or options.get("_name") or "transformer"
    if "encoder.convolutions.0.weight_v" in weights:
        build_model = build_fconv
    elif not isinstance(name, str) or not ARCHITECTURES.match(name) or LAYER_0 not in weights:
        raise CheckpointError(
            f"{file}: fairseq: architecture {format_value(name)} is not supported"
        )
    src, tgt = _read_dictionaries(directory, options)
    return Checkpoint(
        build_model(weights, options),
        src_vocab=src,
        tgt_vocab=tgt,
        tokenizers={"space": SpaceTokenizer()},
        start_id=EOS,  # fairseq starts the decoder with EOS
        src_end=(EOS,),
        banned_ids=(PAD,),
        language_pair=LanguagePair(*(options.get_str(name, "") for name in LANGUAGES)),
        toolkit="fairseq",
        version="0.9 or older" if isinstance(state.get("args"), InertObject) else "0.10 or newer",
    )


def _read_options(state: dict[str, Any], path: Path) -> ConfigReader:
    """Return the model options; the languages may be stored with the task options."""
    if isinstance(state.get("args"), InertObject):
        return ConfigReader(state["args"], path)
    config = _unwrap_dict(state.get("cfg"), path)
    if config.get("model") is None:
        raise CheckpointError(f"{path}: the checkpoint has no model options")
    options, task = (_unwrap_dict(config.get(name), path) for name in ("model", "task"))
    for name in LANGUAGES:
        if options.get(name) is None:
            options[name] = task.get(name)
    return ConfigReader(options, path)


def _unwrap_dict(value: Any, path: Path) -> dict[str, Any]:
    """Unwrap options to a dict of plain values; an empty dict for None."""
    values = ConfigReader(_unwrap({} if value is None else value), path).values
    return {name: _unwrap(item) for name, item in values.items()}


def _unwrap(value: Any) -> Any:
    """Unwrap a Namespace or an OmegaConf node."""
    if not isinstance(value, InertObject):
        return value
    if not value.name.startswith("omegaconf."):
        return value.state
    return value.get("_content", value.get("_val"))


def _read_dictionaries(path: Path, options: ConfigReader) -> tuple[Vocab, Vocab]:
    files = {file.name[5:-4]: file for file in sorted(path.glob(DICTIONARIES))}
    if all(options.get(name) is None for name in LANGUAGES):
        source, target = _guess_languages(path, files)
    else:
        source, target = map(options.get_str, LANGUAGES)
    for language in (source, target):
        if language not in files:
            name = f"dict.{language[:30]}.txt"
            raise CheckpointError(
                f"{path}: dictionary {name!r} is missing; copy it into the directory"
            )
    return read_dictionary(files[source]), read_dictionary(files[target])


def _guess_languages(path: Path, files: dict[str, Path]) -> tuple[str, str]:
    """Guess source and target language from the names of the dictionaries.

    Equal dictionaries may be in any order.

    Args:
        path: the directory, for messages.
        files: the dictionaries by language.

    Raises:
        CheckpointError: if there are not exactly two dictionaries or the direction is ambiguous.
    """
    if len(files) == 2:
        src, tgt = files
        if src in TARGET_NAMES or tgt in SOURCE_NAMES:
            src, tgt = tgt, src
        is_named = src in SOURCE_NAMES or tgt in TARGET_NAMES
        if is_named or files[src].read_bytes() == files[tgt].read_bytes():
            return src, tgt
    raise CheckpointError(
        f"{path}: the source language is unknown; keep two dictionaries and rename them to "
        "dict.src.txt and dict.tgt.txt"
    )


def read_dictionary(path: Path) -> Vocab:
    """Read a dictionary: IDs 0 to 3 are special tokens, then one token per line.

    Raises:
        CheckpointError: if a line is malformed or a token is duplicate.
    """
    lines = read_limited(path, MAX_DICTIONARY).split(b"\n")
    tokens, ids = list(SPECIAL), {token: i for i, token in enumerate(SPECIAL)}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        data, _, count = line.rstrip().rpartition(b" ")
        if overwrites := count == OVERWRITE:  # replaces an earlier line
            data, _, count = data.rpartition(b" ")
        try:
            if not data or not count.isdigit() or data[-1:].isspace():
                raise ValueError
            token = data.decode("utf-8")
        except ValueError:
            raise CheckpointError(
                f"{path}, line {number}: expected a token and its count"
            ) from None
        if token in ids and not overwrites:
            raise CheckpointError(f"{path}, line {number}: duplicate token {token[:50]!r}")
        if token in ids:  # the token moves to the new ID
            tokens[ids[token]] = f"<overwritten {ids[token]}>"
        ids[token] = len(tokens)
        tokens.append(token)
    return Vocab(check_tokens(tokens, path), eos_id=EOS, bos_id=BOS, pad_id=PAD, unk_id=UNK)


# -- The Transformer, from 0.6 to 0.12 -------------------------------------------------------------

OFFSET = PAD + 1  # position of the first token
POSITIONS = [f"{side}.embed_positions.weight" for side in ("encoder", "decoder")]
# Format versions, computed tables, and copies of weights for the encoder's fast path
NOT_WEIGHTS = (
    r"(encoder|decoder)\.(version|embed_positions\._float_tensor)"
    r"|encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)"
)


def build_transformer(weights: Weights, options: ConfigReader) -> Transformer:
    """Build a Transformer.

    Args:
        weights: tensors under fairseq's names; they are renamed in place.
        options: the model options.

    Raises:
        CheckpointError: if weights are missing, unknown or of the wrong shape, or an option is not
            supported.
    """
    refuse_unsupported_options(options, "fairseq")
    weights.drop(NOT_WEIGHTS)
    _split_qkv(weights)
    positions = _read_positions(weights, options)
    pre_norm = {options.get_bool(f"{side}_normalize_before") for side in ("encoder", "decoder")}
    if len(pre_norm) == 2:
        raise CheckpointError(
            f"{weights.path}: fairseq: encoder_normalize_before and decoder_normalize_before must "
            "be equal"
        )
    weights.rename("fairseq")
    weights.get_shape("tgt_embedding.token.weight")
    weights.tensors.setdefault("output.weight", weights.tensors["tgt_embedding.token.weight"])
    model = assemble_transformer(
        weights,
        options.path,
        pre_norm=pre_norm.pop(),
        norm="layer",
        heads=options.get_int("encoder_attention_heads", 8),
        dec_heads=options.get_int("decoder_attention_heads", 8),
        activation=options.get_choice("activation_fn", ACTIVATIONS, "relu"),
        scale_embedding=not options.get_bool("no_scale_embedding"),
        norm_eps=1e-5,
        **positions,
    )
    options.require_equal("encoder_layers", model.cfg.enc_layers)
    options.require_equal("decoder_layers", model.cfg.dec_layers)
    return model


def _split_qkv(weights: Weights) -> None:
    """Split the stacked query, key and value projections of fairseq 0.6."""
    for name in list(weights.tensors):
        if match := re.fullmatch(r"(.*_attn\.)in_proj_(weight|bias)", name):
            if weights.get_shape(name, 2 if match[2] == "weight" else 1)[0] % 3:
                raise CheckpointError(f"{weights.path}: {name} does not consist of three matrices")
            for letter, rows in zip("qkv", weights.pop(name).chunk(3)):
                weights.tensors[f"{match[1]}{letter}_proj.{match[2]}"] = rows


def _read_positions(weights: Weights, options: ConfigReader) -> dict[str, Any]:
    """Return the position settings; learned tables stay in the weights."""
    limits = [options.get_int(f"max_{side}_positions", 1024) for side in ("source", "target")]
    n = min(*limits, MAX_POSITIONS)
    stored = [weights.get_shape(name) for name in POSITIONS if name in weights]
    for name in POSITIONS:  # if one side is learned, the other side becomes a table too
        if stored and name not in weights:
            rows, d_model = stored[0]
            weights.tensors[name] = make_sinusoids(rows, d_model, "fairseq")
    is_computed = not options.get_bool("no_token_positional_embeddings")
    layout = "fairseq" if is_computed else "none"
    return dict(positions=layout, position_offset=OFFSET, max_positions=n)


# -- Convolutional models (`fconv`) ----------------------------------------------------------------

LAYER = r"\(\s*\d+\s*,\s*\d+\s*(,\s*1\s*)?\)"  # width, kernel, optional residual distance


def build_fconv(weights: Weights, options: ConfigReader) -> Convolution:
    """Build an fconv model.

    Args:
        weights: tensors under fairseq's names; they are renamed in place.
        options: the model options.

    Raises:
        CheckpointError: if weights or options are invalid or not supported.
    """
    for name in ("encoder_layers", "decoder_layers"):  # such as `[(8, 3)] * 2 + [(9, 1)]`
        rest = re.sub(LAYER, "", options.get_str(name, ""))
        if re.search(r"[^][\d\s*+,]", rest):
            raise CheckpointError(
                f"{options.path}: fairseq: {name} is not a list of (width, kernel); residuals over "
                "several layers are not supported"
            )
    weights.drop(r"decoder\.version")
    fold_weight_norm(weights, "weight_v", "weight_g")
    weights.rename("fairseq_fconv")
    for name, weight in weights.tensors.items():
        if weight.dim() == 3:  # convolution: (kernel, in, out) -> (out, kernel, in)
            weights.tensors[name] = weight.permute(2, 0, 1)
    return assemble_convolution(weights, has_positions=True, position_offset=OFFSET)
