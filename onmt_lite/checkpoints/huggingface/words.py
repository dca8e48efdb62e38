"""The words of a Hugging Face directory: pieces of sentencepiece, their ids, and added tokens.

A sentencepiece model cuts lines, or, where there is none, the one that `tokenizer.json` amounts
to.  Which id a piece has depends on the family.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from onmt_lite.checkpoints.description import Description, checked_tokens, described, shown
from onmt_lite.checkpoints.huggingface.directory import TOKENIZER, Directory, token_id
from onmt_lite.checkpoints.huggingface.tokenizer_json import as_sentencepiece
from onmt_lite.checkpoints.subwords import FAST, PIECES, processor, read_pieces
from onmt_lite.errors import CheckpointError
from onmt_lite.text.tokenizers import PieceTokenizer
from onmt_lite.text.vocab import Vocab

ALONE = "added_tokens.json"


class Added(NamedTuple):
    """A token beside the pieces; one that is not special is cut out of lines before all else."""

    text: str
    special: bool


class Words:
    """What a directory says of its words."""

    def __init__(self, directory: Directory, pattern: str):
        """pattern: of an added token that the family has.

        CheckpointError where no file says how lines are cut, or the file is damaged."""
        self.directory, self.path, self.pattern = directory, directory.path, pattern
        self.unk_token = _text_of(directory.tokenizer.get("unk_token") or "<unk>")
        file = next((name for name in PIECES if (self.path / name).is_file()), None)
        self.own_ids = file is None  # those of tokenizer.json, for whatever family
        if file is not None:
            self.processor = read_pieces(str(self.path / file))
        elif (self.path / FAST).is_file():
            data = as_sentencepiece(self.fast, self.unk_token, self.path / FAST)
            self.processor = processor(data, self.path / FAST)
        else:
            raise CheckpointError(
                f"{self.path}: the directory has neither {' nor '.join((*PIECES, FAST))}, by which "
                "the model cuts lines into tokens"
            )
        self.pieces: list[str] = self.processor.id_to_piece([*range(self.processor.vocab_size())])

    @cached_property
    def fast(self) -> dict[str, Any]:
        return described(self.path / FAST).values

    @cached_property
    def added(self) -> dict[int, Added]:
        """Added tokens by id, of the first file that lists some of the family's."""
        for file in (TOKENIZER, FAST, ALONE):
            added = self._added_in(file)
            if any(re.fullmatch(self.pattern, token.text) for token in added.values()):
                return added
        return self._added_in(TOKENIZER)

    def _added_in(self, file: str) -> dict[int, Added]:
        """A table by id, a list of tables, or a table by text."""
        try:
            if file == TOKENIZER:
                listed = (self.directory.tokenizer.get("added_tokens_decoder") or {}).items()
            elif file == FAST:
                listed = [(token["id"], token) for token in self.fast.get("added_tokens") or []]
            else:
                texts = described(self.path / ALONE).values
                listed = [(i, {"content": text}) for text, i in texts.items()]
            return {
                _id_of(i): Added(_text_of(token["content"]), bool(token.get("special", True)))
                for i, token in listed
            }
        except (ValueError, TypeError, KeyError, AttributeError):
            raise CheckpointError(
                f"{self.path / file}: added tokens whose ids are no whole numbers, or without text"
            ) from None

    def with_added(self, tokens: dict[int, str]) -> dict[int, str]:
        """The pieces by id, and the added tokens.  CheckpointError where both claim an id."""
        for i, token in self.added.items():
            if tokens.setdefault(i, token.text) != token.text:
                raise CheckpointError(
                    f"{self.path}: the added token {token.text[:50]!r} has the id of "
                    f"{tokens[i][:50]!r}"
                )
        return tokens

    def vocab(self, ids: Mapping[int, str], size: int, languages: Iterable[int] = ()) -> Vocab:
        """The vocabulary of a table with `size` rows, from tokens by id.

        Rows without a token get names of their own.  CheckpointError where an id has no row.
        """
        config = self.directory.config
        tokens = [f"<unused {i}>" for i in range(size)]
        for i, text in ids.items():
            if not 0 <= i < size:
                raise CheckpointError(
                    f"{self.path}: {text[:50]!r} has the id {shown(i)}, but the weights "
                    f"have {size} rows"
                )
            tokens[i] = text
        eos, pad = token_id(config, "eos_token_id"), config.number("pad_token_id")
        if not 0 <= eos < size or not 0 <= pad < size:
            raise CheckpointError(f"{config.path}: its special tokens are not in the vocabulary")
        found = Vocab(checked_tokens(tokens, self.path))
        return Vocab(
            tokens,
            eos_id=eos,
            pad_id=pad,
            unk_id=found.ids.get(self.unk_token),
            language_ids=frozenset(languages),
        )

    def tokenizer(self, silent: Sequence[str] = ()) -> PieceTokenizer:
        """`silent`: tokens that are no text in an output."""
        cut = [token.text for token in self._added_in(TOKENIZER).values() if not token.special]
        return PieceTokenizer(self.processor, cut, silent)


def language_ids(tokens: Mapping[int, str], pattern: str) -> dict[str, int]:
    """Ids of the tokens that name a language, by the code in them: the group of the pattern."""
    matches = ((re.fullmatch(pattern, text), i) for i, text in sorted(tokens.items()))
    return {match[1]: i for match, i in matches if match}


def default_language(description: Description, name: str, known: Mapping[str, int]) -> str:
    """The code that a description names, with or without the marks of its token; "" for none."""
    code = description.get(name)
    if not isinstance(code, str):
        return ""
    return next((c for c in (code, code.strip("_")) if c in known), "")


def _id_of(value: Any) -> int:
    """An id, which a table of JSON has as text where it is the name of an entry."""
    if type(value) is str and value.isdecimal():
        return int(value)
    if type(value) is not int:
        raise ValueError("an id that is no whole number")
    return value


def _text_of(token: Any) -> str:
    """A token that is written as text or as a table."""
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        raise ValueError("a token without text")
    return text
