"""A directory of Hugging Face transformers: its descriptions and its weights.

`config.json` describes the model, `generation_config.json` how it is used, `tokenizer_config.json`
its words.  Weights are in `model.safetensors` or `pytorch_model.bin`, whole or in shards that an
index lists.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from onmt_lite.checkpoints import archive, others, safetensors
from onmt_lite.checkpoints.description import Description, described, read_json
from onmt_lite.checkpoints.record import Checkpoint, Languages
from onmt_lite.checkpoints.weights import Weights
from onmt_lite.errors import CheckpointError
from onmt_lite.models.transformer import Transformer
from onmt_lite.search.model_defaults import SEARCH
from onmt_lite.text.tokenizers import SpaceTokenizer, Tokenizer
from onmt_lite.text.vocab import Vocab

LanguageCheck = Callable[[Languages | None], object]
CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer_config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
ACTIVATIONS = {  # fairseq's too; of several names, the last one is written
    "relu": "relu",
    "tanh": "tanh",
    **dict.fromkeys(("gelu_python", "gelu"), "gelu"),
    **dict.fromkeys(("silu", "swish"), "silu"),
    **dict.fromkeys(("gelu_fast", "gelu_accurate", "gelu_pytorch_tanh", "gelu_new"), "gelu_tanh"),
    "quick_gelu": "gelu_sigmoid",
}
IDS = (
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "bad_words_ids",
    "suppress_tokens",
)
# What a family's description need not say
USUAL: dict[str, dict[str, Any]] = {
    "m2m_100": dict(
        eos_token_id=2, pad_token_id=1, scale_embedding=True, activation_function="relu"
    ),
    "mbart": dict(
        eos_token_id=2, pad_token_id=1, scale_embedding=False, activation_function="gelu"
    ),
    "t5": dict(eos_token_id=1, pad_token_id=0),
    "mt5": dict(eos_token_id=1, pad_token_id=0),
}


class Directory:
    """What the files say, but for the weights.

    `config` is what config.json says, where generation_config.json says nothing else.
    `check` is given the languages before weights, which may be large, are read.
    """

    def __init__(self, path: Path, check: LanguageCheck):
        """CheckpointError where a file is not what its name says."""
        self.path, self.check = path, check
        own = read_json(path / CONFIG)
        self.family = Description(own, path / CONFIG).text("model_type", "unknown")
        self.model = Description(own, path / CONFIG)
        self.generation = described(path / GENERATION)
        self.tokenizer = described(path / TOKENIZER)
        said = {name: v for name, v in self.generation.values.items() if v is not None}
        usual = USUAL.get(self.family, {})
        for name in (*usual, *SEARCH, *IDS):  # a default would stand in for a name that is misspelt
            self.model.get(name), self.generation.get(name)
        self.config = Description({**usual, **own, **said}, path / CONFIG)

    @property
    def version(self) -> str:
        return self.config.label("transformers_version")

    @property
    def notes(self) -> tuple[str, ...]:
        """What the files ask for, but is given by an option alone."""
        n = self.generation.number("num_return_sequences", 1)
        return (
            (f"num_return_sequences {n} of {GENERATION}: without effect; -n_best {n} gives them",)
            if n > 1
            else ()
        )

    def weights(self) -> Weights:
        return Weights(read_weights(self.path), self.path)

    def check_special_tokens(self, *names: str) -> None:
        """CheckpointError where the two configurations differ in one of these ids."""
        for name in names:
            one, other = (token_id(d, name, -1) for d in (self.model, self.generation))
            if one != other and -1 not in (one, other):
                raise CheckpointError(f"{self.path}: {name} differs between its two configurations")

    def check_sizes(self, **sizes: int) -> None:
        """CheckpointError where the configuration gives another size than the weights have."""
        for name, size in sizes.items():
            self.model.agree(name, size)


def token_id(config: Description, name: str, default: int | None = None) -> int:
    """An id; some files have it as a list of one."""
    value = config.get(name)
    if isinstance(value, list) and len(value) == 1:
        return Description({name: value[0]}, config.path).number(name)
    return config.number(name, default)


def checkpoint(
    directory: Directory,
    model: Transformer,
    vocabs: tuple[Vocab, Vocab],
    cutters: Mapping[str, Tokenizer],
    start: int,
    **others: Any,
) -> Checkpoint:
    """Put together what was read of a directory, used as its configuration says.

    cutters: tokenizers of lines of text; others: fields in which a family differs.  CheckpointError
    where ids of the configuration are not in the vocabulary of the target.
    """
    config, (src, tgt) = directory.config, vocabs
    if not 0 <= start < len(tgt):
        raise CheckpointError(f"{config.path}: decoder_start_token_id is not in the vocabulary")
    eos = token_id(config, "eos_token_id")
    usual = dict(
        never_ids=banned_ids(config, len(tgt)), notes=directory.notes, toolkit="transformers"
    )
    return Checkpoint(
        model,
        src_vocab=src,
        tgt_vocab=tgt,
        tokenizers={**cutters, "space": SpaceTokenizer()},
        start_id=start,
        src_end=(eos,),
        forced_eos=_forces_eos(config, eos),
        version=directory.version,
        **{**usual, **others},
    )


def banned_ids(config: Description, vocab_size: int) -> tuple[int, ...]:
    """What `bad_words_ids` and `suppress_tokens` list.  CheckpointError for more than tokens."""
    words: list[Any] = []
    for name in ("bad_words_ids", "suppress_tokens"):
        listed = config.get(name) or []
        if not isinstance(listed, list):
            raise CheckpointError(f"{config.path}: {name} is not a list")
        words += listed if name == "bad_words_ids" else [[token] for token in listed]
    for word in words:
        single = isinstance(word, list) and len(word) == 1 and type(word[0]) is int
        if not single or not 0 <= word[0] < vocab_size:
            raise CheckpointError(f"{config.path}: bad_words_ids with more than single tokens")
    return tuple(sorted({token for (token,) in words}))


def _forces_eos(config: Description, eos: int) -> bool:
    """Whether the last token of an output that reaches max_length becomes the end token."""
    forced: Any = config.get("forced_eos_token_id")
    if forced not in (None, eos, [eos]):
        raise CheckpointError(f"{config.path}: forces tokens other than the end")
    return forced is not None


def weights_file(path: Path) -> Path:
    """Find the file of the weights or the index of their shards.  CheckpointError for neither."""
    for name in (f"{name}{end}" for name in WEIGHTS for end in ("", ".index.json")):
        if (path / name).is_file():
            return path / name
    other = others.by_name(path)
    only = f", only {other}, which is not read" if other else ""
    raise CheckpointError(f"{path}: the directory has neither {' nor '.join(WEIGHTS)}{only}")


def read_weights(path: Path) -> dict[str, Tensor]:
    """All tensors by name, each once.  CheckpointError where a file is missing or damaged."""
    file = weights_file(path)
    return _read_shards(path, file) if file.suffix == ".json" else _read_part(file)


def _read_shards(path: Path, index: Path) -> dict[str, Tensor]:
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict) or not all(type(name) is str for name in where.values()):
        raise CheckpointError(f"{index}: has no weight_map")
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(where.values())):
        if Path(name).name != name or not (path / name).is_file():
            raise CheckpointError(f"{index}: there is no file {name[:100]!r} beside it")
        tensors |= _read_part(path / name)
    if set(tensors) != set(where):
        raise CheckpointError(f"{index}: its shards do not hold what it lists")
    return tensors


def _read_part(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return safetensors.read(path)
    return archive.tensors(archive.load(path), path)
