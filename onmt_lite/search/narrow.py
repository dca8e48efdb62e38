"""A search among candidates: plan and sentences, with tokens renumbered.

Nothing else in a search knows of a shortlist: its tokens are places in the plan's `ids`, and a
`Beam` turns those of a hypothesis back.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from onmt_lite.search.plan import Plan, Sentence

MULTIPLE = 128  # of columns, so that nobody has to widen the logits


@dataclass(frozen=True)
class Narrow:
    """One batch, whose tokens are places in `ids`.

    ids (U,)        tokens that are said or read, ascending, so that equal scores are ordered as
                    among all tokens; fillers follow
    allowed (B, U)  which of them each sentence may say
    """

    ids: Tensor
    allowed: Tensor
    plan: Plan
    sentences: list[Sentence]


def narrow(
    plan: Plan, sentences: Sequence[Sentence], candidates: tuple[Tensor, Tensor], vocab_size: int
) -> Narrow:
    """The search in which sentences say their candidates alone: numbers of sentences (N,) and
    tokens (N,).  Each may say the tokens of its prefix and its forced phrases, too."""
    given = ([*s.limits.prefix, *(s.wishes.says if s.wishes else ())] for s in sentences)
    prefixes = [(b, i) for b, own in enumerate(given) for i in own]
    prefix_numbers, prefix_tokens = torch.tensor(prefixes, dtype=torch.long).view(-1, 2).T
    numbers = torch.cat([candidates[0], prefix_numbers])
    tokens = torch.cat([candidates[1], prefix_tokens])
    read = {plan.bos_id, plan.eos_id}.union(*(s.limits.start for s in sentences))
    here = torch.zeros(vocab_size, dtype=torch.bool)
    here[tokens] = here[[*read]] = True
    ids, places = here.nonzero()[:, 0], here.cumsum(0) - 1
    n_filling = -len(ids) % MULTIPLE
    allowed = torch.zeros(len(sentences), len(ids) + n_filling, dtype=torch.bool)
    allowed[numbers, places[tokens]] = True

    def renumbered(tokens: Iterable[int]) -> tuple[int, ...]:
        return tuple(int(places[i]) for i in tokens if here[i])

    plan = replace(
        plan,
        bos_id=int(places[plan.bos_id]),
        eos_id=int(places[plan.eos_id]),
        never_ids=renumbered(plan.never_ids),
        banned_ids=renumbered(plan.banned_ids),
        exempt_ids=renumbered(plan.exempt_ids),
        ids=tuple(ids.tolist()),
    )
    limits = [
        replace(s.limits, prefix=renumbered(s.limits.prefix), start=renumbered(s.limits.start))
        for s in sentences
    ]
    return Narrow(
        torch.cat([ids, ids.new_zeros(n_filling)]),
        allowed,
        plan,
        [replace(s, limits=own) for s, own in zip(sentences, limits)],
    )
