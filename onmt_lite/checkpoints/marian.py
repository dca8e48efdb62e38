"""Loads native Marian models as distributed by OPUS-MT: an .npz file and vocabularies.

The path is a directory, usually with a decoder.yml that lists the files, or the .npz file itself.
Only the file names in decoder.yml are used, because the directories refer to the machine that
trained the model.
"""

import math
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from onmt_lite.checkpoints.archive import check_zip_members, convert_read_errors
from onmt_lite.checkpoints.checkpoint import Checkpoint
from onmt_lite.checkpoints.config_reader import (
    ConfigReader,
    check_tokens,
    read_limited,
    refuse_unsupported_options,
)
from onmt_lite.checkpoints.generation_config import get_file_names, load_table
from onmt_lite.checkpoints.huggingface.bart import find_marian_languages
from onmt_lite.checkpoints.subwords import SIDE_MODELS, find_tokenizer, read_sentencepiece
from onmt_lite.checkpoints.weights import (
    Weights,
    add_zero_start_token,
    assemble_transformer,
    is_valid_shape,
    is_valid_size,
    make_tensor,
)
from onmt_lite.errors import CheckpointError
from onmt_lite.models.transformer import Transformer
from onmt_lite.system.safe_parse import parse_yaml
from onmt_lite.text.tokenizers import MarianTokenizer, SpaceTokenizer, Tokenizer
from onmt_lite.text.vocab import Vocab

DECODER = "decoder.yml"
OPTIONS = "special:model.yml"  # array with the model options as YAML text
EOS, UNK = "</s>", "<unk>"
START = "<start>"  # our token for Marian's all-zero start embedding
MAX_POSITIONS = 2048  # for computed position encodings, as in CTranslate2
MAX_YAML = 64 << 20
LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # the C loader if available
# The YAML events of a file with one mapping, except its scalars
MAPPING_EVENTS = (
    *(yaml.StreamStartEvent, yaml.DocumentStartEvent, yaml.MappingStartEvent),
    *(yaml.MappingEndEvent, yaml.DocumentEndEvent, yaml.StreamEndEvent),
)
NOT_VOCABULARY = re.compile(r"npz\.|decoder|config")  # names of other YAML files
TARGET = re.compile(r"(?<![a-z])(trg|tgt|target)(?![a-z])")
ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": "gelu_sigmoid"}
# Marian weight names to Hugging Face names; Marian counts layers from 1
RULES = (
    (r"(en|de)coder_l(\d+)_self_([Wb])([qkv])", r"\1coder.\2.self_attn.\4_proj.\3"),
    (r"(en|de)coder_l(\d+)_self_([Wb])o", r"\1coder.\2.self_attn.out_proj.\3"),
    (r"(en|de)coder_l(\d+)_context_([Wb])([qkv])", r"\1coder.\2.encoder_attn.\4_proj.\3"),
    (r"(en|de)coder_l(\d+)_context_([Wb])o", r"\1coder.\2.encoder_attn.out_proj.\3"),
    (r"(en|de)coder_l(\d+)_self_Wo_ln_(\w+)", r"\1coder.\2.self_attn_layer_norm.\3"),
    (r"(en|de)coder_l(\d+)_context_Wo_ln_(\w+)", r"\1coder.\2.encoder_attn_layer_norm.\3"),
    (r"(en|de)coder_l(\d+)_ffn_([Wb])([12])", r"\1coder.\2.fc\4.\3"),
    (r"(en|de)coder_l(\d+)_ffn_ffn_ln_(\w+)", r"\1coder.\2.final_layer_norm.\3"),
    (r"(en|de)coder_top_ln_(\w+)", r"\1coder.top.\2"),
    (r"(en|de)coder_emb_ln_(\w+)", r"\1coder.emb.\2"),
    (r"decoder_ff_logit_out_(W|b)", r"output.\1"),
)
EMBEDDINGS = ("Wemb", "encoder_Wemb", "decoder_Wemb")
OUTPUTS = ("output.weight", "decoder_ff_logit_out_Wt")
SHORTLIST_NOTICE = "shortlist in decoder.yml has no effect; the search considers all tokens"
SUFFIXES = {"W": "weight", "b": "bias", "scale": "weight", "bias": "bias"}


def can_load(path: Path) -> bool:
    """Return True for an .npz file, or a directory with one or with a decoder.yml."""
    if path.is_dir():
        return (path / DECODER).is_file() or any(path.glob("*.npz"))
    return path.suffix == ".npz" and path.is_file()


