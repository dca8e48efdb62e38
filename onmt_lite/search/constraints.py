"""Phrase constraints: -force_words and -ban_words.

A `PhraseAutomaton` follows the tokens of each row and lists the tokens that may come next.  The
host runs it between two steps; the device masks tokens and ranks candidates for the whole batch.

Forced phrases use dynamic beam allocation (Post and Vilar 2018; vectorized by Hu et al. 2019).  The
bank of a candidate is the number of tokens of forced phrases that it has matched.  The K rows of a
sentence are allocated to its banks in turn, and EOS is masked until all phrases are complete.
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

# A token may extend a banned word to a longer word only with at least 2 % probability.  Less likely
# continuations rarely form a word; they only evade the ban
UNLIKELY = math.log(0.02)
MAX_BANK = 10**6  # more than the tokens of all phrases of a sentence


@dataclass(frozen=True)
class PhraseMask:
    """Phrase constraints of one step, on the device."""

    forbidden: Tensor  # (N, 2) row of the batch, token that is masked
    # (N, 4) row of the batch; 1 if its last token joins the next one; 1 if the next token must
    # continue the last word, 0 if it must not; 1 if unlikely tokens are masked
    word_ends: Tensor
    continues_word: Tensor  # (2, V) by "joins the next one", see `SurfaceForms`; with copied words
    # For each sentence with forced phrases: its slot, the banks (K,) of its rows, and (P, 3) row,
    # token that matches more of a phrase, bank after this token
    forced: list[tuple[int, Tensor, Tensor]]

    def forbid(self, token_scores: TokenScores) -> None:
        """Set the logits (R, V) of forbidden tokens to -inf."""
        logits = token_scores.logits
        if len(self.word_ends):
            rows, joined, must, drops_unlikely = self.word_ends.unbind(1)  # (N,)
            row_logits = logits[rows, : self.continues_word.size(1)]  # (N, V)
            masked = self.continues_word[joined] != must[:, None].bool()  # (N, V)
            is_unlikely = row_logits < token_scores.log_z[rows, None] + UNLIKELY  # (N, V)
            masked |= is_unlikely & drops_unlikely[:, None].bool()
            row_logits = row_logits.masked_fill(masked, -math.inf)
            logits[rows, : self.continues_word.size(1)] = row_logits
        logits[self.forbidden[:, 0], self.forbidden[:, 1]] = -math.inf

    def allocate(
        self, candidates: Candidates, token_scores: TokenScores, scores: Tensor, spec: SearchSpec
    ) -> None:
        """Allocate the candidates of sentences with forced phrases to banks.

        Args:
            candidates: candidates (B, N) as ranked; overwritten for these sentences.
            token_scores: scores (R, V) of the next tokens.
            scores: (B, K) scores of the rows.
            spec: the search spec.
        """
        n, v = candidates.score.size(1), self.continues_word.size(1)
        k = scores.size(1)
        logits = token_scores.logits.view(*scores.shape, -1)  # (B, K, V)
        log_z = token_scores.log_z.view_as(scores)  # (B, K)
        rows = torch.arange(k, device=scores.device)[:, None]  # (K, 1)
        for b, banks, matches in self.forced:
            row, token, next_bank = matches.unbind(1)  # (P,)
            log_probs = logits[b, :, :v] - log_z[b, :, None]  # (K, V)
            path_scores = log_probs + scores[b, :, None]  # (K, V)
            match_scores = path_scores[row, token]  # (P,)
            path_scores[row, token] = -math.inf
            best, column = path_scores.topk(min(n, v))  # (K, n) of all other tokens
            score = torch.cat([best.flatten(), match_scores])  # (M,)
            flat_index = torch.cat([(column + rows * v).flatten(), row * v + token])  # (M,)
            next_banks = torch.cat([banks.repeat_interleave(best.size(1)), next_bank])  # (M,)
            order = allocate_in_turn(score, next_banks, n)  # (n,)
            flat_index = flat_index[order]
            candidates.score[b] = score[order]
            candidates.log_prob[b] = log_probs.flatten()[flat_index]
            candidates.parent[b], candidates.token[b] = flat_index // v + b * k, flat_index % v
            candidates.ended[b] = is_eos(spec, candidates.token[b])


def allocate_in_turn(score: Tensor, banks: Tensor, n: int) -> Tensor:
    """Choose n candidates: the best of each bank, then the second best of each, and so on.

    Higher banks come first in each round.

    Args:
        score: (M,) scores of the candidates.
        banks: (M,) their banks.
        n: number of candidates to choose.

    Returns:
        Indices (n,) of the candidates, from the highest bank to the lowest, by score within a bank.
    """
    order = score.argsort(descending=True, stable=True)  # (M,)
    score, banks = score[order], banks[order]
    turn = (banks[:, None] == banks).tril(-1).sum(1)  # (M,) rank within the bank, from 0
    key = (turn * MAX_BANK - banks).masked_fill(score == -math.inf, MAX_BANK**2)  # (M,)
    chosen = key.argsort(stable=True)[:n].sort().values  # (n,) by score again
    banks = banks[chosen].masked_fill(score[chosen] == -math.inf, -1)  # (n,)
    return order[chosen[banks.argsort(descending=True, stable=True)]]


class Constraints:
    """Phrases of all sentences of a search and the automaton states of their rows, on the host.

    states    by sentence index: automaton states of the K rows; None: no such row
    best_row  by sentence index: the row with the highest score

    Args:
        spec: the search spec.
        phrases: phrases of each sentence, None if it has none.
        n_words: V plus the maximum number of source words outside the vocabulary.
        device: the model's device.
    """

    def __init__(
        self,
        spec: SearchSpec,
        phrases: Sequence[PhraseAutomaton | None],
        n_words: int,
        device: torch.device,
    ):
        self.spec, self.phrases, self.device = spec, phrases, device
        self.states: dict[int, list[PhraseState | None]] = {}
        self.best_row: dict[int, int] = {}
        automaton = next(automaton for automaton in phrases if automaton is not None)
        continues_word = torch.zeros(2, n_words, dtype=torch.bool)  # (2, V)
        continues_word[1] = True  # a copied source word starts a word unless it is joined
        vocab_table = torch.tensor(automaton.surface_forms.continues_word)[:, :n_words]  # (2, V)
        continues_word[:, : vocab_table.size(1)] = vocab_table
        self.continues_word = continues_word.to(device)
        # Never allow words that start with a banned word if no row is expendable, or if masking
        # raises the probability of the remaining tokens
        is_separate = spec.beam_size == 1 or spec.beam_groups > 1 or spec.sampling is not None
        self.is_strict = spec.policy.masks == "logits" or is_separate

    def make_mask(self, slots: Sequence[Slot], n_steps: int) -> PhraseMask | None:
        """Return the constraints for rows beyond their prefixes, or None if there are none.

        Args:
            slots: running sentences.
            n_steps: steps of the batch, the next one included.
        """
        forbidden, word_ends, forced = [], [], []
        k = self.spec.beam_size
        for b, slot in enumerate(slots):
            phrases, step = self.phrases[slot.index], n_steps - slot.start_step
            if phrases is None or step <= len(slot.beam.limits.prefix):
                continue
            states = self._get_states(slot, phrases)
            row_effects = [
                PhraseEffects() if state is None else phrases.effects(state) for state in states
            ]
            has_alternative = any(s and not e.continues_word for s, e in zip(states, row_effects))
            for row, (state, effects) in enumerate(zip(states, row_effects)):
                tokens = [*effects.forbidden]
                # Only the best row may take a token that completes a banned word, in case it starts
                # a longer word; all other rows avoid the word.  No row may if it could end there
                is_near_limit = n_steps >= slot.limit_step - 1
                if self.is_strict or is_near_limit or row != self.best_row[slot.index]:
                    tokens += effects.completing
                if not effects.may_end:
                    tokens += self.spec.eos_ids
                forbidden += [(b * k + row, token) for token in tokens]
                if state is not None and effects.continues_word is not None:
                    must = effects.continues_word
                    word_ends.append((b * k + row, state.joined, must, must and has_alternative))
            if any(phrases.paths):
                matches = [(row, *pair) for row, e in enumerate(row_effects) for pair in e.advances]
                forced.append((b, [effects.bank for effects in row_effects], matches))
        if not (forbidden or word_ends or forced):
            return None
        by_sentence = [table for _, banks, matches in forced for table in (banks, matches)]
        widths = [2, 4, *[1, 3] * len(forced)]
        tables = self._upload([forbidden, word_ends, *by_sentence], widths)
        banks = (table[:, 0] for table in tables[2::2])  # (K,) each
        uploaded = [*zip([b for b, _, _ in forced], banks, tables[3::2])]
        return PhraseMask(tables[0], tables[1], self.continues_word, uploaded)

    def _upload(self, tables: Sequence[Sequence[Any]], widths: Sequence[int]) -> list[Tensor]:
        """Upload tables of integers, each with its number of columns, in one transfer."""
        flat = [torch.tensor(table, dtype=torch.long).flatten() for table in tables]
        parts = torch.split(upload(torch.cat(flat), self.device), [*map(len, flat)])
        return [part.view(-1, width) for part, width in zip(parts, widths)]

    def _get_states(self, slot: Slot, phrases: PhraseAutomaton) -> list[PhraseState | None]:
        """Return the states of a sentence's rows; at first, the state after its prefix."""
        if slot.index not in self.states:
            state = phrases.start
            for token in slot.beam.limits.prefix:
                state = phrases.after(state, token)
            self.states[slot.index] = [state] * self.spec.beam_size
            self.best_row[slot.index] = 0
        return self.states[slot.index]

    def update(self, slots: Sequence[Slot], n_steps: int, newest: Sequence[CandidateList]) -> None:
        """Advance the states by the newest rows.

        Args:
            slots: running sentences.
            n_steps: steps of the batch, the newest one included.
            newest: new rows of each slot.
        """
        for slot, rows in zip(slots, newest):
            phrases = self.phrases[slot.index]
            if phrases is None or n_steps <= slot.start_step:  # no phrases, or a start token
                continue
            old = self._get_states(slot, phrases)
            states: list[PhraseState | None] = []
            for k, (parent, token) in enumerate(zip(rows.parent, rows.token)):
                is_open = rows.exists(k) and not rows.ended[k]
                # The parent and token of a row that does not exist may be invalid
                before = old[int(parent)] if is_open else None
                states.append(None if before is None else phrases.after(before, int(token)))
            self.states[slot.index] = states
            self.best_row[slot.index] = max(range(len(states)), key=rows.score.__getitem__)
