"""Patterns of markup, placeholders and addresses, and the marks that begin a line of Markdown."""

import re
from collections.abc import Iterator

# -- inline items, each taken out of a line as a whole ---------------------------------------------

ENTITY = r"&(?:amp;)*(?:[A-Za-z][A-Za-z0-9]{1,30}|#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6});"
LT = r"(?:<|&(?:amp;)*(?:lt|LT|#0{0,4}60|#[xX]0{0,4}3[cC]);)"
GT = r"(?:>|&(?:amp;)*(?:gt|GT|#0{0,4}62|#[xX]0{0,4}3[eE]);)"
# A tag has attributes or one word next to its name ("x <y und y> z" is text).  Comments may contain
# tags.
TAG = r"</?[A-Za-z][^\s<>]*(?:\s[^<>=]*=[^<>]*|(?:\s+[^\s<>]+)?\s*)>|<!--(?:(?!<!--).)*?-->"
INSIDE = rf"(?!{LT}|{GT})"  # the next character belongs to the escaped tag
ESCAPED_TAG = (
    rf"(?=&){LT}/?[A-Za-z](?:{INSIDE}\S)*"
    rf"(?:\s(?:{INSIDE}[^=])*=(?:{INSIDE}.)*|(?:\s+(?:{INSIDE}\S)+)?\s*)(?=&){GT}"
    rf"|(?=&){LT}!--(?:(?!{LT}!--).)*?--(?=&){GT}"
)
FOOTNOTE = r"\[\^[^\s\[\]]+\]:?"
# `x`, ``x``; in "Wie geht`s" the mark is an apostrophe
CODE_SPAN = r"(?<![\w`])(?P<ticks>`{1,3})(?!`).+?(?<!`)(?P=ticks)(?![\w`])"
FENCE = r"^\s*(?:`{3,}|~{3,})[\w+-]*\s*$"
AUTOLINK = rf"{LT}(?:(?:https?|ftp|mailto|tel):(?:{INSIDE}[^\s<>])*|[\w.+-]+@[\w.-]+){GT}"  # <https://example.org>
TITLE = r"(?:\s+(?:\"[^\"]*\"|'[^']*'|\([^()]*\)))?\s*"
TARGET = rf"\((?:<[^<>]*>|[^\s()<>]*(?:\([^\s()]*\)[^\s()<>]*)*){TITLE}\)"
LINK_END = rf"\](?:{TARGET}|\[[^\[\]]*\])"  # ](path "title"), ][name]
LINK_START = rf"!?\[(?=(?:[^\[\]]|\[[^\[\]]*\]){{0,500}}{LINK_END})"
LINK_DEFINITION = rf"^\s*\[[^\[\]]+\]:\s*(?:<[^<>]*>|[^\s<>]*[/#][^\s<>]*){TITLE}$"

URL = r"(?<!\w)(?:(?:https?|ftp|file)://|www\.|mailto:)[^\s<>\"]*[^\s<>\".,;:!?)\]}’“”»']"
SITE = (
    r"(?<![\w.@-])\w+(?:[.-]\w+)*\.(?:at|ch|com|de|edu|eu|fr|gov|info|io|net|org|tv|uk)"
    r"(?:/[^\s<>\"]*[^\s<>\".,;:!?)\]}’“”»'])?(?![\w-]|\.\w)"
)  # uni-jena.de/hilfe
MAIL = r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+|(?<![\w@.])@\w+"
BRACES = r"[$#%]?\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"  # {x}, {{x}}, ${x}, {n, plural, one {#}}
PRINTF = (
    r"(?<![\d%])%(?!(?<=\d %)[-+#])"  # 5 %-e is not a placeholder
    r"(?:\([^()%]*\))?(?:[0-9]{1,2}\$)?[-+#0]{0,5}[0-9]{0,4}(?:\.[0-9]{1,4})?"
    r"(?:hh?|ll?|[jqtzL])?[sSdiuoxXfFgGeEcp@](?!\w)"
)
VARIABLE = r"(?<!\w)%[A-Za-z_]+%(?!\w)|(?<![\w$])\$[A-Za-z_]\w*"
PATH = (
    r"(?<![\w\\/])[A-Za-z]:\\[^\s<>\"]*\w"
    r"|(?<![\w./\\<-])(?:(?:~|\.\.?)/|/[\w.+-]*\w/)(?:[\w.+-]*\w/)*[\w.+-]*\w/?"
    r"|(?<![\w./@-])[\w-]+(?:[./][\w-]+)*/[\w.-]+\.[a-z][a-z0-9]{0,4}(?![\w/])"
)  # ~/bin, /usr/local, src/main.py
WRAPPED = (
    r"\[\[[^\[\]]+\]\]|<<[^\s<>]+>>|"
    r"\[(?:[a-z]|[A-Z]+|\w*[\d_]\w*)\]"  # [x], [USER], [user_name], but [leise] is text
)
CODE = (
    rf"(?<![\w@=&#\\~|])[^\W_]+(?:(?!{ENTITY})[_@=&#\\~|]+[^\W_]+)+"
    r"|(?<!\w)[A-Za-z](?:#|\+\+)(?!\w)"  # C#
)
WORDS = "|".join((URL, MAIL, SITE, PATH, WRAPPED, BRACES, PRINTF, VARIABLE, CODE))
LITERALS = "|".join((LINK_DEFINITION, FENCE, CODE_SPAN, AUTOLINK))
# Marks leave nothing in the line that the model reads, words and literals a stand-in
PATTERNS = re.compile(
    f"(?P<literal>{LITERALS})|(?P<opens>{LINK_START})|(?P<closes>{LINK_END})"
    f"|(?P<mark>{TAG}|{ESCAPED_TAG}|{ENTITY}|{FOOTNOTE})|(?P<word>{WORDS})"
)
ITEM = f"(?P<item>{LITERALS}|{LINK_END}|{TAG}|{ESCAPED_TAG}|{WORDS})"  # whose text stays as it is
ITEMS = re.compile(ITEM)
# No pattern is without one of these
HINT = re.compile(r"[<&{%$@_=#\\~|[/`*]|\+\+|www\.|mailto:|\w\.[a-z]{2}")

