"""Loading of the model, the tokenizer and the phrase table named by the options."""

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
from onmt_lite.models.base import EncoderDecoder
from onmt_lite.system.resources import map_large_blocks
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
    make_sentencepiece_decoder,
    make_sentencepiece_encoder,
    uppercase,
)
from onmt_lite.text.vocab import Vocab

# With these settings, pyonmttok tokenizes like sentencepiece, except for lines with special marks:
# it protects ｟text in such brackets｠ and treats ▁ differently
PLAIN = ({"mode": "none"}, {"mode": "none", "spacer_annotate": True})

NamedTokenizer = tuple[str, Tokenizer]  # with its name in -print_model
# The model, and the tokenizer and phrase table named by the options
LoadedFiles = tuple[Checkpoint, NamedTokenizer | None, dict[str, str]]


def load_files(
    options: TranslateOptions, device: torch.device, precision: str, release: bool = True
) -> LoadedFiles:
    """Read the files named by the options and move the weights to the device.

    Args:
        options: the options.
        device: device of the weights.
        precision: precision of the weights.
        release: drop weights that kernels have copied.

    Raises:
        OptionError: if an option does not fit the files.
        CheckpointError: if a file is damaged or not supported.
    """
    # Damaged small files are reported before the model is read
    tokenizer, phrases = tokenizer_from_options(options), load_phrase_table(options)

    def reread() -> EncoderDecoder:
        return read_checkpoint(options).model

    with map_large_blocks():
        checkpoint = read_checkpoint(options)
        move_to(checkpoint.model, device, precision, True, reread if release else None)
    return checkpoint, tokenizer, phrases


def read_checkpoint(options: TranslateOptions) -> Checkpoint:
    """Read the model named by the options, or the ensemble of several.

    Raises:
        CheckpointError: if a file is damaged or not supported.
    """
    languages = LanguagePair(options.model.src_lang, options.model.tgt_lang)
    is_tokenized = options.text.tokenizer == "space"
    with torch.random.fork_rng(devices=[]):  # modules initialize their weights at random
        return load_checkpoints(
            get_model_paths(options.model.model),
            options.model.model_weights,
            options.model.avg_raw_probs,
            lambda model_languages: choose_languages(
                model_languages if is_tokenized else for_raw_text(model_languages),
                languages,
                "normalize" in options.text.transforms,
            ),
        )


def tokenizer_from_options(options: TranslateOptions) -> NamedTokenizer | None:
    """Return the tokenizer that the options define, or None.

    Raises:
        CheckpointError: if a tokenizer file is damaged.
    """
    text, name = options.text, options.text.tokenizer
    if text.token_transforms:
        return f"transforms {', '.join(text.token_transforms)}", _tokenizer_from_transforms(text)
    if not text.src_subword_model or name not in ("bpe", "sentencepiece"):
        return None
    shown_name = f"{name} of {Path(text.src_subword_model).name}"
    return shown_name, TransformTokenizer(*_tokenize_functions(name, text))


