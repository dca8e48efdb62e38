"""Pipeline: lines to translations with one model; no files, no printing."""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from onmt_lite.checkpoints.record import Checkpoint, Direction
from onmt_lite.config.job_options import SpeedOptions
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import MemoryExhausted, OptionError
from onmt_lite.inference.alignment import Aligner, with_source
from onmt_lite.inference.batching import (
    join_batches,
    longer_side,
    make_batches,
    pad_batch,
    source_length,
)
from onmt_lite.inference.budget import Budget, Room, Size, bytes_at_once, free_on
from onmt_lite.inference.duplicates import Copies
from onmt_lite.inference.fallbacks import enough
from onmt_lite.inference.languages import choose_languages
from onmt_lite.inference.loading import read_parts
from onmt_lite.inference.notes import notes_of, total, unsearched, with_gold
from onmt_lite.inference.paragraphs import Paragraphs, longest
from onmt_lite.inference.postprocess import Renderer, unmet
from onmt_lite.inference.preprocess import ExampleMaker
from onmt_lite.inference.records import NOTHING, Example, Found, Progress, Translation
from onmt_lite.inference.runtime import DTYPES, choose, computing, placed, precision_of
from onmt_lite.inference.search_setup import SearchRules, model_notes, sums_to_one
from onmt_lite.inference.tokenization import Named, fit, forced_ids, phrases_of, read_own
from onmt_lite.inference.tracing import Tracer
from onmt_lite.models.base import AnyModel, EncoderDecoder
from onmt_lite.models.captured import CudaRecorder, giving_back, with_graphs
from onmt_lite.search.beam import NOT_A_NUMBER
from onmt_lite.search.clock import Clock
from onmt_lite.search.decode import decode
from onmt_lite.search.forced import score_targets
from onmt_lite.text.line import Line


