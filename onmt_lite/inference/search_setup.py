"""From options and a model to the rules of a search: the last step before it runs."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.config.checks import FORCED_AND_DRAWN, no_such_option
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import OptionError
from onmt_lite.inference.records import Example, Found
from onmt_lite.inference.runtime import precision_of
from onmt_lite.models.base import Heads
from onmt_lite.search.plan import Limits, Plan, Sentence
from onmt_lite.search.policy import Exhausted, Full, Policy, Preset, Sampling, Stop
from onmt_lite.search.presets import PRESETS
from onmt_lite.search.sampling import line_seed
from onmt_lite.text.line import Line
from onmt_lite.text.phrase_automaton import PhraseAutomaton

UNLIMITED = 1 << 30


class SearchRules:
    """What a search with these options does with this model."""

    def __init__(self, options: TranslateOptions, checkpoint: Checkpoint):
        self.options = options
        self.search, self.drawing = options.search, options.sampling
        self.seed = options.sampling.seed
        self.alone = options.speed.deterministic  # sentences are decoded one by one
        self.checkpoint = checkpoint
        self.preset: Preset = PRESETS[self.search.search]
        self.unk_later = options.text.replace_unk and options.attention.chosen
        self._check_attention(options)
        self.sampling = self._sampling()
        self.greedy_apart = self.preset.greedy_apart and self.search.beam_size == 1
        self.policy, self.stop = self._policy_and_stop()
        of_n_best = self.sampling is not None and self.sampling.chains == "n_best"
        self.beam_size = self.search.n_best if of_n_best else self.search.beam_size
        self.n_kept = self.search.n_best  # hypotheses that are read from a beam
        # Texts that must differ are not known before unknown tokens are replaced: all are read
        self.differ_late = self.unk_later and self.policy.distinct == "text"
        if self.differ_late:
            self.n_kept, self.policy = UNLIMITED, replace(self.policy, distinct="tokens")
        self.n_forced = checkpoint.n_forced(options.model.tgt_lang)
        self.plan = self._as_drawn(self._plan(options.text.replace_unk and not self.unk_later))
        self.automata: dict[tuple[Any, ...], PhraseAutomaton] = {}

    @property
    def copies_are_equal(self) -> bool:
        """Whether equal lines have equal translations: nothing is drawn, and batch mates do not
        matter."""
        return self.sampling is None and not self.policy.as_2018

    def lacks(self, found: Found) -> bool:
        """Whether texts that must differ are fewer than n_best."""
        return self.search.n_best_unique and not found.note and len(found.hyps) < self.search.n_best

    def wider(self, beam_size: int) -> "SearchRules":
        """The same with another beam_size."""
        search = replace(self.search, beam_size=beam_size)
        return SearchRules(replace(self.options, search=search), self.checkpoint)

    def _check_attention(self, options: TranslateOptions) -> None:
        """OptionError for what needs attention, or a layer of it, that the model does not have."""
        layer = options.attention.alignment_layer
        if not self.checkpoint.model.has(Heads(layer)):
            raise OptionError(
                f"alignment_layer {layer}: the model's decoder has no such layer; -1 is its last"
            )
        wanted = {"replace_unk": options.text.replace_unk}
        wanted["report_align"] = options.attention.report_align
        wanted["attn_debug"] = options.attention.attn_debug
        wanted["coverage_penalty"] = self.search.coverage_penalty != "none"
        names = [name for name, is_wanted in wanted.items() if is_wanted]
        if names and not self.checkpoint.attends:
            raise OptionError(f"{', '.join(names)}: the model has no attention; leave it out")

    def _sampling(self) -> Sampling | None:
        """How tokens are drawn, if they are.  A beam of one is drawn from as it is."""
        sampling = self.preset.sampling
        if not sampling or not sampling.is_asked_for({**vars(self.search), **vars(self.drawing)}):
            return None
        if self.search.beam_size == 1:
            return replace(sampling, draws="rows", keep=1)
        return sampling

    def _policy_and_stop(self) -> tuple[Policy, Stop]:
        policy = self.preset.policy
        if self.search.n_best_unique:
            policy = replace(policy, distinct="text")
        values = {**vars(self.search), "alpha": self._alpha()}
        if self.search.coverage_penalty == "none":
            values["beta"] = 0.0
        stop = self.preset.stop_with(values)
        if self.greedy_apart:
            policy, stop = replace(policy, repetition="logits"), Full()
        if self.sampling is None:
            return policy, stop
        if self.sampling.draws == "beam":
            equal = self.sampling.rows_start == "equal"
            return replace(policy, idle_score=0.0) if equal else policy, stop
        # Chains of their own: each goes on until it ends
        chains = replace(
            policy,
            candidates=1,
            idle_score=0.0,
            ended="keep",
            ends_within=1,
            pool="all",
            at_max="end" if policy.at_max == "end" else "rows",
            distinct="copies",
        )
        return chains, Exhausted()

    def _alpha(self) -> float:
        """No normalisation is alpha 0, by whichever of its two spellings."""
        if self.preset.policy.plain_avg and self.search.length_penalty == "avg":
            return 1.0
        return 0.0 if self.search.length_penalty == "none" else self.search.alpha

    def _plan(self, replace_unk: bool) -> Plan:
        search, checkpoint, drawing = self.search, self.checkpoint, self.drawing
        never, unk_id = checkpoint.never_ids, checkpoint.tgt_vocab.unk_id
        banned: tuple[int, ...] = ()
        if checkpoint.never_in_softmax:
            never, banned = banned, never
        if search.ban_unk_token and unk_id is not None:
            banned = (*banned, unk_id)
        exempt = map(checkpoint.tgt_vocab.ids.get, search.ignore_when_blocking)
        force_end = "paid" if self.policy.at_max == "end" else "no"
        if self.preset.free_end and checkpoint.forced_eos:
            force_end = "free"
        n_given = self.n_forced if self.preset.counts_forced else 0
        return Plan(
            self.policy,
            self.stop,
            self.beam_size,
            bos_id=checkpoint.start_id,
            eos_id=checkpoint.eos_id,
            n_best=search.n_best,
            beam_groups=search.beam_groups,
            diversity_rate=search.diversity_rate,
            length_penalty=search.length_penalty,
            alpha=self._alpha(),
            coverage_penalty=search.coverage_penalty,
            beta=search.beta,
            stepwise_penalty=search.stepwise_penalty and search.coverage_penalty != "none",
            patience=1.0 if self.greedy_apart else search.patience or 1.0,
            never_ids=never,
            banned_ids=banned,
            sees_start=(self.preset.sees_start, *[n_given > 0] * self.n_forced),
            n_given=n_given,
            prefix_counts=self.preset.prefix_counts,
            block_ngram_repeat=search.block_ngram_repeat,
            exempt_ids=tuple(i for i in exempt if i is not None),
            repetition_penalty=search.repetition_penalty,
            force_end=force_end,
            sampling=self.sampling,
            temperature=drawing.random_sampling_temp,
            topk=drawing.random_sampling_topk,
            topp=drawing.random_sampling_topp,
            sums_to_one=sums_to_one(self.search.search, checkpoint),
            src_pad_id=checkpoint.src_vocab.pad_id or 0,
            aligns=replace_unk and unk_id is not None,
            src_margins=checkpoint.src_margins,
        )

    def _as_drawn(self, plan: Plan) -> Plan:
        """Without what the system leaves out where it draws tokens."""
        if self.sampling and not self.sampling.covers:
            plan = replace(plan, coverage_penalty="none", stepwise_penalty=False)
        if self.sampling and not self.sampling.blocks_ngrams:
            plan = replace(plan, block_ngram_repeat=0)
        return plan

    def check_prefixes(self) -> None:
        """OptionError where the search cannot be given prefixes."""
        if "tgt_file_prefix" not in self.preset.options:
            raise OptionError(no_such_option("tgt_file_prefix", self.search.search, "prefixes"))

    def check_phrases(self, lines: Sequence[Line]) -> None:
        """OptionError where the search cannot heed phrases that the lines have."""
        given = {"force_words": any(line.forced for line in lines)}
        given["ban_words"] = any(line.banned for line in lines)
        for name in (name for name, is_given in given.items() if is_given):
            if name not in self.preset.options:
                raise OptionError(no_such_option(name, self.search.search))
        if given["force_words"] and self.sampling is not None:
            raise OptionError(FORCED_AND_DRAWN)

    def sentence(self, example: Example) -> Sentence:
        limits, phrases = self.limits(example), self._phrases(example)
        return Sentence(example.src_ids, limits, example.copy_ids, phrases)

    def _phrases(self, example: Example) -> PhraseAutomaton | None:
        """The phrases of its line, which lines with the same ones share."""
        line = example.line
        if not (line.forced or line.banned):
            return None
        key = line.forced, line.banned, example.own_words, example.in_capitals
        if key not in self.automata:
            known = self.checkpoint
            surfaces = known.surfaces_in_capitals if example.in_capitals else known.surfaces
            self.automata[key] = PhraseAutomaton(surfaces, *key[:3])
        return self.automata[key]

    def limits(self, example: Example) -> Limits:
        """What the options are for this line."""
        prefix, n_apart = example.prefix_ids, 0
        if prefix and self.preset.prefix_apart:
            n_apart = len(prefix) - 1  # 3.5.1 takes the last one for an end token
        steps, n_forced = self._max_steps(example) + n_apart, self.n_forced
        first = n_apart + 1 - self.plan.n_given
        max_steps = min(max(steps, len(prefix) + 1), self.checkpoint.model.max_positions - n_forced)
        return Limits(
            max_steps,
            min_end=self.search.min_length + self.policy.min_length_offset + first,
            expected=self.search.ratio * self._src_length(example),
            prefix=prefix,
            seed=line_seed(self.seed, example.line.id),
            start=example.start,
        )

    def outgrown(self, example: Example) -> bool:
        """Whether the line's prefix leaves no room for more."""
        n = len(example.prefix_ids)
        return n > 0 and not self.preset.prefix_apart and n >= self._max_steps(example)

    def cannot_end(self, example: Example) -> bool:
        """Whether the line's limit comes before `min_length` lets a translation end."""
        limits = self.limits(example)
        return self.search.min_length > 0 and limits.min_end > limits.max_steps

    def _src_length(self, example: Example) -> int:
        return len(example.src_ids) if self.preset.limit_counts_end else example.n_src_tokens

    def _max_steps(self, example: Example) -> int:
        """The option's limit or the line's own, whichever is lower."""
        limit, preset, ratio = self.search.max_length, self.preset, self.search.max_length_ratio
        if ratio:
            of_line = ratio * self._src_length(example) + preset.limit_extra
            limit = min(limit, math.ceil(of_line) if preset.limit_rounds_up else int(of_line))
        # A limit of one token leaves room for the start token alone where that is counted
        return max(1, limit + self.policy.steps_offset - self.plan.n_given)


