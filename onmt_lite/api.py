"""Translator, the Python interface.

A Translator checks the options of each call and translates its lines with a Pipeline in this
process, or with worker processes that have a Pipeline each.  With workers, this process does not
need torch, whose import takes 145 MiB.
"""

import dataclasses
import os
import warnings
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

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
from onmt_lite.inference.call_inputs import Pair, accumulate, pair_lines
from onmt_lite.inference.records import ProgressDelta, ProgressTotal, Translation
from onmt_lite.jobs.engine import WorkerPool
from onmt_lite.jobs.job import run_job
from onmt_lite.jobs.reports import Summary
from onmt_lite.jobs.tasks import InProcessEngine
from onmt_lite.system.resources import NUMPY_WARNING
from onmt_lite.text.lines import iterate_growing_windows, make_lines_from_texts
from onmt_lite.text.phrases import Phrases

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from onmt_lite.checkpoints.checkpoint import Checkpoint
    from onmt_lite.config.keywords import AllOptions, CallOptions, FileOptions
    from onmt_lite.inference.pipeline import Pipeline
    from onmt_lite.models.base import EncoderDecoder
    from onmt_lite.text.tokenizers import Tokenizer

# Options that are fixed once the model is loaded
FIXED_OPTIONS = (
    *("model", "avg_raw_probs", "model_weights", "device", "gpu", "precision", "workers"),
    *(f.name for f in dataclasses.fields(TextOptions)),
)
NOT_PER_CALL = "cannot be changed per call; pass it to from_pretrained()"
LANGUAGE_OPTIONS = ("src_lang", "tgt_lang")  # fixed as well if the transform normalize uses them


