"""Tasks: read a bucket of lines from files or a stream, translate it and write its partial file.

Tasks run in any process.  The process that assigns them does without torch, so this module does not
import it.
"""

import contextlib
import gzip
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, repeat
from typing import IO, TYPE_CHECKING, Any, cast

from onmt_lite.config.options import TranslateOptions
from onmt_lite.config.text_options import DataOptions
from onmt_lite.errors import DataError, wrap_os_errors
from onmt_lite.inference.records import ProgressDelta, Trace, Translation
from onmt_lite.jobs import inputs, reports
from onmt_lite.jobs.inputs import Range, Role, list_line_inputs, read_file_state
from onmt_lite.jobs.reports import Summary
from onmt_lite.jobs.store import BucketResult, ResultParts
from onmt_lite.system.byte_stream import GZIP, STANDARD_INPUT, ByteStream
from onmt_lite.system.resources import speed_up_imports
from onmt_lite.system.terminal import raise_pending
from onmt_lite.text.lines import (
    BOM,
    NO_TEXT_FIELD,
    WITHOUT_TEXT,
    Line,
    LineReader,
    decode_line,
    iter_raw_lines,
    make_line_from_json,
)
from onmt_lite.text.phrases import parse_phrases, with_phrases

if TYPE_CHECKING:
    from onmt_lite.inference.pipeline import Pipeline

Parse = Callable[[bytes, int, bool], Line]


@dataclass(frozen=True)
class Bucket:
    """Consecutive input lines, and the lines of -tgt that belong to them."""

    number: int
    lines: list[Line]
    tgt_lines: list[Line] | None = None

    @property
    def where(self) -> str:
        """Lines of the bucket, for messages."""
        return f"at lines {self.lines[0].id + 1} to {self.lines[-1].id + 1}"


def make_bucket(number: int, columns: dict[Role, list[Line]]) -> Bucket:
    """Build a bucket from the lines of all inputs.

    Args:
        number: position of the bucket in the job.
        columns: the lines of each input.

    Raises:
        DataError: for invalid phrases.
    """
    lines = columns["src"]
    phrases = [
        parse_line_phrases(columns, role, len(lines)) for role in ("force_words", "ban_words")
    ]
    lines = [with_phrases(*row) for row in zip(lines, *phrases)]
    return Bucket(number, lines, columns.get("tgt"))


def parse_line_phrases(
    columns: dict[Role, list[Line]], role: Role, n: int
) -> list[tuple[str, ...]]:
    """Return the phrases for each source line.

    Args:
        columns: the lines of each input.
        role: force_words or ban_words.
        n: number of source lines; a phrase file with a single line applies to all of them.

    Raises:
        DataError: for phrases that are not UTF-8 or otherwise invalid.
    """
    if role not in columns:
        return [()] * n
    for line in columns[role]:
        if "invalid-utf8" in line.notes:
            raise DataError(
                f"{role}: line {line.id + 1} is not valid UTF-8; convert the file with iconv"
            )
    parsed = [parse_phrases(line.text) for line in columns[role]]
    return parsed * n if len(parsed) == 1 else parsed


def choose_parser(data: DataOptions, role: Role, path: str) -> Parse:
    """Return the parser for the lines of an input: JSON objects or plain text.

    Args:
        data: data options.
        role: src, tgt, force_words or ban_words.
        path: path of the input.
    """
    if role in ("force_words", "ban_words"):
        return decode_line
    # -input_format is for src; a tgt of JSON objects is recognized by its name
    is_jsonl = (role == "src" and data.input_format == "jsonl") or data.is_jsonl(path)
    return partial(make_line_from_json, field=data.text_field) if is_jsonl else decode_line


