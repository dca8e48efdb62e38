"""Reads fairseq models: a directory with one checkpoint and a dictionary per language.

The checkpoint is a dict: `model` (weights), and the options in `args` (a Namespace, before 0.10) or
in `cfg` (nested tables since then).  `dict.LANG.txt` has a token and its count per line.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from onmt_lite.checkpoints import archive
from onmt_lite.checkpoints.description import Description, checked_tokens, read_whole, shown
from onmt_lite.checkpoints.fairseq import fconv as fairseq_fconv
from onmt_lite.checkpoints.fairseq import transformer as fairseq_transformer
from onmt_lite.checkpoints.pickled import Record
from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.checkpoints.weights import Weights
from onmt_lite.errors import CheckpointError
from onmt_lite.models.base import EncoderDecoder
from onmt_lite.text.tokenizers import SpaceTokenizer
from onmt_lite.text.vocab import Vocab

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
BOS, PAD, EOS, UNK = range(4)
OVERWRITE = b"#fairseq:overwrite"
MAX_DICT = 256 << 20
SOURCE_NAMES, TARGET_NAMES = ("src", "source"), ("tgt", "trg", "target")

# By a weight that only this family has
FAMILIES: dict[str, Callable[[Weights, Description], EncoderDecoder]] = {
    "encoder.layers.0.fc1.weight": fairseq_transformer.build_model,
    "encoder.convolutions.0.weight_v": fairseq_fconv.build_model,
}


def recognises(path: Path) -> bool:
    return path.is_dir() and any(path.glob("dict.*.txt"))


def load(path: Path) -> Checkpoint:
    """Load a fairseq directory; ambiguous files are refused too."""
    files = sorted(path.glob("*.pt"))
    if len(files) != 1:
        names = ", ".join(file.name for file in files[:5]) or "none"
        raise CheckpointError(f"{path}: a fairseq directory needs one .pt file, has: {names}")
    root = archive.load(files[0])
    if not isinstance(root, dict) or "model" not in root:
        raise CheckpointError(f"{files[0]}: not a checkpoint of fairseq")
    root.pop("last_optimizer_state", None)
    options = _options(root, files[0])
    weights = Weights(archive.tensors(root.pop("model"), files[0]), files[0])
    family = _choose_family(weights, options)
    src, tgt = _read_dictionaries(path, options)
    for side, vocab in (("encoder", src), ("decoder", tgt)):
        rows, _ = weights.shape(f"{side}.embed_tokens.weight")
        if rows != len(vocab):
            raise CheckpointError(f"{path}: {len(vocab)} tokens, but the {side} knows {rows}")
    model = family(weights, options)
    return Checkpoint(
        model,
        src_vocab=src,
        tgt_vocab=tgt,
        tokenizers={"space": SpaceTokenizer()},
        start_id=EOS,  # fairseq feeds the end token first
        src_end=(EOS,),
        never_ids=(PAD,),
        toolkit="fairseq",
        version="0.9 or older" if isinstance(root.get("args"), Record) else "0.10 or newer",
    )


def _options(root: dict[str, Any], path: Path) -> Description:
    """Options of the model; its languages may be among the options of the task."""
    if isinstance(root.get("args"), Record):
        return Description(root["args"], path)
    config = _table(root.get("cfg"), path)
    if config.get("model") is None:
        raise CheckpointError(f"{path}: it holds no options of its model")
    options, task = (_table(config.get(name), path) for name in ("model", "task"))
    for name in ("source_lang", "target_lang"):
        if options.get(name) is None:
            options[name] = task.get(name)
    return Description(options, path)


def _table(value: Any, path: Path) -> dict[str, Any]:
    """Options as a table of plain values; empty where there are no options."""
    values = Description(_plain({} if value is None else value), path).values
    return {name: _plain(item) for name, item in values.items()}


def _plain(value: Any) -> Any:
    """Unwrap a Namespace or a node of OmegaConf."""
    if not isinstance(value, Record):
        return value
    if not value.name.startswith("omegaconf."):
        return value.state
    return value.get("_content", value.get("_val"))


def _choose_family(weights: Weights, options: Description) -> Callable:
    for weight, family in FAMILIES.items():
        if weight in weights:
            return family
    name = options.get("arch") or options.get("_name") or "unknown"
    raise CheckpointError(f"{weights.path}: fairseq: architecture {shown(name)}, which is not read")


def _read_dictionaries(path: Path, options: Description) -> tuple[Vocab, Vocab]:
    """Read the dictionaries of source and target."""
    names = ("source_lang", "target_lang")
    files = {file.name[5:-4]: file for file in sorted(path.glob("dict.*.txt"))}
    if all(options.get(name) is None for name in names):
        source, target = _guess_languages(path, files)
    else:
        source, target = map(options.text, names)
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
    data = read_whole(path, MAX_DICT)
    tokens, ids = list(SPECIAL), {token: i for i, token in enumerate(SPECIAL)}
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        token, overwrite = _read_line(line, f"{path}, line {number}")
        if token in ids and not overwrite:
            raise CheckpointError(f"{path}, line {number}: {token[:50]!r} for the second time")
        if token in ids:  # from now on the text means the new id
            tokens[ids[token]] = f"<overwritten {ids[token]}>"
        ids[token] = len(tokens)
        tokens.append(token)
    return Vocab(checked_tokens(tokens, path), eos_id=EOS, bos_id=BOS, pad_id=PAD, unk_id=UNK)


def _read_line(line: bytes, where: str) -> tuple[str, bool]:
    """Parse a line: the token, and whether it replaces an earlier one."""
    token, _, count = line.rstrip().rpartition(b" ")
    overwrite = count == OVERWRITE
    if overwrite:
        token, _, count = token.rpartition(b" ")
    try:
        if not token or not count.isdigit() or token[-1:].isspace():
            raise ValueError
        return token.decode("utf-8"), overwrite
    except ValueError:
        raise CheckpointError(f"{where}: not a token and its count") from None
