"""Reads Marian's own models, as the zips of OPUS-MT hold them: an .npz file and vocabularies.

The path is a directory, with a decoder.yml that names the files, or the .npz file itself.  Names
count, not the folders before them: those are of the machine that trained the model.
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
OPTIONS = "special:model.yml"  # the array that holds the model's options as text
EOS, UNK = "</s>", "<unk>"
START = "<start>"  # a vector of zeros, which is no token of Marian's
MAX_POSITIONS = 2048  # as many as CTranslate2 gives a model that computes them
MAX_YAML = 64 << 20
LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # the C one where PyYAML has it
# The events of a file with one table, around the texts in it
TABLE = (
    *(yaml.StreamStartEvent, yaml.DocumentStartEvent, yaml.MappingStartEvent),
    *(yaml.MappingEndEvent, yaml.DocumentEndEvent, yaml.StreamEndEvent),
)
NO_VOCABULARY = re.compile(r"npz\.|decoder|config")  # in names of other YAML files
TARGET = re.compile(r"(?<![a-z])(trg|tgt|target)(?![a-z])")
ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": "gelu_sigmoid"}
# Theirs of a layer, as Hugging Face names them; Marian counts layers from 1
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
SHORTLIST = "shortlist in decoder.yml: without effect; the search considers all tokens"
KINDS = {"W": "weight", "b": "bias", "scale": "weight", "bias": "bias"}


def can_load(path: Path) -> bool:
    if path.is_dir():
        return (path / DECODER).is_file() or any(path.glob("*.npz"))
    return path.suffix == ".npz" and path.is_file()


def load(path: Path) -> Checkpoint:
    """CheckpointError for a model of another kind, or a damaged one."""
    file, source, target, decoder = _find(path)
    if decoder.get_float("word-penalty", 0.0):
        raise CheckpointError(f"{decoder.path}: a word-penalty, which is not supported")
    arrays = read_npz(file)
    if OPTIONS not in arrays:
        raise CheckpointError(f"{file}: not a model of Marian: it has no {OPTIONS}")
    text = bytes(arrays.pop(OPTIONS).to(torch.uint8).flatten().tolist()).rstrip(b"\0")
    options = ConfigReader(_parse(text, file), file)
    _check_kind(options)
    model = _build(options, Weights(_renamed(arrays, file), file))

    cfg = model.cfg
    sizes = options.get("dim-vocabs") or [0]  # 0 where the options do not say
    if not isinstance(sizes, list) or not all(map(is_valid_size, sizes)):
        raise CheckpointError(f"{file}: dim-vocabs is not a list of sizes")
    tgt = _read_tokens(target, cfg.tgt_vocab_size - 1, sizes[-1])
    tgt_vocab = src_vocab = _vocab([*tgt, START], target)
    if source != target or not cfg.share_embeddings:
        if len(_names(decoder, "vocabs")) == 1 and not cfg.share_embeddings:
            raise CheckpointError(f"{decoder.path}: names one vocabulary of a model with two")
        src = _read_tokens(source, cfg.src_vocab_size - cfg.share_embeddings, sizes[0])
        src_vocab = _vocab([*src, START][: cfg.src_vocab_size], source)
    if source.suffix == target.suffix == ".spm":  # vocabularies that cut lines themselves
        cutters = MarianTokenizer(read_sentencepiece(str(source)), read_sentencepiece(str(target)))
        tokenizers: dict[str, Tokenizer] = {"sentencepiece": cutters}
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
        notices=(SHORTLIST,) if decoder.get("shortlist") else (),
        languages=find_marian_languages(dict(enumerate(src_vocab.tokens))),
        toolkit="marian-npz",
        version=options.get_label("version"),
    )


# -- files ----------------------------------------------------------------------------------------


def _find(path: Path) -> tuple[Path, Path, Path, ConfigReader]:
    """Model, vocabularies of source and target, and decoder.yml, which may name them."""
    folder = path if path.is_dir() else path.parent
    said = folder / DECODER
    decoder = ConfigReader(
        _parse(read_limited(said, MAX_YAML), said) if said.is_file() else {}, said
    )
    for name in load_table("decoder"):
        decoder.get(name)  # refuses a name that is misspelt
    models, vocabs = _names(decoder, "models"), _names(decoder, "vocabs")
    if models and (path.is_dir() or path.name in models):
        found = [folder / name for name in models]
        sources, targets = ([folder / name for name in x] for x in (vocabs[:1], vocabs[-1:]))
    else:
        decoder = ConfigReader({}, said)
        found = [path] if path.is_file() else sorted(path.glob("*.npz"))
        words = [f for f in sorted(folder.glob("*.yml")) if not NO_VOCABULARY.search(f.name)]
        words = words or sorted(folder.glob("*.spm"))
        targets = [f for f in words if TARGET.search(f.name)] if len(words) > 1 else words
        sources = [f for f in words if f not in targets] if len(words) > 1 else words
    files = [*found, *dict.fromkeys((*sources, *targets))]
    absent = [f.name for f in files if not f.is_file() and f.suffix != ".fsv"]
    if decoder.values and absent:
        raise CheckpointError(f"{said}: there is no {absent[0][:100]!r} beside it")
    is_one = [len(found), len(sources), len(targets)] == [1, 1, 1] and found[0].suffix == ".npz"
    if not is_one or not all(f.is_file() and f.suffix != ".fsv" for f in files):
        listed = ", ".join(f.name for f in files)[:200] or "no files"
        raise CheckpointError(
            f"{said if decoder.values else path}: {listed}: not one .npz file with a vocabulary "
            f"without factors for each side; name them in a {DECODER}, or give each .npz file of "
            "an ensemble to -model"
        )
    return found[0], sources[0], targets[0], decoder


def _names(decoder: ConfigReader, key: str) -> list[str]:
    return get_file_names(decoder.get(key), key, decoder.path)


def _parse(data: bytes, path: Path) -> Any:
    try:
        return parse_yaml(data)
    except ValueError:
        raise CheckpointError(f"{path}: not YAML that is understood") from None


# -- vocabulary and tokens ------------------------------------------------------------------------


def _read_tokens(path: Path, rows: int, n: int) -> list[str]:
    """Tokens by id, `n` unless that is 0: sentencepiece's own, or those that YAML gives.  Rows of
    the model's table behind the last token get names of their own."""
    if path.suffix == ".spm":
        pieces = read_sentencepiece(str(path))
        tokens = {i: pieces.id_to_piece(i) for i in range(pieces.vocab_size())}
    else:
        tokens = _read_ids(path)
    expected = n if n and path.suffix != ".spm" else len(tokens)
    if not len(tokens) == expected <= rows or sorted(tokens) != list(range(expected)):
        raise CheckpointError(
            f"{path}: {len(tokens)} tokens, whose ids are not those of a model with {n or rows}"
        )
    return check_tokens([tokens.get(i, f"<unused {i}>") for i in range(rows)], path)