class RangeReader:
    """Reads ranges of files.  Files stay open until `close`, so that gzip data is unpacked once."""

    def __init__(self) -> None:
        self.open: dict[str, tuple[tuple[int, int] | None, IO[bytes]]] = {}

    def close(self) -> None:
        """Close all files."""
        for _, file in self.open.values():
            file.close()
        self.open = {}

    def read_bucket(self, bucket_range: Range, data: DataOptions) -> Bucket:
        """Read the lines of a range.

        Raises:
            FileError: if a file cannot be read or has changed.
            DataError: for invalid phrases.
        """
        columns = {
            role: self.read_lines(bucket_range, role, choose_parser(data, role, span.path))
            for role, span in bucket_range.spans.items()
        }
        return make_bucket(bucket_range.number, columns)

    def read_lines(self, bucket_range: Range, role: Role, parse: Parse) -> list[Line]:
        """Read and parse the lines of one input.

        Args:
            bucket_range: the range.
            role: src, tgt, force_words or ban_words.
            parse: parser for a line.

        Raises:
            FileError: if the file cannot be read or has changed.
        """
        span, lines = bucket_range.spans[role], list[Line]()
        first = (
            bucket_range.first if span.n_lines == bucket_range.n_lines else 0
        )  # else one line for all
        n_left, crc = span.n_bytes, 0
        with wrap_os_errors(f"read {span.path}"), contextlib.suppress(EOFError, zlib.error):
            file = self._at(span.path, span.start)

            def read(size: int) -> bytes:
                nonlocal n_left, crc
                chunk = file.read(min(size, n_left))
                n_left, crc = n_left - len(chunk), zlib.crc32(chunk, crc)
                return chunk

            for raw, is_cut in iter_raw_lines(ByteStream(read, lambda: True)):
                assert raw is not None  # a file never pauses
                if span.start == 0 and not lines:
                    raw = raw.removeprefix(BOM)
                lines.append(parse(raw, first + len(lines), is_cut))
        if n_left or crc != span.crc:
            raise inputs.make_changed_error(span.path)
        return lines

    def _at(self, path: str, start: int) -> IO[bytes]:
        """Return the file, positioned at the start of a span."""
        state = read_file_state(path)
        before, file = self.open.get(path, (None, None))
        # An open file can be read after it was removed
        if file is None or (state is not None and state != before):
            if file is not None:
                file.close()
            file = cast(IO[bytes], gzip.open(path, "rb") if is_gzip(path) else open(path, "rb"))
            self.open[path] = state, file
        file.seek(start)  # gzip data is unpacked up to there
        return file


def check_phrases(ranges: list[Range]) -> None:
    """Raise DataError for invalid phrases in any range."""
    roles = [role for role in (ranges[0].spans if ranges else ()) if role.endswith("_words")]
    by_line = any(ranges[-1].spans[role].start for role in roles)
    with contextlib.closing(RangeReader()) as reader:
        for line_range in ranges if by_line else ranges[:1]:
            columns = {role: reader.read_lines(line_range, role, decode_line) for role in roles}
            columns["src"] = [Line(line_range.first + i, "") for i in range(line_range.n_lines)]
            make_bucket(line_range.number, columns)


def check_fields(options: TranslateOptions, sources: Sequence[str]) -> None:
    """Check that each JSON file has a line with the text field, reading up to the first such line.

    Raises:
        DataError: if no line has the field.
        FileError: if a file cannot be read.
    """
    for role, path in [*(("src", path) for path in sources), *list_line_inputs(options)[1:]]:
        parse, missing = choose_parser(options.data, role, path), None
        if parse is decode_line:
            continue
        with inputs.open_input(path) as fd:
            for line in LineReader(fd, path, parse=parse).lines():
                if not WITHOUT_TEXT & {*line.notes}:
                    missing = None
                    break
                if missing is None and NO_TEXT_FIELD in line.notes:
                    missing = line
        if missing is not None:
            problem = reports.describe_missing_field(options.data.text_field, missing.fields)
            raise DataError(
                f"{role} {path}: no line contains text; line {missing.id + 1} {problem}"
            )


