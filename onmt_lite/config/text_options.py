"""Options for models, text processing, input and output.

`transforms` and its options mean the same as in `onmt_translate` of OpenNMT-py 3.5.1, so that its
YAML files work unchanged.  `-tokenizer` and `-detokenizer` are our own, for models of any toolkit.
"""

import ast
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from onmt_lite.config.extensions import format_from_path
from onmt_lite.config.option import File, opt
from onmt_lite.text.bpe import SubwordFile

# OpenNMT-py transforms
SUBWORD_TRANSFORMS = ("sentencepiece", "bpe", "onmt_tokenize")  # at most one is allowed
TOKEN_TRANSFORMS = (*SUBWORD_TRANSFORMS, "prefix", "suffix")
TEXT_TRANSFORMS = ("normalize", "uppercase")  # apply with any tokenizer
TRAINING_TRANSFORMS = ("filtertoolong", "switchout", "tokendrop", "tokenmask", "bart", "clean")
SCORE_FORMATS = ("text", "jsonl")  # output formats of -score_only
DEFAULT_KWARGS = "{'mode': 'none'}"  # subwords only, the OpenNMT-py default


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
    """Tokenization and detokenization; fixed once the model is loaded."""

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
        """Transforms that tokenize lines or add a prefix or suffix."""
        return tuple(name for name in self.transforms if name in TOKEN_TRANSFORMS)

    @property
    def text_transforms(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Transforms that rewrite the line before tokenization, and the tokens after it."""
        indices = [self.transforms.index(n) for n in SUBWORD_TRANSFORMS if n in self.transforms]
        split = indices[0] if indices else len(self.transforms)
        active = {*TEXT_TRANSFORMS} - ({"uppercase"} if self.upper_corpus_ratio < 1 else set())
        before, after = self.transforms[:split], self.transforms[split:]
        return tuple(n for n in before if n in active), tuple(n for n in after if n in active)

    def list_subword_files(self) -> tuple[SubwordFile, SubwordFile]:
        """Return the subword files of source and target, with path "" if not set.

        As in OpenNMT-py, both use the same file if the vocabulary is shared and restricted alike.
        """
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
        """The output format; `auto` is resolved by the extension of the output."""
        if self.output_format != "auto":
            return self.output_format
        resolved = format_from_path(self.output) or "text"
        return "text" if self.score_only and resolved not in SCORE_FORMATS else resolved

    def is_jsonl(self, path: str) -> bool:
        """Return True if the lines of an input file (src or tgt) are JSON objects.

        -input_format jsonl applies to src; tgt is JSON if its extension is .jsonl.
        """
        if path == self.src and self.input_format == "jsonl":
            return True
        return self.input_format != "text" and path.lower().endswith((".jsonl", ".jsonl.gz"))


def parse_kwargs(text: str) -> dict[str, Any]:
    """Parse a Python literal of a dict.

    Raises:
        ValueError: The text is not such a literal.
    """
    try:
        parsed = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict) or not all(type(name) is str for name in parsed):
        raise ValueError(f"must be a dict such as {DEFAULT_KWARGS!r}, got {text[:50]!r}")
    return parsed
