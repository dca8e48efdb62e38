"""Translations to text: the formats of the output, the lines of the log."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from onmt_lite.config.options import TranslateOptions
from onmt_lite.config.text_options import DataOptions
from onmt_lite.errors import Untranslated
from onmt_lite.inference.records import EMPTY_HYPOTHESIS, Hypothesis, Translation
from onmt_lite.system.log import LOG
from onmt_lite.text.lines import INVALID_JSON, LINE_BREAKS, NO_TEXT_FIELD

DETAIL = {"detail": True}  # extra of a line for the log file, and for stderr with -verbose alone

JSON_BREAKS = re.compile("[\x85\u2028\u2029]")  # line ends to many readers, not escaped by json
MAX_LINE_NUMBERS = 5  # numbers of lines with a note
QUOTED_WARNINGS = ("unsure", "numbers")  # notes whose first lines the summary quotes
MAX_QUOTES, MAX_QUOTE_CHARS = 3, 60  # lines, and characters of a source or translation
# Warnings of lines that have an empty translation for this reason
UNTRANSLATED_WARNINGS = ("not-a-number", INVALID_JSON, NO_TEXT_FIELD)
SACREBLEU_MISSING = (
    "report_bleu: sacrebleu 2 or newer is not installed, or one that is too new, and nothing is "
    "scored; run: pip install sacrebleu==2.6.0"
)
# Of each metric: corpus_score takes all texts at once, and of chrF nothing public can be summed
SACREBLEU_METHODS = ("_extract_corpus_statistics", "_compute_score_from_stats")

Writer = Callable[[Translation], str]
Format = Callable[[Translation, DataOptions, int], str]  # n_best last; whole lines
MetricCounts = list[list[int]]  # of each metric of -report_bleu


# The sentence of each note, read before a job begins: an upgrade meanwhile must not end it
WARNING_TEXTS: dict[str, str] = yaml.safe_load(
    Path(__file__).with_name("warnings.yaml").read_bytes()
)


def build_writer(options: DataOptions, n_best: int) -> Writer:
    """The function that makes a translation's share of the output: whole lines."""
    formats = REFERENCE_FORMATS if options.score_only else FORMATS
    to_text = formats[options.format]
    return lambda translation: to_text(translation, options, n_best)


def per_hypothesis(row: Callable[[int, int, Hypothesis, DataOptions], str]) -> Format:
    """A format of n_best lines, the best first; empty ones if there are fewer hypotheses."""

    def rows(translation: Translation, options: DataOptions, n_best: int) -> str:
        aligned = None if translation.src_tokens is None else list[tuple[int, int]]()
        nothing = replace(EMPTY_HYPOTHESIS, word_align=aligned)
        hyps = translation.hyps + [nothing] * (n_best - len(translation.hyps))
        lines = (row(translation.id, rank, hyp, options) for rank, hyp in enumerate(hyps))
        return "".join(f"{line}\n" for line in lines)

    return rows


def format_jsonl(translation: Translation, *_: object) -> str:
    line = json.dumps(translation.to_dict(), ensure_ascii=False, allow_nan=False)
    if translation.fields is not None:
        line = f'{line[:-1]}, "fields": {translation.fields}}}'
    return JSON_BREAKS.sub(lambda match: f"\\u{ord(match.group()):04x}", line) + "\n"


def format_reference_scores(translation: Translation, options: DataOptions, n_best: int) -> str:
    """Return log_prob, tokens and perplexity of the reference; a blank line if it has no score."""
    log_prob, tokens = translation.gold_log_prob, translation.gold_token_log_probs
    if log_prob is None or tokens is None:
        return "\n"
    columns = [
        format_score(log_prob),
        str(len(tokens)),
        format_score(compute_perplexity(log_prob / len(tokens))),
    ]
    columns += [format_log_probs(tokens)] * options.token_scores
    return "\t".join(columns) + "\n"


def format_report(translation: Translation) -> str:
    """The line of -report; none for a translation without notes."""
    notes = list(translation.notes)
    return json.dumps({"id": translation.id, "notes": notes}) + "\n" if notes else ""


