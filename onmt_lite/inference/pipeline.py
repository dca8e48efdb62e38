"""Pipeline: lines to translations with one model; no files, no printing."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from onmt_lite.checkpoints.checkpoint import Checkpoint, LanguagePair
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import MemoryExhausted
from onmt_lite.inference.alignment import Aligner, line_tokens
from onmt_lite.inference.loading import (
    NamedTokenizer,
    forced_prefix_ids,
    load_files,
    load_phrase_table,
    tokenizer_from_options,
    with_tokenizer,
)
from onmt_lite.inference.paragraphs import Paragraphs
from onmt_lite.inference.postprocess import (
    Postprocessor,
    assess,
    find_unmet_phrases,
    model_notices,
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
    move_to,
    precision_of,
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
from onmt_lite.text.lines import Line

PER_LINE_FIELDS = ("id", "fields")  # fields that a translation takes over from its line unread


class Deduplicator:
    """Examples, of which equal ones are worked on once: `distinct` has the first of each kind."""

    def __init__(
        self,
        examples: Sequence[Example],
        merge: bool,
        progress: ProgressDelta = lambda *added: None,
    ):
        """`merge`: equal examples have equal translations."""
        self.examples, self.progress = examples, progress
        # Only a text that comes twice costs more than a look at it
        n_lines = Counter(example.line.text for example in examples) if merge else Counter[str]()
        kinds: dict[Hashable, Example] = {}
        self.firsts = [
            kinds.setdefault(deduplication_key(e) if n_lines[e.line.text] > 1 else id(e), e)
            for e in examples
        ]
        self.distinct = list(kinds.values())
        self.n_copies = Counter(map(id, self.firsts))

    def tell(self, done: Sequence[Example], n_tokens: Iterable[int] = ()) -> None:
        """Report the lines of distinct examples as done, and the target tokens of each."""
        numbers = [self.n_copies[id(example)] for example in done]
        self.progress(sum(numbers), sum(n * tokens for n, tokens in zip(numbers, n_tokens)))

    def of_all(self, made: Iterable[Translation]) -> list[Translation]:
        """The translations of all examples, from those of the distinct ones."""
        found = dict(zip(map(id, self.distinct), made, strict=True))
        pairs = zip(self.examples, [found[id(first)] for first in self.firsts])
        return [t if t.id == example.line.id else copy_for(t, example) for example, t in pairs]


def deduplication_key(example: Example) -> str:
    """All that an example is but the number of its line and what passes through, so that whatever
    a line may be given counts.  As text, since not all of it can be a key."""
    nothing: dict[str, Any] = dict.fromkeys(PER_LINE_FIELDS)
    return repr(replace(example, line=replace(example.line, **nothing)))


def copy_for(translation: Translation, example: Example) -> Translation:
    """The translation of an equal example; lists are its own."""
    made: dict[str, Any] = {n: [*v] for n, v in vars(translation).items() if isinstance(v, list)}
    made |= {"id": example.line.id, "fields": example.line.fields}
    if translation.trace is not None:
        made["trace"] = replace(translation.trace, id=example.line.id)
    return replace(translation, **made)


class Pipeline:
    """A loaded model with default translation options."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        options: TranslateOptions,
        own: NamedTokenizer | None = None,
        phrases: dict[str, str] | None = None,
        free: int | None = None,
    ):
        """The checkpoint's model stays as it is: if its weights are of another device or number
        type than the options ask for, the Pipeline has a copy.

        `own`, `phrases`: the tokenizer of the options and their phrase table, if they have been
        read already.  `free`: bytes of main memory for its work, by default all that are free."""
        self.options = options
        device, precision = resolve_device(options.speed, options.is_exact)
        with thread_settings(options.speed, device):
            self.model = model = move_to(checkpoint.model, device, precision)
        checkpoint = with_tokenizer(
            replace(checkpoint, model=model), options, own or tokenizer_from_options(options)
        )
        self.checkpoint = checkpoint
        self.direction(options)  # a missing language is an error before the first line is read
        raw_text, rule = options.text.tokenizer != "space", options.text.unknown
        if rule == "auto":
            rule = checkpoint.unknown.rule if raw_text else "model"
        self.preprocessor = Preprocessor(
            checkpoint, checkpoint.lowercase_all_caps and raw_text, rule
        )
        phrases = load_phrase_table(options) if phrases is None else phrases
        self.postprocessor = Postprocessor(checkpoint, options.text.replace_unk, phrases)
        self.tokenizer = self.postprocessor.tokenizer
        budget = BatchBudget.of(model, DTYPES.get(precision, torch.float32), device, free)
        self.runner = Runner(checkpoint, options, device, budget, self.postprocessor)
        self.aligner = Aligner(self.runner)
        self.clock = self.runner.clock

    @classmethod
    def load(cls, options: TranslateOptions, release: bool = False) -> "Pipeline":
        """Load the model that the options name, or the ensemble of several; `release`: see
        `placed`.  Raises OptionError or CheckpointError."""
        # A missing device is reported before anything is read
        device, precision = resolve_device(options.speed, options.is_exact)
        options = options.with_models()
        with thread_settings(options.speed, device):
            checkpoint, own, phrases = load_files(options, device, precision, release)
            return cls(checkpoint, options, own, phrases)

    @property
    def device(self) -> torch.device:
        return self.runner.device

    @property
    def machine(self) -> dict[str, str]:
        """Device and precision, on which results may depend."""
        return {"device": self.device.type, "precision": precision_of(self.model)}

    def option_notices(self, options: TranslateOptions) -> list[str]:
        """Notes on options that change nothing with this model."""
        return model_notices(options, self.checkpoint, self.device)

    def direction(self, options: TranslateOptions) -> LanguagePair:
        """The languages of lines without a tag.  OptionError if one is missing or unknown."""
        given = LanguagePair(options.model.src_lang, options.model.tgt_lang)
        if self.checkpoint.languages is None:
            check_language_pair(self.checkpoint, given)
        normalizes = "normalize" in options.text.transforms
        return choose_languages(self.checkpoint.languages, given, normalizes)

    def translate_lines(
        self,
        lines: Sequence[Line],
        tgt_lines: Sequence[Line] | None = None,
        options: TranslateOptions | None = None,
        progress: ProgressDelta = lambda *added: None,
        prefixes: Sequence[Line] | None = None,
    ) -> list[Translation]:
        """One Translation per line, in order; with `tgt_lines`, their log-probabilities too.
        With `prefixes` each begins with the tokens of its prefix.  `progress` is called with what
        each batch adds."""
        options = options or self.options
        config = make_search_config(options, self.checkpoint)
        check_line_options(config, lines, prefixes is not None)
        paragraphs = Paragraphs(lines, config, prefixes)
        has_references = tgt_lines is not None and not paragraphs.are_cut
        with self.clock.phase("tokenize"):
            nothing = [None] * len(paragraphs.lines)
            targets = tgt_lines if tgt_lines is not None and has_references else nothing
            forced = forced_prefix_ids(self.checkpoint, options) if prefixes is None else ()
            direction, limit = self.direction(options), config.preset.max_source
            make = partial(self.preprocessor.make_example, direction=direction, max_source=limit)
            each = zip(paragraphs.lines, targets, paragraphs.prefixes or nothing, strict=True)
            examples = [make(*sides, forced) for sides in each]
            copies = Deduplicator(examples, config.can_deduplicate, paragraphs.counting(progress))
        with thread_settings(options.speed, self.device):
            made = self._translations(copies, config, has_references)
        whole = paragraphs.joined(copies.of_all(made))
        whole = [with_number_warning(each, self.checkpoint, direction) for each in whole]
        if tgt_lines is None or has_references:
            return whole
        # References are of whole lines
        with thread_settings(options.speed, self.device):
            examples = [make(*sides) for sides in zip(lines, tgt_lines, strict=True)]
            notes = [tuple(n for n in e.notes if n.startswith("tgt-")) for e in examples]
            noted = [replace(t, notes=t.notes + own) for t, own in zip(whole, notes)]
            return self._score(examples, noted, options)

    def _translations(
        self, copies: Deduplicator, config: SearchConfig, has_references: bool
    ) -> list[Translation]:
        """The passes over examples and their results, in order."""
        examples, options, aligner = copies.distinct, config.options, self.aligner
        if options.data.score_only and has_references:
            empty = [self._assemble(example, SearchResult(), config) for example in examples]
            made = self._score(examples, empty, options)
            copies.tell(examples, [t.n_gold_tokens for t in made])
            return made
        results = aligner.align(examples, self._search(copies, config), config)
        made = [self._assemble(*pair, config) for pair in zip(examples, results)]
        if options.attention.attn_debug:
            made = aligner.add_tables(examples, made, options)
        if has_references:
            made = self._score(examples, made, options)
        if options.attention.gold_align:
            made = aligner.add_references(examples, made, options)
        return made

    # ---- passes ----

    def _search(self, copies: Deduplicator, config: SearchConfig) -> list[SearchResult]:
        """Search, group by group, and tell of each group that is done."""

        def work(group: list[Example], n_slots: int) -> list[SearchResult]:
            with self.clock.phase("decode"):
                found = self.runner.search(group, n_slots, config)
                if config.options.search.n_best_unique:
                    found = self._widen(group, n_slots, found, config)
            copies.tell(group, [len(f.hyps[0].token_log_probs) for f in found])
            return found

        examples = copies.distinct
        copies.tell([e for e in examples if not e.src_ids])
        groups = self.runner.groups([e for e in examples if e.src_ids], config)
        made = run_groups(examples, groups, work)
        passed = [
            e.masked_line.plain if e.masked_line and e.masked_line.is_passed_through else ""
            for e in examples
        ]
        return [
            f or SearchResult([replace(EMPTY_HYPOTHESIS, text=text)])
            for f, text in zip(made, passed)
        ]

    def _widen(
        self, group: list[Example], n_slots: int, found: list[SearchResult], config: SearchConfig
    ) -> list[SearchResult]:
        """Search again with twice the beam, until each example has n_best texts.

        None is left to find if a search ends with fewer complete hypotheses than its beam has room
        for and has no text more than the one before.  A beam without room in memory is not tried.
        """
        n_best, found = config.options.search.n_best, list(found)
        # If open rows are lost at the limit, their number does not say whether some were left out
        loses = config.spec.policy.open_rows_at_limit in ("lost", "if_none")

        def lacks(each: SearchResult) -> bool:
            return not each.note and len(each.hyps) < n_best

        short = [i for i, each in enumerate(found) if lacks(each)]
        while short and config.spec.beam_size < MAX_BEAM_SIZE:
            narrow, config = config.spec.beam_size, widen_beam(config)
            n_slots = max(1, n_slots * narrow // config.spec.beam_size)  # as many rows as before
            try:
                again = self.runner.search([group[i] for i in short], n_slots, config)
            except MemoryExhausted:
                break
            still = []
            for i, each in zip(short, again, strict=True):
                gained = len(each.hyps) - len(found[i].hyps)
                if gained >= 0 and not each.note:
                    found[i] = each
                is_full = loses or each.n_complete >= config.spec.beam_size
                if lacks(each) and (gained > 0 or is_full):
                    still.append(i)
            short = still
        return found

    def _score(
        self, examples: list[Example], made: list[Translation], options: TranslateOptions
    ) -> list[Translation]:
        """With the log-probabilities of references."""
        scores = self.runner.score(examples, options.speed.deterministic)
        return [with_reference(*pair) for pair in zip(made, scores)]

    def _assemble(
        self, example: Example, result: SearchResult, config: SearchConfig
    ) -> Translation:
        """All that is known about one line, without its reference."""
        hyps, line = result.hyps, example.line
        notes, confidence = assess(example, result, config)
        aligned = config.options.attention.report_align and bool(hyps)
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
            src_tokens=line_tokens(example) if aligned else None,
            n_forced=len(line.forced) if hyps else 0,
            unmet=find_unmet_phrases(hyps[0].text, line.forced) if hyps else (),
        )