def load(path: Path) -> Checkpoint:
    """Load a model; raise CheckpointError if it is damaged or not supported."""
    file, source, target, decoder = _find_files(path)
    if decoder.get_float("word-penalty", 0.0):
        raise CheckpointError(f"{decoder.path}: word-penalty is not supported; remove it")
    arrays = read_npz(file)
    if OPTIONS not in arrays:
        raise CheckpointError(f"{file}: not a Marian model: it has no {OPTIONS}")
    text = bytes(arrays.pop(OPTIONS).to(torch.uint8).flatten().tolist()).rstrip(b"\0")
    options = ConfigReader(_parse_yaml(text, file), file)
    _check_model_type(options)
    model = _build(options, Weights(_rename_arrays(arrays, file), file))

    cfg = model.cfg
    sizes = options.get("dim-vocabs") or [0]  # 0 if the options have no sizes
    if not isinstance(sizes, list) or not all(map(is_valid_size, sizes)):
        raise CheckpointError(f"{file}: dim-vocabs is not a list of sizes")
    tgt = _read_tokens(target, cfg.tgt_vocab_size - 1, sizes[-1])
    tgt_vocab = src_vocab = _make_vocab([*tgt, START], target)
    if source != target or not cfg.share_embeddings:
        if len(_list_files(decoder, "vocabs")) == 1 and not cfg.share_embeddings:
            raise CheckpointError(
                f"{decoder.path}: vocabs must list two vocabularies for this model"
            )
        src = _read_tokens(source, cfg.src_vocab_size - cfg.share_embeddings, sizes[0])
        src_vocab = _make_vocab([*src, START][: cfg.src_vocab_size], source)
    if source.suffix == target.suffix == ".spm":  # these vocabularies are also tokenizers
        tokenizer = MarianTokenizer(
            read_sentencepiece(str(source)), read_sentencepiece(str(target))
        )
        tokenizers: dict[str, Tokenizer] = {"sentencepiece": tokenizer}
        missing: tuple[str, ...] = ()
    else:
        tokenizers, missing = find_tokenizer([file.parent], tgt, SIDE_MODELS)
    assert src_vocab.eos_id is not None
    return Checkpoint(
        model,
        src_vocab=src_vocab,
        tgt_vocab=tgt_vocab,
        tokenizers={**tokenizers, "space": SpaceTokenizer()},
        start_id=len(tgt),
        src_end=(src_vocab.eos_id,),
        banned_ids=(len(tgt),),
        missing_files=missing,
        notices=(SHORTLIST_NOTICE,) if decoder.get("shortlist") else (),
        languages=find_marian_languages(dict(enumerate(src_vocab.tokens))),
        toolkit="marian-npz",
        version=options.get_label("version"),
    )


# -- files ----------------------------------------------------------------------------------------


def _find_files(path: Path) -> tuple[Path, Path, Path, ConfigReader]:
    """Find the files of a model.

    Returns:
        The .npz file, the source and target vocabularies, and decoder.yml (empty if it does not
        list this model).

    Raises:
        CheckpointError: if a file is missing or ambiguous.
    """
    directory = path if path.is_dir() else path.parent
    decoder_path = directory / DECODER
    has_decoder = decoder_path.is_file()
    values = _parse_yaml(read_limited(decoder_path, MAX_YAML), decoder_path) if has_decoder else {}
    decoder = ConfigReader(values, decoder_path)
    for name in load_table("decoder"):
        decoder.get(name)  # rejects a misspelled key
    models, vocabs = _list_files(decoder, "models"), _list_files(decoder, "vocabs")
    if models and (path.is_dir() or path.name in models):
        npz_files = [directory / name for name in models]
        sources = [directory / name for name in vocabs[:1]]
        targets = [directory / name for name in vocabs[-1:]]
    else:
        decoder = ConfigReader({}, decoder_path)
        npz_files = [path] if path.is_file() else sorted(path.glob("*.npz"))
        vocab_files = [
            f for f in sorted(directory.glob("*.yml")) if not NOT_VOCABULARY.search(f.name)
        ]
        vocab_files = vocab_files or sorted(directory.glob("*.spm"))
        targets = sources = vocab_files
        if len(vocab_files) > 1:
            targets = [f for f in vocab_files if TARGET.search(f.name)]
            sources = [f for f in vocab_files if f not in targets]
    files = [*npz_files, *dict.fromkeys((*sources, *targets))]
    missing = [f.name for f in files if not f.is_file() and f.suffix != ".fsv"]
    if decoder.values and missing:
        raise CheckpointError(
            f"{decoder_path}: {missing[0][:100]!r} does not exist in this directory"
        )
    n_files = [len(npz_files), len(sources), len(targets)]
    is_one = n_files == [1, 1, 1] and npz_files[0].suffix == ".npz"
    if not is_one or not all(f.is_file() and f.suffix != ".fsv" for f in files):
        listed = ", ".join(f.name for f in files)[:200] or "no files"
        raise CheckpointError(
            f"{decoder_path if decoder.values else path}: {listed}: a model needs one .npz file "
            "and one vocabulary (without factors) per side; list them in a "
            f"{DECODER}, or pass each .npz file of an ensemble to -model"
        )
    return npz_files[0], sources[0], targets[0], decoder