def format_text_row(number: int, rank: int, hyp: Hypothesis, options: DataOptions) -> str:
    columns = [" ||| ".join([replace_line_breaks(hyp.text), *format_alignment(hyp)])]
    if hyp.token_log_probs:  # a blank line was never scored
        columns += [format_score(hyp.score)] * options.with_score
        columns += [format_log_probs(hyp.token_log_probs)] * options.token_scores
    return "\t".join(columns)


def format_moses_row(number: int, rank: int, hyp: Hypothesis, options: DataOptions) -> str:
    features = ["log_prob=", format_score(hyp.log_prob)]
    if options.token_scores:
        features = ["WordScores=", *map(format_score, hyp.token_log_probs), *features]
    fields = [
        str(number),
        replace_line_breaks(hyp.text),
        " ".join(features),
        format_score(hyp.score),
    ]
    return " ||| ".join([*fields, *format_alignment(hyp)])


def format_tsv_row(number: int, rank: int, hyp: Hypothesis, options: DataOptions) -> str:
    text = replace_line_breaks(hyp.text).replace("\t", " ")
    columns = [str(number), str(rank), format_score(hyp.score), format_score(hyp.log_prob), text]
    columns += format_alignment(hyp)
    columns += [format_log_probs(hyp.token_log_probs)] * options.token_scores
    return "\t".join(columns)


FORMATS: dict[str, Format] = {
    "text": per_hypothesis(format_text_row),
    "moses": per_hypothesis(format_moses_row),
    "tsv": per_hypothesis(format_tsv_row),
    "jsonl": format_jsonl,
}
REFERENCE_FORMATS: dict[str, Format] = {
    "text": format_reference_scores,
    "jsonl": format_jsonl,
}  # with -score_only


def replace_line_breaks(text: str) -> str:
    return LINE_BREAKS.sub(" ", text)


def format_alignment(hyp: Hypothesis) -> list[str]:
    """What -report_align adds: the pairs of words."""
    if hyp.word_align is None:
        return []
    return [" ".join(f"{source}-{target}" for source, target in hyp.word_align)]


def format_log_probs(log_probs: list[float]) -> str:
    """The log-probabilities of all tokens and the end token, with spaces between them."""
    return " ".join(map(format_score, log_probs))


def format_score(score: float) -> str:
    return f"{score:.4f}"


@dataclass
class FlaggedLines:
    """Lines with a note: how many, their unknown tokens, the first of them, counted from 1, and
    what is quoted of these."""

    n_lines: int = 0
    n_unknown: int = 0
    first: list[int] = field(default_factory=list)
    quotes: list[str] = field(default_factory=list)

    def join(self, later: "FlaggedLines") -> None:
        self.n_lines += later.n_lines
        self.n_unknown += later.n_unknown
        quotes = dict(zip(self.first, self.quotes)) | dict(zip(later.first, later.quotes))
        self.first = sorted([*self.first, *later.first])[:MAX_LINE_NUMBERS]
        self.quotes = [quotes.get(number, "") for number in self.first]

    def shown(self) -> str:
        """3; 3 and 8; 3, 8, 12, 20, 31 and 40 more"""
        n_more = self.n_lines - len(self.first)
        *numbers, last = [*map(str, self.first), *[f"{n_more:,} more"] * (n_more > 0)]
        return f"{', '.join(numbers)} and {last}" if numbers else last

    def sentence(self, note: str) -> str:
        """line 3: the numbers differ from the input [numbers]"""
        s = "" if self.n_lines == 1 else "s"
        tokens = "token" if self.n_unknown == 1 else "tokens"
        count = f" ({self.n_unknown:,} {tokens})" if note == "unknown-tokens" else ""
        return f"line{s} {self.shown()}: {WARNING_TEXTS.get(note, note)}{count} [{note}]"