def _read_ids(path: Path) -> dict[int, str]:
    """Every key is text as it stands, also what YAML takes for a number, a truth or nothing.

    Events are read and no nodes: the C loader follows the nesting of these until the stack is full.
    """
    scalars, n = [], 0  # keys and values in turn, and how much of the only table was seen
    try:
        for event in yaml.parse(read_limited(path, MAX_YAML), Loader=LOADER):
            if isinstance(event, yaml.ScalarEvent):
                scalars.append(event.value)
            elif n < len(TABLE) and isinstance(event, TABLE[n]):
                n += 1
            else:
                raise ValueError("not one table of texts")
        tokens, ids = scalars[::2], [*map(int, scalars[1::2])]
        if len(set(ids)) < len(ids) or len(set(tokens)) < len(tokens):
            raise ValueError("an id or a token twice")
    except (yaml.YAMLError, ValueError):
        raise CheckpointError(f"{path}: not a vocabulary of Marian: `token: id` lines") from None
    return dict(zip(ids, tokens))


def _vocab(tokens: list[str], path: Path) -> Vocab:
    vocab = Vocab.from_tokens(tokens, eos=EOS, bos=START, unk=UNK)
    if vocab.eos_id is None:
        raise CheckpointError(f"{path}: it lacks the end token {EOS}")
    return vocab


# -- the model ------------------------------------------------------------------------------------


def _check_kind(options: ConfigReader) -> None:
    """CheckpointError with what it is, for a model of Marian that is not read."""
    options.get_str("type")  # must be there
    refuse_unsupported_options(options, "Marian")
    preprocess = options.get_str("transformer-preprocess", "")
    norms = preprocess, *(options.get_str(f"transformer-postprocess{x}", "") for x in ("", "-top"))
    if norms not in (("", "dan", ""), ("n", "da", "n")):
        raise CheckpointError(f"{options.path}: Marian: norms by the rules {norms}, not supported")