def with_tokenizer(
    checkpoint: Checkpoint, options: TranslateOptions, named_tokenizer: NamedTokenizer | None
) -> Checkpoint:
    """Return the checkpoint with the tokenizer to use first, and with the tokens around lines.

    Args:
        checkpoint: the model.
        options: the options.
        named_tokenizer: the tokenizer that the options define, if any.

    Raises:
        OptionError: if the model does not have the tokenizer or a token.
        CheckpointError: if files of the tokenizer are missing.
    """
    name, tokenizer = named_tokenizer or _tokenizer_from_checkpoint(
        checkpoint, options.text.tokenizer
    )
    others = {
        other_name: t for other_name, t in checkpoint.tokenizers.items() if other_name != name
    }
    if checkpoint.raw_text_end and name != "space":  # a tokenized line may already contain it
        end, languages = (
            checkpoint.raw_text_end + checkpoint.src_end,
            for_raw_text(checkpoint.languages),
        )
        checkpoint = replace(checkpoint, src_end=end, raw_text_end=(), languages=languages)
    if isinstance(tokenizer, TransformTokenizer) and options.text.token_transforms:
        if not _load_subword_transform(options.text) and "space" in checkpoint.tokenizers:
            # Tokenized lines are split as in the toolkit of the model
            spaces = checkpoint.tokenizers["space"]
            tokenizer = TransformTokenizer(
                spaces.encode,
                spaces.encode_target,
                tokenizer.detokenize,
                tokenizer.src,
                tokenizer.tgt,
            )
        checkpoint = _with_affixes(checkpoint, tokenizer)
    elif options.text.detokenizer != "auto":
        detokenize = DETOKENIZERS[options.text.detokenizer]
        tokenizer = TransformTokenizer(tokenizer.encode, tokenizer.encode_target, detokenize)
    if options.text.detokenizer != "auto":
        name = f"{name}, output joined by {options.text.detokenizer}"
    if any(options.text.text_transforms):
        tokenizer = _with_text_transforms(tokenizer, options)
    return replace(checkpoint, tokenizers={name: tokenizer, **others})


def _tokenizer_from_checkpoint(checkpoint: Checkpoint, name: str) -> NamedTokenizer:
    """Return the tokenizer of the model with this name, or its default for `auto`."""
    available = checkpoint.tokenizers
    if name == "auto" and checkpoint.missing_files:
        raise CheckpointError(
            f"missing: {', '.join(checkpoint.missing_files)}, needed for tokenization; add them"
            " to the model directory, or pass tokenized lines with -tokenizer space"
        )
    name = next(iter(available)) if name == "auto" else name
    if name not in available:
        problem = (
            "{tokenizer} is not available for this model (available: {0}); "
            "set src_subword_model to a tokenizer file"
        )
        raise OptionError(Message.of(problem, ", ".join(available), tokenizer=name))
    return name, available[name]


def _with_affixes(checkpoint: Checkpoint, tokenizer: TransformTokenizer) -> Checkpoint:
    """Return the checkpoint with the ids of the tokens around lines."""
    # OpenNMT-py models: only the transforms add tokens after a line. The suffix of the model is
    # part of its default transforms
    model_end = () if checkpoint.toolkit == "opennmt" else checkpoint.src_end
    src, tgt = tokenizer.src, tokenizer.tgt
    fitted = replace(
        checkpoint,
        src_start=_look_up_ids(checkpoint.src_vocab, src.before, "src_prefix"),
        src_end=_look_up_ids(checkpoint.src_vocab, src.after, "src_suffix") + model_end,
        tgt_start=_look_up_ids(checkpoint.tgt_vocab, tgt.before, "tgt_prefix"),
        tgt_end=_look_up_ids(checkpoint.tgt_vocab, tgt.after, "tgt_suffix"),
    )
    if len(fitted.src_start) + len(fitted.src_end) >= checkpoint.model.max_positions:
        raise OptionError(
            "src_prefix and src_suffix must be shorter: they leave no positions for a line"
        )
    return fitted


def get_forced_prefix_ids(checkpoint: Checkpoint, options: TranslateOptions) -> tuple[int, ...]:
    """Return the ids with which all translations start if tgt_file_prefix is set without tgt.

    With the transform `prefix`, these are the words of tgt_prefix as it adds them to an empty line.
    Otherwise they are target tokens.

    Raises:
        OptionError: if a word is not in the vocabulary.
    """
    text = options.text
    if not options.data.tgt_file_prefix or options.data.tgt is not None:
        return ()
    if "prefix" not in text.token_transforms:
        return _look_up_ids(checkpoint.tgt_vocab, tuple(text.tgt_prefix.split()), "tgt_prefix")
    tokens = next(iter(checkpoint.tokenizers.values())).encode_target("")
    return (*checkpoint.tgt_start, *checkpoint.tgt_vocab.encode(tokens))


