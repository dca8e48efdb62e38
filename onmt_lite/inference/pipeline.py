"""Translation pipeline: lines to translations with one model. It does not access files or print."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from onmt_lite.checkpoints.checkpoint import Checkpoint, LanguagePair
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import MemoryExhausted
from onmt_lite.inference.alignment import Aligner, get_line_tokens
from onmt_lite.inference.loading import (
    NamedTokenizer,
    get_forced_prefix_ids,
    load_files,
    load_phrase_table,
    tokenizer_from_options,
    with_tokenizer,
)
from onmt_lite.inference.paragraphs import SplitLines
from onmt_lite.inference.postprocess import (
    Postprocessor,
    assess,
    find_unmet_phrases,
    list_model_notices,
    with_number_warning,
    with_reference,
)
from onmt_lite.inference.preprocess import Preprocessor, check_language_pair, choose_languages
from onmt_lite.inference.records import (
    EMPTY_HYPOTHESIS,
    Example,
    ProgressDelta,
    SearchResult,
    Translation,
)
from onmt_lite.inference.runner import Runner, run_groups
from onmt_lite.inference.runtime import (
    DTYPES,
    BatchBudget,
    get_precision,
    move_to,
    resolve_device,
    thread_settings,
)
from onmt_lite.inference.search_setup import (
    MAX_BEAM_SIZE,
    SearchConfig,
    check_line_options,
    make_search_config,
    widen_beam,
)
from onmt_lite.system.resources import keep_freed_memory
from onmt_lite.text.lines import Line

PER_LINE_FIELDS = ("id", "fields")  # fields of a line that do not affect its translation


class Deduplicator:
    """Finds equal examples, so that each distinct example is translated once.

    Attributes:
        distinct: the first example of each group of equal examples.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        merge: bool,
        progress: ProgressDelta = lambda *added: None,
    ):
        """
        Args:
            examples: all examples.
            merge: whether equal examples have equal translations.
            progress: progress callback.
        """
        self.examples, self.progress = examples, progress
        # Keys are only computed for texts that occur more than once
        n_lines = Counter(example.line.text for example in examples) if merge else Counter[str]()
        groups: dict[Hashable, Example] = {}
        self.representatives = [
            groups.setdefault(make_deduplication_key(e) if n_lines[e.line.text] > 1 else id(e), e)
            for e in examples
        ]
        self.distinct = list(groups.values())
        self.n_copies = Counter(map(id, self.representatives))

    def report(self, examples_done: Sequence[Example], n_tokens: Iterable[int] = ()) -> None:
        """Report progress for distinct examples and their copies.

        Args:
            examples_done: translated distinct examples.
            n_tokens: target tokens of each.
        """
        n_lines = [self.n_copies[id(example)] for example in examples_done]
        self.progress(sum(n_lines), sum(n * tokens for n, tokens in zip(n_lines, n_tokens)))

    def expand(self, translations: Iterable[Translation]) -> list[Translation]:
        """Return the translations of all examples from the ones of the distinct examples."""
        by_id = dict(zip(map(id, self.distinct), translations, strict=True))
        pairs = zip(self.examples, [by_id[id(first)] for first in self.representatives])
        return [t if t.id == example.line.id else copy_for(t, example) for example, t in pairs]


def make_deduplication_key(example: Example) -> str:
    """Return a key that is equal for examples with equal translations.

    It covers all fields of an example except PER_LINE_FIELDS, including any fields added later. It
    is a string because not all fields are hashable.
    """
    cleared: dict[str, Any] = dict.fromkeys(PER_LINE_FIELDS)
    return repr(replace(example, line=replace(example.line, **cleared)))


def copy_for(translation: Translation, example: Example) -> Translation:
    """Return a copy of a translation, with its own lists, for an equal example."""
    changes: dict[str, Any] = {n: [*v] for n, v in vars(translation).items() if isinstance(v, list)}
    changes |= {"id": example.line.id, "fields": example.line.fields}
    if translation.trace is not None:
        changes["trace"] = replace(translation.trace, id=example.line.id)
    return replace(translation, **changes)


