"""Tasks: read the lines of a bucket, from a range of files or from a stream as they come; translate
them, and keep them as a part, in any process.

The process that hands out tasks needs no torch, and so this module has none.
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
    line_from_json,
)
from onmt_lite.text.phrases import parse_phrases, with_phrases

if TYPE_CHECKING:
    from onmt_lite.inference.pipeline import Pipeline

Parse = Callable[[bytes, int, bool], Line]


@dataclass(frozen=True)
class Bucket:
    """Lines of the input in a row, and the lines of -tgt that belong to them."""

    number: int
    lines: list[Line]
    tgt_lines: list[Line] | None = None

    @property
    def where(self) -> str:
        return f"at lines {self.lines[0].id + 1} to {self.lines[-1].id + 1}"


def make_bucket(number: int, columns: dict[Role, list[Line]]) -> Bucket:
    """A bucket of the lines of all inputs.  DataError for phrases that cannot be."""
    lines = columns["src"]
    phrases = [
        parse_line_phrases(columns, role, len(lines)) for role in ("force_words", "ban_words")
    ]
    lines = [with_phrases(*row) for row in zip(lines, *phrases)]
    return Bucket(number, lines, columns.get("tgt"))


def parse_line_phrases(
    columns: dict[Role, list[Line]], role: Role, n: int
) -> list[tuple[str, ...]]:
    """Return the phrases of each of n lines, from its own line of the file or from the only one."""
    if role not in columns:
        return [()] * n
    for line in columns[role]:
        if "invalid-utf8" in line.notes:
            raise DataError(f"{role} line {line.id + 1} is not UTF-8; convert it")
    parsed = [parse_phrases(line.text) for line in columns[role]]
    return parsed * n if len(parsed) == 1 else parsed


def choose_parser(data: DataOptions, role: Role, path: str) -> Parse:
    """How the lines of an input are parsed: as JSON objects, or as text."""
    if role in ("force_words", "ban_words"):
        return decode_line
    # -input_format speaks of src; a tgt of objects has a name that says so
    is_jsonl = (role == "src" and data.input_format == "jsonl") or data.is_jsonl(path)
    return partial(line_from_json, field=data.text_field) if is_jsonl else decode_line


class RangeReader:
    """Reads ranges.  Files stay open until `close`, so that gzip data is unpacked once."""

    def __init__(self) -> None:
        self.open: dict[str, tuple[tuple[int, int] | None, IO[bytes]]] = {}

    def close(self) -> None:
        for _, file in self.open.values():
            file.close()
        self.open = {}

    def bucket(self, wanted: Range, data: DataOptions) -> Bucket:
        """The lines of a range.  Raises FileError if a file cannot be read or is not what it was,
        DataError for phrases that cannot be."""
        columns = {
            role: self.lines(wanted, role, choose_parser(data, role, span.path))
            for role, span in wanted.spans.items()
        }
        return make_bucket(wanted.number, columns)

    def lines(self, wanted: Range, role: Role, parse: Parse) -> list[Line]:
        span, lines = wanted.spans[role], list[Line]()
        first = wanted.first if span.n_lines == wanted.n_lines else 0  # one line for all
        left, crc = span.n_bytes, 0
        with wrap_os_errors(f"read {span.path}"), contextlib.suppress(EOFError, zlib.error):
            file = self._at(span.path, span.start)

            def read(size: int) -> bytes:
                nonlocal left, crc
                chunk = file.read(min(size, left))
                left, crc = left - len(chunk), zlib.crc32(chunk, crc)
                return chunk

            for raw, is_cut in iter_raw_lines(ByteStream(read, lambda: True)):
                assert raw is not None  # such a stream never pauses
                if span.start == 0 and not lines:
                    raw = raw.removeprefix(BOM)
                lines.append(parse(raw, first + len(lines), is_cut))
        if left or crc != span.crc:
            raise inputs.changed_error(span.path)
        return lines

    def _at(self, path: str, start: int) -> IO[bytes]:
        """The file, where a span begins."""
        now = read_file_state(path)
        before, file = self.open.get(path, (None, None))
        # One that was removed is still there
        if file is None or (now is not None and now != before):
            if file is not None:
                file.close()
            file = cast(IO[bytes], gzip.open(path, "rb") if is_gzip(path) else open(path, "rb"))
            self.open[path] = now, file
        file.seek(start)  # in gzip data, by unpacking up to there
        return file


def check_phrases(ranges: list[Range]) -> None:
    """Raise DataError for phrases that no bucket can be made with."""
    roles = [role for role in (ranges[0].spans if ranges else ()) if role.endswith("_words")]
    by_line = any(ranges[-1].spans[role].start for role in roles)
    with contextlib.closing(RangeReader()) as reader:
        for each in ranges if by_line else ranges[:1]:
            columns = {role: reader.lines(each, role, decode_line) for role in roles}
            columns["src"] = [Line(each.first + i, "") for i in range(each.n_lines)]
            make_bucket(each.number, columns)


def check_fields(options: TranslateOptions, sources: Sequence[str]) -> None:
    """Raise DataError for a file of objects none of which has the field of the text.  Reads as far
    as the first that has it.  FileError."""
    for role, path in [*(("src", path) for path in sources), *list_line_inputs(options)[1:]]:
        parse, lacking = choose_parser(options.data, role, path), None
        if parse is decode_line:
            continue
        with inputs.open_input(path) as fd:
            for line in LineReader(fd, path, parse=parse).lines():
                if not WITHOUT_TEXT & {*line.notes}:
                    lacking = None
                    break
                if lacking is None and NO_TEXT_FIELD in line.notes:
                    lacking = line
        if lacking is not None:
            problem = reports.describe_missing_field(options.data.text_field, lacking.fields)
            raise DataError(f"{role} {path}: no line has a text, line {lacking.id + 1} {problem}")


class StreamReader:
    """Reads src, and the inputs that belong to it line by line, side by side."""

    def __init__(
        self, options: TranslateOptions, n_lines: int | None, open_files: contextlib.ExitStack
    ):
        """Of `n_lines` lines, if they were counted.  Raises FileError."""
        window = inputs.choose_bucket_lines(options, n_lines)

        def reader(role: Role, path: str) -> LineReader:
            name = STANDARD_INPUT if path == "-" else path
            fd = open_files.enter_context(inputs.open_input(path))
            return LineReader(fd, name, window, choose_parser(options.data, role, path))

        readers = {role: reader(role, path) for role, path in list_line_inputs(options)}
        self.source = readers.pop("src")
        self.beside = {role: read_parallel_lines(role, each) for role, each in readers.items()}

    def buckets(self) -> Iterator[Bucket]:
        """Yield buckets; short ones if the stream pauses.  Raises FileError and DataError as
        `LineReader` does, DataError if the numbers of lines differ."""
        for number, lines in enumerate(self.source.windows()):
            columns = {"src": lines}
            for role, beside in self.beside.items():
                n = 1 if isinstance(beside, repeat) else len(lines)
                columns[role] = found = list(islice(beside, n))
                if len(found) < n:
                    says = f"src has more lines than {role}, which"
                    raise inputs.line_count_error(role, says, lines[0].id + len(found))
            yield make_bucket(number, columns)
        for role, beside in self.beside.items():
            if not isinstance(beside, repeat) and next(beside, None) is not None:
                says = f"{role} has more lines than src, which"
                raise inputs.line_count_error(role, says, self.source.n_lines)


def read_parallel_lines(role: Role, reader: LineReader) -> Iterator[Line]:
    """The lines of an input beside src.  Two show whether one of phrases is that of all lines."""
    first = [] if role == "tgt" else list(islice(reader.lines(), 2))
    return repeat(first[0]) if len(first) == 1 else chain(first, reader.lines())


def is_gzip(path: str) -> bool:
    """Return whether a file is gzip data."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(len(GZIP)) == GZIP
    return False


