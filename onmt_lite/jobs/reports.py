"""Output formats, statistics and warnings of a job, and lines of the log."""

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

DETAIL = {"detail": True}  # extra of a log line that stderr shows only with -verbose

# Many readers treat these characters as line ends, and json does not escape them
JSON_BREAKS = re.compile("[\x85\u2028\u2029]")
MAX_LINE_NUMBERS = 5  # line numbers that a warning lists
QUOTED_WARNINGS = ("unsure", "numbers")  # warnings whose first lines are quoted
MAX_QUOTES, MAX_QUOTE_CHARS = 3, 60  # lines; characters of a source or translation
# Warnings of lines that have an empty translation for this reason
UNTRANSLATED_WARNINGS = ("not-a-number", INVALID_JSON, NO_TEXT_FIELD)
SACREBLEU_MISSING = (
    "report_bleu: no supported sacrebleu is installed, so nothing is scored; run: "
    "pip install sacrebleu==2.6.0"
)
# Private: corpus_score needs all texts at once, and chrF has no public statistics to sum
SACREBLEU_METHODS = ("_extract_corpus_statistics", "_compute_score_from_stats")

Writer = Callable[[Translation], str]
Format = Callable[[Translation, DataOptions, int], str]  # the int is n_best; returns whole lines
MetricCounts = list[list[int]]  # sufficient statistics of each metric of -report_bleu


# Loaded before a job starts, so that an upgrade of the package cannot break it
WARNING_TEXTS: dict[str, str] = yaml.safe_load(
    Path(__file__).with_name("warnings.yaml").read_bytes()
)


def build_writer(options: DataOptions, n_best: int) -> Writer:
    """Return the function that formats a translation as whole lines of output."""
    formats = REFERENCE_FORMATS if options.score_only else FORMATS
    to_text = formats[options.format]
    return lambda translation: to_text(translation, options, n_best)


def list_per_hypothesis(row: Callable[[int, int, Hypothesis, DataOptions], str]) -> Format:
    """Build a format with n_best lines, best first; empty lines if hypotheses are missing."""

    def rows(translation: Translation, options: DataOptions, n_best: int) -> str:
        aligned = None if translation.src_tokens is None else list[tuple[int, int]]()
        nothing = replace(EMPTY_HYPOTHESIS, word_align=aligned)
        hyps = translation.hyps + [nothing] * (n_best - len(translation.hyps))
        lines = (row(translation.id, rank, hyp, options) for rank, hyp in enumerate(hyps))
        return "".join(f"{line}\n" for line in lines)

    return rows


def format_jsonl(translation: Translation, *_: object) -> str:
    """Format a translation as a JSON object on one line."""
    line = json.dumps(translation.to_dict(), ensure_ascii=False, allow_nan=False)
    if translation.fields is not None:
        line = f'{line[:-1]}, "fields": {translation.fields}}}'
    return JSON_BREAKS.sub(lambda match: f"\\u{ord(match.group()):04x}", line) + "\n"


def format_reference_scores(translation: Translation, options: DataOptions, n_best: int) -> str:
    """Format log-probability, tokens and perplexity of a reference; an empty line if unscored.

    Args:
        translation: the translation with its reference scores.
        options: data options.
        n_best: unused; required of a Format.
    """
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
    """Format the line of -report; empty for a translation without warnings."""
    notes = list(translation.notes)
    return json.dumps({"id": translation.id, "notes": notes}) + "\n" if notes else ""


def format_text_row(number: int, rank: int, hyp: Hypothesis, options: DataOptions) -> str:
    """Format a hypothesis as a line of -output_format text.

    Args:
        number: number of the input line, from 0.
        rank: rank of the hypothesis, from 0.
        hyp: the hypothesis.
        options: data options.
    """
    columns = [" ||| ".join([replace_line_breaks(hyp.text), *format_alignment(hyp)])]
    if hyp.token_log_probs:  # empty lines have no scores
        columns += [format_score(hyp.score)] * options.with_score
        columns += [format_log_probs(hyp.token_log_probs)] * options.token_scores
    return "\t".join(columns)


def format_moses_row(number: int, rank: int, hyp: Hypothesis, options: DataOptions) -> str:
    """Format a hypothesis as a line of -output_format moses.

    Args:
        number: number of the input line, from 0.
        rank: rank of the hypothesis, from 0.
        hyp: the hypothesis.
        options: data options.
    """
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
    """Format a hypothesis as a line of -output_format tsv.

    Args:
        number: number of the input line, from 0.
        rank: rank of the hypothesis, from 0.
        hyp: the hypothesis.
        options: data options.
    """
    text = replace_line_breaks(hyp.text).replace("\t", " ")
    columns = [str(number), str(rank), format_score(hyp.score), format_score(hyp.log_prob), text]
    columns += format_alignment(hyp)
    columns += [format_log_probs(hyp.token_log_probs)] * options.token_scores
    return "\t".join(columns)


