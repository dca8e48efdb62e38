"""Translator: the Python interface.  It checks the options of a call and numbers its lines; a
Pipeline in this process does the work, or worker processes with a Pipeline each."""

import dataclasses
import os
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch

from onmt_lite.checkpoints.checkpoint import Checkpoint
from onmt_lite.checkpoints.shipped import DEFAULT_MODEL
from onmt_lite.config.options import TranslateOptions
from onmt_lite.config.text_options import TextOptions
from onmt_lite.errors import (
    DataError,
    OptionError,
    OptionWarning,
    to_keyword_style,
    use_keyword_style,
)
from onmt_lite.inference.pipeline import Pipeline
from onmt_lite.inference.records import ProgressDelta, ProgressTotal, Translation
from onmt_lite.jobs.engine import WorkerPool
from onmt_lite.jobs.job import run_job
from onmt_lite.jobs.reports import Summary
from onmt_lite.jobs.tasks import InProcessEngine
from onmt_lite.models.base import EncoderDecoder
from onmt_lite.text.lines import Line, growing_windows, lines_from_texts
from onmt_lite.text.phrases import Phrases, iter_phrases, with_phrases
from onmt_lite.text.tokenizers import Tokenizer
from onmt_lite.trace.tracer import Tracer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from onmt_lite.config.keywords import AllOptions, CallOptions, FileOptions

# Options that are fixed when the model is loaded
FIXED_OPTIONS = (
    *("model", "avg_raw_probs", "model_weights", "device", "gpu", "precision", "workers"),
    *(f.name for f in dataclasses.fields(TextOptions)),
)
NOT_PER_CALL = "cannot be changed per call; pass it to from_pretrained()"
LANGUAGE_OPTIONS = ("src_lang", "tgt_lang")  # fixed too if the transform normalize reads them
Pair = tuple[Line, Line | None]  # a line and the prefix of its translation


