"""Added tokens of a transformers directory: their IDs, and how to match them in raw text.

They are in `tokenizer_config.json`, otherwise in `tokenizer.json`, `added_tokens.json` and
`special_tokens_map.json`.  The precedence of the files is that of transformers 5.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from onmt_lite.checkpoints.config_reader import (
    ConfigReader,
    check_tokens,
    format_value,
    read_config,
)
from onmt_lite.checkpoints.subwords import TOKENIZER_JSON
from onmt_lite.errors import CheckpointError
from onmt_lite.text.vocab import AddedToken

TOKENIZER, SPECIAL, ADDED_TOKENS = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
LISTED = "added_tokens_decoder"
EXTRA = ("extra_special_tokens", "additional_special_tokens")
# Attribute name in a file -> our attribute
FLAGS = dict(lstrip="takes_left", rstrip="takes_right")
FLAGS |= dict(single_word="single_word", normalized="normalized")
# Default special tokens of a family, by name
NAMED_T5 = dict(eos_token="</s>", unk_token="<unk>", pad_token="<pad>")
NAMED_M2M100 = NAMED_T5 | dict(bos_token="<s>", sep_token="</s>")
NAMED_MBART = NAMED_M2M100 | dict(cls_token="<s>", mask_token="<mask>")
NAMES = tuple(NAMED_MBART)


@dataclass
class AddedTokenFiles:
    """The files of a directory that list added tokens."""

    path: Path
    config: ConfigReader  # tokenizer_config.json

    def __post_init__(self) -> None:
        self.special = read_config(self.path / SPECIAL)
        self.lists_all = self.config.get(LISTED) is not None

    @cached_property
    def fast(self) -> ConfigReader:
        """The content of tokenizer.json; read on demand, because it may be large."""
        return read_config(self.path / TOKENIZER_JSON)

    def read_tokens_by_id(self, file: str) -> dict[int, AddedToken]:
        """Read the added tokens in one of the files.

        Args:
            file: file name, one of TOKENIZER, TOKENIZER_JSON and ADDED_TOKENS.

        Returns:
            Tokens by ID.

        Raises:
            CheckpointError: if the file is malformed.
        """
        listed: Any  # {ID: token}, list of tokens, or {text: ID}
        path = self.path / file
        try:
            if file == TOKENIZER:
                listed = (self.config.get(LISTED) or {}).items()
            elif file == TOKENIZER_JSON:
                listed = [(token["id"], token) for token in self.fast.get("added_tokens") or []]
            else:
                listed = [(i, text) for text, i in read_config(path).values.items()]
            tokens = {}
            for i, token in listed:
                # JSON keys are strings
                number = int(i) if type(i) is str and i.isdecimal() else i
                if type(number) is not int:
                    raise CheckpointError(
                        f"{path}: the ID {format_value(i)} of an added token is not an integer"
                    )
                tokens[number] = read_token(token, path)
            return tokens
        except (ValueError, TypeError, KeyError, AttributeError):
            raise CheckpointError(
                f"{path}: added tokens must be a list of tokens and IDs"
            ) from None

    def read_named_tokens(self, defaults: Mapping[str, str]) -> dict[str, AddedToken]:
        """Read the special tokens by name, such as eos_token, with the defaults of a family."""
        named = {name: AddedToken(text) for name, text in defaults.items()}
        for source in [self.config] + [self.special] * (not self.lists_all):
            for name in NAMES:
                if (token := source.get(name)) is not None:
                    named[name] = read_token(token, source.path)
        return named

    def read_unnamed_tokens(self, *sources: ConfigReader) -> list[AddedToken]:
        """Read the additional special tokens without names."""
        tokens = []
        for source in sources:
            for name in EXTRA:
                listed = source.get(name) or []
                listed = [*listed.values()] if isinstance(listed, dict) else listed
                if not isinstance(listed, list):
                    raise CheckpointError(f"{source.path}: {name} must be a list of tokens")
                tokens += [read_token(token, source.path) for token in listed]
        return tokens

    def list_tokens(
        self, defaults: Mapping[str, str], vocab: Collection[str], unnamed: Collection[str] = ()
    ) -> list[AddedToken]:
        """List the added tokens to match in raw text.

        Args:
            defaults: default special tokens of the family, by name.
            vocab: all tokens of the vocabulary; added tokens outside it are omitted.
            unnamed: further special tokens of the family.
        """
        named = self.read_named_tokens(defaults)
        extra = self.read_unnamed_tokens(self.config)
        if self.lists_all:
            tokens = [*self.read_tokens_by_id(TOKENIZER).values()]
        else:
            special = {*named.values(), *extra}
            tokens = [*self.read_tokens_by_id(TOKENIZER_JSON).values()]
            for token in self.read_tokens_by_id(ADDED_TOKENS).values():
                tokens.append(AddedToken(token, normalized=token not in special))
            extra += self.read_unnamed_tokens(self.special)
        mask = named.get("mask_token")
        if mask is not None and not mask.takes_left:  # as in transformers
            named["mask_token"] = AddedToken(mask, takes_left=True)
        by_text: dict[str, AddedToken] = {}
        for token in [*tokens, *named.values(), *extra, *map(AddedToken, unnamed)]:
            if token in vocab:
                by_text.setdefault(token, token)
        return [*by_text.values()]


def read_token(token: Any, path: Path) -> AddedToken:
    """Read an added token: a string or an object; raise CheckpointError for any other value."""
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str) or not text:
        raise CheckpointError(f"{path}: {format_value(text)} must be a string, the text of a token")
    check_tokens([text], path)
    if not isinstance(token, dict):
        return AddedToken(text)
    special = ConfigReader(token, path).get_bool("special", True)
    # With the defaults of transformers
    flags = {"normalized": not special} | {
        field: ConfigReader(token, path).get_bool(name)
        for name, field in FLAGS.items()
        if name in token
    }
    return AddedToken(text, special=special, **flags)
