"""Loading: the model, the tokenizer and the phrase table that options name."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NoReturn

import torch

from onmt_lite.checkpoints.checkpoint import Checkpoint, LanguagePair, for_raw_text
from onmt_lite.checkpoints.loading import load_checkpoints
from onmt_lite.checkpoints.shipped import get_model_paths
from onmt_lite.checkpoints.subwords import (
    make_onmt_tokenizer,
    read_bpe_codes,
    read_phrase_table,
    read_sentencepiece,
)
from onmt_lite.config.files import check_inputs
from onmt_lite.config.options import TranslateOptions
from onmt_lite.config.text_options import SUBWORD_TRANSFORMS, TextOptions, parse_kwargs
from onmt_lite.errors import CheckpointError, Message, OptionError
from onmt_lite.inference.preprocess import choose_languages
from onmt_lite.inference.runtime import move_to
from onmt_lite.text.bpe import SubwordFile, detokenize_bpe
from onmt_lite.text.tokenizers import (
    DETOKENIZERS,
    JOINER,
    SpaceTokenizer,
    Tokenizer,
    detokenize_joiner,
    detokenize_sentencepiece,
    detokenize_spacer,
)
from onmt_lite.text.transforms import (
    NEWLINE,
    Affixes,
    DetokenizeFn,
    Punctuation,
    TokenizeFn,
    TransformTokenizer,
    sentencepiece_decoder,
    sentencepiece_encoder,
    uppercase,
)
from onmt_lite.text.vocab import Vocab

# With these, pyonmttok cuts as sentencepiece does alone, except lines with marks of their own: it
# keeps ｟text in such brackets｠ whole, and reads ▁ otherwise
PLAIN = ({"mode": "none"}, {"mode": "none", "spacer_annotate": True})

NamedTokenizer = tuple[str, Tokenizer]  # with what -print_model calls it
LoadedFiles = tuple[
    Checkpoint, NamedTokenizer | None, dict[str, str]
]  # with the tokenizer and phrases of options


def load_files(
    options: TranslateOptions, device: torch.device, precision: str, release: bool = False
) -> LoadedFiles:
    """Read the files that the options name; the weights are on the device in that precision.
    Raises OptionError or CheckpointError."""
    own, phrases = (
        tokenizer_from_options(options),
        load_phrase_table(options),
    )  # damaged ones are errors before a model
    checkpoint = read_checkpoint(options)
    move_to(checkpoint.model, device, precision, in_place=True, release=release)
    return checkpoint, own, phrases


def read_checkpoint(options: TranslateOptions) -> Checkpoint:
    """The model that the options name, or the ensemble of several.  Raises CheckpointError."""
    given = LanguagePair(options.model.src_lang, options.model.tgt_lang)
    of_tokens = options.text.tokenizer == "space"
    with torch.random.fork_rng(devices=[]):  # modules draw their first weights at random
        return load_checkpoints(
            get_model_paths(options.model.model),
            options.model.model_weights,
            options.model.avg_raw_probs,
            lambda known: choose_languages(
                known if of_tokens else for_raw_text(known),
                given,
                "normalize" in options.text.transforms,
            ),
        )


def tokenizer_from_options(options: TranslateOptions) -> NamedTokenizer | None:
    """The tokenizer of the options themselves, if any.  CheckpointError for a damaged file."""
    text, name = options.text, options.text.tokenizer
    if text.token_transforms:
        return f"transforms {', '.join(text.token_transforms)}", _of_transforms(text)
    if not text.src_subword_model or name not in ("bpe", "sentencepiece"):
        return None
    shown = f"{name} of {Path(text.src_subword_model).name}"
    return shown, TransformTokenizer(*_cut_and_join(name, text))


def with_tokenizer(
    checkpoint: Checkpoint, options: TranslateOptions, own: NamedTokenizer | None
) -> Checkpoint:
    """The checkpoint with the tokenizer to use as the first one, and with the tokens that stand
    around lines.  OptionError if it lacks one of these; CheckpointError if its files are missing.
    """
    name, tokenizer = own or _of_checkpoint(checkpoint, options.text.tokenizer)
    others = {other: t for other, t in checkpoint.tokenizers.items() if other != name}
    if checkpoint.raw_text_end and name != "space":  # a line of tokens may have it already
        end, languages = (
            checkpoint.raw_text_end + checkpoint.src_end,
            for_raw_text(checkpoint.languages),
        )
        checkpoint = replace(checkpoint, src_end=end, raw_text_end=(), languages=languages)
    if isinstance(tokenizer, TransformTokenizer) and options.text.token_transforms:
        if not _subword_kind(options.text) and "space" in checkpoint.tokenizers:
            spaces = checkpoint.tokenizers["space"]  # lines of tokens as its toolkit splits them
            tokenizer = TransformTokenizer(
                spaces.encode,
                spaces.encode_target,
                tokenizer.detokenize,
                tokenizer.src,
                tokenizer.tgt,
            )
        checkpoint = _with_affixes(checkpoint, tokenizer)
    elif options.text.detokenizer != "auto":
        join = DETOKENIZERS[options.text.detokenizer]
        tokenizer = TransformTokenizer(tokenizer.encode, tokenizer.encode_target, join)
    if options.text.detokenizer != "auto":
        name = f"{name}, output joined by {options.text.detokenizer}"
    if any(options.text.text_transforms):
        tokenizer = _rewriting(tokenizer, options)
    return replace(checkpoint, tokenizers={name: tokenizer, **others})


def _of_checkpoint(checkpoint: Checkpoint, name: str) -> NamedTokenizer:
    available = checkpoint.tokenizers
    if name == "auto" and checkpoint.missing_files:
        raise CheckpointError(
            f"missing: {', '.join(checkpoint.missing_files)}, by which the model cuts lines into "
            "tokens; put them there, or give lines of tokens and -tokenizer space"
        )
    name = next(iter(available)) if name == "auto" else name
    if name not in available:
        problem = "{tokenizer}: the model brings only {0}; name a file with src_subword_model"
        raise OptionError(Message.of(problem, ", ".join(available), tokenizer=name))
    return name, available[name]


def _with_affixes(checkpoint: Checkpoint, tokenizer: TransformTokenizer) -> Checkpoint:
    """With the tokens around lines as ids."""
    # A model of OpenNMT-py gets nothing after a line but what the transforms say: its own suffix,
    # which takes their place if none are given, is one of them
    own_end = () if checkpoint.toolkit == "opennmt" else checkpoint.src_end
    src, tgt = tokenizer.src, tokenizer.tgt
    fitted = replace(
        checkpoint,
        src_start=_ids(checkpoint.src_vocab, src.before, "src_prefix"),
        src_end=_ids(checkpoint.src_vocab, src.after, "src_suffix") + own_end,
        tgt_start=_ids(checkpoint.tgt_vocab, tgt.before, "tgt_prefix"),
        tgt_end=_ids(checkpoint.tgt_vocab, tgt.after, "tgt_suffix"),
    )
    if len(fitted.src_start) + len(fitted.src_end) >= checkpoint.model.max_positions:
        raise OptionError("src_prefix and src_suffix leave no room for a line; shorten them")
    return fitted


def forced_prefix_ids(checkpoint: Checkpoint, options: TranslateOptions) -> tuple[int, ...]:
    """The beginning of all translations if tgt_file_prefix is given without tgt: the words of
    tgt_prefix as the transform `prefix` has them before a blank line, or, without the transform, as
    tokens of the target.  OptionError for a word that is no token."""
    text = options.text
    if not options.data.tgt_file_prefix or options.data.tgt is not None:
        return ()
    if "prefix" not in text.token_transforms:
        return _ids(checkpoint.tgt_vocab, tuple(text.tgt_prefix.split()), "tgt_prefix")
    tokens = next(iter(checkpoint.tokenizers.values())).encode_target("")
    return (*checkpoint.tgt_start, *checkpoint.tgt_vocab.encode(tokens))


def _ids(vocab: Vocab, tokens: tuple[str, ...], option: str) -> tuple[int, ...]:
    for token in tokens:
        if token not in vocab.ids:
            raise OptionError(
                f"{option}: the model's vocabulary has no token {token[:50]!r}; give another one"
            )
    return tuple(vocab.ids[token] for token in tokens)


def _rewriting(tokenizer: Tokenizer, options: TranslateOptions) -> TransformTokenizer:
    """The tokenizer, which gets lines as they are rewritten; the output stays as it is."""
    text = options.text
    wide, controls = text.pre_replace_unicode_punct, text.post_remove_control_chars
    settings = text.penn, text.norm_quote_commas, text.norm_numbers, wide, controls

    def cutter(cut: TokenizeFn, lang: str) -> TokenizeFn:
        do: dict[str, Callable[[str], str]]
        do = {"normalize": Punctuation(lang, *settings), "uppercase": uppercase}
        before, after = text.text_transforms  # as text, and as tokens

        def rewritten(line: str) -> list[str]:
            for name in before:
                line = do[name](line)
            tokens = cut(line)
            for name in after:
                tokens = do[name](" ".join(tokens)).split()
            return tokens

        return rewritten

    cut = cutter(tokenizer.encode, options.model.src_lang)
    cut_target = cutter(tokenizer.encode_target, options.model.tgt_lang)
    return TransformTokenizer(cut, cut_target, tokenizer.decode)


# -- transforms -----------------------------------------------------------------------------------


def _of_transforms(text: TextOptions) -> TransformTokenizer:
    names, kind = text.token_transforms, _subword_kind(text)
    uncut = names[: names.index(kind)] if kind else ()  # these meet the line while it is text

    def affixes(prefix: str, suffix: str) -> Affixes:
        words = {"prefix": prefix.split(), "suffix": suffix.split()}
        before = {name: " ".join(words[name]) if name in uncut else "" for name in words}
        later = {n: tuple(words[n]) if n in names and n not in uncut else () for n in words}
        return Affixes(before["prefix"], before["suffix"], later["prefix"], later["suffix"])

    src, tgt = affixes(text.src_prefix, text.src_suffix), affixes(text.tgt_prefix, text.tgt_suffix)
    return TransformTokenizer(*_cut_and_join(kind, text), src, tgt)


def _subword_kind(text: TextOptions) -> str:
    """The transform that cuts words into subwords; "" for none."""
    return next((name for name in text.token_transforms if name in SUBWORD_TRANSFORMS), "")


def _cut_and_join(kind: str, text: TextOptions) -> tuple[TokenizeFn, TokenizeFn, DetokenizeFn]:
    """How source and target are cut, and how output is joined."""
    src, tgt = text.subword_files()
    check_inputs(_files_used(kind, text), CheckpointError)
    if kind == "onmt_tokenize":
        return _of_onmt(text)
    if kind == "bpe":
        codes = read_bpe_codes(*src)
        if not tgt.path:
            return codes.encode, _no_target, detokenize_bpe
        return codes.encode, (codes if tgt == src else read_bpe_codes(*tgt)).encode, detokenize_bpe
    if kind == "sentencepiece":
        pieces = read_sentencepiece(*src)
        if not tgt.path:
            return sentencepiece_encoder(pieces), _no_target, detokenize_sentencepiece
        of_target = pieces if tgt == src else read_sentencepiece(*tgt)
        return (
            sentencepiece_encoder(pieces),
            sentencepiece_encoder(of_target),
            sentencepiece_decoder(of_target),
        )
    spaces = SpaceTokenizer()  # until the model is known
    return spaces.encode, spaces.encode, DETOKENIZERS.get(text.detokenizer, spaces.decode)


def _files_used(kind: str, text: TextOptions) -> Iterator[tuple[str, str]]:
    """Yield the option and path of each file about subwords that is read."""
    src, tgt = text.subword_files()
    for side, file in (("src", src), ("tgt", tgt)) if kind else ():
        if kind == "onmt_tokenize" and getattr(text, f"{side}_subword_type") == "none":
            continue
        if file.path and (side == "src" or file.path != src.path):
            yield f"{side}_subword_model", file.path
        if file.path and file.vocabulary and file.threshold:
            yield f"{side}_subword_vocab", file.vocabulary


def _no_target(line: str) -> NoReturn:
    raise OptionError(
        "tgt_subword_model is needed to read lines of the target; give it, or share_vocab if it "
        "is the same file"
    )


def _of_onmt(text: TextOptions) -> tuple[TokenizeFn, TokenizeFn, DetokenizeFn]:
    """As above, by pyonmttok's rules; its package is used only if sentencepiece is not enough."""
    src, tgt = text.subword_files()
    sides = {
        "src": (src, text.src_subword_type, parse_kwargs(text.src_onmttok_kwargs)),
        "tgt": (tgt, text.tgt_subword_type, parse_kwargs(text.tgt_onmttok_kwargs)),
    }
    if text.share_vocab and src == tgt:
        sides["tgt"] = sides["src"]
    _, kind, kwargs = sides["tgt"]
    if kwargs.get("joiner", JOINER) != JOINER:
        raise OptionError(
            f"tgt_onmttok_kwargs: a joiner other than {JOINER} is not known; leave joiner out"
        )
    spaced = kind == "sentencepiece" and kwargs.get("mode") == "none"
    by_spacer = kwargs.get("spacer_annotate") or (spaced and not kwargs.get("joiner_annotate"))
    join = detokenize_spacer if by_spacer else detokenize_joiner
    # These two options, one of each side, decide for both
    breaks = sides["src"][1] == "sentencepiece" and not kwargs.get("preserve_placeholders")

    # Lines of the target are read only to score them: that must not ask for the package before
    of_target = cache(lambda: _onmt_cut("tgt", *sides["tgt"], breaks))
    return (
        _onmt_cut("src", *sides["src"], breaks),
        lambda line: of_target()(line),
        lambda tokens: join(tokens).replace("\n", NEWLINE),
    )


def _onmt_cut(side: str, file: SubwordFile, kind: str, kwargs: dict, breaks: bool) -> TokenizeFn:
    """`breaks`: the mark of a line break is one to the tokenizer too."""
    if kind == "sentencepiece" and breaks and kwargs in PLAIN and not file.threshold:
        return sentencepiece_encoder(read_sentencepiece(file.path))
    cut = make_onmt_tokenizer(side, kind, file, kwargs)
    return (lambda line: cut(line.replace(NEWLINE, "\n"))) if breaks else cut


def load_phrase_table(options: TranslateOptions) -> dict[str, str]:
    """Replacements of unknown tokens, by source token."""
    table = options.text.phrase_table
    check_inputs([("phrase_table", table)] if table else [], CheckpointError)
    return read_phrase_table(table) if table else {}