class Pipeline:
    """A loaded model with default translation options."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        options: TranslateOptions,
        tokenizer: NamedTokenizer | None = None,
        phrases: dict[str, str] | None = None,
        free_bytes: int | None = None,
    ):
        """
        Args:
            checkpoint: the model. It is not modified: if its weights have another device or dtype
                than the options require, the Pipeline makes a copy.
            options: default options.
            tokenizer: the tokenizer that the options define, if it has been read.
            phrases: the phrase table of the options, if it has been read.
            free_bytes: bytes of main memory to use (default: all free memory).
        """
        self.options = options
        keep_freed_memory()
        device, precision = resolve_device(options.speed, options.is_exact)
        with thread_settings(options.speed, device):
            self.model = model = move_to(checkpoint.model, device, precision)
        checkpoint = with_tokenizer(
            replace(checkpoint, model=model), options, tokenizer or tokenizer_from_options(options)
        )
        self.checkpoint = checkpoint
        self.direction(options)  # raises if a language is missing, before the first line is read
        raw_text, rule = options.text.tokenizer != "space", options.text.unknown
        if rule == "auto":
            rule = checkpoint.unknown.rule if raw_text else "model"
        self.preprocessor = Preprocessor(
            checkpoint, checkpoint.lowercase_all_caps and raw_text, rule
        )
        phrases = load_phrase_table(options) if phrases is None else phrases
        self.postprocessor = Postprocessor(checkpoint, options.text.replace_unk, phrases)
        self.tokenizer = self.postprocessor.tokenizer
        budget = BatchBudget.of(model, DTYPES.get(precision, torch.float32), device, free_bytes)
        self.runner = Runner(checkpoint, options, device, budget, self.postprocessor)
        self.aligner = Aligner(self.runner)
        self.clock = self.runner.clock

    @classmethod
    def load(cls, options: TranslateOptions) -> "Pipeline":
        """Load the model named by the options, or the ensemble of several.

        Args:
            options: the options.

        Raises:
            OptionError: if an option does not fit the model or the machine.
            CheckpointError: if a file is damaged or not supported.
        """
        # A missing device is reported before files are read
        device, precision = resolve_device(options.speed, options.is_exact)
        options = options.with_models()
        with thread_settings(options.speed, device):
            checkpoint, tokenizer, phrases = load_files(options, device, precision)
            return cls(checkpoint, options, tokenizer, phrases)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.runner.device

    @property
    def machine(self) -> dict[str, str]:
        """Device type and precision, on which results may depend."""
        return {"device": self.device.type, "precision": get_precision(self.model)}

    def option_notices(self, options: TranslateOptions) -> list[str]:
        """Return notices about options that have no effect with this model."""
        return list_model_notices(options, self.checkpoint, self.device)

    def direction(self, options: TranslateOptions) -> LanguagePair:
        """Return the languages of lines without a language tag.

        Raises:
            OptionError: if a language is missing or unknown.
        """
        codes = LanguagePair(options.model.src_lang, options.model.tgt_lang)
        if self.checkpoint.languages is None:
            check_language_pair(self.checkpoint, codes)
        normalizes = "normalize" in options.text.transforms
        return choose_languages(self.checkpoint.languages, codes, normalizes)

    def translate_lines(
        self,
        lines: Sequence[Line],
        tgt_lines: Sequence[Line] | None = None,
        options: TranslateOptions | None = None,
        progress: ProgressDelta = lambda *added: None,
        prefixes: Sequence[Line] | None = None,
    ) -> list[Translation]:
        """Translate lines.

        Args:
            lines: the lines.
            tgt_lines: references to score, one per line.
            options: options of this call (default: the options of the pipeline).
            progress: called with the lines and target tokens that each batch adds.
            prefixes: target prefixes, one per line.

        Returns:
            One Translation per line, in order.
        """
        options = options or self.options
        config = make_search_config(options, self.checkpoint)
        check_line_options(config, lines, prefixes is not None)
        split_lines = SplitLines(lines, config, prefixes)
        has_references = tgt_lines is not None and not split_lines.is_split
        with self.clock.phase("tokenize"):
            missing = [None] * len(split_lines.lines)
            targets = tgt_lines if tgt_lines is not None and has_references else missing
            forced = get_forced_prefix_ids(self.checkpoint, options) if prefixes is None else ()
            direction, limit = self.direction(options), config.preset.max_source
            make = partial(self.preprocessor.make_example, direction=direction, max_source=limit)
            inputs = zip(split_lines.lines, targets, split_lines.prefixes or missing, strict=True)
            examples = [make(*sides, forced) for sides in inputs]
            deduplicator = Deduplicator(
                examples, config.can_deduplicate, split_lines.map_progress_to_lines(progress)
            )
        with thread_settings(options.speed, self.device):
            translations = self._translate_distinct(deduplicator, config, has_references)
        whole_lines = split_lines.join(deduplicator.expand(translations))
        whole_lines = [with_number_warning(t, self.checkpoint, direction) for t in whole_lines]
        if tgt_lines is None or has_references:
            return whole_lines
        # References belong to the original lines
        with thread_settings(options.speed, self.device):
            examples = [make(*sides) for sides in zip(lines, tgt_lines, strict=True)]
            notes = [tuple(n for n in e.notes if n.startswith("tgt-")) for e in examples]
            with_notes = [replace(t, notes=t.notes + more) for t, more in zip(whole_lines, notes)]
            return self._score(examples, with_notes, options)

    def _translate_distinct(
        self, deduplicator: Deduplicator, config: SearchConfig, has_references: bool
    ) -> list[Translation]:
        """Search, assemble, align and score the distinct examples, as the options require.

        Args:
            deduplicator: the examples.
            config: the search configuration.
            has_references: whether the examples have references.
        """
        examples, options, aligner = deduplicator.distinct, config.options, self.aligner
        if options.data.score_only and has_references:
            without_hyps = [self._assemble(example, SearchResult(), config) for example in examples]
            translations = self._score(examples, without_hyps, options)
            deduplicator.report(examples, [t.n_gold_tokens for t in translations])
            return translations
        results = aligner.align(examples, self._search(deduplicator, config), config)
        translations = [self._assemble(*pair, config) for pair in zip(examples, results)]
        if options.attention.attn_debug:
            translations = aligner.add_attention_tables(examples, translations, options)
        if has_references:
            translations = self._score(examples, translations, options)
        if options.attention.gold_align:
            translations = aligner.add_gold_alignments(examples, translations, options)
        return translations

    # ---- passes over the examples ----

    def _search(self, deduplicator: Deduplicator, config: SearchConfig) -> list[SearchResult]:
        """Search group by group and report progress after each group."""

        def search_group(group: list[Example], n_slots: int) -> list[SearchResult]:
            with self.clock.phase("decode"):
                results = self.runner.search(group, n_slots, config)
                if config.options.search.n_best_unique:
                    results = self._widen(group, n_slots, results, config)
            deduplicator.report(group, [len(result.hyps[0].token_log_probs) for result in results])
            return results

        examples = deduplicator.distinct
        deduplicator.report([e for e in examples if not e.src_ids])
        groups = self.runner.groups([e for e in examples if e.src_ids], config)
        results = run_groups(examples, groups, search_group)
        passed = [
            e.masked_line.plain if e.masked_line and e.masked_line.is_passed_through else ""
            for e in examples
        ]
        return [
            result or SearchResult([replace(EMPTY_HYPOTHESIS, text=text)])
            for result, text in zip(results, passed)
        ]

    def _widen(
        self, group: list[Example], n_slots: int, results: list[SearchResult], config: SearchConfig
    ) -> list[SearchResult]:
        """Search again with twice the beam until each example has n_best different texts.

        The search stops if it returns fewer complete hypotheses than its beam has room for and no
        new text. A beam that does not fit in memory is not tried.

        Args:
            group: examples that are searched together.
            n_slots: number of sentences to run at once.
            results: their results so far.
            config: the search configuration.
        """
        n_best, results = config.options.search.n_best, list(results)
        # If open rows are dropped at the length limit, n_complete is not informative
        drops_open_rows = config.spec.policy.open_rows_at_limit in ("lost", "if_none")

        def is_incomplete(result: SearchResult) -> bool:
            return not result.note and len(result.hyps) < n_best

        incomplete = [i for i, result in enumerate(results) if is_incomplete(result)]
        while incomplete and config.spec.beam_size < MAX_BEAM_SIZE:
            narrow, config = config.spec.beam_size, widen_beam(config)
            n_slots = max(1, n_slots * narrow // config.spec.beam_size)  # keeps the number of rows
            try:
                new_results = self.runner.search([group[i] for i in incomplete], n_slots, config)
            except MemoryExhausted:
                break
            still_incomplete = []
            for i, result in zip(incomplete, new_results, strict=True):
                gained = len(result.hyps) - len(results[i].hyps)
                if gained >= 0 and not result.note:
                    results[i] = result
                is_full = drops_open_rows or result.n_complete >= config.spec.beam_size
                if is_incomplete(result) and (gained > 0 or is_full):
                    still_incomplete.append(i)
            incomplete = still_incomplete
        return results

    def _score(
        self, examples: list[Example], translations: list[Translation], options: TranslateOptions
    ) -> list[Translation]:
        """Add the log-probabilities of references.

        Args:
            examples: the lines, with references.
            translations: their translations.
            options: with `deterministic`.
        """
        scores = self.runner.score(examples, options.speed.deterministic)
        return [with_reference(*pair) for pair in zip(translations, scores)]

    def _assemble(
        self, example: Example, result: SearchResult, config: SearchConfig
    ) -> Translation:
        """Return the translation of one line, without its reference.

        Args:
            example: the line.
            result: its search result.
            config: the search configuration.
        """
        hyps, line = result.hyps, example.line
        notes, confidence = assess(example, result, config)
        has_alignment = config.options.attention.report_align and bool(hyps)
        return Translation(
            line.id,
            line.text,
            hyps,
            notes,
            n_src_tokens=example.n_src_tokens,
            n_unknown=example.n_unknown,
            confidence=confidence,
            trace=result.trace,
            calibrated=bool(hyps) and self.checkpoint.confidence is not None,
            fields=line.fields,
            src_tokens=get_line_tokens(example) if has_alignment else None,
            n_forced=len(line.forced) if hyps else 0,
            unmet=find_unmet_phrases(hyps[0].text, line.forced) if hyps else (),
        )