class Translator:
    """A loaded model with default translation options.

    `Translator.from_pretrained()` loads the shipped model; `translate` takes one or many texts.
    A Translator works only in the process that loaded it.
    """

    def __init__(
        self,
        checkpoint: "Checkpoint | None" = None,
        options: TranslateOptions | None = None,
        **pipeline_options: Any,
    ):
        """Create a Translator for a loaded checkpoint; see `from_pretrained` to load a model.

        Args:
            checkpoint: Result of `load_checkpoint`.
            options: Default options of all calls, created by `TranslateOptions.of`.
            pipeline_options: Other arguments of Pipeline.

        Raises:
            OptionError: The model does not support an option.
            TypeError: The checkpoint or the options are missing.
        """
        from onmt_lite.checkpoints.checkpoint import Checkpoint
        from onmt_lite.inference.pipeline import Pipeline

        if not isinstance(checkpoint, Checkpoint) or not isinstance(options, TranslateOptions):
            raise TypeError("Translator() does not load a model; call Translator.from_pretrained()")
        self._use(
            Pipeline(checkpoint, options, **pipeline_options), type(checkpoint.model).__name__
        )

    def _use(self, backend: "Pipeline | WorkerPool", name: str) -> None:
        self._backend, self.options, self.name = backend, backend.options, name
        self._process = os.getpid()
        self.warned: set[str] = set()  # notices that were already issued as warnings
        if not isinstance(backend, WorkerPool):
            from onmt_lite.trace.tracer import Tracer

            backend.runner.observe = Tracer

    @classmethod
    def from_pretrained(
        cls, path: str | Path | None = None, **options: "Unpack[AllOptions]"
    ) -> "Translator":
        """Load a model.

        Args:
            path: Model in any format that -model supports, as a str or Path, or a name on the
                Hugging Face hub, TEAM/NAME (default: the shipped model).  `model=[...]` loads an
                ensemble.
            options: Default options of all calls, named as on the command line; docs/options.md
                lists all options.  Calls cannot change the model and text options, `device="auto"`,
                `precision="auto"` or `workers`, the number of worker processes (default: translate
                in this process).

        Returns:
            The Translator.

        Raises:
            OptionError: An option is not valid or not supported by the model.
            CheckpointError: The model is missing, damaged or in an unsupported format.
            MemoryExhausted: The model does not fit in memory.
        """
        if path is not None:
            options["model"] = (str(path),)
        with use_keyword_style():
            return cls.load(TranslateOptions.of(**options))

    @classmethod
    def load(cls, options: TranslateOptions) -> "Translator":
        """Load the model that the options name.

        Args:
            options: Created by `TranslateOptions.of` or `load_options`.

        Returns:
            The Translator.

        Raises:
            OnmtLiteError: As in `from_pretrained`, with messages in command-line style.
        """
        translator = cls.__new__(cls)
        translator._use(
            load_backend(options), " ".join(options.model.model or [DEFAULT_MODEL.name])
        )
        return translator

    def __repr__(self) -> str:
        n = self.options.n_workers or 1
        parts = [repr(self.name), *(self.machine or {}).values(), *[f"workers={n}"] * (n > 1)]
        return f"Translator({', '.join(parts)})"

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError(
            f"{self!r} belongs to its process and cannot be pickled or copied; call "
            "Translator.from_pretrained() in the other process"
        )

    if not TYPE_CHECKING:  # type checkers report the call themselves

        def __call__(self, *given, **options):
            raise TypeError("a Translator is not callable; use translator.translate(...)")

    @property
    def backend(self) -> "Pipeline | WorkerPool":
        """The Pipeline, or the pool of worker processes.

        Raises:
            ValueError: Another process has loaded the model.
        """
        if os.getpid() != self._process:
            raise ValueError(
                "this Translator was loaded in another process; call Translator.from_pretrained() "
                "in each process"
            )
        return self._backend

    @property
    def pipeline(self) -> "Pipeline":
        """The Pipeline in this process.

        Raises:
            AttributeError: Worker processes translate.
        """
        if isinstance(self._backend, WorkerPool):
            raise AttributeError("a Translator with workers has no model in this process")
        return self._backend

    @property
    def model(self) -> "EncoderDecoder":
        """The model.  Weights that were dropped after the kernels copied them are read again."""
        from onmt_lite.inference.runtime import restore_weights

        restore_weights(self.pipeline.model)
        return self.pipeline.model

    @property
    def device(self) -> "torch.device":
        """Device of the model."""
        return self.pipeline.device

    @device.setter
    def device(self, device: "torch.device") -> None:
        """Set the device of new batches; the model is not moved."""
        self.pipeline.runner.device = device

    @property
    def checkpoint(self) -> "Checkpoint":
        """The loaded checkpoint."""
        return self.pipeline.checkpoint

    @property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer."""
        return self.pipeline.tokenizer

    @property
    def machine(self) -> dict[str, str] | None:
        """Device and precision of the model, by name."""
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
            lines: A str, or an iterable of str.  Each is one line: line breaks in it are replaced
                with spaces, with the warning `line-breaks`.
            prefixes: Target prefix of each line; a str for a single text (default: none).
            progress: Called after each batch with the number of finished lines and target tokens.
            force_words: Phrases that translations must contain: a tab-separated str for all lines,
                or a list with such a str for each line (default: none).
            ban_words: Phrases that translations must not contain, in the same form.
            options: Options named as on the command line, such as `beam_size=5` or `n_best=1`
                (default: the options of `from_pretrained`); docs/options.md lists all options.

        Returns:
            One Translation for a str, otherwise a list with one per line, in order.

        Raises:
            OptionError: An option is not valid or cannot be changed per call.
            TypeError: A line is not a str.
            DataError: The number of prefixes or phrases differs from the number of lines.
            MemoryExhausted: A single line does not fit in memory.
            ValueError: Another process has loaded the model.
        """
        parsed, is_single = self._options(options), isinstance(lines, str)
        if isinstance(lines, str):
            lines = [lines]
            prefixes = [prefixes] if isinstance(prefixes, str) else prefixes
        pairs = list(pair_lines(lines, prefixes, force_words, ban_words))
        translations = self._translate_pairs(pairs, parsed, accumulate(progress))
        return translations[0] if is_single else translations

    def translate_stream(
        self,
        lines: Iterable[str],
        prefixes: Iterable[str] | None = None,
        progress: ProgressTotal | None = None,
        force_words: Phrases = None,
        ban_words: Phrases = None,
        **options: "Unpack[CallOptions]",
    ) -> Generator[Translation, None, None]:
        """Translate lines as they arrive, from an iterable that may be infinite.

        Lines are read in windows of 1, 2, 4, ..., 1,024.  A window is read after the results of the
        previous window have been consumed, so memory does not grow with the input.

        Args:
            lines: Any iterable of str.
            prefixes: Target prefix of each line, as in `translate`.
            progress: As in `translate`.
            force_words: As in `translate`.
            ban_words: As in `translate`.
            options: As in `translate`.

        Returns:
            A generator of the Translations that `translate` returns.

        Raises:
            OnmtLiteError: As in `translate`; invalid options at once, other errors at their line.
            TypeError: A line is not a str; raised at that line.
        """
        parsed = self._options(options)
        pairs, add = pair_lines(lines, prefixes, force_words, ban_words), accumulate(progress)
        return (
            translation
            for window in iterate_growing_windows(pairs)
            for translation in self._translate_pairs(window, parsed, add)
        )

    def _translate_pairs(
        self, pairs: list[Pair], options: TranslateOptions, progress: ProgressDelta
    ) -> list[Translation]:
        """Translate lines with their prefixes; `progress` gets the counts of each batch."""
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
        """Translate a file like the command line; the output appears when it is complete.

        Args:
            src: Input file, one sentence per line, plain text or gzip.
            output: Output file, compressed if its name ends in .gz; an existing file is replaced.
            progress: As in `translate`.
            options: Options of `translate`, and `tgt`, `tgt_file_prefix`, `output_format="auto"`,
                `with_score=False` and other options for files.

        Returns:
            A Summary: `n_lines`, in `notes` the lines with each warning, and in `untranslated` the
            lines that could not be translated and are empty.

        Raises:
            OptionError: An option is not valid or cannot be changed per call.
            DataError: The input is not text.
            FileError: Reading or writing fails.  An existing `output` is unchanged after any error.
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
        """Score given translations with teacher forcing.

        Args:
            src_lines: A str, or an iterable of str.
            tgt_lines: The translations: a str, or as many as source lines.

        Returns:
            Log-probability of each target in nats, including the end token: a float for two str,
            otherwise a list.  None if the source is empty or not translated, the target is too long
            for the model, or the model returns NaN.

        Raises:
            TypeError: A line is not a str.
            DataError: The number of source and target lines differs.
        """
        if isinstance(src_lines, str) and isinstance(tgt_lines, str):
            return self.score([src_lines], [tgt_lines])[0]
        sources = list(make_lines_from_texts(src_lines, "src_lines"))
        targets = list(make_lines_from_texts(tgt_lines, "tgt_lines"))
        if len(sources) != len(targets):
            raise DataError(
                f"{len(sources)} source lines but {len(targets)} target lines; pass one target "
                "for each source line"
            )
        data = dataclasses.replace(self.options.data, score_only=True)
        options = dataclasses.replace(self.options, data=data)
        with use_keyword_style():
            scored = self.backend.translate_lines(sources, targets, options)
        return [translation.gold_log_prob for translation in scored]

    def close(self) -> None:
        """Stop the worker processes; this happens automatically when the program exits."""
        if isinstance(self._backend, WorkerPool):
            self._backend.close()

    def __enter__(self) -> "Translator":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _options(self, given: Mapping[str, Any], **job: Any) -> TranslateOptions:
        """Return the options of a call.

        Args:
            given: Options of the call.
            job: Options that `translate_file` sets; empty for a call without files.

        Returns:
            The options.

        Raises:
            OptionError: An option is not valid or cannot be changed per call.
        """
        file_options = {} if job else vars(self.options.data) | vars(self.options.phrases)
        cli_options = vars(self.options.jobs) | vars(self.options.information)
        not_allowed = {
            NOT_PER_CALL: FIXED_OPTIONS,
            "is only supported by translate_file() and on the command line; remove it": {
                *file_options
            }
            - {"src", "output"},
            "is only supported on the command line; remove it": {*cli_options, "src", "output"},
        }
        for why, names in not_allowed.items():
            if rejected := [name for name in given if name in names]:
                raise OptionError(f"{', '.join(rejected)}: {why}")
        options = self.options.updated(**given, **job)
        # A name from another program, such as fp16, may set one of these options
        before, after = self.options.given, options.given
        fixed = FIXED_OPTIONS + LANGUAGE_OPTIONS * ("normalize" in options.text.transforms)
        if changed := [n for n in fixed if after.get(n) != before.get(n)]:
            raise OptionError(f"{', '.join(changed)}: {NOT_PER_CALL}")
        unused = [name for name, value in after.items() if value and name in file_options]
        notices = [f"{name}: has no effect; it is an option of translate_file" for name in unused]
        # Includes notices about the defaults of from_pretrained
        for notice in (*options.notes, *self.backend.option_notices(options), *notices):
            if notice not in self.warned:
                self.warned.add(notice)
                # stacklevel: report the line of the call
                warnings.warn(to_keyword_style(notice), OptionWarning, stacklevel=3)
        return options


def load_backend(options: TranslateOptions) -> "Pipeline | WorkerPool":
    """Start the worker processes, or load the model in this process."""
    if (options.n_workers or 1) > 1:
        return WorkerPool(options.with_models())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=NUMPY_WARNING)
        from onmt_lite.inference.pipeline import Pipeline
    return Pipeline.load(options)
