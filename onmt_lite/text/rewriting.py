"""Text that is rewritten before it is cut: OpenNMT-py's transforms `normalize` and `uppercase`.

The rules of `normalize` come from Moses' punctuation normaliser, as OpenNMT-py 3.5.1 orders and
spells them; its transforms never write the output back, and neither is that done here.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from onmt_lite.text.tokenizers import Tokenizer

Rewrite = Callable[[str], str]
Rules = list[tuple[str, str]]  # patterns and their replacements, one after the other

NBSP = "\u00a0"

SPACES: Rules = [
    (r"\r", ""),
    (r"([(])", r" \1"),
    (r"([)])", r"\1 "),
    (" +", " "),
    (r"(?<=[)]) (?=[.!:?;,])", ""),
    (r"(?<=[(]) ", ""),
    (r" (?=[)])", ""),
    (r"(?<=\d) (?=%)", ""),
    (" (?=:)", ""),
    (" (?=;)", ""),
]
PENN: Rules = [("`", "'"), ("''", ' " ')]  # quotation marks of the Penn Treebank
# Dashes, dots and quotation marks by their plain equivalents
PLAIN: dict[int, int | str] = {
    ord("—"): " - ",
    ord("…"): "...",
    **str.maketrans("„“”´‘‚’–", "\"\"\"''''-"),
}
GUILLEMETS: Rules = [
    (f"{NBSP}«{NBSP}|«{NBSP}?", '"'),
    (f"{NBSP}»{NBSP}|{NBSP}?»", '"'),
]
NO_BREAK: Rules = [
    (f"{NBSP}(?=%)", ""),
    (f"(?<=nº){NBSP}", " "),
    (f"{NBSP}(?=[:?!;])", ""),
    (f"{NBSP}(?=ºC|cm)|(?<=,){NBSP}", " "),
    (" +", " "),
]
# A quotation ends after the comma or full stop in English, before it elsewhere; a full stop
# that ends the line stays
QUOTED_IN = {"en": [(r'"([,.]+)', r'\1"')]}
QUOTED_IN |= dict.fromkeys(("de", "es", "fr"), [(',"', '",'), (r'(\.+)"(\s*[^<])', r'"\1\2')])
DECIMAL_COMMA = ("de", "es", "cz", "cs", "fr")

# Full-width forms, and the marks that Chinese and Japanese text has
WIDE: dict[int, int | str] = {
    ord("…"): "...",
    **str.maketrans(
        "，、∶：？《》）！（；」「～’━〈〉【】％”“０１２３４５６７８９",
        ',,::?"")!(;""~\'-<>[]%""0123456789',
    ),
}
WIDE_STOPS: Rules = [(r"[。．]\s*", ". ")]


@dataclass(frozen=True)
class Punctuation:
    """Normalises the punctuation of a line, as the transform `normalize`.

    lang          decides on the ends of quotations and on the mark between digits of a number
    penn          quotation marks of the Penn Treebank become others
    quote_commas  quotations end as is usual in the language
    numbers       a space inside a number that does not break becomes a comma or a point
    wide          full-width forms become usual ones first
    controls      characters that are not to be seen are taken out last
    """

    lang: str = ""
    penn: bool = True
    quote_commas: bool = True
    numbers: bool = True
    wide: bool = False
    controls: bool = False

    def __call__(self, text: str) -> str:
        if self.wide:
            text = replaced(text, WIDE_STOPS).translate(WIDE)
        text = replaced(text, SPACES + (PENN if self.penn else []))
        text = replaced(text.translate(PLAIN), [(" +", " "), ("''", '"')])
        text = replaced(text, GUILLEMETS + NO_BREAK)
        if self.quote_commas:
            text = replaced(text, QUOTED_IN.get(self.lang, []))
        if self.numbers:
            mark = "," if self.lang in DECIMAL_COMMA else "."
            text = replaced(text, [(rf"(\d){NBSP}(\d)", rf"\1{mark}\2")])
        if self.controls:
            text = "".join(c for c in text if not unicodedata.category(c).startswith("C"))
        return text.strip()


def replaced(text: str, rules: Rules) -> str:
    """The text after these replacements, one after the other."""
    for pattern, replacement in rules:
        text = re.sub(pattern, replacement, text)
    return text


def uppercase(text: str) -> str:
    """The text in capital letters, which have no accents."""
    decomposed = unicodedata.normalize("NFD", text.upper())
    return "".join(c for c in decomposed if unicodedata.category(c) != "Mn")


@dataclass(frozen=True)
class Steps:
    """Rewriting of lines of one side: of text before they are cut, and of tokens afterwards."""

    before: tuple[Rewrite, ...]
    after: tuple[Rewrite, ...]

    def tokens(self, text: str, cut: Callable[[str], list[str]]) -> list[str]:
        """Cut a line, rewritten before and after."""
        for rewrite in self.before:
            text = rewrite(text)
        tokens = cut(text)
        for rewrite in self.after:
            tokens = rewrite(" ".join(tokens)).split()
        return tokens


class RewritingTokenizer:
    """Another tokenizer, which gets lines as they are rewritten; the output stays as it is."""

    def __init__(self, tokenizer: Tokenizer, src: Steps, tgt: Steps):
        self.tokenizer, self.src, self.tgt = tokenizer, src, tgt
        self.decode = tokenizer.decode

    def encode(self, text: str) -> list[str]:
        return self.src.tokens(text.strip(), self.tokenizer.encode)

    def encode_target(self, text: str) -> list[str]:
        return self.tgt.tokens(text.strip(), self.tokenizer.encode_target)
