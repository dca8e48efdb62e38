"""Several checkpoints as one: an ensemble."""

from collections.abc import Sequence
from dataclasses import replace

from onmt_lite.checkpoints.record import Checkpoint
from onmt_lite.errors import CheckpointError
from onmt_lite.models.ensemble import Ensemble
from onmt_lite.text.vocab import Vocab

SPECIAL = ("eos_id", "bos_id", "pad_id", "unk_id")


def combine(
    checkpoints: Sequence[Checkpoint],
    names: Sequence[str],
    weights: Sequence[float] = (),
    of_probs: bool = False,
) -> Checkpoint:
    """Make one checkpoint whose model is the ensemble; `onmt_lite.models.ensemble` has the options.

    All members read each decoded token, so they need the same target vocabulary and start token.
    Their source vocabularies may differ where tokens are the words of the line; a word that a
    member lacks is its unknown token.  Tokenizers and the preparation of lines are those of the
    first member.  An id that one member must not produce is banned for all.

    Raises CheckpointError, with the names of two models, where their vocabularies differ.
    """
    first = checkpoints[0]
    for checkpoint, name in zip(checkpoints[1:], names[1:]):
        difference = (
            _different_vocab("target", first.tgt_vocab, checkpoint.tgt_vocab)
            or _unlike_sources(first, checkpoint)
            or _different_use(first, checkpoint)
        )
        if difference:
            raise CheckpointError(
                f"ensemble: {names[0]!r} and {name!r} {difference}; the models of an ensemble "
                "share their vocabularies"
            )
    src_vocab = _union([checkpoint.src_vocab for checkpoint in checkpoints])
    src_ids = [_ids_in(checkpoint.src_vocab, src_vocab) for checkpoint in checkpoints]
    models = [checkpoint.model for checkpoint in checkpoints]
    return replace(
        first,
        model=Ensemble(models, weights, of_probs, src_ids),
        src_vocab=src_vocab,
        never_ids=tuple(sorted({i for c in checkpoints for i in c.never_ids})),
        sums_to_one=of_probs,
        confidence=None,  # fitted to the scores of one model
    )


def _different_vocab(side: str, a: Vocab, b: Vocab) -> str:
    """Describe the first difference of two vocabularies; "" if they are equal."""
    for i, (token, other) in enumerate(zip(a.tokens, b.tokens)):
        if token != other:
            return (
                f"differ in their {side} vocabularies: id {i} is {token[:50]!r} or {other[:50]!r}"
            )
    if len(a) != len(b):
        return f"differ in their {side} vocabularies: {len(a)} or {len(b)} tokens"
    for name in SPECIAL:
        if getattr(a, name) != getattr(b, name):
            return (
                f"differ in the {name} of their {side} vocabularies: {getattr(a, name)} or "
                f"{getattr(b, name)}"
            )
    return ""


def _unlike_sources(a: Checkpoint, b: Checkpoint) -> str:
    """Say why two source vocabularies cannot serve the same tokens; "" if they can."""
    difference = _different_vocab("source", a.src_vocab, b.src_vocab)
    words = all(set(c.tokenizers) == {"space"} for c in (a, b))
    unknown_too = None not in (a.src_vocab.unk_id, b.src_vocab.unk_id)
    return "" if words and unknown_too and a.src_end == b.src_end else difference


def _union(vocabs: list[Vocab]) -> Vocab:
    """Tokens of the first vocabulary, then other tokens of the rest."""
    first = vocabs[0]
    words = (t for vocab in vocabs for i, t in enumerate(vocab.tokens) if not vocab.is_special(i))
    others = [token for token in dict.fromkeys(words) if token not in first.ids]
    return replace(first, tokens=[*first.tokens, *others])


def _ids_in(vocab: Vocab, union: Vocab) -> list[int] | None:
    """The id in `vocab` for each id of the union; None where all ids are equal."""
    if vocab.tokens == union.tokens:
        return None
    ids = [vocab.ids.get(token, vocab.unk_id) for token in union.tokens]
    for name in SPECIAL:
        here, there = getattr(union, name), getattr(vocab, name)
        if here is not None:
            ids[here] = vocab.unk_id if there is None else there
    return [i for i in ids if i is not None]


def _different_use(a: Checkpoint, b: Checkpoint) -> str:
    """Describe a difference in start tokens or source ends; "" if there is none."""
    differences = {
        f"start with different tokens: id {a.start_id} or {b.start_id}": a.start_id != b.start_id,
        "have other languages, or other tokens or defaults for them": a.languages != b.languages,
        f"end the source differently: with ids {list(a.src_end)} or {list(b.src_end)}": (
            a.src_end != b.src_end
        ),
    }
    return next((text for text, differs in differences.items() if differs), "")
