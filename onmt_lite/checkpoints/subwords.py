"""Reads the files beside a model about words: sentencepiece models, codes, vocabularies, phrases.

Their paths come from options.  Paths that a checkpoint holds are of the machine that trained it
and are never opened.
"""

import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import sentencepiece as spm

from onmt_lite.checkpoints import sentencepiece_proto
from onmt_lite.checkpoints.config_reader import read_json, read_whole
from onmt_lite.errors import CheckpointError, OptionError, explain_os_error
from onmt_lite.system.file_types import LOOKED_AT, detect_file_type
from onmt_lite.text.bpe import BytePairEncoder, SubwordFile, parse_codes, parse_vocabulary
from onmt_lite.text.tokenizers import MarianTokenizer, PieceTokenizer, Tokenizer
from onmt_lite.text.transforms import Cut

MAX_BYTES = 256 << 20
# As the models of the toolkits have them: one for each side, or one for both
SIDE_MODELS = ("source.spm", "target.spm")
SHARED_MODELS = ("sentencepiece.model", "sentencepiece.bpe.model", "spiece.model")
TOKENIZER_JSON = "tokenizer.json"  # of Hugging Face, which can stand in for them


def read_sentencepiece(
    path: str, vocabulary: str = "", threshold: int = 0
) -> spm.SentencePieceProcessor:
    """A sentencepiece model, without subwords that the vocabulary counts less often."""
    return parse_sentencepiece(
        read_bytes(path), path, read_subword_vocabulary(vocabulary, threshold)
    )


