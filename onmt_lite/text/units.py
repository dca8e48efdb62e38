"""Patterns of units and amounts, from numbers.yaml."""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

DATA_FILE = Path(__file__).with_name("numbers.yaml")
SPACES = " \u00a0\u2009\u202f"
MINUS = re.compile(r"(?<!\S)(?<!\d )[-−]\d+")
NEGATIVE = re.compile(r"[-−–] ?\d|\b(?:minus|below|unter|negativ)", re.IGNORECASE)


@lru_cache
def load_data() -> Any:
    """Load numbers.yaml."""
    return yaml.safe_load(DATA_FILE.read_bytes())


@lru_cache
def make_unit_pattern() -> re.Pattern[str]:
    """Return a pattern of a number with a unit sign, the group `unit`."""
    return re.compile(rf"\d[{SPACES}]?(?P<unit>{'|'.join(load_data()['units'])})(?!\w)")


@lru_cache
def make_symbol_pattern() -> re.Pattern[str]:
    """Return a pattern of a unit that is copied literally; prefix and base are groups."""
    units = load_data()["symbols"]
    prefixes, prefixed, plain = (
        "|".join(units[name]) for name in ("prefixes", "prefixed", "plain")
    )
    known = "|".join(load_data()["units"])
    return re.compile(
        rf"(?!(?:{known})(?![\w/]))(?:(?P<prefix>{prefixes})?(?P<base>{prefixed})|(?P<plain>{plain}))"
        rf"(?:/\w+[²³]?)?(?!\w)"
    )


@lru_cache
def make_amount_pattern() -> re.Pattern[str]:
    """Return a pattern of a number with such a unit, the group `unit`; 60s is not seconds."""
    unit = re.sub(r"\?P<(?:prefix|base|plain)>", "?:", make_symbol_pattern().pattern)
    return re.compile(
        rf"(?<![\w.,:−–-])[−-]?\d+(?:[.,–-]\d+)*(?:[{SPACES}](?=\S)|(?![a-z](?!\w)))(?P<unit>{unit})"
    )


@lru_cache(1 << 8)
def make_unit_form_pattern(unit: str) -> re.Pattern[str]:
    """Return a pattern of the forms of a unit: its sign or symbol, or its words in any case."""
    symbols = load_data()["symbols"]

    def list_forms(symbol: str, words: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        return ((sign, forms) for sign, forms in words.items() if re.fullmatch(sign, symbol))

    sign, words = next(list_forms(unit, load_data()["units"]), ("", ""))
    if not sign:
        match = make_symbol_pattern().match(unit)
        assert match is not None
        prefix = "".join(
            forms for _, forms in list_forms(match["prefix"] or "", symbols["prefixes"])
        )
        bases = list_forms(
            match["base"] or match["plain"], {**symbols["prefixed"], **symbols["plain"]}
        )
        sign, words = re.escape(unit), f"{prefix}[ -]?(?:{next(bases)[1]})"
    return re.compile(rf"(?<![^\W\d_])(?:{sign}|(?i:{words}))(?![^\W\d_])")


def find_lost_sign(source: str, translation: str) -> str:
    """Return the first minus or unit sign that has no form in the translation, or ""."""
    if (minus := MINUS.search(source)) and not NEGATIVE.search(translation):
        return minus[0]
    units = (
        match["unit"]
        for pattern in (make_unit_pattern(), make_amount_pattern())
        for match in pattern.finditer(source)
    )
    return next(
        (
            unit
            for unit in dict.fromkeys(units)
            if not make_unit_form_pattern(unit).search(translation)
        ),
        "",
    )
