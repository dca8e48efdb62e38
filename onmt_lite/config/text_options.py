"""The options that say how lines become tokens and tokens text; their names are OpenNMT-py's.

`transforms` and what belongs to it mean what they mean to `onmt_translate` of OpenNMT-py 3.5.1,
so that its YAML files work as they stand.  `-tokenizer` and `-detokenizer` are ours, for models
of any toolkit.
"""

import ast
import difflib
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from onmt_lite.config.schema import opt

SUBWORDS = ("sentencepiece", "bpe", "onmt_tokenize")  # transforms that cut; one may be given
PERFORMED = (*SUBWORDS, "prefix", "suffix")
REWRITING = ("normalize", "uppercase")  # whatever cuts the line, perhaps the model's own tokenizer
OF_TRAINING = ("filtertoolong", "switchout", "tokendrop", "tokenmask", "bart", "clean")
KNOWN = PERFORMED + REWRITING + OF_TRAINING
OUTSIDE = "apply it to the file before, and leave it out here"
REFUSED = {
    "docify": OUTSIDE,
    "inferfeats": "models with word features are not read; leave it out",
    "fuzzymatch": OUTSIDE,
    "terminology": OUTSIDE,
    "inlinetags": OUTSIDE,
    "insert_mask_before_placeholder": "language models are not read; leave it out",
}
END = "</s>"  # of OpenNMT-py's models
CUTTING = "-transforms sentencepiece or bpe or onmt_tokenize or -tokenizer sentencepiece or bpe"
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
        "Cut lines into tokens as `transforms` say, or else as the model does (`auto`), at spaces "
        "only (`space`: lines and output are tokens), or by the file src_subword_model (`bpe`; "
        "`sentencepiece` where the model brings none)",
        example="space",
    )
    detokenizer: Literal["auto", "space", "bpe", "sentencepiece", "joiner", "spacer"] = opt(
        "auto",
        "Join output tokens: the way back of how lines were cut (`auto`), by spaces (`space`), "
        "without @@ (`bpe`), with a space for ▁ (`sentencepiece`, `spacer`) or none at ￭ "
        "(`joiner`)",
        example="bpe",
    )
    unknown: Literal["auto", "copy", "drop", "model"] = opt(
        "auto",
        "Take characters that the model does not know, tags and placeholders out of each line "
        "and put them back (`copy`) or leave them out (`drop`), or show them to the model "
        "(`model`); `auto` is what the model's description says, or else `model`",
        example="copy",
    )
    replace_unk: bool = opt(
        False,
        "Replace each unknown token of the output by the source token attended to most",
        needs="no -ban_unk_token",
    )
    phrase_table: str = opt(
        "",
        "Replace unknown tokens by this file of `source|||target` lines first",
        requires="-replace_unk",
        value="FILE",
        example="phrases.txt -replace_unk",
    )
    split_longer: int | None = opt(
        None,
        "Translate the sentences of a line of more than N characters one by one; 0 does not; lines "
        "with a prefix, forced phrases or a language's tag stay whole; by default, under -search "
        "opennmt, what the model asks for: the shipped one 100, others 0",
        min=0,
        needs="no -score_only and no -tgt_file_prefix and no -gold_align",
        example="200",
    )
    transforms: tuple[str, ...] = opt(
        (),
        "Apply these OpenNMT-py transforms to each line, in order, and to the output in reverse: "
        "`sentencepiece`, `bpe`, `onmt_tokenize`, `prefix`, `suffix`; `normalize` (punctuation, as "
        "Moses) and `uppercase` rewrite what is read alone; transforms of training (filtertoolong "
        "and the like) do nothing",
        example="sentencepiece prefix -src_subword_model spm.model -share_vocab -src_prefix en",
    )
    src_subword_model: str = opt(
        "",
        "Cut the source by this file: a sentencepiece model, or codes of subword-nmt",
        value="FILE",
        needs=CUTTING,
        example="codes.bpe -tokenizer bpe",
    )
    tgt_subword_model: str = opt(
        "",
        "Cut and join the target by this file",
        value="FILE",
        needs=CUTTING,
        example="target.model -src_subword_model source.model -transforms sentencepiece",
    )
    share_vocab: bool = opt(
        False,
        "Use src_subword_model for the target too",
        example="-src_subword_model both.model -transforms sentencepiece",
    )
    src_subword_type: Literal["none", "sentencepiece", "bpe"] = opt(
        "none",
        "Say what src_subword_model is",
        needs="-transforms onmt_tokenize",
        example="bpe -src_subword_model codes.bpe -share_vocab -transforms onmt_tokenize",
    )
    tgt_subword_type: Literal["none", "sentencepiece", "bpe"] = opt(
        "none",
        "Say what tgt_subword_model is",
        needs="-transforms onmt_tokenize",
        example="bpe -tgt_subword_model codes.bpe -transforms onmt_tokenize",
    )
    src_subword_vocab: str = opt(
        "",
        "Cut source subwords further that this file of subwords and counts counts too rarely",
        value="FILE",
        needs=f"-src_vocab_threshold and {CUTTING}",
        example="vocab.de -src_vocab_threshold 50 -src_subword_model codes.bpe -tokenizer bpe",
    )
    tgt_subword_vocab: str = opt(
        "",
        "Cut target subwords further that this file counts too rarely",
        value="FILE",
        needs=f"-tgt_vocab_threshold and {CUTTING}",
        example="vocab.en -tgt_vocab_threshold 50 -src_subword_model codes.bpe -tokenizer bpe",
    )
    src_vocab_threshold: int = opt(
        0,
        "Use source subwords with this count in src_subword_vocab or a higher one; 0 uses all",
        min=0,
        needs="-src_subword_vocab",
        example="50 -src_subword_vocab vocab.de -src_subword_model codes.bpe -tokenizer bpe",
    )
    tgt_vocab_threshold: int = opt(
        0,
        "Use target subwords with this count in tgt_subword_vocab or a higher one; 0 uses all",
        min=0,
        needs="-tgt_subword_vocab",
        example="50 -tgt_subword_vocab vocab.en -src_subword_model codes.bpe -tokenizer bpe",
    )
    src_prefix: str = opt(
        "",
        "Put these words before each source line, such as a language's token",
        needs="-transforms prefix",
        example="eng_Latn -transforms prefix",
    )
    tgt_prefix: str = opt(
        "",
        "Expect these words before each target line, and take them off the output; with "
        "tgt_file_prefix, force each output to begin with them",
        needs="-transforms prefix or -tgt_file_prefix",
        example="deu_Latn -transforms prefix",
    )
    src_suffix: str = opt(
        "",
        "Put these words after each source line",
        needs="-transforms suffix",
        example="</s> -transforms suffix",
    )
    tgt_suffix: str = opt(
        "",
        "Expect these words after each target line, and take them off the output",
        needs="-transforms suffix",
        example="</s> -transforms suffix",
    )
    src_onmttok_kwargs: str = opt(
        NO_KWARGS,
        "Pass this dict to pyonmttok for the source; any but `mode` none with sentencepiece needs "
        "the package pyonmttok",
        table=True,
        value="DICT",
        needs="-transforms onmt_tokenize",
        example="\"{'mode': 'space'}\" -transforms onmt_tokenize",
    )
    tgt_onmttok_kwargs: str = opt(
        NO_KWARGS,
        "Pass this dict to pyonmttok for the target",
        table=True,
        value="DICT",
        needs="-transforms onmt_tokenize",
        example="\"{'mode': 'space'}\" -transforms onmt_tokenize",
    )
    penn: bool = opt(
        True,
        "Let `normalize` rewrite the quotation marks of the Penn Treebank, `` and ''",
        needs="-transforms normalize",
        example="false -transforms normalize",
    )
    norm_quote_commas: bool = opt(
        True,
        "Let `normalize` place commas and quotation marks as src_lang and tgt_lang do (en, de, es, "
        "fr)",
        needs="-transforms normalize",
        example="false -transforms normalize",
    )
    norm_numbers: bool = opt(
        True,
        "Let `normalize` replace a non-breaking space inside a number by a comma or a point",
        needs="-transforms normalize",
        example="false -transforms normalize",
    )
    pre_replace_unicode_punct: bool = opt(
        False,
        "Let `normalize` replace full-width digits and punctuation first",
        needs="-transforms normalize",
        example="-transforms normalize",
    )
    post_remove_control_chars: bool = opt(
        False,
        "Let `normalize` remove control characters at the end",
        needs="-transforms normalize",
        example="-transforms normalize",
    )
    upper_corpus_ratio: float = opt(
        0.01,
        "Let `uppercase` write lines in capital letters with 1; with less, a share of the lines of "
        "a training corpus, it does nothing",
        min=0,
        max=1,
        needs="-transforms uppercase",
        example="1 -transforms uppercase",
    )

    @property
    def performed(self) -> tuple[str, ...]:
        """The transforms that cut, and that put something around."""
        return tuple(name for name in self.transforms if name in PERFORMED)

    @property
    def rewriting(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The transforms that rewrite the line before it is cut, and its tokens after that."""
        cut = [self.transforms.index(name) for name in SUBWORDS if name in self.transforms]
        at = cut[0] if cut else len(self.transforms)
        idle = () if self.upper_corpus_ratio >= 1 else ("uppercase",)
        names = [n if n in REWRITING and n not in idle else "" for n in self.transforms]
        return tuple(filter(None, names[:at])), tuple(filter(None, names[at:]))

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
    problems = [_unknown(name) for name in v["transforms"] if name not in KNOWN]
    cutting = [name for name in v["transforms"] if name in SUBWORDS]
    if len(set(cutting)) > 1 or any(v["transforms"].count(n) > 1 for n in PERFORMED + REWRITING):
        problems.append(
            f"transforms cut lines twice; give one of {', '.join(SUBWORDS)}, and each name once"
        )
    if set(v["transforms"]) & set(PERFORMED) and v["tokenizer"] != "auto":
        problems.append("transforms and tokenizer both say how lines are cut; give one")
    if cutting and v["detokenizer"] != "auto":
        problems.append(
            f"transforms {cutting[0]} and detokenizer both say how output is joined; leave "
            "detokenizer out"
        )
    if cutting:
        problems += _check_cut_ends(v, cutting[0])
    for name in ("src_onmttok_kwargs", "tgt_onmttok_kwargs"):
        try:
            parse_kwargs(v[name])
        except ValueError as error:
            problems.append(f"{name}: {error}")
    return problems + _check_models(v, cutter(v))


def _unknown(name: str) -> str:
    if name in REFUSED:
        return f"transforms: {name} is not performed; {REFUSED[name]}"
    near = difflib.get_close_matches(name, KNOWN, n=1)
    hint = f"did you mean {near[0]}?" if near else "there are " + ", ".join(PERFORMED + REWRITING)
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
        return [f"{used} needs src_subword_model; name the file that cuts the source with it"]
    if (used.startswith("transforms") or reads_target) and not tgt:
        why = " to read -tgt" if reads_target else ""
        return [
            f"{used} needs tgt_subword_model{why}; give it, or share_vocab if it is the same file"
        ]
    return []


def transform_notes(v: dict[str, Any]) -> list[str]:
    """What transforms do not do."""
    of_training = [name for name in v["transforms"] if name in OF_TRAINING]
    notes = [f"transforms: {', '.join(of_training)}: for training only"] if of_training else []
    if "uppercase" in v["transforms"] and v["upper_corpus_ratio"] < 1:
        ratio = f"upper_corpus_ratio is {v['upper_corpus_ratio']:g}"
        notes.append(f"transforms: uppercase: without effect; {ratio}, uppercase needs 1")
    return notes


def text_notes(v: dict[str, Any]) -> dict[str, str]:
    """Why options have no effect, by their names."""
    src, tgt = subword_files(v)
    if v["share_vocab"] and tgt.path == src.path:
        return {"tgt_subword_model": "share_vocab uses src_subword_model for the target"}
    return {}