@dataclass(frozen=True)
class Task:
    """A bucket of a job."""

    work: Bucket | Range  # its lines, or the range of files that holds them
    options: TranslateOptions
    parts: ResultParts | None = None  # takes its part; None: the result has its data
    traced_below: int = 0  # the searches of lines with a smaller number are recorded

    @property
    def where(self) -> str:
        return self.work.where

    def do(self, place: "InProcessEngine", progress: ProgressDelta) -> BucketResult:
        """Read, translate and keep the bucket."""
        bucket = self.work
        if isinstance(bucket, Range):
            bucket = place.reader.bucket(bucket, self.options.data)
        if self.traced_below:
            from onmt_lite.trace.tracer import Tracer  # late: it needs torch

            place.pipeline.runner.observe = Tracer
            lines = [replace(line, traced=line.id < self.traced_below) for line in bucket.lines]
            bucket = replace(bucket, lines=lines)
        done = translate_bucket(place.pipeline, self.options, bucket, progress)
        clock = place.pipeline.clock
        if self.parts is None:
            return replace(done, seconds=clock.take())
        with clock.phase("write"):
            self.parts.put(done)
        return replace(done, data=b"", report=b"", seconds=clock.take())


def translate_bucket(
    pipeline: "Pipeline", options: TranslateOptions, bucket: Bucket, progress: ProgressDelta
) -> BucketResult:
    """Translate the lines of a bucket and format them as the options say."""
    data = options.data
    gold_lines, prefixes = bucket.tgt_lines, None
    if data.tgt_file_prefix:
        gold_lines, prefixes = None, bucket.tgt_lines
    translations = pipeline.translate_lines(bucket.lines, gold_lines, options, progress, prefixes)
    if data.token_scores and data.format == "jsonl":
        translations = [*map(pipeline.postprocessor.with_word_log_probs, translations)]
    writer = reports.build_writer(data, options.search.n_best)
    log = []
    for i, translation in enumerate(translations):
        # A job that scores says it in its output
        told = gold_lines is not None and (options.information.verbose or not data.score_only)
        gold = gold_lines[i].text if gold_lines is not None and told else None
        log += reports.format_sentence_log(translation, gold, options.information.verbose)
    if bucket.number == 0 and next(iter(pipeline.checkpoint.tokenizers)) == "space":
        log += warn_about_raw_text(translations)
    summary = Summary.of(translations, data.text_field)
    if gold_lines is not None and reports.needs_bleu(options) and reports.has_sacrebleu():
        texts = [translation.text for translation in translations]
        summary.overlaps = reports.count_matches(texts, [line.text for line in gold_lines])
    output = "".join(map(writer, translations)).encode("utf-8")
    report = "".join(map(reports.format_report, translations)).encode("ascii")
    traced = [t for line, t in zip(bucket.lines, translations) if line.traced]
    traces = [t.trace or Trace(t.id, t.src) for t in traced]
    return BucketResult(
        bucket.number, len(bucket.lines), output, summary, report, log=log, traces=traces
    )


