"""What a job would be, before it runs: `-plan`."""

import time
from dataclasses import dataclass, field, replace
from random import Random

import torch

from onmt_lite.buckets import Bucket, choose_shard, lines_per_bucket, open_buckets, roles
from onmt_lite.config.console import is_typed
from onmt_lite.config.cores import peak_memory
from onmt_lite.config.options import TranslateOptions
from onmt_lite.files import Inputs
from onmt_lite.inference.batching import longer_side, source_length
from onmt_lite.inference.budget import LOGIT_BYTES
from onmt_lite.inference.duplicates import Copies
from onmt_lite.inference.notes import unsearched
from onmt_lite.inference.paragraphs import Paragraphs, longest
from onmt_lite.inference.records import Example
from onmt_lite.inference.runtime import threads_of_each
from onmt_lite.inference.search_setup import SearchRules, model_notes
from onmt_lite.inference.translator import Translator
from onmt_lite.job import check_job, count_lines, workers_that_pay
from onmt_lite.progress import Meter, logging_to
from onmt_lite.reports import LOG, Noted, Summary
from onmt_lite.text.line import Line

SECONDS = 10.0  # that translating a sample takes, unless a single line takes longer
SAMPLE = 1024  # lines, at most


@dataclass
class Survey:
    """What is counted over the lines of an input, those of -shard alone.

    summary  notes of the lines
    work     tokens of what is translated, copies left out: what seconds grow with
    n_bytes  of the largest batch
    sample   lines of those that are translated, each with its line of -tgt, and their work
    """

    summary: Summary = field(default_factory=Summary)
    n_tokens: int = 0
    n_unknown: int = 0
    longest: int = 0
    n_buckets: int = 0
    work: int = 0
    n_bytes: int = 0
    sample: list[tuple[Line, Line | None, int]] = field(default_factory=list)

    def count(self, example: Example) -> None:
        """One line, or a sentence of a long one."""
        n_tokens = example.n_src_tokens + example.n_cut
        self.n_tokens += n_tokens
        self.n_unknown += example.n_unknown
        self.longest = max(self.longest, n_tokens)

    def noted(self, note: str) -> int:
        """Lines with this note."""
        return self.summary.notes.get(note, Noted()).n_lines


class Surveyor:
    """Reads lines as a job would, with its model and options."""

    def __init__(self, translator: Translator, options: TranslateOptions):
        self.translator, self.options = translator, options
        self.rules = SearchRules(options, translator.checkpoint)
        self.survey, self.dice, self.n_seen = Survey(), Random(0), 0

    def add(self, bucket: Bucket) -> None:
        """Count the lines of a bucket."""
        survey, sides = self.survey, roles(bucket.tgt_lines, self.options.data)
        most = longest(self.rules) if bucket.tgt_lines is None else 0  # references are of lines
        paragraphs = Paragraphs(bucket.lines, most, self.rules)
        examples = self.translator.examples_of(paragraphs.lines, *sides, self.options)
        for example in examples:
            survey.count(example)
        survey.summary.join(Summary.of(paragraphs.joined([*map(unsearched, examples)])))
        survey.n_buckets += 1
        distinct = Copies(examples, self.rules.copies_are_equal).distinct
        full = [example for example in distinct if example.src_ids]
        survey.work += sum(map(work_of, full))
        survey.n_bytes = max(survey.n_bytes, self._largest(full))
        # With -tgt each line has its own, without it none has
        target_of = dict(zip(map(id, examples), bucket.tgt_lines or ()))
        for example in full:
            self._draw((example.line, target_of.get(id(example)), work_of(example)))

    def _draw(self, line: tuple[Line, Line | None, int]) -> None:
        """Let the sample be one of all lines, each as likely as any other (Vitter 1985, R)."""
        self.n_seen += 1
        place = self.n_seen - 1 if self.n_seen <= SAMPLE else self.dice.randrange(self.n_seen)
        if place < SAMPLE:
            self.survey.sample[place : place + 1] = [line]

    def _largest(self, full: list[Example]) -> int:
        """Bytes of the largest batch of these."""
        translator, speed, beam_size = self.translator, self.options.speed, self.rules.beam_size
        size, sizes = translator.budget.size, [0]
        if not self.options.data.score_only:
            for batch in translator.batches(full, speed, self.rules):
                width = max(map(source_length, batch))
                sizes.append(size.bytes(len(batch), width, beam_size))
        scored = sum(longer_side(e) for e in full if e.tgt_ids is not None)
        n_scored = min(scored, translator.budget.scored_tokens)
        return max(*sizes, n_scored * size.vocab * size.n_models * LOGIT_BYTES)

    def seconds(self) -> float:
        """Of translating all lines one bucket after the other, from a sample that doubles until it
        would take too long."""
        sample = self.dice.sample(self.survey.sample, len(self.survey.sample))
        n, spent, last = 1, 0.0, 0.0
        while sample:
            n = min(n, len(sample))
            last = self._timed(sample[:n])
            spent += last
            if n == len(sample) or spent + 2 * last > SECONDS:
                return last / sum(work for _, _, work in sample[:n]) * self.survey.work
            n *= 2
        return 0.0

    def _timed(self, sample: list[tuple[Line, Line | None, int]]) -> float:
        """Seconds that translating these takes."""
        lines = [line for line, _, _ in sample]
        targets = [target for _, target, _ in sample if target is not None] or None
        gold, begin = roles(targets, self.options.data)
        started = time.monotonic()
        self.translator.translate_lines(lines, gold, self.options, prefixes=begin)
        return time.monotonic() - started


