"""A Hugging Face transformers directory: configuration, vocabulary and weights.

`config.json` configures the model, `generation_config.json` its search, `tokenizer_config.json` its
tokenizer.  Weights are in `model.safetensors` or `pytorch_model.bin`, or in shards with an index.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from onmt_lite.checkpoints import archive, safetensors
from onmt_lite.checkpoints.checkpoint import Checkpoint, Languages
from onmt_lite.checkpoints.config_reader import (
    ConfigReader,
    check_tokens,
    format_value,
    identify_by_name,
    read_config,
    read_json,
)
from onmt_lite.checkpoints.generation_config import (
    CONFIG,
    GENERATION,
    VERSIONS,
    load_table,
    parse_token_rules,
    select_settings,
)
from onmt_lite.checkpoints.huggingface.added_tokens import (
    ADDED_TOKENS,
    NAMED_T5,
    TOKENIZER,
    AddedTokenFiles,
)
from onmt_lite.checkpoints.huggingface.formats import load_family_table
from onmt_lite.checkpoints.subwords import SHARED_MODELS, TOKENIZER_JSON, find_subword_model
from onmt_lite.checkpoints.weights import Weights
from onmt_lite.errors import CheckpointError, Message
from onmt_lite.models.transformer import Transformer
from onmt_lite.search.spec import TokenRules
from onmt_lite.text.tokenizers import AddedTokenTokenizer, SpaceTokenizer, Tokenizer
from onmt_lite.text.vocab import AddedToken, Vocab

LanguageCheck = Callable[[Languages | None], object]
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
ACTIVATIONS = {  # for fairseq, too; exports use the last of several names
    "relu": "relu",
    "tanh": "tanh",
    **dict.fromkeys(("gelu_python", "gelu"), "gelu"),
    **dict.fromkeys(("silu", "swish"), "silu"),
    **dict.fromkeys(("gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_new"), "gelu_tanh"),
    "quick_gelu": "gelu_sigmoid",
}


class Directory:
    """The files of a transformers directory.

    Attributes:
        path: the directory.
        check: language check, called before the weights are read because they may be large.
        family: model_type in config.json.
        model: config.json.
        generation: generation_config.json.
        tokenizer: tokenizer_config.json.
        config: config.json, overridden by generation_config.json.
    """

    def __init__(self, path: Path, check: LanguageCheck):
        self.path, self.check = path, check
        values = read_json(path / CONFIG)
        self.family = ConfigReader(values, path / CONFIG).get_str("model_type", "unknown")
        self.model = ConfigReader(values, path / CONFIG)
        self.generation = read_config(path / GENERATION)
        self.tokenizer = read_config(path / TOKENIZER)
        overrides = {name: v for name, v in self.generation.values.items() if v is not None}
        defaults = load_family_table("defaults").get(self.family, {})
        # Reject misspelled names: they must not silently become defaults
        for name in (*defaults, *load_table("generation_config"), *load_table("tokens")):
            self.model.get(name), self.generation.get(name)
        self.config = ConfigReader({**defaults, **values, **overrides}, path / CONFIG)
        self.config.paths = dict.fromkeys(overrides, path / GENERATION)

    def find_weights(self) -> Path:
        """Return the weights file or shard index; raise CheckpointError if neither exists."""
        for name in (f"{name}{end}" for name in WEIGHTS for end in ("", ".index.json")):
            if (self.path / name).is_file():
                return self.path / name
        unsupported = identify_by_name(self.path)
        only = f", only {unsupported}" if unsupported else ""
        raise CheckpointError(
            f"{self.path}: the directory has neither {' nor '.join(WEIGHTS)}{only}"
        )

    def read_weights(self) -> Weights:
        """Read all tensors; raise CheckpointError if a file is missing or damaged."""
        file = self.find_weights()
        if file.suffix != ".json":
            return Weights(_read_tensors(file), self.path)
        shards = read_json(file).get("weight_map")
        if not isinstance(shards, dict) or not all(type(name) is str for name in shards.values()):
            raise CheckpointError(f"{file}: weight_map must map tensors to files")
        tensors: dict[str, Tensor] = {}
        for name in sorted(set(shards.values())):
            if Path(name).name != name or not (self.path / name).is_file():
                raise CheckpointError(f"{file}: the shard {name[:100]!r} does not exist")
            tensors |= _read_tensors(self.path / name)
        if set(tensors) != set(shards):
            raise CheckpointError(f"{file}: the shards do not contain the tensors that it lists")
        return Weights(tensors, self.path)

    def read_token_rules(self, version: str, eos: int, vocab_size: int) -> TokenRules:
        """Return the token rules in the files, as read by a version of transformers.

        Args:
            version: one of VERSIONS.
            eos: ID of the EOS token.
            vocab_size: size of the target vocabulary.
        """
        generation = self.generation.values if self.generation.path.is_file() else None
        settings, name = select_settings(self.model.values, generation, version)
        return parse_token_rules(settings, lambda _: self.path / name, eos, vocab_size)

    def check_sizes(self, **sizes: int) -> None:
        """Raise CheckpointError if sizes in config.json differ from the weights."""
        for name, size in sizes.items():
            self.model.require_equal(name, size)


def read_token_id(config: ConfigReader, name: str, default: int | None = None) -> int:
    """Return a token ID, or the first ID of a list.

    A list must have one ID, except that eos_token_id may list several.

    Args:
        config: the configuration.
        name: name of the option.
        default: ID if the option is missing.
    """
    value = config.get(name)
    if isinstance(value, list) and (len(value) == 1 or (value and name == "eos_token_id")):
        return ConfigReader({name: value[0]}, config.get_file(name)).get_int(name)
    return config.get_int(name, default)


def read_start_id(directory: Directory, default: int) -> int:
    """Return the ID of the decoder start token, with the precedence of transformers."""
    for name in ("decoder_start_token_id", "bos_token_id"):
        if directory.generation.get(name) is not None:
            return read_token_id(directory.generation, name)
    return read_token_id(directory.config, "decoder_start_token_id", default)


def make_checkpoint(
    directory: Directory,
    model: Transformer,
    vocabs: tuple[Vocab, Vocab],
    tokenizers: Mapping[str, Tokenizer],
    start: int,
    added: AddedTokenFiles,
    **fields: Any,
) -> Checkpoint:
    """Make the checkpoint of a transformers directory.

    Args:
        directory: the configuration.
        model: the model.
        vocabs: source and target vocabulary.
        tokenizers: tokenizers for raw text, by -tokenizer name.
        start: ID of the decoder start token.
        added: files with added tokens; they define the EOS token of source lines.
        fields: further fields of the checkpoint.

    Raises:
        CheckpointError: if an ID in the configuration is not in the target vocabulary.
    """
    config, (src, tgt) = directory.config, vocabs
    if not 0 <= start < len(tgt):
        file = config.get_file("decoder_start_token_id")
        raise CheckpointError(f"{file}: decoder_start_token_id {start} is not in the vocabulary")
    eos = read_token_id(config, "eos_token_id")
    rules = parse_token_rules(config.values, config.get_file, eos, len(tgt))
    # Tokenizer and search may use different EOS and padding tokens
    named = added.read_named_tokens(NAMED_T5)
    end, pad = src.ids.get(named["eos_token"], eos), src.ids.get(named["pad_token"], src.pad_id)
    src = src if (end, pad) == (src.eos_id, src.pad_id) else replace(src, eos_id=end, pad_id=pad)
    n = config.get_int("num_return_sequences", 1)
    file = config.get_file("num_return_sequences")
    notice = Message.of(
        "{1}: num_return_sequences {0} has no effect; use -{n_best} instead",
        *(str(n), str(file)),
        n_best=n,
    )
    defaults = dict(
        banned_ids=rules.banned_ids,
        notices=(notice,) if n > 1 else (),
        toolkit="transformers",
    )
    return Checkpoint(
        model,
        src_vocab=src,
        tgt_vocab=tgt,
        tokenizers={**tokenizers, "space": SpaceTokenizer()},
        start_id=start,
        src_end=(end,),
        forced_eos=rules.forced_eos,
        rules={v: directory.read_token_rules(v, eos, len(tgt)) for v in VERSIONS},
        version=config.get_label("transformers_version"),
        **{**defaults, **fields},
    )


def _read_tensors(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return safetensors.read(path)
    return archive.check_state_dict(archive.load(path), path)


# -- Vocabulary: subwords, their IDs, and added tokens ---------------------------------------------


def read_vocab_json(path: Path) -> dict[int, str]:
    """Read the tokens of a vocab.json by ID; raise CheckpointError unless IDs are 0 to n - 1."""
    ids = read_json(path)
    tokens = {i: text for text, i in ids.items() if type(i) is int}
    if not ids or set(tokens) != set(range(len(ids))):
        raise CheckpointError(f"{path}: token IDs must be 0, 1, ... without gaps or duplicates")
    check_tokens([*ids], path)
    return tokens


def make_vocab(
    config: ConfigReader,
    tokens: Mapping[int, str],
    size: int,
    get_file: Callable[[int], Path],
    unk_token: str = "<unk>",
    languages: Iterable[int] = (),
) -> Vocab:
    """Make the vocabulary of an embedding table; unused rows get placeholder names.

    Args:
        config: configuration with eos_token_id and pad_token_id.
        tokens: tokens by ID.
        size: number of rows of the table.
        get_file: returns the file that defines a token ID, for error messages.
        unk_token: the unknown token.
        languages: IDs of the language tokens.

    Raises:
        CheckpointError: if an ID is outside the table, or if a special token is missing.
    """
    for i, text in tokens.items():
        if not 0 <= i < size:
            raise CheckpointError(
                f"{get_file(i)}: {text[:50]!r} has the ID {format_value(i)}, but the weights have "
                f"{size} rows"
            )
    eos, pad = read_token_id(config, "eos_token_id"), config.get_int("pad_token_id")
    for name, i in dict(eos_token_id=eos, pad_token_id=pad).items():
        if i not in tokens:
            file = config.get_file(name)
            raise CheckpointError(f"{file}: {name} {i} is not in {get_file(i).name}")
    rows = [tokens.get(i, f"<unused {i}>") for i in range(size)]
    check_tokens(rows, get_file(eos))
    unk = rows.index(unk_token) if unk_token in rows else None
    return Vocab(rows, eos_id=eos, pad_id=pad, unk_id=unk, language_ids=frozenset(languages))


class TokenizerReader:
    """The subword model and added tokens of a directory.

    Attributes:
        file: name of the file with the subword vocabulary.
        processor: the subword model.
        subwords: subwords by sentencepiece ID.
        added: files with added tokens.
    """

    def __init__(self, directory: Directory, pattern: str):
        """Read the subword model.

        Args:
            directory: the directory.
            pattern: regular expression for the added tokens of the family.

        Raises:
            CheckpointError: if the directory has no subword model.
        """
        self.directory, self.path, self.pattern = directory, directory.path, pattern
        self.added = AddedTokenFiles(self.path, directory.tokenizer)
        self.unk_token = str(self.added.read_named_tokens(NAMED_T5)["unk_token"])
        found = find_subword_model(self.path, lambda: self.added.fast.values, self.unk_token)
        if found is None:
            names = " nor ".join((*SHARED_MODELS, TOKENIZER_JSON))
            raise CheckpointError(
                f"{self.path}: the directory has no subword model (neither {names})"
            )
        self.file, self.processor = found
        self.files: dict[int, str] = {}  # files that define added tokens, by ID
        self.has_final_ids = self.file == TOKENIZER_JSON  # no family-specific ID offset
        self.subwords: list[str] = self.processor.id_to_piece([*range(self.processor.vocab_size())])

    def get_file(self, i: int) -> Path:
        """Return the file that defines a token ID."""
        return self.path / self.files.get(i, self.file)

    def merge_added_tokens(self, tokens: dict[int, str]) -> dict[int, str]:
        """Merge added tokens into `tokens`, from the first file with added tokens of this family.

        Args:
            tokens: tokens by ID; changed in place.

        Returns:
            The same dict.

        Raises:
            CheckpointError: if an added token has the ID of another token.
        """
        for file in (TOKENIZER, TOKENIZER_JSON, ADDED_TOKENS, TOKENIZER):
            added = self.added.read_tokens_by_id(file)
            if any(re.fullmatch(self.pattern, text) for text in added.values()):
                break
        self.files = dict.fromkeys(added, file)
        for i, text in added.items():
            if tokens.setdefault(i, str(text)) != text:
                raise CheckpointError(
                    f"{self.path / file}: the added token {text[:50]!r} has the ID "
                    f"{format_value(i)} of {tokens[i][:50]!r}"
                )
        return tokens

    def make_tokenizer(
        self,
        vocab: Vocab,
        added: Sequence[AddedToken],
        silent: Sequence[str] = (),
        keeps_spaces: bool = False,
    ) -> AddedTokenTokenizer:
        """Make the tokenizer for raw text.

        Args:
            vocab: vocabulary of source and target.
            added: added tokens to match in source lines; in target lines, only non-special tokens
                are matched.
            silent: tokens to omit from the output text.
            keeps_spaces: see `AddedTokenTokenizer`.
        """
        target_tokens = [token for token in added if not vocab.is_special(vocab.ids[token])]
        return AddedTokenTokenizer(self.processor, added, target_tokens, silent, keeps_spaces)


def find_language_ids(tokens: Mapping[int, str], pattern: str) -> dict[str, int]:
    """Find language tokens.

    Args:
        tokens: tokens by ID.
        pattern: regular expression of a language token; its first group is the language code.

    Returns:
        Token IDs by language code.
    """
    matches = ((re.fullmatch(pattern, text), i) for i, text in sorted(tokens.items()))
    return {match[1]: i for match, i in matches if match}


def read_default_language(config: ConfigReader, name: str, ids: Mapping[str, int]) -> str:
    """Return the default language code in a configuration file; "" if it is not set or unknown.

    Args:
        config: the file.
        name: name of the option; its value is a language code or a language token.
        ids: token IDs of the model's languages.
    """
    code = config.get(name)
    if not isinstance(code, str):
        return ""
    return next((c for c in (code, code.strip("_")) if c in ids), "")