class StreamReader:
    """Reads src and its parallel inputs line by line, side by side."""

    def __init__(
        self, options: TranslateOptions, n_lines: int | None, open_files: contextlib.ExitStack
    ):
        """Open the inputs.

        Args:
            options: options of the job.
            n_lines: number of lines, None if they cannot be counted.
            open_files: closes the files at the end of the job.

        Raises:
            FileError: if a file cannot be opened.
        """
        window = inputs.choose_bucket_lines(options, n_lines)

        def open_reader(role: Role, path: str) -> LineReader:
            name = STANDARD_INPUT if path == "-" else path
            fd = open_files.enter_context(inputs.open_input(path))
            return LineReader(fd, name, window, choose_parser(options.data, role, path))

        readers = {role: open_reader(role, path) for role, path in list_line_inputs(options)}
        self.source = readers.pop("src")
        self.parallel = {
            role: read_parallel_lines(role, reader) for role, reader in readers.items()
        }

    def buckets(self) -> Iterator[Bucket]:
        """Yield buckets; short ones if the stream pauses.

        Raises:
            FileError: as `LineReader` does.
            DataError: as `LineReader` does, and if line counts differ.
        """
        for number, lines in enumerate(self.source.windows()):
            columns = {"src": lines}
            for role, parallel in self.parallel.items():
                n = 1 if isinstance(parallel, repeat) else len(lines)
                columns[role] = column = list(islice(parallel, n))
                if len(column) < n:
                    statement = f"src has more lines than {role}, which"
                    raise inputs.make_line_count_error(role, statement, lines[0].id + len(column))
            yield make_bucket(number, columns)
        for role, parallel in self.parallel.items():
            if not isinstance(parallel, repeat) and next(parallel, None) is not None:
                statement = f"{role} has more lines than src, which"
                raise inputs.make_line_count_error(role, statement, self.source.n_lines)


def read_parallel_lines(role: Role, reader: LineReader) -> Iterator[Line]:
    """Yield the lines of a parallel input; a phrase file with a single line repeats it."""
    first = [] if role == "tgt" else list(islice(reader.lines(), 2))
    return repeat(first[0]) if len(first) == 1 else chain(first, reader.lines())