class Translator:
    """A loaded model with default translation options.

    `Translator.from_pretrained()` loads the shipped model; `translate` takes one or many texts.
    A Translator works only in the process that loaded it.
    """

    def __init__(
        self,
        checkpoint: Checkpoint | None = None,
        options: TranslateOptions | None = None,
        **more: Any,
    ):
        """Translate with a loaded checkpoint; use `from_pretrained` to load a model by its path.

        Args:
            checkpoint: from `load_checkpoint`.
            options: from `TranslateOptions.of`, the defaults of all calls.
            more: the other arguments of a Pipeline.

        Raises:
            OptionError: for options that the model does not take.
            TypeError: without a checkpoint or options.
        """
        if not isinstance(checkpoint, Checkpoint) or not isinstance(options, TranslateOptions):
            raise TypeError("Translator() does not load a model; call Translator.from_pretrained()")
        self._use(Pipeline(checkpoint, options, **more), type(checkpoint.model).__name__)

    def _use(self, backend: Pipeline | WorkerPool, name: str) -> None:
        self._backend, self.options, self.name = backend, backend.options, name
        self._process = os.getpid()
        self.warned: set[str] = set()  # notes on options that were given as warnings
        if isinstance(backend, Pipeline):
            backend.runner.observe = Tracer

    @classmethod
    def from_pretrained(
        cls, path: str | Path | None = None, **options: "Unpack[AllOptions]"
    ) -> "Translator":
        """Load a model.

        Args:
            path: str or Path of a model in any format that -model takes, or TEAM/NAME of the
                Hugging Face hub; by default the shipped model.  `model=[...]` is an ensemble.
            options: default options of all calls, named as on the command line; docs/options.md
                lists all.  Calls cannot change the options of the model and its text,
                `device="auto"`, `precision="auto"` and `workers`, the number of processes that
                translate until `close` (default: this process translates).

        Returns:
            The Translator.

        Raises:
            OptionError: for wrong options, or options that the model does not take.
            CheckpointError: for a model that is missing, damaged or in an unknown format.
            MemoryExhausted: if the model does not fit into memory.
        """
        if path is not None:
            options["model"] = (str(path),)
        with use_keyword_style():
            return cls.load(TranslateOptions.of(**options))

    @classmethod
    def load(cls, options: TranslateOptions) -> "Translator":
        """Load the model that options name.

        Args:
            options: of `TranslateOptions.of` or `load_options`.

        Returns:
            The Translator.

        Raises:
            OnmtLiteError: those of `from_pretrained`, in the words of the command line.
        """
        translator = cls.__new__(cls)
        alone = (options.n_workers or 1) == 1
        backend = Pipeline.load(options) if alone else WorkerPool(options.with_models())
        translator._use(backend, " ".join(options.model.model or [DEFAULT_MODEL.name]))
        return translator

    def __repr__(self) -> str:
        n = self.options.n_workers or 1
        parts = [repr(self.name), *(self.machine or {}).values(), *[f"workers={n}"] * (n > 1)]
        return f"Translator({', '.join(parts)})"

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError(
            f"{self!r} stays in its process and cannot be pickled or copied; call "
            "Translator.from_pretrained() in the other process"
        )

    if not TYPE_CHECKING:  # type checkers know that it is not callable

        def __call__(self, *given, **options):
            raise TypeError("a Translator is not callable; use translator.translate(...)")

    @property
    def backend(self) -> Pipeline | WorkerPool:
        """The model or its workers.  ValueError in a process that has not loaded them."""
        if os.getpid() != self._process:
            raise ValueError(
                "this Translator was loaded in another process; call Translator.from_pretrained() "
                "in each process"
            )
        return self._backend

    @property
    def pipeline(self) -> Pipeline:
        """The Pipeline of this process.  AttributeError if workers translate."""
        if isinstance(self._backend, WorkerPool):
            raise AttributeError("a Translator with workers has no model in this process")
        return self._backend

    @property
    def model(self) -> EncoderDecoder:
        return self.pipeline.model

    @property
    def device(self) -> torch.device:
        return self.pipeline.device

    @device.setter
    def device(self, device: torch.device) -> None:
        """Make batches on `device` from now on; the model stays where it is."""
        self.pipeline.runner.device = device

    @property
    def checkpoint(self) -> Checkpoint:
        return self.pipeline.checkpoint

    @property
    def tokenizer(self) -> Tokenizer:
        return self.pipeline.tokenizer

    @property
    def machine(self) -> dict[str, str] | None:
        """Device and precision of the model."""
        return self._backend.machine

    @overload
    def translate(  # type: ignore[overload-overlap]
        self,
        lines: str,
        prefixes: str | None = None,
        progress: ProgressTotal | None = None,
        force_words: Phrases = None,
        ban_words: Phrases = None,
        **options: "Unpack[CallOptions]",
    ) -> Translation: ...

    @overload
    def translate(
        self,
        lines: Iterable[str],
        prefixes: Iterable[str] | None = None,
        progress: ProgressTotal | None = None,
        force_words: Phrases = None,
        ban_words: Phrases = None,
        **options: "Unpack[CallOptions]",
    ) -> list[Translation]: ...

    def translate(
        self,
        lines: str | Iterable[str],
        prefixes: Iterable[str] | None = None,
        progress: ProgressTotal | None = None,
        force_words: Phrases = None,
        ban_words: Phrases = None,
        **options: "Unpack[CallOptions]",
    ) -> Translation | list[Translation]:
        """Translate one text, or all texts of an iterable.

        Args:
            lines: one str, or an iterable of str.  Each is a line: line breaks inside it are read
                as spaces, with the note `line-breaks`.
            prefixes: the beginning of each translation: a str for one text, otherwise one per line
                (default: none).
            progress: called after each batch with the number of finished lines and target tokens.
            force_words: phrases that translations must contain: a tab-separated str for all lines,
                or a list with such a str for each line (default: none).
            ban_words: phrases that translations must not contain, in the same form.
            options: named as on the command line, such as `beam_size=5` or `n_best=1`; by default
                the options of `from_pretrained`.  docs/options.md lists all.

        Returns:
            One Translation for a str, otherwise a list with one for each line, in order.

        Raises:
            OptionError: for wrong options, or options that a call cannot have.
            TypeError: for a line that is not text.
            DataError: if there are more or fewer prefixes or phrases than lines.
            MemoryExhausted: for a line that does not fit into memory alone.
            ValueError: in a process that has not loaded the model.
        """
        parsed, one = self._options(options), isinstance(lines, str)
        if isinstance(lines, str):  # as a list of one
            lines = [lines]
            prefixes = [prefixes] if isinstance(prefixes, str) else prefixes
        pairs = list(pair_lines(lines, prefixes, force_words, ban_words))
        found = self._translated(pairs, parsed, accumulate(progress))
        return found[0] if one else found

    def translate_stream(
        self,
        lines: Iterable[str],
        prefixes: Iterable[str] | None = None,
        progress: ProgressTotal | None = None,
        force_words: Phrases = None,
        ban_words: Phrases = None,
        **options: "Unpack[CallOptions]",
    ) -> Generator[Translation, None, None]:
        """Translate lines as they arrive, even if they never end.

        Lines are read in windows of 1, 2, 4 ... 1,024.  A window is read after the results of the
        previous window have been taken, so memory does not grow with the input.

        Args:
            lines: any iterable of str, as of `translate`.
            prefixes: as of `translate`, one per line.
            progress: as of `translate`.
            force_words: as of `translate`.
            ban_words: as of `translate`.
            options: as of `translate`.

        Returns:
            A generator of the Translations that `translate` returns.

        Raises:
            OnmtLiteError: those of `translate`; wrong options at once, others at their line.
            TypeError: for a line that is not text, when it comes.
        """
        parsed = self._options(options)
        pairs, tell = pair_lines(lines, prefixes, force_words, ban_words), accumulate(progress)
        windows = growing_windows(pairs)
        return (made for window in windows for made in self._translated(window, parsed, tell))

    def _translated(
        self, pairs: list[Pair], options: TranslateOptions, progress: ProgressDelta
    ) -> list[Translation]:
        lines = [line for line, _ in pairs]
        prefixes = [prefix for _, prefix in pairs if prefix is not None] or None
        with use_keyword_style():
            return self.backend.translate_lines(lines, None, options, progress, prefixes)

    def translate_file(
        self,
        src: str | Path,
        output: str | Path,
        progress: ProgressTotal | None = None,
        **options: "Unpack[FileOptions]",
    ) -> Summary:
        """Translate a file as the command line does: `output` appears when it is complete.

        Args:
            src: str or Path, the text to translate, one line each; gzip is unpacked.
            output: str or Path, the file to write, or to replace; gzip data if it ends in .gz.
            progress: as of `translate`.
            options: those of `translate`, and `tgt`, `tgt_file_prefix`, `output_format="auto"`,
                `with_score=False` and others of the formats.

        Returns:
            The counts of the command line: `n_lines`, in `notes` the lines with each note, and in
            `untranslated` the lines left empty because they could not be translated.

        Raises:
            OptionError: for wrong options, or options that a call cannot have.
            DataError: for an input that is not text.
            FileError: if reading or writing fails.  After any error an older `output` is unchanged.
        """
        job: dict[str, Any] = dict(src=os.fspath(src), output=os.fspath(output))
        job |= dict(quiet=True, verbose=False)
        parsed, backend = self._options(options, **job), self.backend
        engine = backend if isinstance(backend, WorkerPool) else InProcessEngine(parsed, backend)
        with use_keyword_style():
            return run_job(parsed, engine, progress)

    @overload
    def score(self, src_lines: str, tgt_lines: str) -> float | None: ...  # type: ignore[overload-overlap]

    @overload
    def score(self, src_lines: Iterable[str], tgt_lines: Iterable[str]) -> list[float | None]: ...

    def score(
        self, src_lines: Iterable[str], tgt_lines: Iterable[str]
    ) -> float | None | list[float | None]:
        """Score translations that are given: teacher-forced log-probabilities.

        Args:
            src_lines: one str, or any iterable of them.
            tgt_lines: their translations: one str, or as many as source lines.

        Returns:
            The log-probability of each target in nats, including its end token: one float for two
            str, otherwise a list.  None if the source is empty or passed through, the target is
            too long for the model, or the model returns NaN.

        Raises:
            TypeError: for a line that is not text.
            DataError: unless both have as many lines.
        """
        if isinstance(src_lines, str) and isinstance(tgt_lines, str):
            return self.score([src_lines], [tgt_lines])[0]
        sources = list(lines_from_texts(src_lines, "src_lines"))
        targets = list(lines_from_texts(tgt_lines, "tgt_lines"))
        if len(sources) != len(targets):
            raise DataError(
                f"{len(sources)} source lines but {len(targets)} target lines; give one target "
                "for each source line"
            )
        data = dataclasses.replace(self.options.data, score_only=True)
        options = dataclasses.replace(self.options, data=data)
        with use_keyword_style():
            made = self.backend.translate_lines(sources, targets, options)
        return [translation.gold_log_prob for translation in made]

    def close(self) -> None:
        """End the processes of `workers`; at the end of the program that happens by itself."""
        if isinstance(self._backend, WorkerPool):
            self._backend.close()

    def __enter__(self) -> "Translator":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _options(self, given: Mapping[str, Any], **job: Any) -> TranslateOptions:
        """The options of a call, and of the `job` that it is.  OptionError for options that a call
        cannot have."""
        of_files = {} if job else vars(self.options.data) | vars(self.options.phrases)
        outside = vars(self.options.jobs) | vars(self.options.information)
        refused = {
            NOT_PER_CALL: FIXED_OPTIONS,
            "of translate_file() and the command line only; leave it out here": {*of_files}
            - {"src", "output"},
            "of the command line only; leave it out here": {*outside, "src", "output"},
        }
        for why, names in refused.items():
            if found := [name for name in given if name in names]:
                raise OptionError(f"{', '.join(found)}: {why}")
        options = self.options.updated(**given, **job)
        # Another program's name, such as fp16, may stand for one of these
        before, after = self.options.given, options.given
        settled = FIXED_OPTIONS + LANGUAGE_OPTIONS * ("normalize" in options.text.transforms)
        if fixed := [n for n in settled if after.get(n) != before.get(n)]:
            raise OptionError(f"{', '.join(fixed)}: {NOT_PER_CALL}")
        idle = [name for name, value in after.items() if value and name in of_files]
        notes = [f"{name}: without effect; it is of translate_file" for name in idle]
        # The defaults of from_pretrained, too, are judged beside the options of a call
        for note in (*options.notes, *self.backend.option_notices(options), *notes):
            if note not in self.warned:
                self.warned.add(note)
                # Reported at the line of the call
                warnings.warn(to_keyword_style(note), OptionWarning, stacklevel=3)
        return options