def _look_up_ids(vocab: Vocab, tokens: tuple[str, ...], option: str) -> tuple[int, ...]:
    """Return the ids of tokens.

    Args:
        vocab: the vocabulary.
        tokens: the tokens.
        option: the option to name in an error.
    """
    for token in tokens:
        if token not in vocab.ids:
            raise OptionError(
                f"{option}: {token[:50]!r} is not in the model's vocabulary; use another token"
            )
    return tuple(vocab.ids[token] for token in tokens)


def _with_text_transforms(tokenizer: Tokenizer, options: TranslateOptions) -> TransformTokenizer:
    """Return a tokenizer that normalizes lines first; its output is not changed."""
    text = options.text
    wide, controls = text.pre_replace_unicode_punct, text.post_remove_control_chars
    settings = text.penn, text.norm_quote_commas, text.norm_numbers, wide, controls

    def normalize_first(tokenize: TokenizeFn, lang: str) -> TokenizeFn:
        functions: dict[str, Callable[[str], str]]
        functions = {"normalize": Punctuation(lang, *settings), "uppercase": uppercase}
        before, after = text.text_transforms  # as text, and as tokens

        def tokenize_normalized(line: str) -> list[str]:
            for name in before:
                line = functions[name](line)
            tokens = tokenize(line)
            for name in after:
                tokens = functions[name](" ".join(tokens)).split()
            return tokens

        return tokenize_normalized

    tokenize = normalize_first(tokenizer.encode, options.model.src_lang)
    tokenize_target = normalize_first(tokenizer.encode_target, options.model.tgt_lang)
    return TransformTokenizer(tokenize, tokenize_target, tokenizer.decode)


# -- transforms -----------------------------------------------------------------------------------


def _tokenizer_from_transforms(text: TextOptions) -> TransformTokenizer:
    """Return the tokenizer of the options `transforms`."""
    names, subword_transform = text.token_transforms, _load_subword_transform(text)
    # Transforms that are applied to text
    text_transforms = names[: names.index(subword_transform)] if subword_transform else ()

    def make_affixes(prefix: str, suffix: str) -> Affixes:
        words = {"prefix": prefix.split(), "suffix": suffix.split()}
        as_text = {name: " ".join(words[name]) if name in text_transforms else "" for name in words}
        as_tokens = {
            n: tuple(words[n]) if n in names and n not in text_transforms else () for n in words
        }
        return Affixes(
            as_text["prefix"], as_text["suffix"], as_tokens["prefix"], as_tokens["suffix"]
        )

    src, tgt = (
        make_affixes(text.src_prefix, text.src_suffix),
        make_affixes(text.tgt_prefix, text.tgt_suffix),
    )
    return TransformTokenizer(*_tokenize_functions(subword_transform, text), src, tgt)


def _load_subword_transform(text: TextOptions) -> str:
    """Return the name of the subword transform, or ""."""
    return next((name for name in text.token_transforms if name in SUBWORD_TRANSFORMS), "")


def _tokenize_functions(
    transform: str, text: TextOptions
) -> tuple[TokenizeFn, TokenizeFn, DetokenizeFn]:
    """Return functions that tokenize source and target and detokenize output."""
    src, tgt = text.list_subword_files()
    check_inputs(_list_subword_files(transform, text), CheckpointError)
    if transform == "onmt_tokenize":
        return _load_onmt_functions(text)
    if transform == "bpe":
        codes = read_bpe_codes(*src)
        if not tgt.path:
            return codes.encode, _reject_target_line, detokenize_bpe
        return codes.encode, (codes if tgt == src else read_bpe_codes(*tgt)).encode, detokenize_bpe
    if transform == "sentencepiece":
        src_model = read_sentencepiece(*src)
        if not tgt.path:
            return (
                make_sentencepiece_encoder(src_model),
                _reject_target_line,
                detokenize_sentencepiece,
            )
        tgt_model = src_model if tgt == src else read_sentencepiece(*tgt)
        return (
            make_sentencepiece_encoder(src_model),
            make_sentencepiece_encoder(tgt_model),
            make_sentencepiece_decoder(tgt_model),
        )
    spaces = SpaceTokenizer()  # default until the model is known
    return spaces.encode, spaces.encode, DETOKENIZERS.get(text.detokenizer, spaces.decode)