def is_gzip(path: str) -> bool:
    """Return True if a file is gzip data."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(len(GZIP)) == GZIP
    return False


@dataclass(frozen=True)
class Task:
    """The work on one bucket of a job.

    Attributes:
        work: the lines, or the range of files that contains them.
        options: options of the job.
        parts: stores the result as a partial file; None: the result contains the output.
        traced_below: search steps are recorded for lines with smaller numbers.
    """

    work: Bucket | Range
    options: TranslateOptions
    parts: ResultParts | None = None
    traced_below: int = 0

    @property
    def where(self) -> str:
        """Lines of the task, for messages."""
        return self.work.where

    def do(self, engine: "InProcessEngine", progress: ProgressDelta) -> BucketResult:
        """Read and translate the bucket; store or return the result."""
        bucket = self.work
        if isinstance(bucket, Range):
            bucket = engine.reader.read_bucket(bucket, self.options.data)
        if self.traced_below:
            from onmt_lite.trace.tracer import Tracer  # needs torch

            engine.pipeline.runner.observe = Tracer
            lines = [replace(line, traced=line.id < self.traced_below) for line in bucket.lines]
            bucket = replace(bucket, lines=lines)
        done = translate_bucket(engine.pipeline, self.options, bucket, progress)
        clock = engine.pipeline.clock
        if self.parts is None:
            return replace(done, seconds=clock.take())
        with clock.phase("write"):
            self.parts.write(done)
        return replace(done, data=b"", report=b"", seconds=clock.take())


def translate_bucket(
    pipeline: "Pipeline", options: TranslateOptions, bucket: Bucket, progress: ProgressDelta
) -> BucketResult:
    """Translate the lines of a bucket and format the output.

    Args:
        pipeline: the loaded model.
        options: options of the job.
        bucket: the lines.
        progress: callback for added lines and target tokens.
    """
    data = options.data
    references, prefixes = bucket.tgt_lines, None
    if data.tgt_file_prefix:
        references, prefixes = None, bucket.tgt_lines
    translations = pipeline.translate_lines(bucket.lines, references, options, progress, prefixes)
    if data.token_scores and data.format == "jsonl":
        translations = [*map(pipeline.postprocessor.with_word_log_probs, translations)]
    writer = reports.build_writer(data, options.search.n_best)
    log = []
    for i, translation in enumerate(translations):
        # With -score_only, scores are in the output and need not be logged
        is_logged = references is not None and (options.information.verbose or not data.score_only)
        reference = references[i].text if references is not None and is_logged else None
        log += reports.format_sentence_log(translation, reference, options.information.verbose)
    if bucket.number == 0 and next(iter(pipeline.checkpoint.tokenizers)) == "space":
        log += warn_about_raw_text(translations)
    summary = Summary.of(translations, data.text_field)
    if references is not None and reports.needs_bleu(options) and reports.has_sacrebleu():
        texts = [translation.text for translation in translations]
        summary.overlaps = reports.count_matches(texts, [line.text for line in references])
    output = "".join(map(writer, translations)).encode("utf-8")
    report = "".join(map(reports.format_report, translations)).encode("ascii")
    traced = [t for line, t in zip(bucket.lines, translations) if line.traced]
    traces = [t.trace or Trace(t.id, t.src) for t in traced]
    return BucketResult(
        bucket.number, len(bucket.lines), output, summary, report, log=log, traces=traces
    )


def warn_about_raw_text(translations: Sequence[Translation]) -> list[str]:
    """Return a log line if most words are unknown: raw text was given to a model of tokens."""
    n_tokens = sum(translation.n_src_tokens for translation in translations)
    n_unknown = sum(translation.n_unknown for translation in translations)
    if n_unknown <= n_tokens / 2:
        return []
    return [
        f"NOTE: {n_unknown} of the first {n_tokens} words are not in the vocabulary, and this "
        "model expects tokens separated by spaces; to translate raw text, set -src_subword_model "
        "with -tokenizer bpe or sentencepiece, or use -transforms"
    ]


class Engine:
    """Runs tasks; a context that loads the models.

    This class is the null engine of a job that is already complete.

    Attributes:
        notes: notices about options without effect.
        machine: device and precision; None if unknown.
    """

    notes: list[str] = []
    machine: dict[str, str] | None = None

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def run(self, tasks: Iterable[Any], progress: ProgressDelta) -> Generator[Any, None, None]:
        """Yield the results of the tasks in any order.

        Args:
            tasks: objects with a `do` method.
            progress: callback for added lines and target tokens, called for each batch.

        Raises:
            Exception: the error of the first task that failed, after all earlier tasks are done.
        """
        yield from ()


class InProcessEngine(Engine):
    """Engine that runs tasks in this process."""

    def __init__(self, options: TranslateOptions, pipeline: "Pipeline | None" = None):
        """Prepare the engine; `__enter__` loads the model.

        Args:
            options: options of the job.
            pipeline: the loaded model; None: `__enter__` loads it.
        """
        self.options, self.preloaded, self.reader = options, pipeline, RangeReader()

    def __enter__(self) -> "InProcessEngine":
        if self.preloaded is None:
            with speed_up_imports():  # importing torch takes seconds
                from onmt_lite.inference.pipeline import Pipeline
            self.preloaded = Pipeline.load(self.options)
        self.pipeline = pipeline = self.preloaded
        self.machine = pipeline.machine
        self.notes = pipeline.option_notices(self.options)
        if self.options.speed.batch_size is None and not self.options.speed.deterministic:
            self.notes += pipeline.runner.budget.notices(self.options.search.beam_size)
        return self

    def __exit__(self, *error: Any) -> None:
        self.reader.close()

    def run(self, tasks: Iterable[Any], progress: ProgressDelta) -> Generator[Any, None, None]:
        for task in tasks:
            raise_pending()
            yield task.do(self, progress)