def warn_about_raw_text(translations: Sequence[Translation]) -> list[str]:
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
    of a job of which nothing is left to do."""

    notes: list[str] = []  # what the options change nothing about with this model
    machine: dict[str, str] | None = None  # device, precision; None if workers differ

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def run(self, tasks: Iterable[Any], progress: ProgressDelta) -> Generator[Any, None, None]:
        """Yield what the tasks return, in any order; raise what one raises when all before it are
        done.  `progress` is told what is added, batch by batch."""
        yield from ()


class InProcessEngine(Engine):
    """The engine of this process, which has the models."""

    def __init__(self, options: TranslateOptions, pipeline: "Pipeline | None" = None):
        """With a `pipeline`, nothing is loaded."""
        self.options, self.given, self.reader = options, pipeline, RangeReader()

    def __enter__(self) -> "InProcessEngine":
        if self.given is None:
            with speed_up_imports():  # late: torch takes seconds
                from onmt_lite.inference.pipeline import Pipeline
            self.given = Pipeline.load(self.options, release=True)
        self.pipeline = pipeline = self.given
        self.machine = pipeline.machine
        self.notes = pipeline.option_notices(self.options)
        if self.options.speed.batch_size is None and not self.options.speed.deterministic:
            self.notes += pipeline.runner.budget.notes(self.options.search.beam_size)
        return self

    def __exit__(self, *error: Any) -> None:
        self.reader.close()

    def run(self, tasks: Iterable[Any], progress: ProgressDelta) -> Generator[Any, None, None]:
        for task in tasks:
            raise_pending()
            yield task.do(self, progress)
