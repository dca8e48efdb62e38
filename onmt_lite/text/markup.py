"""Regular expressions for markup, variables and addresses, and for list marks at the line start."""

import re
from collections.abc import Iterator

# -- inline spans, each masked as a whole ----------------------------------------------------------

ENTITY = r"&(?:amp;)*(?:[A-Za-z][A-Za-z0-9]{1,30}|#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6});"
LT = r"(?:<|&(?:amp;)*(?:lt|LT|#0{0,4}60|#[xX]0{0,4}3[cC]);)"
GT = r"(?:>|&(?:amp;)*(?:gt|GT|#0{0,4}62|#[xX]0{0,4}3[eE]);)"
# After its name, a tag has attributes or at most one word ("x <y und y> z" is text). Comments may
# contain tags.
TAG = r"</?[A-Za-z][^\s<>]*(?:\s[^<>=]*=[^<>]*|(?:\s+[^\s<>]+)?\s*)>|<!--(?:(?!<!--).)*?-->"
INSIDE = rf"(?!{LT}|{GT})"  # the next character is inside the escaped tag
ESCAPED_TAG = (
    rf"(?=&){LT}/?[A-Za-z](?:{INSIDE}\S)*"
    rf"(?:\s(?:{INSIDE}[^=])*=(?:{INSIDE}.)*|(?:\s+(?:{INSIDE}\S)+)?\s*)(?=&){GT}"
    rf"|(?=&){LT}!--(?:(?!{LT}!--).)*?--(?=&){GT}"
)
FOOTNOTE = r"\[\^[^\s\[\]]+\]:?"
# `x`, ``x``; in "Wie geht`s" the backtick is an apostrophe
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
HASH = (
    r"(?<![\w#-])(?:#[0-9A-Fa-f]{6}|0x[0-9A-Fa-f]{1,64}|[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-"
    r"[0-9A-Fa-f]{12}|(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{7,64}"
    r"|(?=[A-F]*[0-9])(?=[0-9]*[A-F])[0-9A-F]{7,64})(?![\w-])"
)  # #1a2b3c, 0xE1CC, UUID, 9f86d081
# Spaces everywhere or nowhere, so that an amount that follows is not part of it
IBAN = (
    r"(?<![\w-])[A-Z]{2}[0-9]{2}(?:(?:[A-Z]{4})?[0-9]{8,28}|(?: [A-Z]{4})?(?: [0-9]{4}){2,7}"
    r"(?: [0-9]{1,3})?)(?![\w-]|[.,][0-9])"
)
WORDS = "|".join((URL, MAIL, SITE, PATH, WRAPPED, BRACES, PRINTF, VARIABLE, CODE, HASH, IBAN))
LITERALS = "|".join((LINK_DEFINITION, FENCE, CODE_SPAN, AUTOLINK))
# Inline tags are removed from the line that the model reads; words and literals become placeholders
PATTERNS = re.compile(
    f"(?P<literal>{LITERALS})|(?P<opens>{LINK_START})|(?P<closes>{LINK_END})"
    f"|(?P<mark>{TAG}|{ESCAPED_TAG}|{ENTITY}|{FOOTNOTE})|(?P<word>{WORDS})"
)
SPAN = f"(?P<span>{LITERALS}|{LINK_END}|{TAG}|{ESCAPED_TAG}|{WORDS})"  # text that never changes
SPANS = re.compile(SPAN)
# Every match of the patterns contains one of these
HINT = re.compile(
    r"[<&{%$@_=#\\~|[/`*]|\+\+|www\.|mailto:|\w\.[a-z]{2}|\d[a-fx]|[a-z]\d|\d{8}-\d", re.IGNORECASE
)

TAG_NAME = re.compile(rf"{LT}(/?)([A-Za-z][\w:-]*)")
SELF_CLOSING = re.compile(rf"/{GT}$")
# A closing tag directly followed by an opening tag (table cells, list items, paragraphs), or a line
# break. Subscripts, superscripts and tags before punctuation do not separate words.
TAG_BODY = rf"(?!su[bp]\b)[A-Za-z](?:{INSIDE}.)*{GT}"
NEXT_CELL = re.compile(
    rf"(?:{LT}/{TAG_BODY}{LT}{TAG_BODY}|(?<!\s){LT}br\s*/?{GT}(?!\s|$))(?![.,;:!?…)\]}}])",
    re.IGNORECASE,
)
# Markdown emphasis, but not 2 ** 3 or Kolleg*innen. At most 500 characters, because the time is
# quadratic in the length.
EMPHASIS = re.compile(
    r"(?<![*~\d\\])(?P<strong>\*\*\*?|~~)(?![\s*~]).{1,500}?(?<![\s*~\\])(?P=strong)(?![*~\d])"
    r"|(?<![\w*\\])(?P<mark>\*|_{1,3})(?![\s*_]).{1,500}?(?<![\s*_\\])(?P=mark)(?![\w*])"
)


def find_indices_inside_spans(text: str) -> set[int]:
    """Return the indices of all characters inside inline spans."""
    matches = SPANS.finditer(text) if HINT.search(text) else ()
    return {i for match in matches for i in range(*match.span())}


def iter_emphases(text: str, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, width of the mark) of each emphasized part, outer parts first.

    Args:
        text: the line.
        start: index at which to start searching.
        end: index at which to stop.
    """
    for match in EMPHASIS.finditer(text, start, end):
        width = len(match["strong"] or match["mark"])
        yield (*match.span(), width)
        yield from iter_emphases(text, match.start() + width, match.end() - width)


# -- list marks at the start of a line -------------------------------------------------------------

# "3. Oktober" and "2. und 3. Klasse" start with an ordinal, "3. Milch kaufen" with a list mark
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
# The next speaker in a dialogue line, which starts with a dash
NEXT_SPEAKER = re.compile(rf"(?<=[.!?…]\s)[-–—―]{{1,3}}(?=\s?[{UPPER}])")


def find_line_head(line: str, start: int = 0) -> str:
    """Return the Markdown, list and dialogue marks at the start of a line, with their spaces.

    Return "" if no word follows them.

    Args:
        line: the line.
        start: index after a language tag, if any.
    """
    if line[start : start + 1].isalpha() and ")" not in line[start : start + 5]:
        return ""  # most lines
    match = HEAD.match(line, start)
    return match[0] if match and any(map(str.isalnum, line[match.end() :])) else ""