TAG_NAME = re.compile(rf"{LT}(/?)([A-Za-z][\w:-]*)")
SELF_CLOSING = re.compile(rf"/{GT}$")
# A closing tag that an opening one follows directly: cells, items of a list, paragraphs; or a line
# break.  Parts of a formula end no words, nor does a tag before a punctuation mark.
TAG_BODY = rf"(?!su[bp]\b)[A-Za-z](?:{INSIDE}.)*{GT}"
NEXT_CELL = re.compile(
    rf"(?:{LT}/{TAG_BODY}{LT}{TAG_BODY}|(?<!\s){LT}br\s*/?{GT}(?!\s|$))(?![.,;:!?…)\]}}])",
    re.IGNORECASE,
)
# Between words and punctuation marks, but not as in 2 ** 3 or Kolleg*innen.  The end is within 500
# characters, because time would grow with the square of the length.
EMPHASIS = re.compile(
    r"(?<![*~\d\\])(?P<strong>\*\*\*?|~~)(?![\s*~]).{1,500}?(?<![\s*~\\])(?P=strong)(?![*~\d])"
    r"|(?<![\w*\\])(?P<mark>\*|_{1,3})(?![\s*_]).{1,500}?(?<![\s*_\\])(?P=mark)(?![\w*])"
)


def inside_items(text: str) -> set[int]:
    """Return the indices of all characters inside items."""
    items = ITEMS.finditer(text) if HINT.search(text) else ()
    return {i for item in items for i in range(*item.span())}


def emphases(text: str, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the start, end and width of the marks of each part in Markdown's emphasis."""
    for found in EMPHASIS.finditer(text, start, end):
        width = len(found["strong"] or found["mark"])
        yield (*found.span(), width)
        yield from emphases(text, found.start() + width, found.end() - width)


# -- marks at the start of a line ------------------------------------------------------------------

# "3. Oktober" and "2. und 3. Klasse" begin with an ordinal number, "3. Milch kaufen" with a mark
ORDINAL = (
    r"(?i:(?:Januar|Jänner|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November"
    r"|Dezember|(?:Jan|Feb|Mär|Apr|Jun|Jul|Aug|Sept?|Okt|Nov|Dez)\.|Jahrhunderts?|Jh\.|Klasse|Stock"
    r"|Etage|Weltkriegs?|Geburtstag|Platz|Mal|Liga|Bundesliga|Advent|Halbzeit|Quartal"
    r"|und|oder|bis)(?!\w)|[-–]\s*\d)"
)
UPPER = "A-ZÀ-ÖØ-Þ"
MARK = (
    r"(?:[-–—―]{1,3}|[*+•‣◦▪●]|\(?(?:\d{1,3}|[A-Za-z]|[ivx]{1,4})\)"
    rf"|\d{{1,3}}\.(?!\s+{ORDINAL}))\s+(?:\[[ xX]\]\s+)?"
    rf"|\[[ xX]\]\s+|#{{1,6}}\s+|[•‣◦▪●]|[-–—―]{{1,3}}(?=[\"'„“«»‚‘¿¡(]*[{UPPER}])"
)
HEAD = re.compile(rf"\s*(?!>>[^\s<>]+<<)(?:(?:{MARK}|{GT}\s*)){{1,6}}")
# The next speaker, in a line that begins with a dash
NEXT_SPEAKER = re.compile(rf"(?<=[.!?…]\s)[-–—―]{{1,3}}(?=\s?[{UPPER}])")


def head_of(line: str, start: int = 0) -> str:
    """Return the marks of Markdown, lists and dialogues at the start of a line, and their spaces.

    A line without a word after them has none.
    """
    if line[start : start + 1].isalpha() and ")" not in line[start : start + 5]:
        return ""  # most lines
    found = HEAD.match(line, start)
    return found[0] if found and any(map(str.isalnum, line[found.end() :])) else ""
