"""Phrases that a translation must contain, or must not.

A `PhraseAutomaton` follows the tokens of each row: which may come next, and which continue a forced
phrase.  The host runs it between two steps; the device forbids tokens and chooses rows for the
whole batch.

Forced phrases are met by dynamic beam allocation (Post and Vilar 2018; vectorised by Hu et al.
2019): the rows of a sentence are allocated in turn among its banks; a bank is the set of candidates
that hold equally many tokens of its phrases.  The end token comes when all are said.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onmt_lite.models.base import upload
from onmt_lite.search.beam import CandidateList
from onmt_lite.search.slots import Slot
from onmt_lite.search.spec import SearchSpec
from onmt_lite.search.topk import Candidates, TokenScores, is_eos
from onmt_lite.text.phrases import PhraseAutomaton, PhraseEffects, PhraseState

# A word that begins like a banned one may go on with a probability of 2 % at least.  Less likely
# tokens make no word, but a way around the ban
UNLIKELY = math.log(0.02)


@dataclass(frozen=True)
class PhraseMask:
    """Constraints of one step, on the device."""

    forbidden: Tensor  # (N, 2): rows of the batch, and tokens that may not follow
    # (N, 4): rows of the batch; whether they join the next token; whether that must go on with
    # their last word, or must not; whether unlikely tokens may not follow
    bound: Tensor
    goes_on: Tensor  # (2, V), see `Surfaces`; with words of the sentences' own
    # Of each sentence with forced phrases: its place in the batch, the banks (K,) of its rows, and
    # (P, 3) rows, tokens that bring a phrase further, banks then
    steered: list[tuple[int, Tensor, Tensor]]

    def forbid(self, token_scores: TokenScores) -> None:
        """Write -inf into the logits (R, V) of tokens that may not follow."""
        logits = token_scores.logits
        if len(self.bound):
            rows, joined, must, firm = self.bound.unbind(1)
            found = logits[rows, : self.goes_on.size(1)]  # (N, V)
            closed = self.goes_on[joined] != must[:, None].bool()
            closed |= (found < token_scores.log_z[rows, None] + UNLIKELY) & firm[:, None].bool()
            logits[rows, : self.goes_on.size(1)] = found.masked_fill(closed, -math.inf)
        logits[self.forbidden[:, 0], self.forbidden[:, 1]] = -math.inf

    def allocate(
        self, candidates: Candidates, token_scores: TokenScores, scores: Tensor, spec: SearchSpec
    ) -> None:
        """Replace the candidates (B, N) of sentences with forced phrases by allocation among banks.

        Args:
            candidates: Candidates as ranked; overwritten.
            token_scores: TokenScores of R rows.
            scores: (B, K), of the rows.
            spec: SearchSpec.
        """
        (b, k), n, v = scores.shape, candidates.score.size(1), self.goes_on.size(1)
        values = token_scores.logits.view(b, k, -1)  # (B, K, V)
        norm = token_scores.log_z.view(b, k)  # (B, K)
        rows = torch.arange(k, device=scores.device)[:, None]  # (K, 1)
        for b, banks, wanted in self.steered:
            row, token, then = wanted.unbind(1)  # (P,)
            log_probs = values[b, :, :v] - norm[b, :, None]  # (K, V)
            totals = log_probs + scores[b, :, None]
            steps = totals[row, token]
            totals[row, token] = -math.inf
            best, place = totals.topk(min(n, v))  # (K, n), of the other tokens
            total = torch.cat([best.flatten(), steps])  # (M,)
            places = torch.cat([(place + rows * v).flatten(), row * v + token])
            order = allocate_in_turn(
                total, torch.cat([banks.repeat_interleave(best.size(1)), then]), n
            )
            places = places[order]
            candidates.score[b] = total[order]
            candidates.log_prob[b] = log_probs.flatten()[places]
            candidates.parent[b], candidates.token[b] = places // v + b * k, places % v
            candidates.ended[b] = is_eos(spec, candidates.token[b])


def allocate_in_turn(total: Tensor, banks: Tensor, n: int) -> Tensor:
    """The places of n candidates among those with these totals and banks (M,): (n,).

    The best of each bank, then the second of each, and so on, as many as there is room for, a bank
    with more tokens before one with less; in this order of banks, each by its totals.
    """
    order = total.argsort(descending=True, stable=True)
    total, banks = total[order], banks[order]
    turn = (banks[:, None] == banks).tril(-1).sum(1)  # candidates of the bank that are better
    most = int(1e6)
    key = (turn * most - banks).masked_fill(total == -math.inf, most * most)
    taken = key.argsort(stable=True)[:n].sort().values  # by totals again
    banks = banks[taken].masked_fill(total[taken] == -math.inf, -1)
    return order[taken[banks.argsort(descending=True, stable=True)]]


class Constraints:
    """The phrases of the sentences of a search, and the states of their rows, on the host."""

    def __init__(
        self,
        spec: SearchSpec,
        phrases: Sequence[PhraseAutomaton | None],
        n_words: int,
        device: torch.device,
    ):
        """phrases: of each sentence of the search, None if it has none.
        n_words: V, and words of the sentences' own."""
        self.spec, self.phrases, self.device = spec, phrases, device
        # By sentence number; None: no such row
        self.states: dict[int, list[PhraseState | None]] = {}
        self.best: dict[int, int] = {}  # the row with the highest score
        some = next(each for each in phrases if each is not None)
        goes_on = torch.zeros(2, n_words, dtype=torch.bool)
        goes_on[1] = True  # words of the sentences' own begin a word unless they are joined
        known = torch.tensor(some.surface_forms.goes_on)[:, :n_words]
        goes_on[:, : known.size(1)] = known
        self.goes_on = goes_on.to(device)
        # If no row can be spared, or forbidden tokens make the others more likely, no word
        # begins like a banned one
        apart = spec.beam_size == 1 or spec.beam_groups > 1 or spec.sampling is not None
        self.strict = spec.policy.masks == "logits" or apart

    def make_mask(self, slots: Sequence[Slot], n_steps: int) -> PhraseMask | None:
        """The constraints on rows beyond their prefixes at step n_steps; None if there are none."""
        forbidden, bound, steered = [], [], []
        k = self.spec.beam_size
        for b, slot in enumerate(slots):
            phrases, step = self.phrases[slot.index], n_steps - slot.start_step
            if phrases is None or step <= len(slot.beam.limits.prefix):
                continue
            states = self._states(slot, phrases)
            found = [
                PhraseEffects() if state is None else phrases.effects(state) for state in states
            ]
            spare = any(s and not e.goes_on for s, e in zip(states, found))
            for row, (state, effects) in enumerate(zip(states, found)):
                tokens = [*effects.forbidden]
                # A word of one row alone may begin like a banned one, so that others are spared;
                # none does if the next token may be the last
                if self.strict or n_steps >= slot.limit_step - 1 or row != self.best[slot.index]:
                    tokens += effects.completing
                if not effects.may_end:
                    tokens += self.spec.eos_ids
                forbidden += [(b * k + row, token) for token in tokens]
                if state is not None and effects.goes_on is not None:
                    must = effects.goes_on
                    bound.append((b * k + row, state.joined, must, must and spare))
            if any(phrases.paths):
                wanted = [(row, *pair) for row, each in enumerate(found) for pair in each.wanted]
                steered.append((b, [effects.bank for effects in found], wanted))
        if not (forbidden or bound or steered):
            return None
        tables = [
            forbidden,
            bound,
            *(each for _, banks, wanted in steered for each in (banks, wanted)),
        ]
        first, second, *others = self._sent(tables, [2, 4, *[1, 3] * len(steered)])
        places = [b for b, _, _ in steered]
        dealt_out = [*zip(places, (banks[:, 0] for banks in others[::2]), others[1::2])]
        return PhraseMask(first, second, self.goes_on, dealt_out)

    def _sent(self, tables: Sequence[Sequence[Any]], widths: Sequence[int]) -> list[Tensor]:
        """Tables of numbers of these widths, in one transfer."""
        flat = [torch.tensor(each, dtype=torch.long).flatten() for each in tables]
        parts = torch.split(upload(torch.cat(flat), self.device), [*map(len, flat)])
        return [part.view(-1, width) for part, width in zip(parts, widths)]

    def _states(self, slot: Slot, phrases: PhraseAutomaton) -> list[PhraseState | None]:
        """Of the rows of a sentence; at first they have read its prefix."""
        if slot.index not in self.states:
            state = phrases.start
            for token in slot.beam.limits.prefix:
                state = phrases.after(state, token)
            self.states[slot.index] = [state] * self.spec.beam_size
            self.best[slot.index] = 0
        return self.states[slot.index]

    def update(self, slots: Sequence[Slot], n_steps: int, newest: Sequence[CandidateList]) -> None:
        """Follow the newest rows of the sentences in their slots."""
        for slot, rows in zip(slots, newest):
            phrases = self.phrases[slot.index]
            if phrases is None or n_steps <= slot.start_step:  # others read start tokens
                continue
            old = self._states(slot, phrases)
            states: list[PhraseState | None] = []
            for k, (parent, token) in enumerate(zip(rows.parent, rows.token)):
                alive = rows.exists(k) and not rows.ended[k]
                # A row that does not exist may name a token that there is not
                before = old[int(parent)] if alive else None
                states.append(None if before is None else phrases.after(before, int(token)))
            self.states[slot.index] = states
            self.best[slot.index] = max(range(len(states)), key=rows.score.__getitem__)
