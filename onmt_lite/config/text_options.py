"""Options of the model, of how lines become tokens and tokens text, and of input and output.

`transforms` and the options that belong to it mean what they mean to `onmt_translate` of OpenNMT-py
3.5.1, so that its YAML files work as they stand.  `-tokenizer` and `-detokenizer` are ours, for
models of any toolkit.
"""

import ast
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from onmt_lite.config.extensions import format_from_path
from onmt_lite.config.option import File, opt
from onmt_lite.text.bpe import SubwordFile

# Transforms of OpenNMT-py
SUBWORD_TRANSFORMS = (
    "sentencepiece",
    "bpe",
    "onmt_tokenize",
)  # cut lines; one of them may be given
TOKEN_TRANSFORMS = (*SUBWORD_TRANSFORMS, "prefix", "suffix")
TEXT_TRANSFORMS = ("normalize", "uppercase")  # whatever cuts the line
TRAINING_TRANSFORMS = ("filtertoolong", "switchout", "tokendrop", "tokenmask", "bart", "clean")
SCORE_FORMATS = ("text", "jsonl")  # output formats that -score_only can have
DEFAULT_KWARGS = "{'mode': 'none'}"  # cut at nothing but the subwords: the original's default


@dataclass(frozen=True)
class ModelOptions:
    """Models and languages."""

    title: ClassVar[str] = "Model"

    model: tuple[str, ...] = opt((), metavar="PATH")
    src_lang: str = opt("", metavar="CODE")
    tgt_lang: str = opt("", metavar="CODE")
    model_weights: tuple[float, ...] = opt((), above=0, max=1e6)
    avg_raw_probs: bool = False


@dataclass(frozen=True)
class TextOptions:
    """How text is cut and joined; cannot be changed once the model is loaded."""

    title: ClassVar[str] = "Text"

    tokenizer: Literal["auto", "space", "sentencepiece", "bpe"] = "auto"
    detokenizer: Literal["auto", "space", "bpe", "sentencepiece", "joiner", "spacer"] = "auto"
    unknown: Literal["auto", "copy", "drop", "model"] = "auto"
    replace_unk: bool = False
    phrase_table: File = ""
    split_longer: int | None = opt(None, min=0)
    transforms: tuple[str, ...] = ()
    src_subword_model: File = ""
    tgt_subword_model: File = ""
    share_vocab: bool = False
    src_subword_type: Literal["none", "sentencepiece", "bpe"] = "none"
    tgt_subword_type: Literal["none", "sentencepiece", "bpe"] = "none"
    src_subword_vocab: File = ""
    tgt_subword_vocab: File = ""
    src_vocab_threshold: int = opt(0, min=0)
    tgt_vocab_threshold: int = opt(0, min=0)
    src_prefix: str = ""
    tgt_prefix: str = ""
    src_suffix: str = ""
    tgt_suffix: str = ""
    src_onmttok_kwargs: str = opt(DEFAULT_KWARGS, is_dict=True, metavar="DICT")
    tgt_onmttok_kwargs: str = opt(DEFAULT_KWARGS, is_dict=True, metavar="DICT")
    penn: bool = True
    norm_quote_commas: bool = True
    norm_numbers: bool = True
    pre_replace_unicode_punct: bool = False
    post_remove_control_chars: bool = False
    upper_corpus_ratio: float = opt(0.01, within=(0, 1))

    @property
    def token_transforms(self) -> tuple[str, ...]:
        """The transforms that cut lines or put something around them."""
        return tuple(name for name in self.transforms if name in TOKEN_TRANSFORMS)

    @property
    def text_transforms(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The transforms that rewrite the line before it is cut, and its tokens after that."""
        cut = [
            self.transforms.index(name) for name in SUBWORD_TRANSFORMS if name in self.transforms
        ]
        at = cut[0] if cut else len(self.transforms)
        idle = () if self.upper_corpus_ratio >= 1 else ("uppercase",)
        names = [n if n in TEXT_TRANSFORMS and n not in idle else "" for n in self.transforms]
        return tuple(filter(None, names[:at])), tuple(filter(None, names[at:]))

    def subword_files(self) -> tuple[SubwordFile, SubwordFile]:
        """Of the source and of the target, whose path is "" if none is given.  As in the original:
        one file for both if the vocabulary is shared and restricted alike."""
        src = SubwordFile(self.src_subword_model, self.src_subword_vocab, self.src_vocab_threshold)
        tgt = SubwordFile(self.tgt_subword_model, self.tgt_subword_vocab, self.tgt_vocab_threshold)
        if self.share_vocab and (src[1:] == tgt[1:] or not tgt.path):
            tgt = tgt._replace(path=src.path)
        return src, tgt


@dataclass(frozen=True)
class DataOptions:
    """Files and formats of input and output."""

    title: ClassVar[str] = "Input and output"

    src: File = "-"
    input_format: Literal["auto", "text", "jsonl"] = "auto"
    text_field: str = opt("text", metavar="NAME")
    output: File = "-"
    output_format: Literal["auto", "text", "jsonl", "moses", "tsv"] = "auto"
    with_score: bool = False
    token_scores: bool = False
    tgt: File | None = None
    score_only: bool = False
    tgt_file_prefix: bool = False

    @property
    def format(self) -> str:
        """The output format, which `auto` takes from the ending of the output."""
        if self.output_format != "auto":
            return self.output_format
        found = format_from_path(self.output) or "text"
        return "text" if self.score_only and found not in SCORE_FORMATS else found

    def is_jsonl(self, path: str) -> bool:
        """Return whether the lines of an input, src or tgt, are JSON objects.

        -input_format jsonl speaks of src; a tgt of objects has a name that says so.
        """
        if path == self.src and self.input_format == "jsonl":
            return True
        return self.input_format != "text" and path.lower().endswith((".jsonl", ".jsonl.gz"))


def parse_kwargs(text: str) -> dict[str, Any]:
    """Read a dict of plain values, written as in Python.  Raises ValueError for anything else."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(type(name) is str for name in found):
        raise ValueError(f"expected a dict like {DEFAULT_KWARGS!r}, got {text[:50]!r}")
    return found
