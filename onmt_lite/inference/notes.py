"""What a record's `notes` say of a line: how the line was read, and what is wrong with its output.

Of the input:
  empty             blank; no output
  invalid-utf8      bytes that are no text became U+FFFD
  truncated         longer than the model or the reader takes; the rest is not translated
  capitals          written in capitals; read in small letters
  unknown-tokens    the model does not know some of its tokens; `n_unknown` says how many
  unknown-script    hardly a letter that the model knows; passed through as it is
  invalid-json      of JSONL, no object with a text in its field; no output
Of a reference or prefix:
  tgt-invalid-json  of JSONL, no object with a text in its field; not used
  tgt-invalid-utf8  bytes that are no text became U+FFFD
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
  search-empty      ends where the model allowed no further token
  repeats           says the same word or words three times running or more, and more often than the
                    source does
"""

import math
import re
from dataclasses import replace

from onmt_lite.inference.records import Example, Found, Translation
from onmt_lite.inference.search_setup import SearchRules

WORD = re.compile(r"\w+")
A_LETTER = re.compile(r"[^\W\d_]")
LOOP = 3  # times running from which words are a loop


def notes_of(example: Example, found: Found, rules: SearchRules, unsure: bool) -> tuple[str, ...]:
    """The notes of one line, those that were made on the way here first."""
    if not example.src_ids:
        return example.notes
    best = found.hyps[0]
    flags = {
        "unknown-tokens": example.n_unknown > 0,
        "prefix-over-limit": rules.outgrown(example),
        "min-length-over-limit": rules.cannot_end(example),
        "unfinished": not best.ended and not found.note,
        "unsure": unsure,
        "repeats": loops(best.text, example.line.text),
    }
    named = [name for name, holds in flags.items() if holds]
    return (*example.notes, *named, *([found.note] if found.note else []))


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
        run = 0  # words in a row that are what stands `size` words before them
        for i in range(size, len(words)):
            run = run + 1 if words[i] == words[i - size] else 0
            if run // size + 1 > best and any(map(A_LETTER.match, words[i - size : i])):
                best = run // size + 1
    return best


def is_number(score: float) -> bool:
    """Whether a sum of log-probabilities is one: -inf is, NaN and infinity are not."""
    return score < math.inf


def unsearched(example: Example) -> Translation:
    """Of a line for which no translation is looked for."""
    unknown = ("unknown-tokens",) if example.src_ids and example.n_unknown else ()
    return Translation(
        example.line.id,
        example.line.text,
        notes=(*example.notes, *unknown),
        n_src_tokens=example.n_src_tokens,
        n_unknown=example.n_unknown,
        fields=example.line.fields,
    )


def total(gold: list[float] | None) -> float | None:
    """The log-probability of a reference; None where there is none, or it is no number."""
    return None if gold is None or not is_number(sum(gold)) else sum(gold)


def with_gold(translation: Translation, gold: list[float] | None) -> Translation:
    """With the log-probabilities of the tokens of its reference, whose sum may be NaN."""
    if gold is None or is_number(sum(gold)):
        return replace(
            translation,
            gold_log_prob=total(gold),
            has_gold=True,
            n_gold_tokens=len(gold or ()),
            gold_token_log_probs=gold,
        )
    return replace(translation, has_gold=True, notes=(*translation.notes, "tgt-not-a-number"))
