"""From the search to text: the hypotheses of a beam as people read them."""

from dataclasses import replace
from typing import Any

from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.examples import CAPITALS
from onmt_lite.records import Example, Found, Hypothesis, Translation
from onmt_lite.search.beam import Beam
from onmt_lite.text.restoring import Aligned, put_back
from onmt_lite.text.words import WordLimits, word_log_probs


class Renderer:
    """Makes the text of hypotheses for one model, with its first tokenizer."""

    def __init__(self, checkpoint: Checkpoint, replaces_unk: bool, phrases: dict[str, str]):
        """`replaces_unk`: unknown tokens give way to the source tokens attended to, or to what
        `phrases` has for these."""
        self.checkpoint, self.replaces_unk, self.phrases = checkpoint, replaces_unk, phrases
        self.tokenizer = next(iter(checkpoint.tokenizers.values()))

    def found(
        self,
        beam: Beam,
        example: Example,
        n: int,
        later: bool = False,
        limits: WordLimits | None = None,
    ) -> Found:
        """The n best that are distinct, as the search counts them.  `later`: unknown tokens stay,
        for `without_unk`.  `limits`: texts that break them are left out, but for the best one where
        all do."""
        hyps: dict[Any, Hypothesis] = {}
        unfit: list[tuple[Hypothesis, int]] = []
        for hyp in beam.best():
            if len(hyps) == n:
                break
            ids, log_probs = beam.hypothesis(hyp)
            words = ids[:-1] if hyp.ended else ids
            tokens = self.checkpoint.tgt_vocab.decode(words, example.own_words)
            unk_id = self.checkpoint.tgt_vocab.unk_id
            n_unk = words.count(unk_id) if self.replaces_unk and unk_id is not None else 0
            replaces, sources = n_unk > 0 and not later, list[int]()
            if replaces or example.reading:
                sources = self._sources(beam.alignment(hyp), len(tokens))
            if replaces:
                tokens = self._without_unk(words, tokens, sources, example)
            text = self._text(tokens, sources, example)
            # Two segmentations of one text are two sequences of tokens
            key = {"text": text, "tokens": tuple(ids), "copies": len(hyps)}
            rendered = Hypothesis(
                text,
                tokens,
                hyp.score,
                sum(log_probs),
                log_probs,
                hyp.ended,
                ids=tuple(words),
                n_replaced=n_unk,
            )
            if limits is None or limits.fits(text):
                hyps.setdefault(key[beam.plan.policy.distinct], rendered)
            else:
                unfit.append((rendered, self._more_words(rendered)))
        found = list(hyps.values()) or [rendered for rendered, _ in unfit[:1]]
        more = tuple(n for _, n in unfit)
        return Found(found, beam.note, n_complete=len(beam.finished), unfit=more)

    def _more_words(self, hyp: Hypothesis) -> int:
        """How many words a text has beside those of its tokens."""
        return len(hyp.text.split()) - self.checkpoint.spelling.count(hyp.ids)

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
        return replace(hyp, tokens=tokens, text=self._text(tokens, sources, example))

    def _text(self, tokens: list[str], sources: list[int], example: Example) -> str:
        """What people read; sources: where the tokens come from, if something is to be put back."""
        text = self.tokenizer.decode(tokens)
        case = str.upper if CAPITALS in example.notes else str
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
        """In the place of each unknown token, what the source has where it was attended to."""
        unk_id = self.checkpoint.tgt_vocab.unk_id
        found = (example.src_tokens[source] for source in sources)
        own = [self.phrases.get(source, source) for source in found]
        return [w if i == unk_id else token for i, token, w in zip(ids, tokens, own)]