def sums_to_one(search: str, checkpoint: Checkpoint) -> bool:
    """Whether what the model says is normalised: logits are, and the mean of several models'
    log-probabilities where the search does so."""
    return checkpoint.sums_to_one or PRESETS[search].mean_sums_to_one


def model_notes(
    options: TranslateOptions, checkpoint: Checkpoint, device: torch.device
) -> list[str]:
    """What is asked for and changes nothing with this model, on this device."""
    model, vocab, notes = checkpoint.model, checkpoint.tgt_vocab, list(checkpoint.notes)
    unknown = [token for token in options.search.ignore_when_blocking if token not in vocab.ids]
    if unknown:
        notes.append(
            f"ignore_when_blocking: the model's vocabulary has no {' '.join(map(repr, unknown))}; "
            "passed over"
        )
    given = [name for name, value in options.given.items() if value]
    if checkpoint.languages is None and "normalize" not in options.text.transforms:
        notes += [
            f"{name}: without effect; the model has no languages to choose from"
            for name in ("src_lang", "tgt_lang")
            if name in given
        ]
    if vocab.unk_id is None:
        notes += [
            f"{name}: without effect; the model has no unknown token"
            for name in ("ban_unk_token", "replace_unk")
            if name in given
        ]
    if "max_length" in given and options.search.max_length > model.max_positions:
        notes.append(
            f"max_length {options.search.max_length}: the model stops at {model.max_positions} "
            "tokens"
        )
    if "threads" in given and device.type != "cpu":
        notes.append(f"threads: without effect; the model runs on {device}")
    if options.speed.precision != "auto" and not isinstance(model, torch.nn.Module):
        notes.append("precision: without effect; a table model has no weights")
    if options.speed.precision == "int8" and precision_of(model) != "int8":
        notes.append("precision int8: no exact kernel for this processor; the model runs in fp32")
    return notes
