"""Tokens to text, for each way of marking where words were cut.

| rule | tokens | text |
|---|---|---|
| `bpe` | `Mor@@ gen !` | `Morgen !` |
| `sentencepiece` | `▁Mor gen !` | `Morgen!` |
| `joiner` | `Mor￭ gen ￭!` | `Morgen!` |
| `spacer` | `Mor gen ! ▁Ja` | `Morgen! Ja` |

The last two are those of the OpenNMT Tokenizer (pyonmttok 1.38.1), whose marks for capitals are
read as well; the first two are fairseq's `--post-process` (0.12.2).
"""

import re
from collections.abc import Callable

from onmt_lite.text.bpe import join_bpe

JOINER, SPACER = "￭", "▁"
CAPITAL = "｟mrk_case_modifier_C｠"  # of the next token, the first letter
ESCAPED = re.compile("％(?!d[89a-f])([0-9a-f]{4})")  # a character that marks would be mistaken for
PLACEHOLDER = "｟"  # begins a token that is kept as it is
CAPITALS_BEGIN, CAPITALS_END = "｟mrk_begin_case_region_U｠", "｟mrk_end_case_region_U｠"


def join_pieces(tokens: list[str]) -> str:
    """Pieces of sentencepiece, without the model that cut them."""
    return "".join(tokens).replace(SPACER, " ").strip()


def join_joiner(tokens: list[str]) -> str:
    """A space between each two tokens, but where one of them has a joiner on that side."""
    text, glued = "", True
    for token in restore_case(tokens, JOINER):
        space = "" if glued or token.startswith(JOINER) else " "
        text += space + token.removeprefix(JOINER).removesuffix(JOINER)
        glued = token.endswith(JOINER)
    return text


def join_spacer(tokens: list[str]) -> str:
    """A space before each token that begins with a spacer, but for the first."""
    cased = restore_case(tokens, SPACER)
    text = "".join(" " + t[1:] if t.startswith(SPACER) else t for t in cased)
    return text[1:] if cased and cased[0].startswith(SPACER) else text


def restore_case(tokens: list[str], mark: str) -> list[str]:
    """The tokens in the case that marks among them tell, without these."""
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
    """`％0020` is a space that carries an accent, and so on."""
    if PLACEHOLDER in token:
        return token
    return ESCAPED.sub(lambda match: chr(int(match[1], 16)), token)


def _in_case(token: str, mark: str, capital: bool, capitals: bool) -> str:
    if not capital:
        return token.upper() if capitals else token
    first = len(mark) if token.startswith(mark) else 0  # where the first letter is
    return token[:first] + token[first : first + 1].upper() + token[first + 1 :]


DETOKENIZERS: dict[str, Callable[[list[str]], str]] = {
    "space": " ".join,
    "bpe": join_bpe,
    "sentencepiece": join_pieces,
    "joiner": join_joiner,
    "spacer": join_spacer,
}
