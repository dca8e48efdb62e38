"""Notes: how a line was read, and what is wrong with its output; and notes on options.

Of the input:
  empty             blank; no output
  invalid-utf8      bytes that are not UTF-8 became U+FFFD
  truncated         longer than the model or the reader takes; the rest is not translated
  capitals          written in capitals; read in small letters
  unknown-tokens    the model does not know some of its tokens; `n_unknown` says how many
  unknown-script    hardly a letter that the model knows; passed through as it is
  invalid-json      of JSONL, no object with a text in its field; no output
Of a reference or prefix:
  tgt-invalid-json  of JSONL, no object with a text in its field; not used
  tgt-invalid-utf8  bytes that are not UTF-8 became U+FFFD
  tgt-too-long      longer than the model or the reader takes; not scored
  prefix-truncated  longer than the model or the reader takes; cut
  prefix-over-limit leaves no room for more
  prefix-unknown    the model does not know some of its tokens; the translation has other text there
  prefix-banned     holds a phrase of -ban_words; not used
  tgt-not-a-number  its score is NaN or infinite, also alone in fp32
Of the options:
  min-length-over-limit  the line's own limit of length is below min_length
Of the output, its best hypothesis:
  unfinished        cut by a limit of length before the end token
  unsure            more probably wrong than right, as the model's calibration says (-report_unsure)
  not-a-number      blank: the model's numbers are NaN or infinite, also alone in fp32
  search-empty      the model allowed no further token
  repeats           says the same word or words three times running or more, and more often than the
                    source does
"""

import math
import re

import torch

from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.config.options import TranslateOptions
from onmt_lite.inference.records import Example, Found
from onmt_lite.inference.runtime import precision_of
from onmt_lite.inference.search_setup import SearchConfig, cannot_end, is_outgrown

WORD = re.compile(r"\w+")
A_LETTER = re.compile(r"[^\W\d_]")
LOOP = 3  # times running from which words are a loop


def notes_of(
    example: Example, found: Found, config: SearchConfig, unsure: bool = False
) -> tuple[str, ...]:
    """The notes of one line, beginning with the notes of preprocessing."""
    flags, gold = dict[str, bool](), found.gold
    if example.src_ids:
        flags["unknown-tokens"] = example.n_unknown > 0
    if example.src_ids and found.hyps:
        best = found.hyps[0]
        flags |= {
            "prefix-over-limit": is_outgrown(config, example),
            "min-length-over-limit": cannot_end(config, example),
            "unfinished": not best.ended and not found.note,
            "unsure": unsure,
            "repeats": loops(best.text, example.line.text),
            found.note: bool(found.note),
        }
    flags["tgt-not-a-number"] = gold is not None and not is_number(sum(gold))
    return (*example.notes, *(name for name, holds in flags.items() if holds))


def loops(text: str, source: str) -> bool:
    """Whether words of `text` come three times running or more, and more often than in `source`."""
    n_times = times_running(text)
    return n_times >= LOOP and n_times > times_running(source)


def times_running(text: str) -> int:
    """How often the same group of words comes in a row at most, upper and lower case being equal.

    A group has a letter: "1 1 1" and "..." say nothing twice.
    """
    words = WORD.findall(text.casefold())
    best = 1
    for size in range(1, len(words) // LOOP + 1):
        run = 0  # words in a row that equal the word `size` places before
        for i in range(size, len(words)):
            run = run + 1 if words[i] == words[i - size] else 0
            if run // size + 1 > best and any(map(A_LETTER.match, words[i - size : i])):
                best = run // size + 1
    return best


def is_number(score: float) -> bool:
    """Whether a sum of log-probabilities is one: -inf is, NaN and infinity are not."""
    return score < math.inf


def total(gold: list[float] | None) -> float | None:
    """The log-probability of a reference; None if there is none, or it is not a number."""
    return None if gold is None or not is_number(sum(gold)) else sum(gold)


def model_notes(
    options: TranslateOptions, checkpoint: Checkpoint, device: torch.device
) -> list[str]:
    """Notes on options that change nothing with this model, on this device."""
    model, vocab, notes = checkpoint.model, checkpoint.tgt_vocab, list(checkpoint.notes)
    unknown = [token for token in options.search.ignore_when_blocking if token not in vocab.ids]
    if unknown:
        notes.append(
            f"ignore_when_blocking: the model's vocabulary has no {' '.join(map(repr, unknown))}; "
            "passed over"
        )
    given = [name for name, value in options.given.items() if value]
    if checkpoint.languages is None and "normalize" not in options.text.transforms:
        notes += [
            f"{name}: without effect; the model has no languages to choose from"
            for name in ("src_lang", "tgt_lang")
            if name in given
        ]
    if vocab.unk_id is None:
        notes += [
            f"{name}: without effect; the model has no unknown token"
            for name in ("ban_unk_token", "replace_unk")
            if name in given
        ]
    if "max_length" in given and options.search.max_length > model.max_positions:
        notes.append(
            f"max_length {options.search.max_length}: the model stops at {model.max_positions} "
            "tokens"
        )
    if "threads" in given and device.type != "cpu":
        notes.append(f"threads: without effect; the model runs on {device}")
    if options.speed.precision != "auto" and not isinstance(model, torch.nn.Module):
        notes.append("precision: without effect; a table model has no weights")
    if options.speed.precision == "int8" and precision_of(model) != "int8":
        notes.append("precision int8: no exact kernel for this processor; the model runs in fp32")
    return notes
