"""Checkpoints that translate together."""

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
    """One checkpoint whose model is the ensemble; see `onmt_lite.models.ensemble` for the options.

    A line becomes ids once, for all members, and what is decoded is fed back to all: they need
    the same two vocabularies and the same start token, or it is a CheckpointError that names the
    models.  Tokenizers, and how lines are prepared, are the first one's; what one member must
    not produce, the ensemble does not.
    """
    first = checkpoints[0]
    for checkpoint, name in zip(checkpoints[1:], names[1:]):
        difference = (
            _different_vocab("target", first.tgt_vocab, checkpoint.tgt_vocab)
            or _different_vocab("source", first.src_vocab, checkpoint.src_vocab)
            or _different_use(first, checkpoint)
        )
        if difference:
            raise CheckpointError(
                f"ensemble: {names[0]!r} and {name!r} {difference}; the models of an ensemble "
                "share their vocabularies"
            )
    return replace(
        first,
        model=Ensemble([checkpoint.model for checkpoint in checkpoints], weights, of_probs),
        never_ids=tuple(sorted({i for c in checkpoints for i in c.never_ids})),
        sums_to_one=of_probs,
    )


def _different_vocab(side: str, a: Vocab, b: Vocab) -> str:
    """In words, where two vocabularies differ first; "" where they do not."""
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


def _different_use(a: Checkpoint, b: Checkpoint) -> str:
    """The same of what is fed to the models besides a line's tokens."""
    if a.start_id != b.start_id:
        return f"start with different tokens: id {a.start_id} or {b.start_id}"
    if a.src_end != b.src_end:
        return f"end the source differently: with ids {list(a.src_end)} or {list(b.src_end)}"
    return ""