FORMATS: dict[str, Format] = {
    "text": list_per_hypothesis(format_text_row),
    "moses": list_per_hypothesis(format_moses_row),
    "tsv": list_per_hypothesis(format_tsv_row),
    "jsonl": format_jsonl,
}
REFERENCE_FORMATS: dict[str, Format] = {
    "text": format_reference_scores,
    "jsonl": format_jsonl,
}  # with -score_only


def replace_line_breaks(text: str) -> str:
    """Replace line breaks by spaces."""
    return LINE_BREAKS.sub(" ", text)


def format_alignment(hyp: Hypothesis) -> list[str]:
    """Return the word pairs of -report_align as a list with one string, or an empty list."""
    if hyp.word_align is None:
        return []
    return [" ".join(f"{source}-{target}" for source, target in hyp.word_align)]


def format_log_probs(log_probs: list[float]) -> str:
    """Format the log-probabilities of all tokens and EOS, separated by spaces."""
    return " ".join(map(format_score, log_probs))


def format_score(score: float) -> str:
    """Format a score with four decimals."""
    return f"{score:.4f}"


@dataclass
class FlaggedLines:
    """Lines with the same warning.

    Attributes:
        n_lines: number of lines.
        n_unknown: unknown tokens in these lines.
        first: numbers of the first lines, counted from 1.
        quotes: quoted source and translation of each first line.
    """

    n_lines: int = 0
    n_unknown: int = 0
    first: list[int] = field(default_factory=list)
    quotes: list[str] = field(default_factory=list)

    def join(self, later: "FlaggedLines") -> None:
        """Add the lines of another part of the input."""
        self.n_lines += later.n_lines
        self.n_unknown += later.n_unknown
        quotes = dict(zip(self.first, self.quotes)) | dict(zip(later.first, later.quotes))
        self.first = sorted([*self.first, *later.first])[:MAX_LINE_NUMBERS]
        self.quotes = [quotes.get(number, "") for number in self.first]

    def shown(self) -> str:
        """Format the line numbers: "3", "3 and 8", "3, 8, 12, 20, 31 and 40 more"."""
        n_omitted = self.n_lines - len(self.first)
        *numbers, last = [*map(str, self.first), *[f"{n_omitted:,} more"] * (n_omitted > 0)]
        return f"{', '.join(numbers)} and {last}" if numbers else last

    def format_sentence(self, note: str) -> str:
        """Format the warning: "line 3: the numbers differ from the source [numbers]"."""
        s = "" if self.n_lines == 1 else "s"
        tokens = "token" if self.n_unknown == 1 else "tokens"
        count = f" ({self.n_unknown:,} {tokens})" if note == "unknown-tokens" else ""
        return f"line{s} {self.shown()}: {WARNING_TEXTS.get(note, note)}{count} [{note}]"


@dataclass
class Summary:
    """Counts over lines, logged at the end of a job with OpenNMT's wording."""

    n_lines: int = 0
    n_scored: int = 0  # lines with a scored translation
    n_words: int = 0  # tokens of the best hypotheses
    n_gold: int = 0  # lines with a scored reference
    n_replaced: int = 0  # unknown tokens replaced by -replace_unk
    n_forced: int = 0  # phrases of -force_words
    n_unmet: int = 0  # missing phrases
    n_gold_words: int = 0  # reference tokens, including EOS
    score: float = 0.0  # sum of the best hypotheses' scores
    gold: float = 0.0  # sum of the references' log-probabilities
    overlaps: MetricCounts = field(default_factory=list)  # statistics of -report_bleu
    notes: dict[str, FlaggedLines] = field(default_factory=dict)

    @classmethod
    def of(cls, translations: Iterable[Translation], text_field: str = "text") -> "Summary":
        """Count over translations; `text_field` is the JSON field, for messages."""
        summary = cls()
        for line in translations:
            summary.n_lines += 1
            for note in dict.fromkeys(line.notes):
                excerpt = (
                    f"{quote(line.src)} -> {quote(line.text)}" if note in QUOTED_WARNINGS else ""
                )
                if note == NO_TEXT_FIELD:
                    excerpt = describe_missing_field(text_field, line.fields)
                flagged = FlaggedLines(1, line.n_unknown, [line.id + 1], [excerpt])
                summary.notes.setdefault(note, FlaggedLines()).join(flagged)
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
        """Add the counts of another part of the input."""
        for name, value in vars(later).items():
            if name not in ("overlaps", "notes"):
                setattr(self, name, getattr(self, name) + value)
        if self.overlaps and later.overlaps:
            pairs = zip(self.overlaps, later.overlaps)
            self.overlaps = [[a + b for a, b in zip(*pair)] for pair in pairs]
        self.overlaps = self.overlaps or later.overlaps
        for note, flagged in later.notes.items():
            self.notes.setdefault(note, FlaggedLines()).join(flagged)

    @property
    def untranslated(self) -> FlaggedLines:
        """Lines that could not be translated."""
        flagged = FlaggedLines()
        for note in UNTRANSLATED_WARNINGS:
            flagged.join(self.notes.get(note, FlaggedLines()))
        return flagged

    def check(self) -> None:
        """Raise Untranslated if lines could not be translated."""
        flagged = self.untranslated
        if flagged.n_lines:
            s, are = ("", "it is") if flagged.n_lines == 1 else ("s", "they are")
            problem = (
                f"{flagged.n_lines} line{s} could not be translated ({flagged.shown()}); {are} "
            )
            problem += "empty in the output, which is complete"
            if missing_field := self.notes.get(NO_TEXT_FIELD):
                problem += f"; line {missing_field.first[0]} {missing_field.quotes[0]}"
            raise Untranslated(problem)

    def log(self, scores: bool) -> None:
        """Log warnings and averages; `scores`: show the average scores on stderr, too."""
        for note, flagged in sorted(self.notes.items()):
            LOG.info("%s", flagged.format_sentence(note))
            for number, quote in [*zip(flagged.first, flagged.quotes)][:MAX_QUOTES]:
                if quote:
                    LOG.info("    %d: %s", number, quote)
        for line in format_averages("PRED", self.score, self.n_words, self.n_scored):
            LOG.info("%s", line, extra={"on_stderr": scores})
        of_gold = format_averages("GOLD", self.gold, self.n_gold_words, self.n_gold)
        for line in (*of_gold, *(format_bleu_scores(self.overlaps) if self.overlaps else ())):
            LOG.info("%s", line)