@dataclass
class Summary:
    """Counts over lines, logged at the end of a job in OpenNMT's words."""

    n_lines: int = 0
    n_scored: int = 0  # lines that have a translation with a score
    n_words: int = 0  # tokens of the best hypotheses
    n_gold: int = 0  # lines that have a scored reference
    n_replaced: int = 0  # unknown tokens that -replace_unk has replaced
    n_forced: int = 0  # phrases of -force_words
    n_unmet: int = 0  # phrases that are not met
    n_gold_words: int = 0  # tokens of the references, the end tokens counted
    score: float = 0.0  # sum of the best hypotheses' scores
    gold: float = 0.0  # sum of the references' log-probabilities
    overlaps: MetricCounts = field(default_factory=list)  # what -report_bleu counts
    notes: dict[str, FlaggedLines] = field(default_factory=dict)

    @classmethod
    def of(cls, translations: Iterable[Translation], text_field: str = "text") -> "Summary":
        summary = cls()
        for line in translations:
            summary.n_lines += 1
            for note in dict.fromkeys(line.notes):
                excerpt = (
                    f"{quote(line.src)} -> {quote(line.text)}" if note in QUOTED_WARNINGS else ""
                )
                if note == NO_TEXT_FIELD:
                    excerpt = describe_missing_field(text_field, line.fields)
                noted = FlaggedLines(1, line.n_unknown, [line.id + 1], [excerpt])
                summary.notes.setdefault(note, FlaggedLines()).join(noted)
            summary.n_forced += line.n_forced
            summary.n_unmet += len(line.unmet)
            summary.n_replaced += sum(hyp.n_replaced for hyp in line.hyps)
            if line.hyps and line.hyps[0].token_log_probs:
                summary.n_scored += 1
                summary.n_words += len(line.hyps[0].tokens)
                summary.score += line.hyps[0].score
            if line.gold_log_prob is not None:
                summary.n_gold += 1
                summary.n_gold_words += line.n_gold_tokens
                summary.gold += line.gold_log_prob
        return summary

    def join(self, later: "Summary") -> None:
        """Count the lines of a later part of the input too."""
        for name, value in vars(later).items():
            if name not in ("overlaps", "notes"):
                setattr(self, name, getattr(self, name) + value)
        if self.overlaps and later.overlaps:
            pairs = zip(self.overlaps, later.overlaps)
            self.overlaps = [[a + b for a, b in zip(*pair)] for pair in pairs]
        self.overlaps = self.overlaps or later.overlaps
        for note, noted in later.notes.items():
            self.notes.setdefault(note, FlaggedLines()).join(noted)

    @property
    def untranslated(self) -> FlaggedLines:
        """The lines that could not be translated."""
        found = FlaggedLines()
        for note in UNTRANSLATED_WARNINGS:
            found.join(self.notes.get(note, FlaggedLines()))
        return found

    def check(self) -> None:
        """Raise Untranslated if lines could not be translated."""
        found = self.untranslated
        if found.n_lines:
            s, are = ("", "it is") if found.n_lines == 1 else ("s", "they are")
            problem = f"{found.n_lines} line{s} could not be translated ({found.shown()}); {are} "
            problem += "blank in the output, which is complete"
            if lacks := self.notes.get(NO_TEXT_FIELD):
                problem += f"; line {lacks.first[0]} {lacks.quotes[0]}"
            raise Untranslated(problem)

    def log(self, scores: bool) -> None:
        """Log notes and averages; `scores`: averages of the hypotheses on stderr too."""
        for note, noted in sorted(self.notes.items()):
            LOG.info("%s", noted.sentence(note))
            for number, quote in [*zip(noted.first, noted.quotes)][:MAX_QUOTES]:
                if quote:
                    LOG.info("    %d: %s", number, quote)
        for line in format_averages("PRED", self.score, self.n_words, self.n_scored):
            LOG.info("%s", line, extra={"on_stderr": scores})
        of_gold = format_averages("GOLD", self.gold, self.n_gold_words, self.n_gold)
        for line in (*of_gold, *(format_bleu_scores(self.overlaps) if self.overlaps else ())):
            LOG.info("%s", line)


def quote(text: str) -> str:
    """The beginning of a text, with nothing in it that steers a terminal."""
    shown = "".join(char if char.isprintable() else " " for char in text)
    return shown if len(shown) <= MAX_QUOTE_CHARS else f"{shown[: MAX_QUOTE_CHARS - 3]}..."