def _list_files(decoder: ConfigReader, key: str) -> list[str]:
    return get_file_names(decoder.get(key), key, decoder.path)


def _parse_yaml(data: bytes, path: Path) -> Any:
    try:
        return parse_yaml(data)
    except ValueError:
        raise CheckpointError(f"{path}: not valid YAML") from None


# -- vocabulary and tokens ------------------------------------------------------------------------


def _read_tokens(path: Path, rows: int, n: int) -> list[str]:
    """Read a vocabulary; unused rows of the embedding table get placeholder names.

    Args:
        path: a .spm file, or a YAML file of tokens and IDs.
        rows: number of rows of the embedding table.
        n: expected number of tokens in a YAML file; 0 for any.

    Returns:
        One token per row.

    Raises:
        CheckpointError: if the file is damaged or does not match the model.
    """
    if path.suffix == ".spm":
        processor = read_sentencepiece(str(path))
        tokens = {i: processor.id_to_piece(i) for i in range(processor.vocab_size())}
    else:
        tokens = _read_ids(path)
    expected = n if n and path.suffix != ".spm" else len(tokens)
    if not len(tokens) == expected <= rows or sorted(tokens) != list(range(expected)):
        raise CheckpointError(
            f"{path}: its {len(tokens)} tokens do not match a model with {n or rows}"
        )
    return check_tokens([tokens.get(i, f"<unused {i}>") for i in range(rows)], path)


def _read_ids(path: Path) -> dict[int, str]:
    """Read a YAML mapping from tokens to IDs; return the tokens by ID.

    Every key is a string, even if YAML would parse it as a number, a boolean or null. The file is
    parsed as events because the C loader overflows the stack on deeply nested nodes.
    """
    scalars, n = [], 0  # keys and values in turn; number of mapping events so far
    try:
        for event in yaml.parse(read_limited(path, MAX_YAML), Loader=LOADER):
            if isinstance(event, yaml.ScalarEvent):
                scalars.append(event.value)
            elif n < len(MAPPING_EVENTS) and isinstance(event, MAPPING_EVENTS[n]):
                n += 1
            else:
                raise ValueError("not a mapping of scalars")
        tokens, ids = scalars[::2], [*map(int, scalars[1::2])]
        if len(set(ids)) < len(ids) or len(set(tokens)) < len(tokens):
            raise ValueError("duplicate ID or token")
    except (yaml.YAMLError, ValueError):
        raise CheckpointError(
            f"{path}: not a Marian vocabulary; it must have unique `token: ID` lines"
        ) from None
    return dict(zip(ids, tokens))


def _make_vocab(tokens: list[str], path: Path) -> Vocab:
    vocab = Vocab.from_tokens(tokens, eos=EOS, bos=START, unk=UNK)
    if vocab.eos_id is None:
        raise CheckpointError(f"{path}: the vocabulary lacks the EOS token {EOS}")
    return vocab


# -- the model ------------------------------------------------------------------------------------


def _check_model_type(options: ConfigReader) -> None:
    """Raise CheckpointError if the model type is not supported."""
    options.get_str("type")  # required
    refuse_unsupported_options(options, "Marian")
    preprocess = options.get_str("transformer-preprocess", "")
    norms = preprocess, *(options.get_str(f"transformer-postprocess{x}", "") for x in ("", "-top"))
    if norms not in (("", "dan", ""), ("n", "da", "n")):
        raise CheckpointError(
            f"{options.path}: Marian: transformer-preprocess and -postprocess {norms} are not "
            "supported"
        )