def parse_sentencepiece(
    data: bytes, path: str | Path, known: set[str] | None = None
) -> spm.SentencePieceProcessor:
    """The sentencepiece model in these bytes, of which not all pieces may be known."""
    found = spm.SentencePieceProcessor()
    try:
        sentencepiece_proto.check_model(data)
        found.load_from_serialized_proto(
            data if known is None else sentencepiece_proto.restrict_vocabulary(data, known)
        )
        if found.vocab_size() == 0:
            raise ValueError("it has no pieces")
    except (RuntimeError, ValueError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise CheckpointError(
            f"{path}: not a sentencepiece model, or a damaged one ({reason[:100]}); give the "
            ".model file that spm_train has written"
        ) from None
    return found


def read_bpe_codes(path: str, vocabulary: str = "", threshold: int = 0) -> BytePairEncoder:
    """Codes of subword-nmt or fastBPE.  The vocabulary as above.  Raises CheckpointError."""
    try:
        codes = parse_codes(_read_text(path))
    except ValueError as error:
        problem = f"{path}: not BPE codes of subword-nmt or fastBPE: {error}"
        raise CheckpointError(f"{problem}; give the file that learn-bpe has written") from None
    return BytePairEncoder(codes, read_subword_vocabulary(vocabulary, threshold))


def read_subword_vocabulary(path: str, threshold: int) -> set[str] | None:
    """Subwords that the file counts often enough; None where no file or no threshold is given."""
    if not path or threshold == 0:
        return None
    try:
        return parse_vocabulary(_read_text(path), threshold)
    except ValueError as error:
        raise CheckpointError(
            f"{path}: not a vocabulary: {error}; give the file that get-vocab has written"
        ) from None


def read_phrase_table(path: str) -> dict[str, str]:
    """`source|||target` lines of a phrase table; CheckpointError for another file."""
    phrases = {}
    for number, line in enumerate(_read_text(path).rstrip("\n").split("\n"), 1):
        source, mark, target = line.partition("|||")
        if not (mark and source.strip()) or "|||" in target:
            problem = f"{path}, line {number}: not a `source|||target` line"
            raise CheckpointError(f"{problem}; correct or remove the line")
        phrases[source.strip()] = target.strip()
    return phrases


def has_subword_model(folders: Sequence[Path]) -> bool:
    """Whether a file in these folders says how lines are cut into pieces."""
    return any(
        (folder / name).is_file()
        for folder in folders
        for name in (*SIDE_MODELS, *SHARED_MODELS, TOKENIZER_JSON)
    )


def find_subword_model(
    folder: Path, fast: Callable[[], dict[str, Any]] | None, unk_token: str = "<unk>"
) -> tuple[str, spm.SentencePieceProcessor] | None:
    """Read the file of a directory that says how lines are cut into pieces.

    Args:
        folder: the directory.
        fast: returns the content of its tokenizer.json, which counts if there is no sentencepiece
            model; None if it is not to count.
        unk_token: the token of unknown characters, which a tokenizer.json can have wrong.

    Returns:
        The file's name and the sentencepiece model; None if the directory has no such file.

    Raises:
        CheckpointError: for a damaged file, or a tokenizer that sentencepiece cannot be.
    """
    for name in SHARED_MODELS:
        if (folder / name).is_file():
            return name, read_sentencepiece(str(folder / name))
    file = folder / TOKENIZER_JSON
    if fast is None or not file.is_file():
        return None
    return TOKENIZER_JSON, parse_sentencepiece(
        sentencepiece_proto.convert_tokenizer_json(fast(), unk_token, file), file
    )


def find_tokenizer(
    folders: Sequence[Path],
    tokens: Sequence[str],
    usual: Sequence[str],
    silent: Sequence[str] = (),
) -> tuple[dict[str, Tokenizer], tuple[str, ...]]:
    """The tokenizer of the sentencepiece models in the first of the folders that has some, or of a
    tokenizer.json that says the same; if there are none and the tokens are pieces, which of the
    `usual` files are missing.

    silent: tokens that are no text in an output.
    """
    of_pieces = any(token.startswith(sentencepiece_proto.SPACER) for token in tokens)
    for folder in folders:
        if all((folder / name).is_file() for name in SIDE_MODELS):
            src, tgt = (read_sentencepiece(str(folder / name)) for name in SIDE_MODELS)
            return {"sentencepiece": MarianTokenizer(src, tgt)}, ()
        fast = partial(read_json, folder / TOKENIZER_JSON)
        if found := find_subword_model(folder, fast if of_pieces else None):
            return {"sentencepiece": PieceTokenizer(found[1], silent=silent)}, ()
    return {}, tuple(str(folders[0] / name) for name in usual) if of_pieces else ()


def make_onmt_tokenizer(side: str, kind: str, file: SubwordFile, kwargs: dict[str, Any]) -> Cut:
    """The tokenizer of the optional package pyonmttok, as OpenNMT-py sets it up.

    `kind` says what the file is, `side` whose options to name in an OptionError.
    """
    option = f"{side}_onmttok_kwargs"
    try:
        import pyonmttok
    except ImportError:
        raise OptionError(
            f"{option}: to cut like this needs the package pyonmttok (pip install pyonmttok); or "
            "tokenise the file before, and give tokenizer space and detokenizer joiner or spacer"
        ) from None
    subwords: dict[str, Any] = {}
    if kind != "none":
        read_bytes(file.path)  # for our own message
        subwords |= {{"bpe": "bpe_model_path", "sentencepiece": "sp_model_path"}[kind]: file.path}
    if file.vocabulary and file.threshold:
        read_bytes(file.vocabulary)
        subwords |= dict(vocabulary_path=file.vocabulary, vocabulary_threshold=file.threshold)
    try:
        return pyonmttok.Tokenizer(**{**kwargs, **subwords})
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0][:200]
        raise OptionError(f"{option}: pyonmttok does not take it: {reason}; correct it") from None


def _read_text(path: str) -> str:
    data = read_bytes(path)
    if file_type := detect_file_type(data[:LOOKED_AT]):
        remedy = file_type.remedy_for(shlex.quote(path))
        raise CheckpointError(f"{path} is {file_type.name}; {remedy}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = f"{path}: not UTF-8 text: byte {error.start}"
        raise CheckpointError(f"{problem}; convert it with iconv -t utf-8") from None


def read_bytes(path: str) -> bytes:
    """The whole file, if it is a file of bearable size."""
    try:
        if Path(path).exists() and not Path(path).is_file():
            raise CheckpointError(f"cannot read {path}: it is not a file; give the path of a file")
        return read_whole(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path[:200]}: {explain_os_error(error)}") from None
