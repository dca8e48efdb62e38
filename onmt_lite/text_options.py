"""The options that say how lines become tokens and tokens text; their names are OpenNMT-py's.

`transforms` and what belongs to it mean what they mean to `onmt_translate` of OpenNMT-py 3.5.1,
so that its YAML files work as they stand.  `-tokenizer` and `-detokenizer` are ours, for models
of any toolkit.
"""

import ast
import difflib
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from onmt_lite.schema import opt

SUBWORDS = ("sentencepiece", "bpe", "onmt_tokenize")  # transforms that cut; one may be given
PERFORMED = (*SUBWORDS, "prefix", "suffix")
OF_TRAINING = ("filtertoolong", "switchout", "tokendrop", "tokenmask", "bart", "clean")
OUTSIDE = "apply it to the file before, and leave it out here"
REFUSED = {
    "normalize": OUTSIDE,
    "uppercase": OUTSIDE,
    "docify": OUTSIDE,
    "inferfeats": "models with word features are not read",
    "fuzzymatch": OUTSIDE,
    "terminology": OUTSIDE,
    "inlinetags": OUTSIDE,
    "insert_mask_before_placeholder": "language models are not read",
}
END = "</s>"  # of OpenNMT-py's models
NO_KWARGS = "{'mode': 'none'}"  # cut at nothing but the subwords: the original's default


class SubwordFile(NamedTuple):
    """What cuts one language: subwords that `vocabulary` counts less than `threshold` times are
    cut further; "" and 0 are no such limit."""

    path: str
    vocabulary: str
    threshold: int


@dataclass(frozen=True)
class TextOptions:
    """How text is cut and joined, settled when the model is loaded."""

    title: ClassVar[str] = "Text"

    tokenizer: Literal["auto", "space", "sentencepiece", "bpe"] = opt(
        "auto",
        "how lines become tokens: `auto` is what `transforms` say, or else what the model brings; "
        "with `space` they are tokens already, separated by spaces, and so is the output; `bpe`, "
        "and `sentencepiece` where the model brings none, by the file src_subword_model",
    )
    detokenizer: Literal["auto", "space", "bpe", "sentencepiece", "joiner", "spacer"] = opt(
        "auto",
        "how output tokens become text: `auto` is the way back of how lines became tokens; `bpe` "
        "removes @@, `sentencepiece` and `spacer` have ▁ where a space was, `joiner` ￭ where none",
    )
    replace_unk: bool = opt(
        False, "in the place of an unknown token, the source's token that was attended to most"
    )
    phrase_table: str = opt(
        "", "replace_unk: file of `source|||target` lines; such a source token becomes its target"
    )
    transforms: tuple[str, ...] = opt(
        (),
        "what happens to each line, in order, and to the output the other way round: "
        "`sentencepiece`, `bpe`, `onmt_tokenize`, `prefix`, `suffix`; those that are for training "
        "(filtertoolong and the like) do nothing",
    )
    src_subword_model: str = opt(
        "", "file that cuts the source: a sentencepiece model, or codes of subword-nmt"
    )
    tgt_subword_model: str = opt("", "the same of the target")
    share_vocab: bool = opt(False, "source and target have one subword model, src_subword_model")
    src_subword_type: Literal["none", "sentencepiece", "bpe"] = opt(
        "none", "onmt_tokenize: what src_subword_model is"
    )
    tgt_subword_type: Literal["none", "sentencepiece", "bpe"] = opt(
        "none", "onmt_tokenize: what tgt_subword_model is"
    )
    src_subword_vocab: str = opt(
        "", "file of source subwords with their counts; rare ones are cut further"
    )
    tgt_subword_vocab: str = opt("", "the file of target subwords")
    src_vocab_threshold: int = opt(
        0, "count from which a source subword is used; 0 uses them all", min=0
    )
    tgt_vocab_threshold: int = opt(
        0, "count from which a target subword is used; 0 uses them all", min=0
    )
    src_prefix: str = opt("", "prefix: words before each source line, such as a language's token")
    tgt_prefix: str = opt("", "prefix: words before each target line; off the output again")
    src_suffix: str = opt("", "suffix: words after each source line")
    tgt_suffix: str = opt("", "suffix: words after each target line; off the output again")
    src_onmttok_kwargs: str = opt(
        NO_KWARGS,
        "onmt_tokenize: a dict of pyonmttok's options for the source; all but `mode` none with "
        "sentencepiece need the package pyonmttok",
        table=True,
    )
    tgt_onmttok_kwargs: str = opt(NO_KWARGS, "onmt_tokenize: the dict for the target", table=True)

    @property
    def performed(self) -> tuple[str, ...]:
        """The transforms that are not for training only."""
        return tuple(name for name in self.transforms if name in PERFORMED)

    def subword_files(self) -> tuple[SubwordFile, SubwordFile]:
        """Of the source and of the target; the target's path is "" where none is given."""
        return subword_files(vars(self))


