"""Reads and writes files of vocabulary shortlists.

Two formats are read, and told apart by the tabs of the first line:

    das Haus<TAB>the house home     CTranslate2's vocabulary map: source tokens, one to an n-gram of
                                    several, and target tokens; nothing before the tab: of all lines
    house Haus 0.71                 Marian's lexical shortlist: target, source, probability; of each
                                    source token the BEST most probable count, and of all lines the
                                    FIRST tokens of the target vocabulary, Marian's defaults

Tokens that a vocabulary lacks are passed over.  The unknown, start and end token are candidates of
all lines, as in CTranslate2.
"""

import gzip
import io
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from onmt_lite.checkpoints.native import replace_files
from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.checkpoints.subwords import MAX_BYTES, read_bytes
from onmt_lite.errors import CheckpointError, OptionError
from onmt_lite.models.narrow import can_narrow
from onmt_lite.text.shortlist import NGram, Shortlist
from onmt_lite.text.vocab import Vocab

FIRST, BEST = 100, 100
MARIAN_BINARY = (0xF11A48D5013417F5).to_bytes(8, "little")
Lines = list[tuple[int, str]]  # with their numbers, from 1


def with_shortlist(checkpoint: Checkpoint, path: str) -> Checkpoint:
    """The checkpoint with the shortlist in this file, unless it has one or the path is "".

    OptionError where the model's output layer is not a plain one, CheckpointError for a file that
    is no shortlist of the model.
    """
    if not path or checkpoint.shortlist is not None:
        return checkpoint
    if not can_narrow(checkpoint.model):
        raise OptionError(
            "shortlist: not for models that copy words, nor for tables; leave the option out"
        )
    shortlist = read_shortlist(path, checkpoint.src_vocab, checkpoint.tgt_vocab)
    return replace(checkpoint, shortlist=shortlist)


def read_shortlist(path: str, src: Vocab, tgt: Vocab) -> Shortlist:
    """A shortlist for a model with these vocabularies; CheckpointError for another file."""
    lines = [(n, line) for n, line in enumerate(_text(path).split("\n"), 1) if line.strip(" \r")]
    if not lines:
        raise CheckpointError(f"{path}: a shortlist without a line; give another file")
    parse = _vocabulary_map if lines[0][1].count("\t") == 1 else _lexicon
    targets = parse(path, lines, src, tgt)
    if not any(targets):
        raise CheckpointError(
            f"{path}: the model's source vocabulary has none of its tokens; give the shortlist of "
            "this model"
        )
    always = [i for i in (tgt.unk_id, tgt.bos_id, tgt.eos_id) if i is not None]
    return Shortlist({**targets, (): [*targets.get((), ()), *always]}, len(tgt))


def _vocabulary_map(path: str, lines: Lines, src: Vocab, tgt: Vocab) -> dict[NGram, list[int]]:
    targets: dict[NGram, list[int]] = {}
    for number, line in lines:
        ngram, tab, tokens = line.rstrip("\r").partition("\t")
        if not tab or "\t" in tokens:
            _refuse(path, number, "`source tokens<TAB>target tokens`")
        ids = [src.ids.get(token) for token in ngram.split(" ")] if ngram else []
        known = tuple(i for i in ids if i is not None)
        if len(known) == len(ids):  # of an n-gram that comes twice the last counts
            targets[known] = [tgt.ids[token] for token in tokens.split(" ") if token in tgt.ids]
    return targets


def _lexicon(path: str, lines: Lines, src: Vocab, tgt: Vocab) -> dict[NGram, list[int]]:
    found: dict[int, list[tuple[float, int]]] = {}
    for number, line in lines:
        words = line.split()
        probability = _number(words[2]) if len(words) == 3 else math.nan
        if not 0 <= probability <= 1:
            _refuse(
                path, number, "`source tokens<TAB>target tokens` or `target source probability`"
            )
        target, source, _ = words
        if probability > 0 and source in src.ids and target in tgt.ids:
            found.setdefault(src.ids[source], []).append((probability, tgt.ids[target]))
    shared = src.tokens == tgt.tokens  # then each source token is a candidate itself
    targets: dict[NGram, list[int]] = {}
    for i in range(len(src)) if found else ():
        best = sorted(found.get(i, []), reverse=True)[:BEST]
        targets[(i,)] = [*(j for _, j in best), *([i] if shared else [])]
    if found:
        targets[()] = [*range(min(FIRST, len(tgt)))]
    return targets


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return math.nan


def _refuse(path: str, number: int, form: str) -> NoReturn:
    raise CheckpointError(f"{path}, line {number}: not {form}; mend the line or make a new file")


def _text(path: str) -> str:
    """The text of a file, plain or gzip."""
    data = read_bytes(path)
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.GzipFile(fileobj=io.BytesIO(data)).read(MAX_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise CheckpointError(f"{path}: damaged gzip data ({error})") from None
        if len(data) > MAX_BYTES:
            raise CheckpointError(f"{path}: more than {MAX_BYTES >> 20} MiB of text")
    if data.startswith(MARIAN_BINARY):
        raise CheckpointError(
            f"{path}: a binary shortlist of Marian; give the text that it was made of"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8 text: byte {error.start}") from None


def write_vocabulary_map(path: str, targets: Mapping[tuple[str, ...], Sequence[str]]) -> None:
    """Write a vocabulary map, whole or not at all; tokens that the format cannot hold are left out.
    FileError where it cannot be written."""
    lines = []
    for ngram, tokens in targets.items():
        if all(map(_fits, ngram)):
            lines.append(f"{' '.join(ngram)}\t{' '.join(filter(_fits, tokens))}\n")
    whole = Path(path)
    replace_files(whole.parent, {whole.name: "".join(lines).encode("utf-8")})


def _fits(token: str) -> bool:
    return token != "" and not set(token) & set(" \t\n\r")
