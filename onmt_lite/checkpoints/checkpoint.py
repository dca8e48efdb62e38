"""The result of loading a model, and its summary for -print_model."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast

from torch import nn

from onmt_lite.models.base import EncoderDecoder
from onmt_lite.models.table_model import TableModel
from onmt_lite.search.spec import TokenRules
from onmt_lite.text.phrases import SurfaceForms
from onmt_lite.text.placeholders import UnknownPolicy
from onmt_lite.text.tokenizers import Tokenizer
from onmt_lite.text.vocab import Vocab


class LanguagePair(NamedTuple):
    """Codes of the source and target language; "" if the model needs none."""

    src: str = ""
    tgt: str = ""


@dataclass(frozen=True)
class Languages:
    """Language tokens of a multilingual model and their positions.

    Attributes:
        ids: token ID of each language code, the same for source and target.
        source: position of the source language token: `before` the line, `after` the line and its
            EOS, or `none`.
        target: position of the target language token: `forced` as the first output token (not
            scored, removed from the output), in place of the start token (`start`), or as `text`
            before the source line.
        default: languages to use if the user does not set them.
        optional_in_tokens: tokenized lines may already contain language tokens, so no token is
            added by default.
    """

    ids: Mapping[str, int]
    source: Literal["before", "after", "none"] = "before"
    target: Literal["forced", "start", "text"] = "forced"
    default: LanguagePair = LanguagePair()
    optional_in_tokens: bool = field(default=False, compare=False)


def for_raw_text(languages: Languages | None) -> Languages | None:
    """Return the languages for raw text, which never contains language tokens."""
    return languages and replace(languages, optional_in_tokens=False)


class SpecialTokens(NamedTuple):
    """Special tokens around a line and its translation.

    Attributes:
        src_start: IDs before the source tokens.
        src_end: IDs after the source tokens.
        start: decoder input before the first token of the translation.
        text: prefix of the raw source text.
    """

    src_start: tuple[int, ...]
    src_end: tuple[int, ...]
    start: tuple[int, ...]
    text: str = ""


@dataclass(frozen=True)
class Confidence:
    """Probability that a translation is correct, from its length and mean token log-probability.

    A logistic curve that `onmt_lite.train.calibrate` fits to translations of held-out text.

    Attributes:
        at_zero: log-odds of a single token with log-probability 0.
        per_nat: increase of the log-odds per nat of the mean log-probability; positive.
        per_log_token: increase of the log-odds when the length grows by a factor of e, because the
            same mean is stronger evidence in a long translation.
    """

    at_zero: float
    per_nat: float
    per_log_token: float = 0.0

    def estimate(self, hyp: Any) -> float | None:
        """Return the confidence in a hypothesis.

        Args:
            hyp: a hypothesis with `log_prob` and `token_log_probs`.

        Returns:
            A probability, or None if the model predicted no tokens.
        """
        n_tokens = len(hyp.token_log_probs)
        return self.compute_probability(hyp.log_prob / n_tokens, n_tokens) if n_tokens else None

    def compute_probability(self, mean: float, n_tokens: int) -> float:
        """Return the confidence, 0 to 1.

        Args:
            mean: mean token log-probability in nats.
            n_tokens: number of tokens, including EOS.
        """
        odds = self.at_zero + self.per_nat * mean + self.per_log_token * math.log(n_tokens)
        return 1 / (1 + math.exp(-odds)) if odds > -700 else 0.0

    def compute_threshold(self, n_tokens: int) -> float:
        """Return the mean log-probability at which the confidence is 0.5."""
        return -(self.at_zero + self.per_log_token * math.log(n_tokens)) / self.per_nat


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model with its vocabularies, tokenizers and conventions.

    Token IDs are IDs in the vocabulary of their side.
    """

    model: EncoderDecoder
    src_vocab: Vocab
    tgt_vocab: Vocab
    tokenizers: dict[str, Tokenizer]  # by -tokenizer name; the first one is `auto`
    start_id: int  # first decoder input
    # Around each source line; `raw_text_end` precedes `src_end`, for raw text only, because
    # tokenized lines already contain EOS
    src_start: tuple[int, ...] = ()
    raw_text_end: tuple[int, ...] = ()
    src_end: tuple[int, ...] = ()
    # Around each target line, before EOS
    tgt_start: tuple[int, ...] = ()
    tgt_end: tuple[int, ...] = ()
    banned_ids: tuple[int, ...] = ()  # never generated
    exclude_banned_from_softmax: bool = False  # as in CTranslate2; their logits are arbitrary
    lowercase_all_caps: bool = False  # translate uppercase lines in lowercase, then uppercase again
    unknown: UnknownPolicy = UnknownPolicy()  # how to handle characters without a token
    confidence: Confidence | None = None
    split_longer: int = 0  # default of -split_longer
    # Force EOS at the length limit, unscored (transformers' forced_eos_token_id)
    forced_eos: bool = False
    rules: Mapping[str, TokenRules] = field(default_factory=dict)  # by toolkit version
    needs_log_softmax: bool = True  # False: model output is a score that is used as it is
    languages: Languages | None = None  # of a multilingual model
    language_pair: LanguagePair = LanguagePair()  # of a bilingual model, if known
    missing_files: tuple[str, ...] = ()  # tokenizer files required for raw text
    notices: tuple[str, ...] = ()  # settings in the model files that have no effect here
    toolkit: str = "onmt_lite"  # key of TOOLKITS
    version: str = ""  # of the toolkit or file format, if the files contain it

    def get_token_rules(self, version: str | None) -> TokenRules:
        """Return the token rules for a toolkit version, or the default rules without one."""
        default = TokenRules(tuple((i,) for i in self.banned_ids), self.forced_eos)
        return self.rules.get(version or "", default)

    def get_special_tokens(self, pair: LanguagePair) -> SpecialTokens:
        """Return the special tokens around a line and its translation in a language pair."""
        before, after, text = self.src_start, self.src_end, ""
        start: tuple[int, ...] = (self.start_id,)
        languages = self.languages
        if languages is None:
            return SpecialTokens(before, after, start)
        if pair.src and languages.source != "none":
            src = (languages.ids[pair.src],)
            before = (*src, *before) if languages.source == "before" else before
            after = (*self.raw_text_end, *after, *(src if languages.source == "after" else ()))
        if languages.target == "text":
            text = f"{self.src_vocab.tokens[languages.ids[pair.tgt]]} " if pair.tgt else ""
        elif pair.tgt:
            tgt = languages.ids[pair.tgt]
            start = (tgt,) if languages.target == "start" else (*start, tgt)
        return SpecialTokens(before, after, start, text)

    @property
    def src_margins(self) -> tuple[int, int]:
        """Number of special tokens before and after each source line."""
        position = "none" if self.languages is None else self.languages.source
        before, after = len(self.src_start), len(self.src_end)
        return before + (position == "before"), after + (position == "after")

    def count_forced_tokens(self, tgt_lang: str) -> int:
        """Count the forced tokens at the start of each hypothesis that the output omits."""
        languages = self.languages
        if languages is None or (languages.optional_in_tokens and not tgt_lang):
            return 0
        return int(languages.target == "forced")

    @cached_property
    def surface_forms(self) -> SurfaceForms:
        """Text that each target token adds to a translation."""
        return SurfaceForms(next(iter(self.tokenizers.values())), self.tgt_vocab)

    @cached_property
    def uppercase_surfaces(self) -> SurfaceForms:
        """Text that each target token adds to an uppercase translation."""
        return SurfaceForms(next(iter(self.tokenizers.values())), self.tgt_vocab, str.upper)

    @property
    def has_attention(self) -> bool:
        """True if the model returns meaningful attention."""
        return self.model.has_attention

    @property
    def aligns_late(self) -> bool:
        """True if the attention of a step aligns the previous token."""
        return getattr(self.model, "aligns_late", False)

    @property
    def eos_id(self) -> int:
        """ID of EOS in the target vocabulary."""
        assert self.tgt_vocab.eos_id is not None
        return self.tgt_vocab.eos_id