def subword_files(v: dict[str, Any]) -> tuple[SubwordFile, SubwordFile]:
    """As in the original: one file for both if the vocabulary is shared and restricted alike."""
    src = SubwordFile(v["src_subword_model"], v["src_subword_vocab"], v["src_vocab_threshold"])
    tgt = SubwordFile(v["tgt_subword_model"], v["tgt_subword_vocab"], v["tgt_vocab_threshold"])
    if v["share_vocab"] and (src[1:] == tgt[1:] or not tgt.path):
        tgt = tgt._replace(path=src.path)
    return src, tgt


def parse_kwargs(text: str) -> dict[str, Any]:
    """A dict written as in Python, of plain values; ValueError for anything else."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(type(name) is str for name in found):
        raise ValueError(f"expected a dict like {NO_KWARGS!r}, got {text[:50]!r}")
    return found


def cutter(v: dict[str, Any]) -> str:
    """The option and value that say what cuts lines, such as `tokenizer bpe`; "" for none."""
    for name in v["transforms"]:
        if name in SUBWORDS:
            return f"transforms {name}"
    return f"tokenizer {v['tokenizer']}" if v["tokenizer"] != "auto" else ""


def check_text(v: dict[str, Any]) -> list[str]:
    """Contradictions between these options, in words."""
    problems = [_unknown(name) for name in v["transforms"] if name not in PERFORMED + OF_TRAINING]
    cutting = [name for name in v["transforms"] if name in SUBWORDS]
    if len(set(cutting)) > 1 or any(v["transforms"].count(name) > 1 for name in PERFORMED):
        problems.append("transforms: give one of " + ", ".join(SUBWORDS) + ", and each name once")
    if set(v["transforms"]) & set(PERFORMED) and v["tokenizer"] != "auto":
        problems.append("transforms and tokenizer both say how lines are cut; give one")
    if cutting and v["detokenizer"] != "auto":
        problems.append(f"transforms {cutting[0]} and detokenizer both say how output is joined")
    if cutting:
        problems += _check_cut_ends(v, cutting[0])
    if v["phrase_table"] and not v["replace_unk"]:
        problems.append("phrase_table needs replace_unk")
    for name in ("src_onmttok_kwargs", "tgt_onmttok_kwargs"):
        try:
            parse_kwargs(v[name])
        except ValueError as error:
            problems.append(f"{name}: {error}")
    return problems + _check_models(v, cutter(v))


def _unknown(name: str) -> str:
    if name in REFUSED:
        return f"transforms: {name} is not performed; {REFUSED[name]}"
    near = difflib.get_close_matches(name, PERFORMED + OF_TRAINING, n=1)
    hint = f"did you mean {near[0]}?" if near else "there are " + ", ".join(PERFORMED)
    return f"transforms: {name[:50]!r} is unknown; {hint}"


def _check_cut_ends(v: dict[str, Any], cutting: str) -> list[str]:
    """An end token that would be cut like the line around which it stands."""
    cut = v["transforms"][: v["transforms"].index(cutting)]
    return [
        f"{side}_{name}: {END} would be cut like text; put {name} after {cutting} in transforms"
        for name in ("prefix", "suffix")
        for side in ("src", "tgt")
        if name in cut and END in v[f"{side}_{name}"].split()
    ]


def _check_models(v: dict[str, Any], used: str) -> list[str]:
    """Files that are needed and not named."""
    src, tgt = bool(v["src_subword_model"]), bool(subword_files(v)[1].path)
    if used == "transforms onmt_tokenize":
        src |= v["src_subword_type"] == "none"
        tgt |= v["tgt_subword_type"] == "none"
    needs_src = used.startswith("transforms") or used == "tokenizer bpe"
    # Our own switch joins output by its marks: it can do without a model of the target
    of_tokenizer = used in ("tokenizer bpe", "tokenizer sentencepiece")
    reads_target = of_tokenizer and src and v["tgt"] is not None
    if needs_src and not src:
        return [f"{used} needs src_subword_model"]
    if (used.startswith("transforms") or reads_target) and not tgt:
        why = " to read -tgt" if reads_target else ""
        return [f"{used} needs tgt_subword_model{why}, or share_vocab if it is the same file"]
    return []


def text_notes(v: dict[str, Any]) -> list[str]:
    """What is given and does nothing."""
    used = cutter(v)
    of_training = [name for name in v["transforms"] if name in OF_TRAINING]
    notes = [f"transforms: {', '.join(of_training)}: for training only"] if of_training else []
    wanted = {
        **dict.fromkeys(("src_prefix", "tgt_prefix"), "prefix" in v["transforms"]),
        **dict.fromkeys(("src_suffix", "tgt_suffix"), "suffix" in v["transforms"]),
        **dict.fromkeys(("src_subword_model", "tgt_subword_model"), "space" not in used and used),
    }
    idle = [name for name, has_use in wanted.items() if v[name] and not has_use]
    if idle:
        notes.append(f"{', '.join(idle)}: without effect; no transform or tokenizer uses it")
    return notes