class Pipeline:
    """A model with the options that its translations use unless told otherwise."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        options: TranslateOptions,
        own: Named | None = None,
        phrases: dict[str, str] | None = None,
        free: int | None = None,
    ):
        """The checkpoint's model stays as it is: where its weights are of another device or number
        type than the options ask for, the Pipeline has a copy.

        `own`, `phrases`: the tokenizer of the options and their phrase table, where they have
        been read already.  `free`: bytes of main memory for its work, by default all that are."""
        self.options = options
        self.device, precision = choose(options.speed, options.is_exact)
        self.model = placed(checkpoint.model, self.device, precision)
        checkpoint = replace(checkpoint, model=self.model)
        self.searched: AnyModel = self.model  # as searches run it: a GPU records its steps
        if self.device.type == "cuda":
            self.searched = with_graphs(self.model, CudaRecorder(self.device))
        self.checkpoint = checkpoint = fit(checkpoint, options, own or read_own(options))
        raw_text = options.text.tokenizer != "space"
        rule = options.text.unknown
        if rule == "auto":
            rule = checkpoint.unknown.rule if raw_text else "model"
        if options.information.report_unsure and checkpoint.confidence is None:
            raise OptionError(
                "report_unsure: the model does not say how sure it is; "
                "python -m onmt_lite.train.calibrate teaches one of our format to"
            )
        self.direction(options)  # before the first line is read
        self.examples = ExampleMaker(checkpoint, checkpoint.lower_capitals and raw_text, rule)
        phrases = phrases_of(options) if phrases is None else phrases
        self.renderer = Renderer(checkpoint, options.text.replace_unk, phrases)
        self.tokenizer = self.renderer.tokenizer
        # Few sentences leave a GPU idle; a CPU is faster with batches that shrink (docs/design.md)
        self.refills = self.device.type == "cuda"
        if free is None or self.device.type != "cpu":
            free = free_on(self.device)
        kind = self.device.type
        self.budget = Budget(
            Size.of(self._members(), DTYPES.get(precision, torch.float32).itemsize),
            kind,
            bytes_at_once(kind, free),
        )
        self.aligner = Aligner(self.model, self.renderer, self.device, self.budget)
        self.room = Room("lower beam_size or max_length")
        self.gold_room = Room("shorten its target")
        timed_gpu = options.information.report_time and self.device.type == "cuda"
        self.clock = Clock(torch.cuda.synchronize) if timed_gpu else Clock()

    @classmethod
    def load(cls, options: TranslateOptions) -> "Pipeline":
        """Load the model that the options name, or the ensemble of several.

        Raises OptionError or CheckpointError."""
        # A missing device is reported before anything is read
        device, precision = choose(options.speed, options.is_exact)
        with computing(options.speed, device):
            checkpoint, own, phrases = read_parts(options, device, precision)
            return cls(checkpoint, options, own, phrases)

    def score_lines(self, sources: Sequence[Line], targets: Sequence[Line]) -> list[float | None]:
        """Teacher-forced log-probability of each target; None where the source is blank or passed
        through, the target is longer than the model takes, or the model returns NaN."""
        with computing(self.options.speed, self.device):
            direction = self.direction(self.options)
            lines = zip(sources, targets)
            examples = [self.examples.make(*pair, direction=direction) for pair in lines]
            alone = self.options.speed.deterministic
            return [*map(total, self._gold(examples, alone))]

    @property
    def machine(self) -> dict[str, str]:
        """Device and precision, on which results may depend."""
        return {"device": self.device.type, "precision": precision_of(self.model)}

    def notes_on(self, options: TranslateOptions) -> list[str]:
        """Notes on options that change nothing with this model."""
        return model_notes(options, self.checkpoint, self.device)

    def translate_lines(
        self,
        lines: Sequence[Line],
        tgt_lines: Sequence[Line] | None = None,
        options: TranslateOptions | None = None,
        progress: Progress = lambda n_lines, n_tokens: None,
        prefixes: Sequence[Line] | None = None,
    ) -> list[Translation]:
        """One Translation per line, in order; with `tgt_lines`, their log-probabilities too.
        With `prefixes` each begins with the tokens of its prefix.  `progress` is called with the
        lines and target tokens that each batch adds."""
        options = options or self.options
        rules = SearchRules(options, self.checkpoint)
        if prefixes is not None:
            rules.check_prefixes()
        rules.check_phrases(lines)
        paragraphs = Paragraphs(lines, longest(rules), rules, prefixes)
        if paragraphs.are_cut and tgt_lines is not None:
            return paragraphs.scored(self.translate_lines, tgt_lines, options, progress)
        lines, progress = paragraphs.lines, paragraphs.counting(progress)
        with self.clock.phase("tokenise"):
            examples = self.examples_of(lines, tgt_lines, paragraphs.prefixes, options)
            copies = Copies(examples, rules.copies_are_equal)
            examples = copies.distinct
        if options.data.score_only and tgt_lines is not None:
            with computing(options.speed, self.device):
                gold = self._gold(examples, options.speed.deterministic)
            copies.tell(progress, examples, [len(scores or ()) for scores in gold])
            return copies.of_all(map(with_gold, map(unsearched, examples), gold))
        full = [e for e in examples if e.src_ids]
        place = {id(e): i for i, e in enumerate(examples)}
        copies.tell(progress, [e for e in examples if not e.src_ids])
        # What a blank line translates to, or one that is passed through
        texts = [e.reading.plain if e.passes and e.reading else "" for e in examples]
        found = [Found([replace(NOTHING, text=text)]) for text in texts]
        with computing(options.speed, self.device):
            batches = self.batches(full, options.speed, rules)
            for group, n_slots in join_batches(batches, self._refills(rules)):
                with self.clock.phase("decode"):
                    decoded = enough(group, n_slots, rules, self.aligner.after(self._decode))
                for example, each in zip(group, decoded, strict=True):
                    found[place[id(example)]] = each
                copies.tell(progress, group, (len(f.hyps[0].token_log_probs) for f in decoded))
            found = self.aligner.hypotheses(examples, found, rules)
            if tgt_lines is not None:
                gold = self._gold(examples, options.speed.deterministic)
        made = [self._translation(*each, rules) for each in zip(examples, found)]
        made = self.aligner.tables(examples, with_source(examples, made, options), options)
        made = self.aligner.gold(examples, made, options)
        made = copies.of_all(made if tgt_lines is None else map(with_gold, made, gold))
        return paragraphs.joined(made)

    def _translation(self, example: Example, found: Found, rules: SearchRules) -> Translation:
        curve = self.checkpoint.confidence
        confidence = None if curve is None else curve.of(found.hyps[0])
        unsure = confidence is not None and confidence < 0.5
        return Translation(
            example.line.id,
            example.line.text,
            found.hyps,
            notes_of(example, found, rules, unsure and self.options.information.report_unsure),
            n_src_tokens=example.n_src_tokens,
            n_unknown=example.n_unknown,
            confidence=confidence,
            calibrated=curve is not None,
            fields=example.line.fields,
            trace=found.trace,
            n_forced=len(example.line.forced),
            unmet=unmet(found.hyps[0].text, example.line.forced),
        )

    def examples_of(
        self,
        lines: Sequence[Line],
        tgt_lines: Sequence[Line] | None,
        prefixes: Sequence[Line] | None,
        options: TranslateOptions,
    ) -> list[Example]:
        """What the model reads of each line, its reference and its prefix."""
        targets = tgt_lines if tgt_lines is not None else [None] * len(lines)
        begin = prefixes if prefixes is not None else [None] * len(lines)
        forced = forced_ids(self.checkpoint, options) if prefixes is None else ()
        direction, each = self.direction(options), zip(lines, targets, begin, strict=True)
        return [self.examples.make(*sides, forced, direction) for sides in each]

    def direction(self, options: TranslateOptions) -> Direction:
        """The languages of lines without a tag.  OptionError where they are not to be had."""
        given = Direction(options.model.src_lang, options.model.tgt_lang)
        return choose_languages(self.checkpoint.languages, given)

    def batches(
        self, examples: list[Example], speed: SpeedOptions, rules: SearchRules
    ) -> list[list[Example]]:
        if speed.deterministic:
            return make_batches(examples, 1, "sents")
        if speed.batch_size is not None:
            return make_batches(examples, speed.batch_size, speed.batch_type)
        limit = self.budget.limit(rules.beam_size)
        if speed.batch_type == "tokens":
            return make_batches(examples, limit.tokens, "tokens", max_sentences=limit.sentences)
        return make_batches(examples, limit.sentences, "sents")

    def _decode(self, group: list[Example], n_slots: int, rules: SearchRules) -> list[Found]:
        """Best hypotheses of each example, of which n_slots run at once, or as many as memory has
        room for.  An example for which the model returns NaN is tried once more."""
        found = self._run(self.searched, group, n_slots, rules)
        fine = [i for i, each in enumerate(found) if each.hyps]
        if rules.policy.as_2018 and len(fine) < len(group):  # batch mates have met the others
            again = self._decode([group[i] for i in fine], n_slots, rules)
            for i, each in zip(fine, again):
                found[i] = each
        return [f if f.hyps else self._retry(e, rules) for e, f in zip(group, found)]

    def _retry(self, example: Example, rules: SearchRules) -> Found:
        """What a search in fp32 finds for an example alone; blank where that fails as well."""
        blank = Found([NOTHING], NOT_A_NUMBER)
        try:
            (found,) = self._run(self.exact_model, [example], 1, rules)
        except MemoryExhausted:
            return blank
        return found if found.hyps else blank

    @functools.cached_property
    def exact_model(self) -> EncoderDecoder:
        """The model in fp32.  MemoryExhausted where there is no room beside the other."""
        return placed(self.model, self.device, "fp32")

    def _run(
        self, model: AnyModel, group: list[Example], n_slots: int, rules: SearchRules
    ) -> list[Found]:
        def width(example: Example) -> int:
            return source_length(example) * rules.beam_size

        def search(part: list[Example], n_at_once: int) -> Iterator[tuple[int, Found]]:
            with giving_back(model):
                yield from self._search(model, rules, part, n_at_once)

        return self.room.run(group, n_slots, width, search)

    def _refills(self, rules: SearchRules) -> bool:
        """Whether waiting sentences may join a batch; 2018's results depend on who is in it."""
        return self.refills and not (rules.policy.as_2018 or rules.alone)

    def _search(
        self, model: AnyModel, rules: SearchRules, group: list[Example], n_slots: int
    ) -> Iterator[tuple[int, Found]]:
        """The place of each example in the group and what was found, where its search is over."""
        aligns = rules.plan.aligns or any(e.reading for e in group)
        plan = replace(rules.plan, aligns=aligns, clock=self.clock)
        # A GPU that refills is at a step of one batch while the host reads that of another
        n_joint, n_batches = (len(group), 2) if self._refills(rules) else (n_slots, 1)
        for start in range(0, len(group), n_joint):
            part = group[start : start + n_joint]
            tracer = Tracer(self.renderer, part)
            if tracer.watch is not None:  # which knows sentences by their numbers in one batch
                plan, n_batches = replace(plan, watched=True), 1
            sentences = [*map(rules.sentence, part)]
            for i, beam in decode(model, sentences, plan, n_slots, tracer.watch, n_batches):
                with self.clock.phase("tokenise"):
                    text = self.renderer.found(beam, part[i], rules.n_kept, rules.unk_later)
                    found = tracer.traced(i, beam, text)
                yield start + i, found

    def _gold(self, examples: list[Example], alone: bool) -> list[list[float] | None]:
        """Log-probabilities of each example's reference; None where either side is missing.  NaN
        where the model returns NaN, once more in fp32 and alone.  `alone`: no batches."""
        place = {id(e): i for i, e in enumerate(examples)}
        gold: list[list[float] | None] = [None] * len(examples)
        scorable = [e for e in examples if e.src_ids and e.tgt_ids is not None]
        most = 1 if alone else self.budget.scored_tokens
        for group in make_batches(scorable, most, "tokens", longer_side):
            scores = self._scores(self.model, group)
            for example, score in zip(group, scores, strict=True):
                gold[place[id(example)]] = self._rescore(example) if total(score) is None else score
        return gold

    def _rescore(self, example: Example) -> list[float]:
        """The scores of an example alone in fp32; NaN where there is no room for that."""
        try:
            return self._scores(self.exact_model, [example])[0]
        except MemoryExhausted:
            return [math.nan]

    def _scores(self, model: EncoderDecoder, group: list[Example]) -> list[list[float]]:
        score = partial(self._score, model)
        return self.gold_room.run(group, len(group), longer_side, score)

    def _score(
        self, model: EncoderDecoder, group: list[Example], n_at_once: int
    ) -> Iterator[tuple[int, list[float]]]:
        """The place of each example in the group and its reference's log-probabilities."""
        for start in range(0, len(group), n_at_once):
            part = group[start : start + n_at_once]
            batch = pad_batch(part, self.checkpoint.src_vocab.pad_id or 0, self.device)
            scores = score_targets(
                model,
                batch.src,
                batch.src_lengths,
                [e.tgt_ids or [] for e in part],
                [e.start for e in part],
                self.checkpoint.eos_id,
                sums_to_one(self.options.search.search, self.checkpoint),
                batch.copy_ids,
                self.budget.scored_logits,
            )
            yield from enumerate(scores, start)

    def _members(self) -> list[Any]:
        """The models of an ensemble, or the model alone."""
        return list(getattr(self.model, "members", [self.model]))
