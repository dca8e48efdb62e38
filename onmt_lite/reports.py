"""Translations to text: the formats of the output, the lines of the log."""

import json
import logging
import re
from collections.abc import Callable

from onmt_lite.options import DataOptions
from onmt_lite.records import Translation
from onmt_lite.text.tokenizers import LINE_BREAKS

LOG = logging.getLogger("onmt_lite")

# Not escaped by json, yet line ends to many readers
JSON_BREAKS = re.compile("[\x85\u2028\u2029]")

Writer = Callable[[Translation], str]


def build_writer(options: DataOptions, n_best: int) -> Writer:
    """The function that makes a translation's share of the output: whole lines."""
    if options.output_format == "jsonl":
        return to_jsonl
    if options.output_format == "moses":
        return lambda translation: to_moses(translation, n_best)
    return lambda translation: to_text(translation, n_best, options.with_score)


def to_jsonl(translation: Translation) -> str:
    line = json.dumps(translation.to_dict(), ensure_ascii=False, allow_nan=False)
    return JSON_BREAKS.sub(lambda match: f"\\u{ord(match.group()):04x}", line) + "\n"


def to_text(translation: Translation, n_best: int, with_score: bool) -> str:
    """n_best lines, the best first; empty ones where there are fewer hypotheses."""
    lines = []
    for hyp in translation.hyps:
        text = LINE_BREAKS.sub(" ", hyp.text)
        scored = with_score and hyp.token_log_probs  # a blank line was never scored
        lines.append(f"{text}\t{hyp.score:.4f}" if scored else text)
    return _padded(lines, n_best, "")


def to_moses(translation: Translation, n_best: int) -> str:
    lines = []
    for hyp in translation.hyps:
        text = LINE_BREAKS.sub(" ", hyp.text)
        lines.append(
            f"{translation.id} ||| {text} ||| log_prob= {hyp.log_prob:.4f} ||| {hyp.score:.4f}"
        )
    return _padded(lines, n_best, f"{translation.id} |||  ||| log_prob= 0.0000 ||| 0.0000")


def _padded(lines: list[str], n_best: int, filler: str) -> str:
    return "".join(f"{line}\n" for line in lines + [filler] * (n_best - len(lines)))


class Noted:
    """The lines that have a note: how many, and which are the first."""

    SHOWN = 5

    def __init__(self) -> None:
        self.n_lines = self.n_unknown = 0
        self.first: list[int] = []

    def add(self, line: int, n_unknown: int) -> None:
        """`line` counts from 1."""
        self.n_lines += 1
        self.n_unknown += n_unknown
        if len(self.first) < self.SHOWN:
            self.first.append(line)

    def shown(self) -> str:
        more = ["..."] * (self.n_lines > self.SHOWN)
        return ", ".join([*map(str, self.first), *more])


class Summary:
    """What is counted over a job, and logged at its end in OpenNMT's words."""

    def __init__(self) -> None:
        self.n_lines = self.n_scored = self.n_words = self.n_gold = 0
        self.score = self.log_prob = self.gold = 0.0
        self.notes: dict[str, Noted] = {}

    def add(self, translation: Translation) -> None:
        self.n_lines += 1
        for note in translation.notes:
            noted = self.notes.setdefault(note, Noted())
            noted.add(translation.id + 1, translation.n_unknown)
        for hyp in (h for h in translation.hyps[:1] if h.token_log_probs):
            self.n_scored += 1
            self.n_words += len(hyp.tokens)
            self.score += hyp.score
            self.log_prob += hyp.log_prob
        if translation.gold_log_prob is not None:
            self.n_gold += 1
            self.gold += translation.gold_log_prob

    def log(self, scores: bool) -> None:
        """What was done to lines; `scores`: the averages too."""
        for note, noted in sorted(self.notes.items()):
            s = "" if noted.n_unknown == 1 else "s"
            tokens = f", {noted.n_unknown} token{s}" if note == "unknown-tokens" else ""
            LOG.info(
                "%s: %d of %d lines%s (%s)",
                *(note, noted.n_lines, self.n_lines, tokens, noted.shown()),
            )
        if scores and self.n_scored:
            LOG.info(
                "PRED AVG SCORE: %.4f per sentence, LOG PROB: %.4f per token, %d sentences",
                self.score / self.n_scored,
                self.log_prob / max(1, self.n_words),
                self.n_scored,
            )
        if self.n_gold:
            LOG.info(
                "GOLD AVG SCORE: %.4f per sentence, %d sentences",
                self.gold / self.n_gold,
                self.n_gold,
            )


def log_sentence(translation: Translation, gold: str | None, verbose: bool) -> None:
    """What OpenNMT says of a sentence with -verbose; its reference in any case."""
    i = translation.id + 1
    if verbose:
        LOG.info("")
        LOG.info("SENT %d: %s", i, translation.src.split())
        for hyp in translation.hyps[:1]:
            LOG.info("PRED %d: %s", i, hyp.text)
            LOG.info("PRED SCORE: %.4f", hyp.score)
    if gold is not None:
        LOG.info("GOLD %d: %s", i, gold)
        if translation.gold_log_prob is not None:
            LOG.info("GOLD SCORE: %.4f", translation.gold_log_prob)
    if verbose and len(translation.hyps) > 1:
        LOG.info("BEST HYP:")
        for hyp in translation.hyps:
            LOG.info("[%.4f] %s", hyp.score, hyp.tokens)