# -- lines of a call, with their prefixes and phrases, in windows ----------------------------------


def pair_lines(
    lines: Iterable[str], prefixes: Iterable[str] | None, forced: Phrases, banned: Phrases
) -> Iterator[Pair]:
    """Pair each line, with its phrases, with its prefix.  Raises DataError if a phrase is forced
    and banned or if the numbers of entries differ, and TypeError for an entry of the wrong type."""
    beside: dict[str, Iterator[Any]] = {
        "prefixes": repeat(None) if prefixes is None else lines_from_texts(prefixes, "prefixes"),
        "force_words": iter_phrases("force_words", forced),
        "ban_words": iter_phrases("ban_words", banned),
    }
    rows = zip_with_lines(lines_from_texts(lines, "lines"), beside)
    return ((with_phrases(line, *phrases), prefix) for line, prefix, *phrases in rows)


def zip_with_lines(lines: Iterator[Line], beside: dict[str, Iterator[Any]]) -> Iterator[list[Any]]:
    """Each line with what the others have for it.  DataError if one of them, but for a `repeat`,
    ends before the lines or behind them."""
    end = object()
    for n, line in enumerate(chain(lines, [end])):
        row = [next(each, end) for each in beside.values()]
        for (name, each), entry in zip(beside.items(), row):
            if not isinstance(each, repeat) and (entry is end) != (line is end):
                more, fewer = ("lines", name) if entry is end else (name, "lines")
                raise DataError(f"more {more} than {fewer}, which are {n}; give one for each line")
        if line is not end:
            yield [line, *row]


def accumulate(progress: ProgressTotal | None) -> ProgressDelta:
    """A progress of the counts that each batch adds, from one of totals."""
    if not (progress is None or callable(progress)):
        raise TypeError(f"progress: expected a function, got {type(progress).__name__}")
    n_lines = n_tokens = 0

    def add(more_lines: int, more_tokens: int) -> None:
        nonlocal n_lines, n_tokens
        n_lines, n_tokens = n_lines + more_lines, n_tokens + more_tokens
        if progress is not None and more_lines:
            progress(n_lines, n_tokens)

    return add