# -- The summary that -print_model prints ----------------------------------------------------------

TOOLKITS = {
    "onmt_lite": "onmt_lite",
    "opennmt": "OpenNMT-py",
    "fairseq": "fairseq",
    "marian": "Marian, as Hugging Face transformers",
    "marian-npz": "Marian",
    "ctranslate2": "CTranslate2",
    "transformers": "Hugging Face transformers",
}
WIDTH = 18  # of the left column


def describe(checkpoint: Checkpoint, name: str) -> str:
    """Return the summary of a checkpoint, one property per line, under its name."""
    model, src, tgt = checkpoint.model, checkpoint.src_vocab, checkpoint.tgt_vocab
    weights = model.parameters() if isinstance(model, nn.Module) else ()  # shared weights once
    n_parameters = sum(weight.numel() for weight in weights)
    default, *others = checkpoint.tokenizers
    facts = {
        "written by": f"{TOOLKITS[checkpoint.toolkit]} {checkpoint.version}".rstrip(),
        "family": type(model).__name__ + " that copies source words" * model.has_copy_mechanism,
        "sizes": _format_config(model),
        "parameters": f"{n_parameters:,}",
        "longest line": f"{model.max_positions:,} tokens",
        "source vocabulary": _format_vocab(src),
        "target vocabulary": "the same" if tgt is src else _format_vocab(tgt),
        "tokenizer": default + (f" (also: {', '.join(others)})" if others else ""),
        "decoder starts at": _format_tokens([checkpoint.start_id], tgt),
        "before each source": _format_tokens(checkpoint.src_start, src),
        "after each source": _format_tokens(checkpoint.src_end, src),
        "never produced": _format_tokens(checkpoint.banned_ids, tgt),
    }
    if checkpoint.languages is not None:
        codes = [code or "none" for code in checkpoint.languages.default]
        facts["languages"] = " ".join(checkpoint.languages.ids)
        facts["by default"] = "src_lang {}, tgt_lang {}".format(*codes)
    if any(checkpoint.language_pair):
        facts["languages"] = "{} to {}".format(*checkpoint.language_pair)
    if checkpoint.split_longer:
        facts["asks for"] = f"-split_longer {checkpoint.split_longer}"
    lines = [_quote_unprintable(name)]
    lines += [f"  {fact:<{WIDTH}} {_quote_unprintable(value)}" for fact, value in facts.items()]
    return "\n".join(lines) + "\n"


