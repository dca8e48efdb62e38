"""What every reader returns: a model and all that is needed to feed it text; and its summary."""

import math
from collections.abc import Iterable, Mapping, Sequence
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
    """The codes of a source and a target language; "" where a model needs none."""

    src: str = ""
    tgt: str = ""


@dataclass(frozen=True)
class Languages:
    """The languages of a model that translates between several, each with a token of its own.

    ids      the token of each language by its code; source and target have the same ids
    source   the place of the source language's token: `before` the line, `after` the line and its
             end token, or `none`
    target   the place of the target language's token: the first of each output, at no cost and no
             part of it (`forced`), in place of the start token (`start`), or text before the line
             (`text`)
    default  the languages where nobody says which
    optional_in_tokens  tokenized lines may already contain language tokens, so none is added by
             default
    """

    ids: Mapping[str, int]
    source: Literal["before", "after", "none"] = "before"
    target: Literal["forced", "start", "text"] = "forced"
    default: LanguagePair = LanguagePair()
    optional_in_tokens: bool = field(default=False, compare=False)


def for_raw_text(languages: Languages | None) -> Languages | None:
    """The same for lines of text, which hold no languages."""
    return languages and replace(languages, optional_in_tokens=False)


class SpecialTokens(NamedTuple):
    """What stands around a line and its translation, as ids.

    text    put before the line while it is text
    start   what the decoder is fed before the first token of the translation
    """

    src_start: tuple[int, ...]
    src_end: tuple[int, ...]
    start: tuple[int, ...]
    text: str = ""