def _rename_arrays(arrays: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Rename arrays to Hugging Face names, and transpose weight matrices to (out, in)."""
    renamed: dict[str, Tensor] = {}
    for name, array in arrays.items():
        plain = name.removesuffix("_pre")
        matches = ((re.fullmatch(pattern, plain), new) for pattern, new in RULES)
        new_name = next((match.expand(new) for match, new in matches if match), name)
        # Marian's layer numbers start at 1
        new_name = re.sub(r"(?<=coder\.)\d+", lambda n: str(int(n[0]) - 1), new_name)
        scope, _, last = new_name.rpartition(".")
        if scope:
            new_name = f"{scope}.{SUFFIXES.get(last, last)}"
            array = array.T.contiguous() if last == "W" and array.dim() == 2 else array.flatten()
        if new_name in renamed:
            raise CheckpointError(f"{path}: {name[:80]!r} also exists under another name")
        renamed[new_name] = array
    return renamed


def _build(options: ConfigReader, weights: Weights) -> Transformer:
    pre_norm = options.get_str("transformer-preprocess", "") == "n"
    embedding_norm = "n" in options.get_str("transformer-postprocess-emb", "d")
    tables = _pop_tables(weights)
    is_learned = "Wpos" in weights
    if is_learned:
        tables["src_embedding.position"] = tables["tgt_embedding.position"] = weights.pop("Wpos")
    weights.rename("marian")
    weights.tensors |= tables
    add_zero_start_token(weights.tensors)
    return assemble_transformer(
        weights,
        weights.path,
        heads=options.get_int("transformer-heads"),
        enc_layers=options.get_int("enc-depth"),
        dec_layers=options.get_int("dec-depth"),
        norm="layer",
        pre_norm=pre_norm,
        final_norm=pre_norm,
        embedding_norm=embedding_norm,
        positions="learned" if is_learned else "concat",
        max_positions=len(tables["src_embedding.position"]) if is_learned else MAX_POSITIONS,
        activation=options.get_choice("transformer-ffn-activation", ACTIVATIONS),
        norm_eps=1e-5,
        align_layer=_read_align_layer(options),
    )


def _read_align_layer(options: ConfigReader) -> int:
    """Return the layer trained with guided alignment, counted from 1; 0 for the last layer."""
    name = "transformer-guided-alignment-layer"
    value = options.get(name)
    if value in (None, "last"):
        return 0
    if isinstance(value, str) and re.fullmatch("[0-9]{1,4}", value):
        return int(value)
    return options.get_int(name)


def _pop_tables(weights: Weights) -> dict[str, Tensor]:
    """Remove and return embeddings and output layer under our names; tied tables are shared."""
    for name in (*EMBEDDINGS, *OUTPUTS, "Wpos"):
        if name in weights:
            weights.get_shape(name)
    if "Wemb" in weights:
        src = tgt = weights.pop("Wemb")
    else:
        src, tgt = (weights.pop(f"{side}_Wemb") for side in ("encoder", "decoder"))
    tables = {"src_embedding.token.weight": src, "tgt_embedding.token.weight": tgt}
    tables["output.weight"] = tgt
    for name in OUTPUTS:
        if name in weights:
            tables["output.weight"] = weights.pop(name)
    if "output.bias" in weights:
        tables["output.bias"] = weights.pop("output.bias")
    return tables


# -- .npz files ------------------------------------------------------------------------------------

MAX_HEADER = 4096
HEADER = re.compile(
    rb"\{'descr': '([^']*)', 'fortran_order': False, 'shape': \(([\d, ]*)\),? *\}[ \n]*"
)
DTYPES = {
    "f4": torch.float32,
    "f2": torch.float16,
    "f8": torch.float64,
    "i1": torch.int8,
    "u1": torch.uint8,
}


def read_npz(path: Path) -> dict[str, Tensor]:
    """Read the arrays of an .npz file by name; raise CheckpointError if it is damaged."""
    with open(path, "rb") as f, convert_read_errors(path, ".npz file"):
        with zipfile.ZipFile(f) as members:
            names = check_zip_members(members, path.stat().st_size)
            return {
                name.removesuffix(".npy"): _parse_npy(name, members.read(name)) for name in names
            }


def _parse_npy(name: str, data: bytes) -> Tensor:
    invalid = ValueError(f"{name[:80]!r} is not a numeric array in C order")
    if data[:6] != b"\x93NUMPY" or data[6:7] not in (b"\1", b"\2", b"\3"):
        raise invalid
    length_format = "<H" if data[6] == 1 else "<I"
    start = 8 + struct.calcsize(length_format)
    (n,) = struct.unpack(length_format, data[8:start])
    header = HEADER.fullmatch(data[start : start + n]) if n <= MAX_HEADER else None
    dtype = DTYPES.get(header[1].decode("latin-1").lstrip("<|")) if header else None
    if header is None or dtype is None:
        raise invalid
    shape = [int(size) for size in header[2].replace(b" ", b"").split(b",") if size]
    if not is_valid_shape(shape) or math.prod(shape) * dtype.itemsize != len(data) - start - n:
        raise invalid
    return make_tensor(bytearray(data[start + n :]), dtype, shape)
