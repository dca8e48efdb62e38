"""Tasks: translate a bucket, format it and keep it as a part, in any process.

The process that hands out tasks needs no torch, and so this module has none.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from onmt_lite.config.options import TranslateOptions
from onmt_lite.inference.records import Trace, Translation
from onmt_lite.jobs.inputs import Range
from onmt_lite.jobs.reading import Bucket
from onmt_lite.jobs.reports import (
    Summary,
    build_writer,
    has_sacrebleu,
    one_line,
    overlaps_of,
    sentence_log,
    to_report,
    wants_bleu,
)
from onmt_lite.jobs.store import Parts

if TYPE_CHECKING:
    from onmt_lite.inference.pipeline import Pipeline
    from onmt_lite.jobs.engine import InProcess

Progress = Callable[[int, int], object]  # of the lines and target tokens that a batch has added


@dataclass(frozen=True)
class Done:
    """A bucket that is translated.

    data     its share of the output, whole lines; b"" if that is kept as a part
    summary  of its lines
    report   its share of -report, likewise
    log      lines for the log
    seconds  how long each phase took
    traces   of its lines that are traced, see `onmt_lite.inference.records.Trace`
    """

    number: int
    n_lines: int
    data: bytes
    summary: Summary
    report: bytes = b""
    log: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    traces: list[Trace] = field(default_factory=list)


@dataclass(frozen=True)
class Task:
    """A bucket of a job.

    work      its lines, or the range of files that holds them
    options   of the job
    parts     takes its part; None: the result has its data
    n_traced  of its first lines, the searches are recorded
    """

    work: Bucket | Range
    options: TranslateOptions
    parts: Parts | None = None
    n_traced: int = 0

    @property
    def number(self) -> int:
        return self.work.number

    @property
    def where(self) -> str:
        """at lines 1 to 1024"""
        return self.work.where

    def do(self, place: "InProcess", progress: Progress) -> Done:
        """Read, translate and keep the bucket.

        `progress` is called after each batch with the lines and target tokens that it adds.
        """
        bucket = self.work
        if isinstance(bucket, Range):
            bucket = place.reader.bucket(bucket, self.options.data)
        bucket = bucket.traced(self.n_traced)
        done = translate_bucket(place.pipeline, self.options, bucket, progress)
        clock = place.pipeline.clock
        if self.parts is None:
            return replace(done, seconds=clock.take())
        with clock.phase("write"):
            self.parts.put(done.number, done.data, done.summary, done.report)
        return replace(done, data=b"", report=b"", seconds=clock.take())


def translate_bucket(
    pipeline: "Pipeline", options: TranslateOptions, bucket: Bucket, progress: Progress
) -> Done:
    """Translate the lines of a bucket and format them as the options say."""
    data = options.data
    gold_lines, prefixes = bucket.tgt_lines, None
    if data.tgt_file_prefix:
        gold_lines, prefixes = None, bucket.tgt_lines
    translations = pipeline.translate_lines(bucket.lines, gold_lines, options, progress, prefixes)
    if data.token_scores and data.output_format == "jsonl":
        translations = [*map(pipeline.renderer.by_words, translations)]
    writer = build_writer(data, options.search.n_best)
    log = []
    for i, translation in enumerate(translations):
        # A job that scores says it in its output
        told = gold_lines is not None and (options.information.verbose or not data.score_only)
        gold = gold_lines[i].text if gold_lines is not None and told else None
        log += sentence_log(translation, gold, options.information.verbose)
    if bucket.number == 0 and next(iter(pipeline.checkpoint.tokenizers)) == "space":
        log += note_raw_text(translations)
    summary = Summary.of(translations)
    if gold_lines is not None and wants_bleu(options) and has_sacrebleu():
        texts = [one_line(translation.text) for translation in translations]
        summary.overlaps = overlaps_of(texts, [one_line(line.text) for line in gold_lines])
    return Done(
        bucket.number,
        len(bucket.lines),
        "".join(map(writer, translations)).encode("utf-8"),
        summary,
        "".join(map(to_report, translations)).encode("ascii"),
        log=log,
        traces=[
            t.trace or Trace(t.id, t.src)
            for line, t in zip(bucket.lines, translations)
            if line.traced
        ],
    )


def note_raw_text(translations: Sequence[Translation]) -> list[str]:
    """Note that most of the first words are unknown: text was given to a model of tokens."""
    n_tokens = sum(translation.n_src_tokens for translation in translations)
    n_unknown = sum(translation.n_unknown for translation in translations)
    if n_unknown <= n_tokens / 2:
        return []
    return [
        f"NOTE: {n_unknown} of the first {n_tokens} words are unknown to the model, which takes "
        "tokens separated by spaces; for text as it is, give -src_subword_model with -tokenizer "
        "bpe or sentencepiece, or -transforms"
    ]


class Engine:
    """Does tasks, in this process or in others; a context in which models are loaded.  This one is
    of a job of which nothing is left to do.

    notes    what the options change nothing about with this model
    machine  names of what results may depend on: device, precision; None if that differs
    """

    notes: list[str] = []
    machine: dict[str, str] | None = None

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def run(self, tasks: Iterable[Any], progress: Progress) -> Generator[Any, None, None]:
        """Yield what the tasks return, in any order.

        `progress` is called with the lines and target tokens that are added.  What a task raises is
        raised when all tasks before it are done.
        """
        yield from ()