def describe_missing_field(text_field: str, fields: str | None) -> str:
    """Describe a JSON object that lacks the text field; `fields` is the object as JSON."""
    names = quote(", ".join(json.loads(fields or "{}"))) or "none"
    return f"has no field {text_field!r} (fields: {names}); name another one with -text_field"


def read_summary(record: Mapping[str, Any]) -> Summary:
    """The summary of which `asdict` has made a record."""
    notes = {note: FlaggedLines(**noted) for note, noted in record["notes"].items()}
    return Summary(**{**record, "notes": notes})


def format_averages(name: str, score: float, n_words: int, n_sentences: int) -> list[str]:
    """A sum of scores per token, in the words of OpenNMT-py 0.9, and per sentence, in those of 3.5.
    The first is left out if there are no tokens, both if there are no sentences."""
    lines = []
    if n_words:
        mean = score / n_words
        lines.append(f"{name} AVG SCORE: {mean:.4f}, {name} PPL: {compute_perplexity(mean):.4f}")
    if n_sentences:
        mean = score / n_sentences
        shown = f"{name} SCORE: {mean:.4f}, {name} PPL: {compute_perplexity(mean):.2f}"
        lines.append(f"{shown} NB SENTENCES: {n_sentences}")
    return lines


def compute_perplexity(log_prob: float) -> float:
    """Infinite near the end of what a float can hold."""
    return math.exp(-log_prob) if log_prob > -700 else math.inf


def format_sentence_log(translation: Translation, gold: str | None, verbose: bool) -> list[str]:
    """What OpenNMT says of a sentence with -verbose; its reference in any case."""
    i, lines = translation.id + 1, []
    if verbose:
        lines += ["", f"SENT {i}: {translation.src.split()}"]
        for hyp in translation.hyps[:1]:
            lines += [f"PRED {i}: {hyp.text}", f"PRED SCORE: {hyp.score:.4f}"]
    if gold is not None:
        lines.append(f"GOLD {i}: {LINE_BREAKS.sub(' ', gold)}")
        if translation.gold_log_prob is not None:
            lines.append(f"GOLD SCORE: {translation.gold_log_prob:.4f}")
    if verbose and len(translation.hyps) > 1:
        lines.append("BEST HYP:")
        lines += [f"[{hyp.score:.4f}] {hyp.tokens}" for hyp in translation.hyps]
    lines += translation.attn_table
    return lines


# -- BLEU and chrF of -report_bleu, by sacrebleu, which is optional -------------------------------


def needs_bleu(options: TranslateOptions) -> bool:
    """Return whether there are translations, and references to compare them with."""
    data = options.data
    has_both = data.tgt is not None and not data.tgt_file_prefix and not data.score_only
    return options.information.report_bleu and has_both


def has_sacrebleu() -> bool:
    """Return whether sacrebleu is there, in a version whose statistics can be summed over parts."""
    try:
        is_new = int(metadata.version("sacrebleu").split(".")[0]) >= 2
        return is_new and all(
            hasattr(m, name) for m in build_metrics() for name in SACREBLEU_METHODS
        )
    except (ImportError, ValueError):
        return False


def count_matches(texts: Sequence[str], references: Sequence[str]) -> MetricCounts:
    """Sums over lines, of which both scores are made.  A part keeps them for a run that goes on."""
    pair = [*map(replace_line_breaks, texts)], [[*map(replace_line_breaks, references)]]
    rows = [metric._extract_corpus_statistics(*pair) for metric in build_metrics()]
    return [[sum(column) for column in zip(*row)] for row in rows]


def format_bleu_scores(overlaps: MetricCounts) -> list[str]:
    """A line for each metric: its signature and score."""
    lines = []
    for metric, own in zip(build_metrics(), overlaps):
        metric.corpus_score(["a"], [["a"]])  # the signature counts the references of a line
        score = metric._compute_score_from_stats(own)
        lines.append(score.format(width=2, signature=str(metric.get_signature())))
    return lines


def build_metrics() -> list[Any]:
    """With sacrebleu's defaults, and without its warning of texts that are tokenized."""
    from sacrebleu.metrics import BLEU, CHRF  # late: it is optional

    return [BLEU(force=True), CHRF()]