@dataclass(frozen=True)
class Confidence:
    """How probable it is that a translation is right, by its mean log-probability per token and
    its length: a logistic curve, which `onmt_lite.train.calibrate` fits to translations of
    held-out text.

    at_zero         log-odds of one token whose log-probability is 0
    per_nat         by how much they grow with each nat more of the mean, above 0
    per_log_token   by how much they grow if there are e times as many tokens: the same mean says
                    more of a long translation than of a short one
    """

    at_zero: float
    per_nat: float
    per_log_token: float = 0.0

    def estimate(self, hyps: Sequence[Any]) -> float | None:
        """From 0 to 1, of the text that the hypotheses make up; None if no token is the model's."""
        n_tokens = sum(len(hyp.token_log_probs) for hyp in hyps)
        if not n_tokens:
            return None
        return self.probability(sum(hyp.log_prob for hyp in hyps) / n_tokens, n_tokens)

    def probability(self, mean: float, n_tokens: int) -> float:
        """From 0 to 1, by the mean in nats per token and the number of tokens, end tokens
        included."""
        odds = self.at_zero + self.per_nat * mean + self.per_log_token * math.log(n_tokens)
        return 1 / (1 + math.exp(-odds)) if odds > -700 else 0.0

    def threshold(self, n_tokens: int) -> float:
        """The mean from which on a translation of so many tokens is probably right."""
        return -(self.at_zero + self.per_log_token * math.log(n_tokens)) / self.per_nat


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model.  Ids of a side are those of its vocabulary."""

    model: EncoderDecoder
    src_vocab: Vocab
    tgt_vocab: Vocab
    tokenizers: dict[str, Tokenizer]  # by the name -tokenizer knows; the first is `auto`
    start_id: int  # what the decoder is fed first
    # Around each source line; `raw_text_end` comes before `src_end`, for raw text only, because a
    # tokenized line already has its own end token
    src_start: tuple[int, ...] = ()
    raw_text_end: tuple[int, ...] = ()
    src_end: tuple[int, ...] = ()
    # Around each target line, before the end token
    tgt_start: tuple[int, ...] = ()
    tgt_end: tuple[int, ...] = ()
    banned_ids: tuple[int, ...] = ()  # what the model must not produce
    exclude_banned_from_softmax: bool = False  # as in CTranslate2; their logits are arbitrary
    lowercase_all_caps: bool = False  # translate uppercase lines in lowercase, then uppercase again
    unknown: UnknownPolicy = UnknownPolicy()  # what to do with unknown characters
    confidence: Confidence | None = None  # how a score tells whether a translation is right
    split_longer: int = 0  # what -split_longer is if it is not given
    # An output that reaches its limit ends there with the end token, at no cost, in the searches
    # that do so (transformers' forced_eos_token_id)
    forced_eos: bool = False
    # Rules about tokens that count instead of these, by the search that asks for them
    rules: Mapping[str, TokenRules] = field(default_factory=dict)
    needs_log_softmax: bool = True  # False: model output is a score that is used as it is
    languages: Languages | None = None  # of a model that has several; None: nobody can choose
    language_pair: LanguagePair = LanguagePair()  # of a bilingual model, if its files name it
    missing_files: tuple[str, ...] = ()  # tokenizer files that raw text needs
    notices: tuple[str, ...] = ()  # settings in the model files that have no effect here
    toolkit: str = "onmt_lite"  # whose model it is
    version: str = ""  # of the toolkit or its format, as far as the files tell

    def get_token_rules(self, version: str | None) -> TokenRules:
        """The rules about tokens under a search that asks for those of this version."""
        usual = TokenRules(tuple((i,) for i in self.banned_ids), self.forced_eos)
        return self.rules.get(version or "", usual)

    def get_special_tokens(self, pair: LanguagePair) -> SpecialTokens:
        """What stands around a line of these languages and its translation."""
        before, after, text = self.src_start, self.src_end, ""
        start: tuple[int, ...] = (self.start_id,)
        known = self.languages
        if known is None:
            return SpecialTokens(before, after, start)
        if pair.src and known.source != "none":
            src = (known.ids[pair.src],)
            before = (*src, *before) if known.source == "before" else before
            after = (*self.raw_text_end, *after, *(src if known.source == "after" else ()))
        if known.target == "text":
            text = f"{self.src_vocab.tokens[known.ids[pair.tgt]]} " if pair.tgt else ""
        elif pair.tgt:
            tgt = known.ids[pair.tgt]
            start = (tgt,) if known.target == "start" else (*start, tgt)
        return SpecialTokens(before, after, start, text)

    @property
    def src_margins(self) -> tuple[int, int]:
        """How many ids stand before and after each source line."""
        place = "none" if self.languages is None else self.languages.source
        before, after = len(self.src_start), len(self.src_end)
        return before + (place == "before"), after + (place == "after")

    def count_forced_tokens(self, tgt_lang: str) -> int:
        """How many tokens each translation begins with, at no cost, that are no part of it."""
        known = self.languages
        if known is None or (known.optional_in_tokens and not tgt_lang):
            return 0
        return int(known.target == "forced")

    @cached_property
    def surface_forms(self) -> SurfaceForms:
        """What each target token adds to a text."""
        return SurfaceForms(next(iter(self.tokenizers.values())), self.tgt_vocab)

    @cached_property
    def uppercase_surfaces(self) -> SurfaceForms:
        """The same where the text is written in capitals."""
        return SurfaceForms(next(iter(self.tokenizers.values())), self.tgt_vocab, str.upper)

    @property
    def has_attention(self) -> bool:
        """Whether the attention that the model returns says anything."""
        return self.model.has_attention

    @property
    def aligns_late(self) -> bool:
        """Whether attention tells of the token before the one that is being made."""
        return getattr(self.model, "aligns_late", False)

    @property
    def eos_id(self) -> int:
        assert self.tgt_vocab.eos_id is not None
        return self.tgt_vocab.eos_id


# -- The summary for people, as `-print_model` prints it -------------------------------------------

TOOLKITS = {
    "onmt_lite": "onmt_lite",
    "opennmt": "OpenNMT-py",
    "fairseq": "fairseq",
    "marian": "Marian, as Hugging Face transformers",
    "marian-npz": "Marian",
    "ctranslate2": "CTranslate2",
    "transformers": "Hugging Face transformers",
}
WIDTH = 18  # of the names on the left


def describe(checkpoint: Checkpoint, name: str) -> str:
    """Describe a checkpoint in lines under its name."""
    model, src, tgt = checkpoint.model, checkpoint.src_vocab, checkpoint.tgt_vocab
    weights = model.parameters() if isinstance(model, nn.Module) else ()  # shared ones once
    n_parameters = sum(weight.numel() for weight in weights)
    default, *others = checkpoint.tokenizers
    facts = {
        "written by": f"{TOOLKITS[checkpoint.toolkit]} {checkpoint.version}".rstrip(),
        "family": type(model).__name__ + " that copies source words" * model.has_copy_mechanism,
        "sizes": _sizes(model),
        "parameters": f"{n_parameters:,}",
        "longest line": f"{model.max_positions:,} tokens",
        "source vocabulary": _vocabulary(src),
        "target vocabulary": "the same" if tgt is src else _vocabulary(tgt),
        "tokenizer": default + (f" (also: {', '.join(others)})" if others else ""),
        "decoder starts at": _tokens([checkpoint.start_id], tgt),
        "before each source": _tokens(checkpoint.src_start, src),
        "after each source": _tokens(checkpoint.src_end, src),
        "never produced": _tokens(checkpoint.banned_ids, tgt),
    }
    if checkpoint.languages is not None:
        codes = [code or "none" for code in checkpoint.languages.default]
        facts["languages"] = " ".join(checkpoint.languages.ids)
        facts["by default"] = "src_lang {}, tgt_lang {}".format(*codes)
    if any(checkpoint.language_pair):
        facts["languages"] = "{} to {}".format(*checkpoint.language_pair)
    if checkpoint.split_longer:
        facts["asks for"] = f"-split_longer {checkpoint.split_longer}"
    lines = [_printable(name)]
    lines += [f"  {fact:<{WIDTH}} {_printable(value)}" for fact, value in facts.items()]
    return "\n".join(lines) + "\n"


def _printable(text: str) -> str:
    """Quote text with control characters, which might steer the terminal."""
    return text if text.isprintable() else repr(text)


def _sizes(model: EncoderDecoder) -> str:
    """Configuration of a model, without fields that are off and sizes of vocabularies."""
    if isinstance(model, TableModel):
        return f"{len(model.sources)} source lines"
    shown = []
    for name, value in vars(cast(Any, model).cfg).items():
        if isinstance(value, tuple):  # of convolutional layers
            value = " ".join(f"{layer.d}x{layer.kernel}" for layer in value)
        if value not in (False, "none") and not name.endswith("vocab_size"):  # 0 is False too
            shown.append(name if value is True else f"{name} {value}")
    return ", ".join(shown)


def _vocabulary(vocab: Vocab) -> str:
    """Size and special tokens of a vocabulary."""
    ids = {"end": vocab.eos_id, "start": vocab.bos_id, "pad": vocab.pad_id, "unk": vocab.unk_id}
    special = [f"{name} {_tokens([i], vocab)}" for name, i in ids.items() if i is not None]
    return ", ".join([f"{len(vocab):,} tokens", *special])


def _tokens(ids: Iterable[int], vocab: Vocab) -> str:
    """Tokens with their ids."""
    shown = [
        f"{vocab.tokens[i]!r} ({i})" if 0 <= i < len(vocab) else f"id {i}, outside the vocabulary"
        for i in ids
    ]
    return " ".join(shown) or "nothing"
