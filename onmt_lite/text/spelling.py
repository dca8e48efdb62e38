"""How tokens make words: where a word begins, told by the tokenizer itself.

A word is what stands between white space in the text, as `str.split` has it.  Tokenizers mark words
in different ways (`▁the`, `the@@`, `the￭`, or not at all), so nobody reads marks here: each token
is joined with a few others, and what stands between them is looked at.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Decode = Callable[[list[str]], str]
Kind = tuple[bool, ...]  # whether white space is between a token and each of some others
MARKS = "▁￭"
A_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
BASE = 0x9E3779B97F4A7C15  # odd, so that its powers never vanish
SAME_KIND = 3  # tokens of one look that are tried
STAYS = -1


@dataclass(frozen=True, eq=False)
class Spelling:
    """What each of V tokens does to the words of a text.  Texts are of L kinds, by what they end
    with; kind 0 is followed by white space, or empty.

    begins (L, V)  words that the token begins behind a text of this kind
    after (V,)     the kind of a text that ends with it; STAYS: it says nothing, and changes nothing
    ends (V,)      whatever follows begins a word
    binds (V,)     nothing that follows begins a word
    several (V,)   it has more than one word in it
    prints (V,)    fingerprint of its letters; 0: none
    powers (V,)    by which the fingerprint of what they are added to is multiplied
    """

    begins: Tensor
    after: Tensor
    ends: Tensor
    binds: Tensor
    several: Tensor
    prints: Tensor
    powers: Tensor

    def of(self, ids: Tensor) -> "Spelling":
        """The same of these tokens alone (U,)."""
        return Spelling(*(part.index_select(-1, ids) for part in vars(self).values()))

    def count(self, ids: Sequence[int]) -> int:
        """How many words tokens make."""
        n = kind = 0
        for i in ids:
            if i >= len(self.after):  # a word that a sentence has of its own
                n, kind = n + 1, 0
                continue
            n += int(self.begins[kind if n else 0, i])
            kind = kind if self.after[i] == STAYS else int(self.after[i])
        return n


@dataclass(frozen=True)
class Read:
    """A token between others: whether white space parts it from each, and the words it has."""

    left: Kind
    right: Kind
    words: tuple[bytes, ...]


class Reader:
    """Reads tokens by joining them with probes.

    firsts, seconds  tokens that stand before and behind, one for each way in which they join
    """

    def __init__(self, tokens: Sequence[str], decode: Decode):
        self.decode = decode
        probes = likely_probes(tokens, decode)
        rows = {x: tuple(self._apart(x, y) for y in probes) for x in probes}
        columns = {y: tuple(rows[x][i] for x in probes) for i, y in enumerate(probes)}
        self.firsts = [*{row: x for x, row in reversed(rows.items())}.values()]
        self.seconds = [*{column: y for y, column in reversed(columns.items())}.values()]
        self.kinds = [tuple(self._apart(x, y) for y in self.seconds) for x in self.firsts]
        self.widths = {x: len(decode([x])) for x in probes}

    def _apart(self, x: str, y: str) -> bool:
        return len(self.decode([x, y]).split()) == 2

    def between(self, first: str, token: str, second: str) -> str:
        """What a token is between two probes."""
        text = self.decode([first, token, second])
        return text[self.widths[first] : len(text) - self.widths[second]]

    def read(self, token: str) -> Read:
        """A token that says something."""
        left, right, inner = [], [], token
        for k in range(max(len(self.firsts), len(self.seconds))):
            first = self.firsts[min(k, len(self.firsts) - 1)]
            inner = self.between(first, token, self.seconds[min(k, len(self.seconds) - 1)])
            left.append(inner[:1].isspace())
            right.append(inner[-1:].isspace())
        words = tuple(word.encode("utf-8", "surrogatepass") for word in inner.split())
        byte = A_BYTE.fullmatch(token)
        if byte and words and inner.strip() != token:  # one of a character's bytes
            words = (bytes([int(byte[1], 16)]),)
        return Read(tuple(left[: len(self.firsts)]), tuple(right[: len(self.seconds)]), words)

    def silent(self, token: str) -> list[Kind]:
        """For a token that says nothing: what the kind of each of `firsts` becomes."""
        parts = [[self.between(x, token, y) for y in self.seconds] for x in self.firsts]
        return [tuple(part != "" for part in row) for row in parts]


def likely_probes(tokens: Sequence[str], decode: Decode) -> list[str]:
    """A few words or parts of words of each look: tokens that only letters are left of."""
    found: dict[tuple[bool, ...], list[str]] = {}
    for token in tokens:
        bare = token.strip(MARKS).removesuffix("@@")
        marks = [bool(f(m)) for m in MARKS for f in (token.startswith, token.endswith)]
        look = (bare.isascii(), token.endswith("@@"), *marks)
        if bare.isalnum() and len(found.get(look, ())) < SAME_KIND and decode([token]) == bare:
            found.setdefault(look, []).append(token)
    probes = [probe for look in sorted(found, reverse=True) for probe in found[look]]
    return probes or [token for token in tokens if len(decode([token]).split()) == 1][:1]


def spelling_of(tokens: Sequence[str], decode: Decode) -> Spelling:
    """How these tokens make words where `decode` joins them."""
    reader = Reader(tokens, decode)
    read = [reader.read(token) for token in tokens]
    n_seconds = len(reader.seconds)
    kinds: dict[Kind, int] = {(True,) * n_seconds: 0}  # of texts, by what comes behind them
    for kind in (*reader.kinds, *(r.right for r in read if r.words)):
        kinds.setdefault(kind, len(kinds))
    # Whether a kind parts from what follows, where that is no probe: by a probe of the same kind
    probe_of = {kind: i for i, kind in reversed([*enumerate(reader.kinds)])}
    columns = [tuple(row[j] for row in reader.kinds) for j in range(n_seconds)]
    lefts = {r.left for r in read}
    apart = {
        (left, i): kind[columns.index(left)]
        if left in columns
        else (left[probe_of[kind]] if kind in probe_of else any(left) or any(kind))
        for left in lefts
        for kind, i in kinds.items()
    }
    apart |= {(left, 0): True for left in lefts}
    parts_always = [all(apart[left, i] for left in lefts) for i in range(len(kinds))]
    parts_never = [not any(apart[left, i] for left in lefts) for i in range(len(kinds))]
    after = []
    for token, r in zip(tokens, read):
        becomes = [] if r.words else reader.silent(token)
        after.append(kinds[r.right] if r.words else _after_silent(becomes, reader.kinds, kinds))
    binding = any(a != STAYS and not parts_always[a] for a, r in zip(after, read) if not r.words)
    begins = [
        [max(0, len(r.words) - 1) + apart[r.left, i] if r.words else 0 for r in read]
        for i in range(len(kinds))
    ]
    texts = [b"".join(r.words) for r in read]
    return Spelling(
        torch.tensor(begins, dtype=torch.int8),
        torch.tensor(after),
        torch.tensor([a != STAYS and parts_always[a] and not binding for a in after]),
        torch.tensor([a != STAYS and parts_never[a] for a in after]),
        torch.tensor([len(r.words) > 1 for r in read]),
        torch.tensor([*map(fingerprint, texts)]),
        torch.tensor([signed(pow(BASE, len(text), 1 << 64)) for text in texts]),
    )


def _after_silent(becomes: list[Kind], before: list[Kind], kinds: dict[Kind, int]) -> int:
    """The kind of any text behind which a token stands that says nothing."""
    if becomes == before:
        return STAYS
    return kinds.get(becomes[0], 0)


def fingerprint(text: bytes) -> int:
    """Of a word, as 64 bits with a sign: f(a + b) = f(a) * BASE**len(b) + f(b)."""
    total = 0
    for byte in text:
        total = (total * BASE + LETTERS[byte]) % (1 << 64)
    return signed(total)


def signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def fingerprints(words: Iterable[str]) -> Tensor:
    """(N,)"""
    return torch.tensor([fingerprint(w.encode("utf-8")) for w in words], dtype=torch.long)


# A number of 64 bits for each byte
LETTERS = [
    int.from_bytes(hashlib.blake2b(bytes([byte]), digest_size=8).digest(), "little")
    for byte in range(256)
]