def _quote_unprintable(text: str) -> str:
    """Quote text that contains control characters: they could manipulate the terminal."""
    return text if text.isprintable() else repr(text)


def _format_config(model: EncoderDecoder) -> str:
    """Format the model configuration, without disabled options and vocabulary sizes."""
    if isinstance(model, TableModel):
        return f"{len(model.sources)} source lines"
    fields = []
    for name, value in vars(cast(Any, model).cfg).items():
        if isinstance(value, tuple):  # convolutional layers
            value = " ".join(f"{layer.d}x{layer.kernel}" for layer in value)
        if value not in (False, "none") and not name.endswith("vocab_size"):  # 0 is False too
            fields.append(name if value is True else f"{name} {value}")
    return ", ".join(fields)


def _format_vocab(vocab: Vocab) -> str:
    """Format the size and special tokens of a vocabulary."""
    ids = {"end": vocab.eos_id, "start": vocab.bos_id, "pad": vocab.pad_id, "unk": vocab.unk_id}
    special = [f"{name} {_format_tokens([i], vocab)}" for name, i in ids.items() if i is not None]
    return ", ".join([f"{len(vocab):,} tokens", *special])


def _format_tokens(ids: Iterable[int], vocab: Vocab) -> str:
    """Format tokens with their IDs."""
    parts = [
        f"{vocab.tokens[i]!r} ({i})" if 0 <= i < len(vocab) else f"id {i}, outside the vocabulary"
        for i in ids
    ]
    return " ".join(parts) or "nothing"
