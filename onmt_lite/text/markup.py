"""Patterns of tags, placeholders and addresses, and characters that have plain equivalents."""

import re

# Patterns of items that are taken out whole
# A tag has attributes or one word beside its name ("x <y und y> z" is text); comments may hold tags
TAG = r"</?[A-Za-z][^\s<>]*(?:\s[^<>=]*=[^<>]*|(?:\s+[^\s<>]+)?\s*)>|<!--(?:(?!<!--).)*?-->"
ENTITY = r"&(?:amp;)*(?:[A-Za-z][A-Za-z0-9]{1,30}|#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6});"
URL = r"(?<!\w)(?:(?:https?|ftp|file)://|www\.|mailto:)[^\s<>\"]*[^\s<>\".,;:!?)\]}’“”»']"
SITE = (
    r"(?<![\w.@-])\w+(?:[.-]\w+)*\.(?:at|ch|com|de|edu|eu|fr|gov|info|io|net|org|tv|uk)"
    r"(?:/[^\s<>\"]*[^\s<>\".,;:!?)\]}’“”»'])?(?![\w-]|\.\w)"
)  # uni-jena.de/hilfe
MAIL = r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+|(?<![\w@.])@\w+"
BRACES = r"[$#%]?\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"  # {x}, {{x}}, ${x}, {n, plural, one {#}}
PRINTF = (
    r"(?<![\d%])%(?!(?<=\d %)[-+#])"  # 5 %-e is no placeholder
    r"(?:\([^()%]*\))?(?:[0-9]{1,2}\$)?[-+#0]{0,5}[0-9]{0,4}(?:\.[0-9]{1,4})?"
    r"(?:hh?|ll?|[jqtzL])?[sSdiuoxXfFgGeEcp@](?!\w)"
)
VARIABLE = r"(?<!\w)%[A-Za-z_]+%(?!\w)|(?<![\w$])\$[A-Za-z_]\w*"
PATH = r"(?<![\w\\/])[A-Za-z]:\\[^\s<>\"]*\w"
CODE = (
    rf"(?<![\w@=&#\\~|])[^\W_]+(?:(?!{ENTITY})[_@=&#\\~|]+[^\W_]+)+"
    r"|(?<!\w)[A-Za-z](?:#|\+\+)(?!\w)"  # C#
)
WORD_PATTERNS = "|".join((URL, MAIL, SITE, BRACES, PRINTF, VARIABLE, PATH, CODE))
PATTERNS = re.compile(f"(?P<mark>{TAG}|{ENTITY})|(?P<word>{WORD_PATTERNS})")
# No pattern is without one of these
HINT = re.compile(r"[<&{%$@_=#\\~|]|\+\+|://|www\.|mailto:|\w\.[a-z]{2}")

# Patterns of unknown items in a line given as classes of characters: a known letters, d known
# digits, U unknown letters and digits, m unknown accents and joiners, o unknown operators, x other
# unknown characters, _ spaces
OPERAND = "(?<![adU])(?:d+(?:\\.d+){0,9}|a)(?![adU])o{0,4}"
FORMULA = f"{OPERAND}(?:_*o{{1,4}}_*{OPERAND})+"  # bounded, as time would grow with the square
UNKNOWN_WORD = "(?<![ad])[ad]*[Um][adUm]*(?:_+[ad]*[Um][adUm]*)*"
UNKNOWN = re.compile(f"(?P<word>{FORMULA}|{UNKNOWN_WORD})|(?P<mark>[xo][xom]*)")

PLAIN = {
    **dict.fromkeys("\u2010\u2011\u2012\u2212\ufe63\uff0d–—―", "-"),
    **dict.fromkeys("„“”‟«»″〝〞", '"'),
    **dict.fromkeys("‚‘’‛‹›′ʼ´", "'"),
    "…": "...",
    "ẞ": "ß",
}
PLAIN_FORMS = ("<wide>", "<narrow>", "<noBreak>", "<compat>", "<font>", "<small>", "<vertical>")
SHAPED = ("<super>", "<sub>", "<fraction>", "<circle>", "<square>")  # m² is no m2
# Spans to replace by plain text, except inside items, which come first
ITEM = f"(?P<item>{TAG}|{WORD_PATTERNS})"
MARK_ALONE = re.compile(rf"{ITEM}|(?<!\S)(?:[^\w\s]|{ENTITY})(?!\S)")
ENTITY_OF_TEXT = re.compile(f"{ITEM}|{ENTITY}")
ITEMS = re.compile(ITEM)
LOOSE_ACCENTS = re.compile(f"{ITEM}|[^\\W_][\u0300-\u036f]{{1,9}}")
LANGUAGE = re.compile(r">>[^<>\s]+<<")
# Items that stand for a number
NUMBER = re.compile(
    r"%[^s@c]*[difu]$|[$#%]?\{+\s*(?:n|num|number|count|total|anzahl|zahl)\b"
    r"|[\d\u00bc-\u00be\u2150-\u218b\u2460-\u249b]+$",
    re.IGNORECASE,
)
NAME = re.compile(r"<(/?)([A-Za-z][\w:-]*)")
BRACKETS = {"(": ")", "[": "]", "{": "}", "«": "»", "„": "“", "“": "”", '"': '"', "<": ">"}
CLOSING = re.compile(r"[.,;:!?…)\]}»“”’\"']*$")
# A closing tag that an opening one follows directly: cells, items of a list, paragraphs; or a line
# break.  Parts of a formula end no words, nor does a tag before a punctuation mark.
NEXT_CELL = re.compile(
    r"(?:</(?!su[bp]\b)[A-Za-z][^<>]*><(?!su[bp]\b)[A-Za-z][^<>]*>|(?<!\s)<br\s*/?>(?!\s|$))"
    r"(?![.,;:!?…)\]}])",
    re.IGNORECASE,
)
