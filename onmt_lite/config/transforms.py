"""Transforms of OpenNMT-py: which are performed, and what is wrong with options for them."""

import ast
import difflib
from collections.abc import Iterator
from typing import Any

from onmt_lite.config.rules import Values

SUBWORDS = ("sentencepiece", "bpe", "onmt_tokenize")  # cut lines; one of them may be given
PERFORMED = (*SUBWORDS, "prefix", "suffix")
REWRITING = ("normalize", "uppercase")  # whatever cuts the line
OF_TRAINING = ("filtertoolong", "switchout", "tokendrop", "tokenmask", "bart", "clean")
END = "</s>"  # of OpenNMT-py's models
NO_KWARGS = "{'mode': 'none'}"  # cut at nothing but the subwords: the original's default
OUTSIDE = "apply it to the file before, and leave it out here"
NOT_PERFORMED = {  # transforms, and why
    **dict.fromkeys(("docify", "fuzzymatch", "terminology", "inlinetags"), OUTSIDE),
    "inferfeats": "models with word features are not read; leave it out",
    "insert_mask_before_placeholder": "language models are not read; leave it out",
}


def cutting(v: Values) -> str:
    """Return the first transform that cuts lines; "" for none."""
    return next((name for name in v.transforms if name in SUBWORDS), "")


def wrong_transforms(v: Values) -> Iterator[str]:
    known = PERFORMED + REWRITING + OF_TRAINING
    for name in v.transforms:
        if name in NOT_PERFORMED:
            yield f"transforms: {name} is not performed; {NOT_PERFORMED[name]}"
        elif name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            there = f"there are {', '.join(PERFORMED + REWRITING)}"
            hint = f"did you mean {near[0]}?" if near else there
            yield f"transforms: {name[:50]!r} is unknown; {hint}"


def ends_that_are_cut(v: Values) -> Iterator[str]:
    """End tokens that would be cut like the line around which they stand."""
    cutter = cutting(v)
    early = v.transforms[: v.transforms.index(cutter)] if cutter else ()
    for name in sorted({"prefix", "suffix"}.intersection(early)):
        for side in ("src", "tgt"):
            if END in v[f"{side}_{name}"].split():
                problem = f"{side}_{name}: {END} would be cut like text"
                yield f"{problem}; put {name} after {cutter} in transforms"


def wrong_kwargs(v: Values) -> Iterator[str]:
    for name in ("src_onmttok_kwargs", "tgt_onmttok_kwargs"):
        try:
            parse_kwargs(v[name])
        except ValueError as error:
            yield f"{name}: {error}"


def parse_kwargs(text: str) -> dict[str, Any]:
    """Read a dict of plain values, written as in Python.  Raises ValueError for anything else."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(type(name) is str for name in found):
        raise ValueError(f"expected a dict like {NO_KWARGS!r}, got {text[:50]!r}")
    return found
