"""Rules about words, for all rows at once: how many there may be, and which may not come again.

`words` (R, 2 + M) is what a row knows of its text: the kind of its end and its number of words, see
`onmt_lite.text.spelling`, and, where repetitions are blocked, the fingerprint of each word, then 0.  The
last word is open: the next token may go on with it.

Whether an open word repeats an n-gram is known when it ends.  A row whose open word would repeat is
shut: the end token and tokens that begin a word may not follow.  A token is forbidden at once where
its word cannot go on, or where no beam is there to wait: `the` may become `their`, but greedy
search would be left with what is spelt with `the`.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from onmt_lite.search.plan import Plan
from onmt_lite.text.spelling import BASE, STAYS, Spelling, fingerprint, signed

KIND, COUNT, FIRST = 0, 1, 2  # columns of `words`
COMMON = 0.01  # the share of tokens that end a word from which on they are looked at each step


@dataclass(frozen=True)
class Wording:
    """What a step knows of the words of each row.

    words (R, 2 + M)  see above
    least, most (R,)  how many a text has at least and at most
    left (R,)         steps after this one that can begin a word
    at_end (R,)       no other token follows the one of this step; None: in no row
    given (R,)        the text is what the line's prefix says and no more; None: in no row
    """

    words: Tensor
    least: Tensor
    most: Tensor
    left: Tensor
    at_end: Tensor | None = None
    given: Tensor | None = None

    def of(self, row: int) -> "Wording":
        """The same of one row."""
        parts = {name: part for name, part in vars(self).items() if part is not None}
        return Wording(**{name: part[row : row + 1] for name, part in parts.items()})


@dataclass(frozen=True)
class Repeats:
    """What n-grams of words say of each row.

    shut (R,)         its open word may not end here
    begun, gone_on    (R, F) each: fingerprints that a word may not have, if it begins with the next
                      token, or if this goes on with the open word; 0: none
    """

    shut: Tensor
    begun: Tensor
    gone_on: Tensor


class WordRules:
    """The rules of a plan about words."""

    def __init__(self, plan: Plan, vocab_size: int, device: torch.device):
        """vocab_size: V, and the words that sentences may copy."""
        assert plan.spelling is not None
        self.plan, self.n = plan, plan.block_ngram_repeat if plan.blocks_word_ngrams else 0
        spelling = _whole(plan.spelling, vocab_size, plan.eos_id)
        self.most_at_once = max(1, int(spelling.begins.max()))
        self.at_once = plan.beam_size == 1 or plan.chains
        says = spelling.prints != 0
        ending = spelling.ends & says
        self.each_step = self.at_once or ending.sum().item() > COMMON * len(says)
        self.spelling = Spelling(*(part.to(device) for part in vars(spelling).values()))
        if self.n:
            parts = (spelling.begins[:, says] > 0).all(1)  # texts of this kind from all words
            silent = ~says & (spelling.after != STAYS) & parts[spelling.after]
            closes = (spelling.begins > 0) | silent
            closes[:, plan.eos_id] = True
            self.closes = closes.to(device)
            self.lexicon = Lexicon(spelling, says & ~spelling.several, device)
            self.exempt = torch.tensor(plan.exempt_words, dtype=torch.long, device=device)

    @property
    def width(self) -> int:
        """Columns of `words` before the first step."""
        return FIRST + self.most_at_once if self.n else FIRST

    def longest(self, n_steps: int) -> int:
        """Columns of `words` after so many steps, at most."""
        return FIRST + self.most_at_once * (n_steps + 1) if self.n else FIRST

    def follow(self, words: Tensor, tokens: Tensor) -> Tensor:
        """`words` with the newest token of each row (R,); below 0: none."""
        spelling, token = self.spelling, tokens.clamp(min=0)
        lives, n = tokens >= 0, words[:, COUNT]
        after = spelling.after[token]
        kind = torch.where(lives & (after != STAYS), after, words[:, KIND])
        begun = spelling.begins[self._kind(words), token] * lives
        if not self.n:
            return torch.stack([kind, n + begun], 1)
        power = torch.where(lives, spelling.powers[token], 1)
        letters = torch.where(lives, spelling.prints[token], 0)
        letters = letters + torch.where(begun > 0, 0, self._open(words)) * power
        followed = torch.nn.functional.pad(words, (0, self.most_at_once))
        followed[:, KIND], followed[:, COUNT] = kind, n + begun
        place = (FIRST - 1 + n + begun).clamp(min=FIRST)[:, None]
        return followed.scatter_(1, place, letters[:, None])

    def of_prefix(self, prefix: Tensor) -> tuple[Tensor, Tensor]:
        """`words` after all but the last of given tokens (B, P), which end in -1, and how many
        words each of these begins (B, P)."""
        words, begun = prefix.new_zeros(len(prefix), self.width), []
        is_last = torch.nn.functional.pad(prefix[:, 1:], (0, 1), value=-1) < 0
        for token, last in zip(prefix.unbind(1), is_last.unbind(1)):
            begins = self.spelling.begins[self._kind(words), token.clamp(min=0)]
            begun.append(begins * (token >= 0))
            words = self.follow(words, token.masked_fill(last, -1))
        return words, torch.stack(begun, 1)

    def forbid(self, values: Tensor, wording: Wording) -> None:
        """-inf for tokens that may not follow, in values (R, W)."""
        words, begins = wording.words, self._begins(wording.words)
        if self.plan.bounds_words:
            values.masked_fill_(self._out_of_bounds(begins, wording), -math.inf)
        if self.n:
            repeats = self._repeats(words[:, FIRST:], words[:, COUNT])
            values.masked_fill_(self._closing(wording, repeats), -math.inf)
            if self.each_step or wording.at_end is not None:
                values.scatter_(1, self._completing(wording, repeats), -math.inf)

    def gains(self, words: Tensor) -> Tensor:
        """What each token adds to a score for the words that it begins (R, W)."""
        return self.plan.word_penalty * self._begins(words)

    def reason(self, wording: Wording, row: int, token: int) -> str:
        """Why a token was forbidden in a row, as far as words are the reason."""
        plan, words = self.plan, wording.words[row : row + 1]
        n, least, begun = words[0, COUNT], wording.least[row], self._begins(words)[0, token]
        if plan.bounds_words and begun and n + begun > wording.most[row]:
            return f"the text has {int(n)} words, as many as max_words allows"
        if plan.bounds_words and token == plan.eos_id and n < least:
            return f"too early to end; the text has {int(n)} words, less than min_words"
        if self.n:
            repeats = self._repeats(words[:, FIRST:], words[:, COUNT])
            one = wording.of(row)
            banned = self._closing(one, repeats)[0, token]
            if banned or (self._completing(one, repeats) == token).any():
                repeated = "a word" if self.n == 1 else f"{self.n} words in a row"
                return f"it would repeat {repeated} (block_ngram_repeat)"
        if plan.bounds_words and n + begun + wording.left[row] <= least:
            return "too few steps are left for the words that min_words wants"
        return ""

    def _kind(self, words: Tensor) -> Tensor:
        """The kind of each text (R,); an empty one's is 0."""
        return words[:, KIND] * (words[:, COUNT] > 0)

    def _begins(self, words: Tensor) -> Tensor:
        """How many words each token begins (R, W)."""
        return self.spelling.begins.index_select(0, self._kind(words))

    def _open(self, words: Tensor) -> Tensor:
        """The fingerprint of the open word (R,)."""
        place = (FIRST - 1 + words[:, COUNT]).clamp(min=FIRST)[:, None]
        return words.gather(1, place)[:, 0]

    def _out_of_bounds(self, begins: Tensor, wording: Wording) -> Tensor:
        """Too many words, or too few steps to come to as many as there must be (R, W)."""
        n, least, left = wording.words[:, COUNT, None], wording.least[:, None], wording.left
        after = begins + n
        hopeful = n + 1 + left[:, None] >= least  # others do what they can
        binds = self.spelling.binds & (left > 0)[:, None]  # what follows begins no word
        short = (after + left[:, None] - binds.to(n.dtype) < least) & hopeful
        short[:, self.plan.eos_id] = (n < least)[:, 0]
        return ((after > wording.most[:, None]) & (begins > 0)) | short

    def _repeats(self, prints: Tensor, n_words: Tensor) -> Repeats:
        """prints (R, M): fingerprints of the n_words (R,) words of each row, then 0."""
        n, m = self.n, prints.size(1)
        if m < n:
            none = prints.new_zeros(len(prints), 0)
            return Repeats(n_words < 0, none, none)
        windows = prints.unfold(1, n, 1)  # (R, M-n+1, n)
        whole = (windows != 0).all(2) & ~torch.isin(windows, self.exempt).any(2)
        start = torch.arange(m - n + 1, device=prints.device)
        # The words before the open one, and those up to it, which the next word would follow
        behind = torch.arange(1 - n, 0, device=prints.device) + n_words[:, None]
        before, last = behind - 1, prints.gather(1, (n_words - 1).clamp(min=0)[:, None])
        heads, tails = windows[:, :, : n - 1], windows[:, :, n - 1]

        def forbidden(places: Tensor, n_done: Tensor) -> Tensor:
            head = prints.gather(1, places.clamp(min=0))[:, None]
            same = (heads == head).all(2) & whole & (start < n_done[:, None] - n + 1)
            return torch.where(same & (n_done >= n - 1)[:, None], tails, 0)

        gone_on, begun = forbidden(before, n_words - 1), forbidden(behind, n_words)
        return Repeats(((gone_on == last) & (last != 0)).any(1), begun, gone_on)

    def _closing(self, wording: Wording, repeats: Repeats) -> Tensor:
        """Tokens that would end the open word of a row that is shut, and those of several words,
        of which nobody looks at the first (R, W)."""
        shut = repeats.shut if wording.given is None else repeats.shut & ~wording.given
        closing = self.closes.index_select(0, self._kind(wording.words)) & shut[:, None]
        return closing | self.spelling.several

    def _completing(self, wording: Wording, repeats: Repeats) -> Tensor:
        """Tokens that make a word which may not be there, and which cannot go on or has no time to:
        (R, Q), the spare column where there is none."""
        spelling, lexicon, words = self.spelling, self.lexicon, wording.words
        kind, n_rows, spare = self._kind(words), len(words), spelling.prints.size(0) - 1
        open_word = self._open(words)[:, None, None]
        found = []
        rest = repeats.gone_on[:, :, None] - open_word * lexicon.powers
        rest = torch.where((repeats.gone_on != 0)[:, :, None] & (open_word != 0), rest, 0)
        for wanted, n_begun in ((repeats.begun[:, :, None], 1), (rest, 0)):
            ids = lexicon.find(wanted)  # (R, F, P, D)
            held = ids.clamp(min=0)
            fits = (ids >= 0) & (spelling.begins[kind[:, None, None, None], held] == n_begun)
            if n_begun == 0:
                fits &= spelling.powers[held] == lexicon.powers[None, None, :, None]
            if not self.at_once:
                final = spelling.ends[held]
                if wording.at_end is not None:
                    final |= wording.at_end[:, None, None, None]
                fits &= final
            found.append(torch.where(fits, held, spare).view(n_rows, -1))
        return torch.cat(found, 1)


