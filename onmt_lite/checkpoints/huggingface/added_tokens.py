"""Added tokens of a Hugging Face directory: their IDs, and how they are cut out of lines.

`tokenizer_config.json` lists them, or else `tokenizer.json`, `added_tokens.json` and
`special_tokens_map.json` do.  What a token has in which file is decided as in transformers 5.
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

TOKENIZER, SPECIAL, ALONE = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
LISTED = "added_tokens_decoder"
EXTRA = ("extra_special_tokens", "additional_special_tokens")
# Our names by those of a file
FLAGS = dict(lstrip="takes_left", rstrip="takes_right")
FLAGS |= dict(single_word="single_word", normalized="normalized")
# Named tokens that a family has by default
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
        """The content of tokenizer.json, which may be large."""
        return read_config(self.path / TOKENIZER_JSON)

    def by_id(self, file: str) -> dict[int, AddedToken]:
        """Return the tokens that one of the files lists."""
        listed: Any  # objects by ID, a list of objects, or IDs by text
        path = self.path / file
        try:
            if file == TOKENIZER:
                listed = (self.config.get(LISTED) or {}).items()
            elif file == TOKENIZER_JSON:
                listed = [(token["id"], token) for token in self.fast.get("added_tokens") or []]
            else:
                listed = [(i, text) for text, i in read_config(path).values.items()]
            found = {}
            for i, token in listed:
                # The name of an entry in JSON is a string
                number = int(i) if type(i) is str and i.isdecimal() else i
                if type(number) is not int:
                    raise CheckpointError(
                        f"{path}: the ID {format_value(i)} of an added token is not an integer"
                    )
                found[number] = read_token(token, path)
            return found
        except (ValueError, TypeError, KeyError, AttributeError):
            raise CheckpointError(
                f"{path}: added tokens must be a list of tokens and IDs"
            ) from None

    def named(self, usual: Mapping[str, str]) -> dict[str, AddedToken]:
        """Return the special tokens by name; `usual` has the family's own ones."""
        found = {name: AddedToken(text) for name, text in usual.items()}
        for source in [self.config] + [self.special] * (not self.lists_all):
            for name in NAMES:
                if (token := source.get(name)) is not None:
                    found[name] = read_token(token, source.path)
        return found

    def extra(self, *sources: ConfigReader) -> list[AddedToken]:
        """Return the special tokens without a name."""
        tokens = []
        for source in sources:
            for name in EXTRA:
                listed = source.get(name) or []
                listed = [*listed.values()] if isinstance(listed, dict) else listed
                if not isinstance(listed, list):
                    raise CheckpointError(f"{source.path}: {name} must be a list of tokens")
                tokens += [read_token(token, source.path) for token in listed]
        return tokens

    def cut(
        self, usual: Mapping[str, str], known: Collection[str], more: Collection[str] = ()
    ) -> list[AddedToken]:
        """Return the tokens to cut out of lines.

        Args:
            usual: special tokens of the family, by name.
            known: all tokens of the vocabulary; others are left out.
            more: texts of special tokens that the family has without a name.
        """
        named = self.named(usual)
        extra = self.extra(self.config)
        if self.lists_all:
            tokens = [*self.by_id(TOKENIZER).values()]
        else:
            special = {*named.values(), *extra}
            tokens = [*self.by_id(TOKENIZER_JSON).values()]
            for token in self.by_id(ALONE).values():
                tokens.append(AddedToken(token, normalized=token not in special))
            extra += self.extra(self.special)
        mask = named.get("mask_token")
        if mask is not None and not mask.takes_left:  # as transformers makes it
            named["mask_token"] = AddedToken(mask, takes_left=True)
        by_text: dict[str, AddedToken] = {}
        for token in [*tokens, *named.values(), *extra, *map(AddedToken, more)]:
            if token in known:
                by_text.setdefault(token, token)
        return [*by_text.values()]


def read_token(token: Any, path: Path) -> AddedToken:
    """Read a token that is written as a string or as an object.  CheckpointError for others."""
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str) or not text:
        raise CheckpointError(f"{path}: {format_value(text)} must be the text of a token")
    check_tokens([text], path)
    if not isinstance(token, dict):
        return AddedToken(text)
    special = ConfigReader(token, path).get_bool("special", True)
    # Defaults of transformers
    flags = {"normalized": not special} | {
        ours: ConfigReader(token, path).get_bool(name)
        for name, ours in FLAGS.items()
        if name in token
    }
    return AddedToken(text, special=special, **flags)
