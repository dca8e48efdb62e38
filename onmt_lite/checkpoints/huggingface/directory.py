"""A directory of Hugging Face transformers: its descriptions, its words and its weights.

`config.json` describes the model, `generation_config.json` how it is used, `tokenizer_config.json`
its words.  Weights are in `model.safetensors` or `pytorch_model.bin`, whole or in shards that an
index lists.
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
    ALONE,
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
ACTIVATIONS = {  # fairseq's too; of several names, the last one is written
    "relu": "relu",
    "tanh": "tanh",
    **dict.fromkeys(("gelu_python", "gelu"), "gelu"),
    **dict.fromkeys(("silu", "swish"), "silu"),
    **dict.fromkeys(("gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_new"), "gelu_tanh"),
    "quick_gelu": "gelu_sigmoid",
}


class Directory:
    """The files of a directory, except the weights.

    `config` has the values of config.json, or of generation_config.json if it has one.
    `check` is given the languages before weights, which may be large, are read.
    """

    def __init__(self, path: Path, check: LanguageCheck):
        self.path, self.check = path, check
        own = read_json(path / CONFIG)
        self.family = ConfigReader(own, path / CONFIG).get_str("model_type", "unknown")
        self.model = ConfigReader(own, path / CONFIG)
        self.generation = read_config(path / GENERATION)
        self.tokenizer = read_config(path / TOKENIZER)
        said = {name: v for name, v in self.generation.values.items() if v is not None}
        usual = load_family_table("usual").get(self.family, {})
        # A default would stand in for a name that is misspelt
        for name in (*usual, *load_table("generation_config"), *load_table("tokens")):
            self.model.get(name), self.generation.get(name)
        self.config = ConfigReader({**usual, **own, **said}, path / CONFIG)
        self.config.paths = dict.fromkeys(said, path / GENERATION)

    def weights_file(self) -> Path:
        """The file of the weights or the index of their shards.  CheckpointError for neither."""
        for name in (f"{name}{end}" for name in WEIGHTS for end in ("", ".index.json")):
            if (self.path / name).is_file():
                return self.path / name
        other = identify_by_name(self.path)
        only = f", only {other}, which is not read" if other else ""
        raise CheckpointError(
            f"{self.path}: the directory has neither {' nor '.join(WEIGHTS)}{only}"
        )

    def weights(self) -> Weights:
        """All tensors, each once.  CheckpointError where a file is missing or damaged."""
        file = self.weights_file()
        if file.suffix != ".json":
            return Weights(_read_part(file), self.path)
        where = read_json(file).get("weight_map")
        if not isinstance(where, dict) or not all(type(name) is str for name in where.values()):
            raise CheckpointError(f"{file}: has no weight_map")
        tensors: dict[str, Tensor] = {}
        for name in sorted(set(where.values())):
            if Path(name).name != name or not (self.path / name).is_file():
                raise CheckpointError(f"{file}: there is no file {name[:100]!r} beside it")
            tensors |= _read_part(self.path / name)
        if set(tensors) != set(where):
            raise CheckpointError(f"{file}: its shards do not hold what it lists")
        return Weights(tensors, self.path)

    def rules(self, version: str, eos: int, vocab_size: int) -> TokenRules:
        """The rules about single tokens that a version of transformers takes from the files."""
        said = self.generation.values if self.generation.path.is_file() else None
        table, name = select_settings(self.model.values, said, version)
        return parse_token_rules(table, lambda _: self.path / name, eos, vocab_size)

    def check_sizes(self, **sizes: int) -> None:
        """CheckpointError where the configuration gives another size than the weights have."""
        for name, size in sizes.items():
            self.model.require_equal(name, size)


def read_token_id(config: ConfigReader, name: str, default: int | None = None) -> int:
    """An id; some files have it as a list of one.  Of several end tokens, the first."""
    value = config.get(name)
    if isinstance(value, list) and (len(value) == 1 or (value and name == "eos_token_id")):
        return ConfigReader({name: value[0]}, config.get_file(name)).get_int(name)
    return config.get_int(name, default)


def read_start_id(directory: Directory, default: int) -> int:
    """Return the first token of the decoder as transformers takes it from the files."""
    for name in ("decoder_start_token_id", "bos_token_id"):
        if directory.generation.get(name) is not None:
            return read_token_id(directory.generation, name)
    return read_token_id(directory.config, "decoder_start_token_id", default)


def make_checkpoint(
    directory: Directory,
    model: Transformer,
    vocabs: tuple[Vocab, Vocab],
    cutters: Mapping[str, Tokenizer],
    start: int,
    added: AddedTokenFiles,
    **others: Any,
) -> Checkpoint:
    """Put together what was read of a directory, used as its configuration says.

    Args:
        directory: the files.
        model: the model.
        vocabs: of source and target.
        cutters: tokenizers of lines of text.
        start: the first token of the decoder.
        added: the files that name the token at the end of a source line.
        others: fields in which a family differs.

    Raises:
        CheckpointError: if an ID in the configuration is not in the target vocabulary.
    """
    config, (src, tgt) = directory.config, vocabs
    if not 0 <= start < len(tgt):
        file = config.get_file("decoder_start_token_id")
        raise CheckpointError(f"{file}: decoder_start_token_id {start} is not in the vocabulary")
    eos = read_token_id(config, "eos_token_id")
    rules = parse_token_rules(config.values, config.get_file, eos, len(tgt))
    # The tokenizer's own tokens, where generation ends with or pads with others
    named = added.named(NAMED_T5)
    end, pad = src.ids.get(named["eos_token"], eos), src.ids.get(named["pad_token"], src.pad_id)
    src = src if (end, pad) == (src.eos_id, src.pad_id) else replace(src, eos_id=end, pad_id=pad)
    n = config.get_int("num_return_sequences", 1)
    file = config.get_file("num_return_sequences")
    note = Message.of(
        "num_return_sequences {0} of {1}: has no effect; -{n_best} gives them",
        *(str(n), str(file)),
        n_best=n,
    )
    usual = dict(
        banned_ids=rules.banned_ids,
        notices=(note,) if n > 1 else (),
        toolkit="transformers",
    )
    return Checkpoint(
        model,
        src_vocab=src,
        tgt_vocab=tgt,
        tokenizers={**cutters, "space": SpaceTokenizer()},
        start_id=start,
        src_end=(end,),
        forced_eos=rules.forced_eos,
        rules={v: directory.rules(v, eos, len(tgt)) for v in VERSIONS},
        version=config.get_label("transformers_version"),
        **{**usual, **others},
    )


def _read_part(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return safetensors.read(path)
    return archive.check_state_dict(archive.load(path), path)


# -- Vocabulary: subwords, their IDs, and added tokens ---------------------------------------------


def read_vocab_json(path: Path) -> dict[int, str]:
    """The tokens by ID of a vocab.json.  CheckpointError unless IDs are 0, 1, ... once each."""
    ids = read_json(path)
    tokens = {i: text for text, i in ids.items() if type(i) is int}
    if not ids or set(tokens) != set(range(len(ids))):
        raise CheckpointError(f"{path}: its ids are not 0, 1, ... once each")
    check_tokens([*ids], path)
    return tokens


def make_vocab(
    config: ConfigReader,
    tokens: Mapping[int, str],
    size: int,
    file_of: Callable[[int], Path],
    unk_token: str = "<unk>",
    languages: Iterable[int] = (),
) -> Vocab:
    """Make the vocabulary of a table of embeddings.  Rows without a token get names.

    Args:
        config: has the IDs of the end token and of the padding.
        tokens: by ID.
        size: the number of rows.
        file_of: returns the file that lists the token with an ID.
        unk_token: the token of unknown characters.
        languages: IDs of tokens that name a language.

    Raises:
        CheckpointError: if an ID is not a row or, of a special token, has no token.
    """
    for i, text in tokens.items():
        if not 0 <= i < size:
            raise CheckpointError(
                f"{file_of(i)}: {text[:50]!r} has the ID {format_value(i)}, but the weights have "
                f"{size} rows"
            )
    eos, pad = read_token_id(config, "eos_token_id"), config.get_int("pad_token_id")
    for name, i in dict(eos_token_id=eos, pad_token_id=pad).items():
        if i not in tokens:
            file = config.get_file(name)
            raise CheckpointError(f"{file}: {name} {i} is not in {file_of(i).name}")
    rows = [tokens.get(i, f"<unused {i}>") for i in range(size)]
    check_tokens(rows, file_of(eos))
    unk = rows.index(unk_token) if unk_token in rows else None
    return Vocab(rows, eos_id=eos, pad_id=pad, unk_id=unk, language_ids=frozenset(languages))


class TokenizerReader:
    """What a directory says of its words."""

    def __init__(self, directory: Directory, pattern: str):
        """pattern: of an added token that the family has."""
        self.directory, self.path, self.pattern = directory, directory.path, pattern
        self.added = AddedTokenFiles(self.path, directory.tokenizer)
        self.unk_token = str(self.added.named(NAMED_T5)["unk_token"])
        found = find_subword_model(self.path, lambda: self.added.fast.values, self.unk_token)
        if found is None:
            names = " nor ".join((*SHARED_MODELS, TOKENIZER_JSON))
            raise CheckpointError(
                f"{self.path}: the directory has neither {names}, by which "
                "the model cuts lines into tokens"
            )
        self.file, self.processor = found
        self.files: dict[int, str] = {}  # that list an added token instead, by its ID
        self.own_ids = self.file == TOKENIZER_JSON  # those of tokenizer.json, for whatever family
        self.pieces: list[str] = self.processor.id_to_piece([*range(self.processor.vocab_size())])

    def file_of(self, i: int) -> Path:
        """Return the file that lists the token with an ID."""
        return self.path / self.files.get(i, self.file)

    def with_added(self, tokens: dict[int, str]) -> dict[int, str]:
        """The pieces by id, and added tokens of the first file that lists some of the family's."""
        for file in (TOKENIZER, TOKENIZER_JSON, ALONE, TOKENIZER):
            added = self.added.by_id(file)
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

    def tokenizer(
        self,
        vocab: Vocab,
        added: Sequence[AddedToken],
        silent: Sequence[str] = (),
        keeps_spaces: bool = False,
    ) -> AddedTokenTokenizer:
        """Return the tokenizer of lines.

        Args:
            vocab: the vocabulary of source and target.
            added: tokens to cut out of source lines; target text has no control tokens.
            silent: tokens that are not text in an output.
            keeps_spaces: see `PieceTokenizer`.
        """
        to_target = [token for token in added if not vocab.is_special(vocab.ids[token])]
        return AddedTokenTokenizer(self.processor, added, to_target, silent, keeps_spaces)


def find_language_ids(tokens: Mapping[int, str], pattern: str) -> dict[str, int]:
    """Ids of the tokens that name a language, by the code in them: the group of the pattern."""
    matches = ((re.fullmatch(pattern, text), i) for i, text in sorted(tokens.items()))
    return {match[1]: i for match, i in matches if match}


def read_default_language(description: ConfigReader, name: str, known: Mapping[str, int]) -> str:
    """The code that a description names, with or without the marks of its token; "" for none."""
    code = description.get(name)
    if not isinstance(code, str):
        return ""
    return next((c for c in (code, code.strip("_")) if c in known), "")