class Lexicon:
    """Which tokens have a fingerprint.

    prints (U,)  all there are, ascending, 0 among them
    ids (U, D)   the tokens of each, then -1
    powers (P,)  those of the tokens
    """

    def __init__(self, spelling: Spelling, listed: Tensor, device: torch.device):
        tokens: dict[int, list[int]] = {0: []}
        for i in listed.nonzero()[:, 0].tolist():
            tokens.setdefault(int(spelling.prints[i]), []).append(i)
        n = max(1, *map(len, tokens.values()))
        ids = [[*tokens[p], *[-1] * (n - len(tokens[p]))] for p in sorted(tokens)]
        self.prints = torch.tensor(sorted(tokens)).to(device)
        self.ids = torch.tensor(ids).to(device)
        self.powers = torch.tensor([*{*spelling.powers[listed].tolist()}]).to(device)

    def find(self, wanted: Tensor) -> Tensor:
        """The tokens of fingerprints (..): (.., D), -1 where there are no more."""
        place = torch.searchsorted(self.prints, wanted).clamp(max=len(self.prints) - 1)
        return torch.where((self.prints[place] == wanted)[..., None], self.ids[place], -1)


def _whole(spelling: Spelling, vocab_size: int, eos_id: int) -> Spelling:
    """Also of the words that sentences copy, each a word of its own, and of a spare column; the end
    token is no word."""
    n = len(spelling.after)
    more = torch.arange(n, vocab_size + 1)
    copied = torch.tensor([fingerprint(b"\0%d" % i) for i in more.tolist()])
    n_more, n_kinds = len(more), len(spelling.begins)
    no, yes = torch.zeros(n_more, dtype=torch.bool), torch.ones(n_more, dtype=torch.bool)
    whole = Spelling(
        torch.cat([spelling.begins, torch.ones(n_kinds, n_more, dtype=torch.int8)], 1),
        torch.cat([spelling.after, torch.zeros(n_more, dtype=torch.long)]),
        torch.cat([spelling.ends, yes]),
        torch.cat([spelling.binds, no]),
        torch.cat([spelling.several, no]),
        torch.cat([spelling.prints, copied]),
        torch.cat([spelling.powers, torch.full((n_more,), signed(BASE))]),
    )
    for i in (eos_id, vocab_size):
        whole.begins[:, i], whole.after[i], whole.ends[i] = 0, STAYS, False
        whole.binds[i], whole.several[i] = False, False
        whole.prints[i], whole.powers[i] = 0, 1
    return whole
