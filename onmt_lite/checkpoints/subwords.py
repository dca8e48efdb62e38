"""Reads tokenizer files: sentencepiece models, BPE codes, subword vocabularies, phrase tables.

Their paths come from options or are fixed names in the model directory. Paths stored in a
checkpoint refer to the machine that trained the model and are never opened.
"""

import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import sentencepiece as spm

from onmt_lite.checkpoints import sentencepiece_proto
from onmt_lite.checkpoints.config_reader import read_json, read_limited
from onmt_lite.errors import CheckpointError, OptionError, explain_os_error
from onmt_lite.system.file_types import HEAD_BYTES, detect_file_type
from onmt_lite.text.bpe import BytePairEncoder, SubwordFile, parse_codes, parse_vocabulary
from onmt_lite.text.tokenizers import AddedTokenTokenizer, MarianTokenizer, Tokenizer
from onmt_lite.text.transforms import TokenizeFn

MAX_BYTES = 256 << 20
# File names in the model directories of the toolkits: one model per side, or a shared one
SIDE_MODELS = ("source.spm", "target.spm")
SHARED_MODELS = ("sentencepiece.model", "sentencepiece.bpe.model", "spiece.model")
TOKENIZER_JSON = "tokenizer.json"  # of Hugging Face, often converted from a sentencepiece model


def read_sentencepiece(
    path: str, vocabulary: str = "", threshold: int = 0
) -> spm.SentencePieceProcessor:
    """Read a sentencepiece model.

    Args:
        path: the .model file.
        vocabulary: file of subwords and counts; "" for no restriction.
        threshold: subwords with a lower count are not produced.

    Raises:
        CheckpointError: if a file is damaged or cannot be read.
    """
    subwords = read_subword_vocabulary(vocabulary, threshold)
    return parse_sentencepiece(read_bytes(path), path, subwords)