def work_of(example: Example) -> int:
    """Tokens that are read of an example and its reference."""
    return len(example.src_ids) + len(example.tgt_ids or ())


def plan(options: TranslateOptions) -> str:
    """What a job with these options would be: lines of `name: value`.

    Reads the input, loads the model and translates a sample; writes nothing but notes on standard
    error.  Raises what a job raises before it writes.
    """
    check_job(options)
    data, jobs = options.data, replace(options.jobs, log_file=None)
    with logging_to(jobs), Inputs(data.src, data.tgt) as inputs:
        for note in options.notes:
            LOG.info("NOTE: %s", note)
        total = count_lines(options)
        n_workers = options.n_workers or workers_that_pay(options, total)
        started = time.monotonic()
        alone = of_one_worker(options, n_workers)
        translator = Translator.load(alone)
        loading, memory = time.monotonic() - started, memory_of(translator)
        for note in model_notes(options, translator.checkpoint, translator.device):
            LOG.info("NOTE: %s", note)
        surveyor = Surveyor(translator, alone)
        n = lines_per_bucket(options, translator.device.type, total)
        shard = choose_shard(data.src, jobs, n, total)
        with (
            open_buckets(data, n, shard) as reader,
            Meter(shard.n_lines, jobs.quiet, is_typed(data.src)) as meter,
        ):
            for bucket in reader.buckets():
                surveyor.add(bucket)
                meter.add(len(bucket.lines), 0)
                inputs.check()
        survey = surveyor.survey
        survey.summary.log(False)
        n_at_once = max(1, min(n_workers, survey.n_buckets))
        seconds = loading + surveyor.seconds() / n_at_once
        n_bytes = max(memory + n_at_once * survey.n_bytes, memory_of(translator))
        return told(survey, n_bytes, seconds)


def memory_of(translator: Translator) -> int:
    """Bytes that were held at most so far: on its GPU, or by this process."""
    if translator.device.type == "cuda":
        return torch.cuda.max_memory_allocated(translator.device)
    return peak_memory()


def told(survey: Survey, n_bytes: int, seconds: float) -> str:
    """The lines of a plan."""
    values = {
        "lines": survey.summary.n_lines,
        "blank_lines": survey.noted("empty"),
        "tokens": survey.n_tokens,
        "longest_line": survey.longest,
        "over_long_lines": survey.noted("truncated"),
        "unknown_tokens": survey.n_unknown,
        "unknown_rate": f"{survey.n_unknown / max(1, survey.n_tokens):.4f}",
        "expected_memory_mb": round(n_bytes / 1e6),
        "expected_seconds": f"{seconds:.1f}",
    }
    return "".join(f"{name}: {value}\n" for name, value in values.items())


def of_one_worker(options: TranslateOptions, n: int) -> TranslateOptions:
    """The options of one of n workers: its share of the cores, and its GPU."""
    speed = replace(options.speed, gpu=options.speed.gpu[:1])
    if n > 1:
        speed = replace(speed, threads=threads_of_each(speed, n))
    return replace(options, speed=speed)