def _renamed(arrays: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Arrays under Hugging Face's names, matrices of layers with a row for each output."""
    found: dict[str, Tensor] = {}
    for name, array in arrays.items():
        plain = name.removesuffix("_pre")
        matches = ((re.fullmatch(pattern, plain), new) for pattern, new in RULES)
        ours = next((match.expand(new) for match, new in matches if match), name)
        ours = re.sub(r"(?<=coder\.)\d+", lambda n: str(int(n[0]) - 1), ours)  # theirs begin with 1
        scope, _, last = ours.rpartition(".")
        if scope:
            ours = f"{scope}.{KINDS.get(last, last)}"
            array = array.T.contiguous() if last == "W" and array.dim() == 2 else array.flatten()
        if ours in found:
            raise CheckpointError(f"{path}: {name[:80]!r} is there under another name too")
        found[ours] = array
    return found


def _build(options: ConfigReader, weights: Weights) -> Transformer:
    pre_norm = options.get_str("transformer-preprocess", "") == "n"
    embedding_norm = "n" in options.get_str("transformer-postprocess-emb", "d")
    ours = _tables(weights)
    learned = "Wpos" in weights
    if learned:
        ours["src_embedding.position"] = ours["tgt_embedding.position"] = weights.pop("Wpos")
    name = "transformer-guided-alignment-layer"  # from 1; 0 for the last one
    said = options.get(name)
    quoted = isinstance(said, str) and re.fullmatch("[0-9]{1,4}", said)
    align_layer = 0 if said in (None, "last") else int(said) if quoted else options.get_int(name)
    weights.rename("marian")
    weights.tensors |= ours
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
        positions="learned" if learned else "concat",
        max_positions=len(ours["src_embedding.position"]) if learned else MAX_POSITIONS,
        activation=options.get_choice("transformer-ffn-activation", ACTIVATIONS),
        norm_eps=1e-5,
        align_layer=align_layer,
    )


def _tables(weights: Weights) -> dict[str, Tensor]:
    """Embeddings of both sides and the output layer, of which a file has those that differ."""
    for name in (*EMBEDDINGS, *OUTPUTS, "Wpos"):
        if name in weights:
            weights.get_shape(name)
    if "Wemb" in weights:
        src = tgt = weights.pop("Wemb")
    else:
        src, tgt = (weights.pop(f"{side}_Wemb") for side in ("encoder", "decoder"))
    ours = {"src_embedding.token.weight": src, "tgt_embedding.token.weight": tgt}
    ours["output.weight"] = tgt
    for name in OUTPUTS:
        if name in weights:
            ours["output.weight"] = weights.pop(name)
    if "output.bias" in weights:
        ours["output.bias"] = weights.pop("output.bias")
    return ours


# -- Arrays of an .npz file ------------------------------------------------------------------------

MAX_HEADER = 4096
HEADER = re.compile(
    rb"\{'descr': '([^']*)', 'fortran_order': False, 'shape': \(([\d, ]*)\),? *\}[ \n]*"
)
TYPES = {
    "f4": torch.float32,
    "f2": torch.float16,
    "f8": torch.float64,
    "i1": torch.int8,
    "u1": torch.uint8,
}


def read_npz(path: Path) -> dict[str, Tensor]:
    """The arrays by name.  CheckpointError for a file that is not what it should be."""
    with open(path, "rb") as f, convert_read_errors(path, ".npz file of arrays"):
        with zipfile.ZipFile(f) as members:
            names = check_zip_members(members, path.stat().st_size)
            return {name.removesuffix(".npy"): _array(name, members.read(name)) for name in names}


def _array(name: str, data: bytes) -> Tensor:
    wrong = ValueError(f"{name[:80]!r} is not an array of numbers in C order")
    if data[:6] != b"\x93NUMPY" or data[6:7] not in (b"\1", b"\2", b"\3"):
        raise wrong
    form = "<H" if data[6] == 1 else "<I"
    start = 8 + struct.calcsize(form)
    (n,) = struct.unpack(form, data[8:start])
    header = HEADER.fullmatch(data[start : start + n]) if n <= MAX_HEADER else None
    dtype = TYPES.get(header[1].decode("latin-1").lstrip("<|")) if header else None
    if header is None or dtype is None:
        raise wrong
    shape = [int(size) for size in header[2].replace(b" ", b"").split(b",") if size]
    if not is_valid_shape(shape) or math.prod(shape) * dtype.itemsize != len(data) - start - n:
        raise wrong
    return make_tensor(bytearray(data[start + n :]), dtype, shape)
