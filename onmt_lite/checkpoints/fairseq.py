"""Reads fairseq models: a checkpoint with a dictionary per language in the same directory.

The checkpoint is a dict: `model` (weights), and the options in `args` (a Namespace, before 0.10) or
in `cfg` (nested tables since then).  `dict.LANG.txt` has a token and its count per line.
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
MAX_DICT = 256 << 20
DICTIONARIES = "dict.*.txt"
# Relatives of these have the same weights and compute something else
ARCHITECTURES = re.compile("transformer(?!_lm)|m?bart")
LAYER_0 = "encoder.layers.0.fc1.weight"
LANGUAGES = ("source_lang", "target_lang")
SOURCE_NAMES, TARGET_NAMES = ("src", "source"), ("tgt", "trg", "target")


def can_load(path: Path) -> bool:
    return path.is_dir() and any(path.glob(DICTIONARIES))


def load(path: Path) -> Checkpoint:
    """Load a directory with one checkpoint.  Raises CheckpointError."""
    files = sorted(path.glob("*.pt"))
    if not files:
        raise CheckpointError(
            f"{path}: the directory has dictionaries but no .pt file; copy the checkpoint there"
        )
    if len(files) > 1:
        names, more = [shlex.quote(str(file)) for file in files[:4]], " ..." * (len(files) > 4)
        raise CheckpointError(
            f"{path}: the directory has {len(files)} .pt files; give one, -model {names[0]}, or "
            f"several as an ensemble, -model {' '.join(names)}{more}"
        )
    return load_from_state(archive.load(files[0]), files[0])


def is_checkpoint(root: Any, file: Path) -> bool:
    """Return True if the content of a .pt file is a fairseq checkpoint."""
    if not isinstance(root, dict) or "model" not in root:
        return False
    return not {"args", "cfg"}.isdisjoint(root) or any(file.parent.glob(DICTIONARIES))


def load_from_state(root: Any, file: Path) -> Checkpoint:
    """Return the model in the content of a checkpoint file.  Raises CheckpointError."""
    if not isinstance(root, dict) or "model" not in root:
        raise CheckpointError(f"{file}: not a checkpoint of fairseq")
    path = file.parent
    if not any(path.glob(DICTIONARIES)):
        raise CheckpointError(
            f"{file}: a fairseq checkpoint needs its dictionaries; copy dict.SOURCE.txt and "
            "dict.TARGET.txt into its directory"
        )
    root.pop("last_optimizer_state", None)
    options = _options(root, file)
    weights = Weights(archive.check_state_dict(root.pop("model"), file), file)
    build_model: Callable[[Weights, ConfigReader], EncoderDecoder] = build_transformer
    name = options.get("arch") or options.get("_name") or "transformer"
    if "encoder.convolutions.0.weight_v" in weights:
        build_model = build_fconv
    elif not isinstance(name, str) or not ARCHITECTURES.match(name) or LAYER_0 not in weights:
        raise CheckpointError(
            f"{file}: fairseq: architecture {format_value(name)} is not supported"
        )
    src, tgt = _read_dictionaries(path, options)
    return Checkpoint(
        build_model(weights, options),
        src_vocab=src,
        tgt_vocab=tgt,
        tokenizers={"space": SpaceTokenizer()},
        start_id=EOS,  # fairseq feeds the end token first
        src_end=(EOS,),
        banned_ids=(PAD,),
        language_pair=LanguagePair(*(options.get_str(name, "") for name in LANGUAGES)),
        toolkit="fairseq",
        version="0.9 or older" if isinstance(root.get("args"), InertObject) else "0.10 or newer",
    )


def _options(root: dict[str, Any], path: Path) -> ConfigReader:
    """Options of the model; its languages may be among the options of the task."""
    if isinstance(root.get("args"), InertObject):
        return ConfigReader(root["args"], path)
    config = _table(root.get("cfg"), path)
    if config.get("model") is None:
        raise CheckpointError(f"{path}: it holds no options of its model")
    options, task = (_table(config.get(name), path) for name in ("model", "task"))
    for name in LANGUAGES:
        if options.get(name) is None:
            options[name] = task.get(name)
    return ConfigReader(options, path)


def _table(value: Any, path: Path) -> dict[str, Any]:
    """Options as a table of plain values; empty where there are no options."""
    values = ConfigReader(_plain({} if value is None else value), path).values
    return {name: _plain(item) for name, item in values.items()}


def _plain(value: Any) -> Any:
    """Unwrap a Namespace or a node of OmegaConf."""
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
            raise CheckpointError(f"{path}: there is no {name!r}")
    return read_dictionary(files[source]), read_dictionary(files[target])


def _guess_languages(path: Path, files: dict[str, Path]) -> tuple[str, str]:
    """Choose source and target by the names of two dictionaries, or freely where they are equal."""
    if len(files) == 2:
        one, other = files
        if one in TARGET_NAMES or other in SOURCE_NAMES:
            one, other = other, one
        named = one in SOURCE_NAMES or other in TARGET_NAMES
        if named or files[one].read_bytes() == files[other].read_bytes():
            return one, other
    raise CheckpointError(f"{path}: neither checkpoint nor dictionaries say what the source is")


def read_dictionary(path: Path) -> Vocab:
    """Read a dictionary: ids 0 to 3 are special tokens, the others follow the lines."""
    lines = read_limited(path, MAX_DICT).split(b"\n")
    tokens, ids = list(SPECIAL), {token: i for i, token in enumerate(SPECIAL)}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        data, _, count = line.rstrip().rpartition(b" ")
        if overwrites := count == OVERWRITE:  # an earlier line
            data, _, count = data.rpartition(b" ")
        try:
            if not data or not count.isdigit() or data[-1:].isspace():
                raise ValueError
            token = data.decode("utf-8")
        except ValueError:
            raise CheckpointError(f"{path}, line {number}: not a token and its count") from None
        if token in ids and not overwrites:
            raise CheckpointError(f"{path}, line {number}: {token[:50]!r} for the second time")
        if token in ids:  # from now on the text means the new id
            tokens[ids[token]] = f"<overwritten {ids[token]}>"
        ids[token] = len(tokens)
        tokens.append(token)
    return Vocab(check_tokens(tokens, path), eos_id=EOS, bos_id=BOS, pad_id=PAD, unk_id=UNK)


# -- The Transformer, from 0.6 to 0.12 -------------------------------------------------------------

OFFSET = PAD + 1  # of positions
POSITIONS = [f"{side}.embed_positions.weight" for side in ("encoder", "decoder")]
# Computed tables, format versions, and copies that the encoder's fast path keeps
NOT_WEIGHTS = (
    r"(encoder|decoder)\.(version|embed_positions\._float_tensor)"
    r"|encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)"
)


def build_transformer(weights: Weights, options: ConfigReader) -> Transformer:
    """CheckpointError where weights are missing, unknown or misshapen."""
    refuse_unsupported_options(options, "fairseq")
    weights.drop(NOT_WEIGHTS)
    _split_attentions(weights)
    positions = _positions(weights, options)
    pre_norm = {options.get_bool(f"{side}_normalize_before") for side in ("encoder", "decoder")}
    if len(pre_norm) == 2:
        raise CheckpointError(f"{weights.path}: fairseq: encoder and decoder differ in their norms")
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


def _split_attentions(weights: Weights) -> None:
    """Split tensors of 0.6, which hold query, key and value of an attention."""
    for name in list(weights.tensors):
        if match := re.fullmatch(r"(.*_attn\.)in_proj_(weight|bias)", name):
            if weights.get_shape(name, 2 if match[2] == "weight" else 1)[0] % 3:
                raise CheckpointError(f"{weights.path}: {name} is not three matrices in one")
            for part, rows in zip("qkv", weights.pop(name).chunk(3)):
                weights.tensors[f"{match[1]}{part}_proj.{match[2]}"] = rows


def _positions(weights: Weights, options: ConfigReader) -> dict[str, Any]:
    """Switches of the position vectors: computed, none, or learned on one side at least."""
    limits = [options.get_int(f"max_{side}_positions", 1024) for side in ("source", "target")]
    n = min(*limits, MAX_POSITIONS)
    stored = [weights.get_shape(name) for name in POSITIONS if name in weights]
    for name in POSITIONS:  # where one side alone is learned, the other one becomes a table too
        if stored and name not in weights:
            rows, d_model = stored[0]
            weights.tensors[name] = make_sinusoids(rows, d_model, "fairseq")
    is_computed = not options.get_bool("no_token_positional_embeddings")
    layout = "fairseq" if is_computed else "none"
    return dict(positions=layout, position_offset=OFFSET, max_positions=n)


# -- Convolutional models (`fconv`) ----------------------------------------------------------------

LAYER = r"\(\s*\d+\s*,\s*\d+\s*(,\s*1\s*)?\)"  # width, kernel, and how far its residual reaches


def build_fconv(weights: Weights, options: ConfigReader) -> Convolution:
    """Build an fconv model.  Raises CheckpointError where weights or options do not fit."""
    for name in ("encoder_layers", "decoder_layers"):  # such as `[(8, 3)] * 2 + [(9, 1)]`
        rest = re.sub(LAYER, "", options.get_str(name, ""))
        if re.search(r"[^][\d\s*+,]", rest):
            raise CheckpointError(
                f"{options.path}: fairseq: {name} with residuals over several layers, or in words "
                "that are not known, which is not read"
            )
    weights.drop(r"decoder\.version")
    fold_weight_norm(weights, "weight_v", "weight_g")
    weights.rename("fairseq_fconv")
    for name, weight in weights.tensors.items():
        if weight.dim() == 3:  # a convolution: (kernel, in, out) -> (out, kernel, in)
            weights.tensors[name] = weight.permute(2, 0, 1)
    return assemble_convolution(weights, positions=True, position_offset=OFFSET)