def _list_subword_files(transform: str, text: TextOptions) -> Iterator[tuple[str, str]]:
    """Yield (option, path) of each subword file that is read."""
    src, tgt = text.list_subword_files()
    for side, file in (("src", src), ("tgt", tgt)) if transform else ():
        if transform == "onmt_tokenize" and getattr(text, f"{side}_subword_type") == "none":
            continue
        if file.path and (side == "src" or file.path != src.path):
            yield f"{side}_subword_model", file.path
        if file.path and file.vocabulary and file.threshold:
            yield f"{side}_subword_vocab", file.vocabulary


def _reject_target_line(line: str) -> NoReturn:
    """Raise OptionError because no target tokenizer is set."""
    raise OptionError(
        "tgt_subword_model must be set to read target lines; set it, or share_vocab if it is the "
        "same file"
    )


def _load_onmt_functions(text: TextOptions) -> tuple[TokenizeFn, TokenizeFn, DetokenizeFn]:
    """Return the functions of `_tokenize_functions` for onmt_tokenize.

    The package pyonmttok is used only if sentencepiece cannot do the same.
    """
    src, tgt = text.list_subword_files()
    sides = {
        "src": (src, text.src_subword_type, parse_kwargs(text.src_onmttok_kwargs)),
        "tgt": (tgt, text.tgt_subword_type, parse_kwargs(text.tgt_onmttok_kwargs)),
    }
    if text.share_vocab and src == tgt:
        sides["tgt"] = sides["src"]
    _, subword_type, kwargs = sides["tgt"]
    if kwargs.get("joiner", JOINER) != JOINER:
        raise OptionError(
            f"tgt_onmttok_kwargs: a joiner other than {JOINER} is not supported; remove joiner"
        )
    uses_spacers = subword_type == "sentencepiece" and kwargs.get("mode") == "none"
    joins_by_spacer = kwargs.get("spacer_annotate") or (
        uses_spacers and not kwargs.get("joiner_annotate")
    )
    detokenize = detokenize_spacer if joins_by_spacer else detokenize_joiner
    # One option of each side determines the behavior of both
    breaks_lines = sides["src"][1] == "sentencepiece" and not kwargs.get("preserve_placeholders")

    # Only scoring tokenizes target lines, so pyonmttok is not required before
    make_target_function = cache(
        lambda: _load_onmt_tokenize_function("tgt", *sides["tgt"], breaks_lines)
    )
    return (
        _load_onmt_tokenize_function("src", *sides["src"], breaks_lines),
        lambda line: make_target_function()(line),
        lambda tokens: detokenize(tokens).replace("\n", NEWLINE),
    )


def _load_onmt_tokenize_function(
    side: str, file: SubwordFile, subword_type: str, kwargs: dict, breaks_lines: bool
) -> TokenizeFn:
    """Return the function that tokenizes one side with onmt_tokenize.

    Args:
        side: src or tgt.
        file: its subword file.
        subword_type: its subword type.
        kwargs: its pyonmttok options.
        breaks_lines: the line break marker is a line break for the tokenizer, too.
    """
    if subword_type == "sentencepiece" and breaks_lines and kwargs in PLAIN and not file.threshold:
        return make_sentencepiece_encoder(read_sentencepiece(file.path))
    tokenize = make_onmt_tokenizer(side, subword_type, file, kwargs)
    return (lambda line: tokenize(line.replace(NEWLINE, "\n"))) if breaks_lines else tokenize


def load_phrase_table(options: TranslateOptions) -> dict[str, str]:
    """Return replacements of unknown tokens, by source token."""
    table = options.text.phrase_table
    check_inputs([("phrase_table", table)] if table else [], CheckpointError)
    return read_phrase_table(table) if table else {}
