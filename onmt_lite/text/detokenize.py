"""Joins tokens to text, for each way to mark that a word was cut.

| rule | tokens | text |
|---|---|---|
| `bpe` | `Mor@@ gen !` | `Morgen !` |
| `sentencepiece` | `▁Mor gen !` | `Morgen!` |
| `joiner` | `Mor￭ gen ￭!` | `Morgen!` |
| `spacer` | `Mor gen ! ▁Ja` | `Morgen! Ja` |

`bpe` and `sentencepiece` are fairseq's `--post-process` (0.12.2).  `joiner` and `spacer` come
from the OpenNMT Tokenizer (pyonmttok 1.38.1), with its marks for capitals.
"""

import re
from collections.abc import Callable

from onmt_lite.text.bpe import join_bpe

JOINER, SPACER = "￭", "▁"
CAPITAL = "｟mrk_case_modifier_C｠"  # before a token with a capital first letter
ESCAPED = re.compile("％(?!d[89a-f])([0-9a-f]{4})")  # a character that looks like a mark
PLACEHOLDER = "｟"  # begins a token that is kept as it is
CAPITALS_BEGIN, CAPITALS_END = "｟mrk_begin_case_region_U｠", "｟mrk_end_case_region_U｠"


def join_pieces(tokens: list[str]) -> str:
    """Join pieces of sentencepiece, without its model."""
    return "".join(tokens).replace(SPACER, " ").strip()


def join_joiner(tokens: list[str]) -> str:
    """Join tokens with spaces, except on a side where a token has a joiner."""
    text, glued = "", True
    for token in restore_case(tokens, JOINER):
        space = "" if glued or token.startswith(JOINER) else " "
        text += space + token.removeprefix(JOINER).removesuffix(JOINER)
        glued = token.endswith(JOINER)
    return text


def join_spacer(tokens: list[str]) -> str:
    """Join tokens, with a space before each that begins with a spacer, except the first."""
    cased = restore_case(tokens, SPACER)
    text = "".join(" " + t[1:] if t.startswith(SPACER) else t for t in cased)
    return text[1:] if cased and cased[0].startswith(SPACER) else text


def restore_case(tokens: list[str], mark: str) -> list[str]:
    """Apply the marks of case among the tokens, and remove them."""
    restored = []
    capital = capitals = False
    for token in tokens:
        if token == CAPITAL:
            capital = True
        elif token in (CAPITALS_BEGIN, CAPITALS_END):
            capitals = token == CAPITALS_BEGIN
        else:
            restored.append(_in_case(unescaped(token), mark, capital, capitals))
            capital = capital and token == mark  # a mark alone has no letter to turn
    return restored


def unescaped(token: str) -> str:
    """Replace escapes: `％0020` is U+0020."""
    if PLACEHOLDER in token:
        return token
    return ESCAPED.sub(lambda match: chr(int(match[1], 16)), token)


def _in_case(token: str, mark: str, capital: bool, capitals: bool) -> str:
    if not capital:
        return token.upper() if capitals else token
    first = len(mark) if token.startswith(mark) else 0  # index of the first letter
    return token[:first] + token[first : first + 1].upper() + token[first + 1 :]


DETOKENIZERS: dict[str, Callable[[list[str]], str]] = {
    "space": " ".join,
    "bpe": join_bpe,
    "sentencepiece": join_pieces,
    "joiner": join_joiner,
    "spacer": join_spacer,
}