def quote(text: str) -> str:
    """Return the start of a text without control characters."""
    shown = "".join(char if char.isprintable() else " " for char in text)
    return shown if len(shown) <= MAX_QUOTE_CHARS else f"{shown[: MAX_QUOTE_CHARS - 3]}..."


def describe_missing_field(text_field: str, fields: str | None) -> str:
    """Describe a JSON object without the text field; `fields` is the object as JSON."""
    names = quote(", ".join(json.loads(fields or "{}"))) or "none"
    return f"has no field {text_field!r} (fields: {names}); set -text_field"


def read_summary(record: Mapping[str, Any]) -> Summary:
    """Rebuild a Summary from the dict that `asdict` has made."""
    notes = {note: FlaggedLines(**flagged) for note, flagged in record["notes"].items()}
    return Summary(**{**record, "notes": notes})


def format_averages(name: str, score: float, n_words: int, n_sentences: int) -> list[str]:
    """Format the average score per token as OpenNMT-py 0.9 does, and per sentence as 3.5 does.

    Args:
        name: PRED or GOLD.
        score: sum of the scores.
        n_words: tokens; the first line is omitted without tokens.
        n_sentences: sentences; both lines are omitted without sentences.
    """
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
    """Return exp(-log_prob), or infinity instead of an overflow."""
    return math.exp(-log_prob) if log_prob > -700 else math.inf


def format_sentence_log(translation: Translation, gold: str | None, verbose: bool) -> list[str]:
    """Format the log of a sentence as OpenNMT does with -verbose.

    Args:
        translation: the translation.
        gold: the reference, logged in any case; None without one.
        verbose: whether to log the source and all hypotheses.
    """
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


# -- BLEU and chrF for -report_bleu; sacrebleu is optional ----------------------------------------


def needs_bleu(options: TranslateOptions) -> bool:
    """Return True if -report_bleu is set and there are translations and references."""
    data = options.data
    has_both = data.tgt is not None and not data.tgt_file_prefix and not data.score_only
    return options.information.report_bleu and has_both


def has_sacrebleu() -> bool:
    """Return True if sacrebleu is installed in a version whose statistics can be summed."""
    try:
        is_new = int(metadata.version("sacrebleu").split(".")[0]) >= 2
        return is_new and all(
            hasattr(m, name) for m in build_metrics() for name in SACREBLEU_METHODS
        )
    except (ImportError, ValueError):
        return False


def count_matches(texts: Sequence[str], references: Sequence[str]) -> MetricCounts:
    """Return the statistics behind BLEU and chrF, summed over lines.  Partial files keep them."""
    pair = [*map(replace_line_breaks, texts)], [[*map(replace_line_breaks, references)]]
    rows = [metric._extract_corpus_statistics(*pair) for metric in build_metrics()]
    return [[sum(column) for column in zip(*row)] for row in rows]


def format_bleu_scores(overlaps: MetricCounts) -> list[str]:
    """Format signature and score of each metric."""
    lines = []
    for metric, counts in zip(build_metrics(), overlaps):
        metric.corpus_score(["a"], [["a"]])  # sets the number of references in the signature
        score = metric._compute_score_from_stats(counts)
        lines.append(score.format(width=2, signature=str(metric.get_signature())))
    return lines


def build_metrics() -> list[Any]:
    """Return BLEU and chrF with default settings; `force` disables a warning on tokenized text."""
    from sacrebleu.metrics import BLEU, CHRF  # optional

    return [BLEU(force=True), CHRF()]