def parse_sentencepiece(
    data: bytes, path: str | Path, subwords: set[str] | None = None
) -> spm.SentencePieceProcessor:
    """Parse a serialized sentencepiece model.

    Args:
        data: the serialized model.
        path: file of the model, for error messages.
        subwords: subwords that may be produced, in addition to single characters; None for all.

    Raises:
        CheckpointError: if the model is damaged.
    """
    processor = spm.SentencePieceProcessor()
    try:
        sentencepiece_proto.check_model(data)
        if subwords is not None:
            data = sentencepiece_proto.restrict_vocabulary(data, subwords)
        processor.load_from_serialized_proto(data)
        if processor.vocab_size() == 0:
            raise ValueError("its vocabulary is empty")
    except (RuntimeError, ValueError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise CheckpointError(
            f"{path}: not a sentencepiece model, or damaged ({reason[:100]}); use the .model file "
            "that spm_train wrote"
        ) from None
    return processor


def read_bpe_codes(path: str, vocabulary: str = "", threshold: int = 0) -> BytePairEncoder:
    """Read a BPE codes file of subword-nmt or fastBPE.

    Args:
        path: the codes file.
        vocabulary: file of subwords and counts; "" for no restriction.
        threshold: subwords with a lower count are split further.

    Raises:
        CheckpointError: if a file is damaged or cannot be read.
    """
    try:
        codes = parse_codes(_read_text(path))
    except ValueError as error:
        problem = f"{path}: not BPE codes of subword-nmt or fastBPE: {error}"
        raise CheckpointError(f"{problem}; use the file that learn-bpe wrote") from None
    return BytePairEncoder(codes, read_subword_vocabulary(vocabulary, threshold))


def read_subword_vocabulary(path: str, threshold: int) -> set[str] | None:
    """Return the subwords counted at least `threshold` times; None for no restriction.

    Raises:
        CheckpointError: if the file is damaged or cannot be read.
    """
    if not path or threshold == 0:
        return None
    try:
        return parse_vocabulary(_read_text(path), threshold)
    except ValueError as error:
        raise CheckpointError(
            f"{path}: not a subword vocabulary: {error}; use the file that get-vocab wrote"
        ) from None


def read_phrase_table(path: str) -> dict[str, str]:
    """Read a phrase table with `source|||target` lines; raise CheckpointError if malformed."""
    phrases = {}
    for number, line in enumerate(_read_text(path).rstrip("\n").split("\n"), 1):
        source, separator, target = line.partition("|||")
        if not (separator and source.strip()) or "|||" in target:
            problem = f"{path}, line {number}: not a `source|||target` line"
            raise CheckpointError(f"{problem}; correct or remove the line")
        phrases[source.strip()] = target.strip()
    return phrases


def has_subword_model(directories: Sequence[Path]) -> bool:
    """Return True if one of the directories has a sentencepiece model or a tokenizer.json."""
    names = (*SIDE_MODELS, *SHARED_MODELS, TOKENIZER_JSON)
    return any((directory / name).is_file() for directory in directories for name in names)


def find_subword_model(
    directory: Path,
    load_tokenizer_json: Callable[[], dict[str, Any]] | None,
    unk_token: str = "<unk>",
) -> tuple[str, spm.SentencePieceProcessor] | None:
    """Read the sentencepiece model of a directory, or convert its tokenizer.json.

    Args:
        directory: the model directory.
        load_tokenizer_json: returns the parsed tokenizer.json, the fallback for a missing
            sentencepiece model; None to ignore that file.
        unk_token: token of unknown characters; the entry in tokenizer.json can be wrong.

    Returns:
        The file name and the sentencepiece model; None if the directory has neither file.

    Raises:
        CheckpointError: if a file is damaged, or sentencepiece lacks a feature of the tokenizer.
    """
    for name in SHARED_MODELS:
        if (directory / name).is_file():
            return name, read_sentencepiece(str(directory / name))
    path = directory / TOKENIZER_JSON
    if load_tokenizer_json is None or not path.is_file():
        return None
    data = sentencepiece_proto.convert_tokenizer_json(load_tokenizer_json(), unk_token, path)
    return TOKENIZER_JSON, parse_sentencepiece(data, path)


def find_tokenizer(
    directories: Sequence[Path],
    tokens: Sequence[str],
    expected: Sequence[str],
    silent: Sequence[str] = (),
) -> tuple[dict[str, Tokenizer], tuple[str, ...]]:
    """Build the tokenizer of a model from the first directory that has a subword model.

    Args:
        directories: directories to search, in this order.
        tokens: the vocabulary; its tokens show whether the model needs a subword model.
        expected: file names to report as missing if no subword model is found.
        silent: tokens to omit from the output text.

    Returns:
        The tokenizer by its -tokenizer name (empty if not found), and the missing files.
    """
    has_subwords = any(token.startswith(sentencepiece_proto.SPACER) for token in tokens)
    for directory in directories:
        if all((directory / name).is_file() for name in SIDE_MODELS):
            src, tgt = (read_sentencepiece(str(directory / name)) for name in SIDE_MODELS)
            return {"sentencepiece": MarianTokenizer(src, tgt)}, ()
        load_json = partial(read_json, directory / TOKENIZER_JSON)
        if found := find_subword_model(directory, load_json if has_subwords else None):
            return {"sentencepiece": AddedTokenTokenizer(found[1], silent=silent)}, ()
    return {}, tuple(str(directories[0] / name) for name in expected) if has_subwords else ()


def make_onmt_tokenizer(
    side: str, subword_type: str, file: SubwordFile, kwargs: dict[str, Any]
) -> TokenizeFn:
    """Build a tokenizer of the optional package pyonmttok, as OpenNMT-py does.

    Args:
        side: "src" or "tgt", for error messages.
        subword_type: "bpe", "sentencepiece" or "none".
        file: subword model and vocabulary of the side.
        kwargs: further arguments of pyonmttok.Tokenizer.

    Raises:
        OptionError: if pyonmttok is not installed or rejects the arguments.
        CheckpointError: if a file cannot be read.
    """
    option = f"{side}_onmttok_kwargs"
    try:
        import pyonmttok
    except ImportError:
        raise OptionError(
            f"{option}: the package pyonmttok is not installed; run pip install pyonmttok, or "
            "tokenize the input yourself and set tokenizer space and detokenizer joiner or spacer"
        ) from None
    subwords: dict[str, Any] = {}
    if subword_type != "none":
        read_bytes(file.path)  # check the file first, for a clear error
        argument = {"bpe": "bpe_model_path", "sentencepiece": "sp_model_path"}[subword_type]
        subwords[argument] = file.path
    if file.vocabulary and file.threshold:
        read_bytes(file.vocabulary)
        subwords |= dict(vocabulary_path=file.vocabulary, vocabulary_threshold=file.threshold)
    try:
        return pyonmttok.Tokenizer(**{**kwargs, **subwords})
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0][:200]
        raise OptionError(f"{option}: pyonmttok rejected it: {reason}; correct it") from None


def _read_text(path: str) -> str:
    data = read_bytes(path)
    if file_type := detect_file_type(data[:HEAD_BYTES]):
        remedy = file_type.get_remedy(shlex.quote(path))
        raise CheckpointError(f"{path} is {file_type.name}; {remedy}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = f"{path}: not UTF-8 text: byte {error.start}"
        raise CheckpointError(f"{problem}; convert it with iconv -t utf-8") from None


def read_bytes(path: str) -> bytes:
    """Read a whole regular file; raise CheckpointError if that fails or the file is too large."""
    try:
        if Path(path).exists() and not Path(path).is_file():
            raise CheckpointError(f"{path}: not a regular file; use the path of a file")
        return read_limited(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path[:200]}: {explain_os_error(error)}") from None
