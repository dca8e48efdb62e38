"""Renderer: the hypotheses of a beam as text."""

from dataclasses import replace
from typing import Any

from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.inference.records import NOTHING, Example, Found, Hypothesis, Translation
from onmt_lite.search.beam import SEARCH_EMPTY, Beam
from onmt_lite.search.events import Finished
from onmt_lite.text.phrases import occurs, single_spaced
from onmt_lite.text.tag_projection import Aligned, put_back
from onmt_lite.text.words import word_log_probs


class Renderer:
    """Makes the text of hypotheses for one model, with its first tokenizer."""

    def __init__(self, checkpoint: Checkpoint, replaces_unk: bool, phrases: dict[str, str]):
        """`replaces_unk`: unknown tokens give way to the source tokens attended to, or to what
        `phrases` has for these."""
        self.checkpoint, self.replaces_unk, self.phrases = checkpoint, replaces_unk, phrases
        self.tokenizer = next(iter(checkpoint.tokenizers.values()))

    def found(self, beam: Beam, example: Example, n: int, later: bool = False) -> Found:
        """The n best distinct hypotheses, as the search counts them.  `later`: unknown tokens stay,
        for `without_unk`."""
        hyps: dict[Any, Hypothesis] = {}
        forced = example.line.forced
        for finished in beam.best():
            if len(hyps) == n and not forced:
                break
            hyp = self._hypothesis(beam, finished, example, later)
            if hyp is None:
                continue
            # Two segmentations of one text are two sequences of tokens
            key = {"text": hyp.text, "tokens": (hyp.ids, hyp.ended), "copies": len(hyps)}
            hyps.setdefault(key[beam.plan.policy.distinct], hyp)
        found = sorted(hyps.values(), key=lambda hyp: len(unmet(hyp.text, forced)))
        n_complete = len(beam.finished)
        if n_complete and not found:  # none is without a banned phrase
            return Found([NOTHING], SEARCH_EMPTY, n_complete=n_complete)
        return Found(found[:n], beam.note, n_complete=n_complete)

    def _hypothesis(
        self, beam: Beam, finished: Finished, example: Example, later: bool
    ) -> Hypothesis | None:
        """As text; None if a banned phrase is in it."""
        ids, log_probs = beam.hypothesis(finished)
        words = ids[:-1] if finished.ended else ids
        tokens = self.checkpoint.tgt_vocab.decode(words, example.own_words)
        unk_id = self.checkpoint.tgt_vocab.unk_id
        n_unk = words.count(unk_id) if self.replaces_unk and unk_id is not None else 0
        replaces, sources = n_unk > 0 and not later, list[int]()
        if replaces or example.reading:
            sources = self._sources(beam.alignment(finished), len(tokens))
        if replaces:
            tokens = self._without_unk(words, tokens, sources, example)
        text = self._text(tokens, sources, example)
        if holds_banned(text, example):  # words put back from the source may be banned
            tokens, n_unk = self.checkpoint.tgt_vocab.decode(words, example.own_words), 0
            text = self._text(tokens, [], replace(example, reading=None))
            if holds_banned(text, example):
                return None
        return Hypothesis(
            text,
            tokens,
            finished.score,
            sum(log_probs),
            log_probs,
            finished.ended,
            ids=tuple(words),
            n_replaced=n_unk,
        )

    def by_words(self, translation: Translation) -> Translation:
        """With the log-probability of each word too, for hypotheses that the model has made."""
        decode = self.tokenizer.decode
        hyps = [
            replace(h, word_log_probs=word_log_probs(h.tokens, h.token_log_probs, decode, h.text))
            if h.token_log_probs
            else replace(h, word_log_probs=[])
            for h in translation.hyps
        ]
        return replace(translation, hyps=hyps)

    def without_unk(self, hyp: Hypothesis, example: Example, sources: list[int]) -> Hypothesis:
        """With the tokens of the line from which its unknown tokens come in the place of these.

        sources: for each token the place of one among the line's own."""
        if not hyp.n_replaced:
            return hyp
        sources = [example.n_tag + source for source in sources]
        tokens = self._without_unk([*hyp.ids], hyp.tokens, sources, example)
        text = self._text(tokens, sources, example)
        return hyp if holds_banned(text, example) else replace(hyp, tokens=tokens, text=text)

    def _text(self, tokens: list[str], sources: list[int], example: Example) -> str:
        """Tokens as text; sources: the token of the line for each, if words are put back."""
        text = self.tokenizer.decode(tokens)
        case = str.upper if example.in_capitals else str
        if not example.reading:
            return case(text)
        aligned = Aligned(example.src_tokens, tokens, sources)
        return put_back(example.reading, self.tokenizer.encode, aligned, text, case)

    def _sources(self, places: list[int], n_tokens: int) -> list[int]:
        """The token of the line that each token of a hypothesis renders."""
        late, (n_before, _) = self.checkpoint.aligns_late, self.checkpoint.src_margins
        # One that is cut off has no token after its last
        own = [*places[late:], *places[-1:]][:n_tokens]
        return [place - n_before for place in own]

    def _without_unk(
        self, ids: list[int], tokens: list[str], sources: list[int], example: Example
    ) -> list[str]:
        """With each unknown token replaced by the source token that it attended to most."""
        unk_id = self.checkpoint.tgt_vocab.unk_id
        found = (example.src_tokens[source] for source in sources)
        own = [self.phrases.get(source, source) for source in found]
        return [w if i == unk_id else token for i, token, w in zip(ids, tokens, own)]


def unmet(text: str, phrases: tuple[str, ...]) -> tuple[str, ...]:
    """The phrases that a text does not hold."""
    return tuple(phrase for phrase in phrases if not occurs(text, phrase, alone=True))


def holds_banned(text: str, example: Example) -> bool:
    """Whether a text holds a phrase that is banned for the line, however it is spaced."""
    banned = example.line.banned
    return bool(banned) and any(occurs(single_spaced(text), phrase) for phrase in banned)
