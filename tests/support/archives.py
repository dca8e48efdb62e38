"""Checkpoints of other systems, read for the tests of what is built from them.

The readers proper have their own way of reading a file they must not trust; these files are
part of the project.
"""

import argparse
import pickle
import types
from pathlib import Path
from typing import Any

import torch

CHECKPOINTS = Path(__file__).resolve().parent.parent / "data" / "checkpoints"
KNOWN = {
    ("collections", "OrderedDict"),
    ("argparse", "Namespace"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_parameter"),
    ("__builtin__", "set"),
}
FOREIGN = ("onmt", "torchtext", "functools", "collections")


class Inert:
    """Stands for an object of a package that is not there: keeps what it was given."""

    def __init__(self, *args: Any, **kwargs: Any):
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state if isinstance(state, dict) else {"state": state})


class InertDict(dict):
    """Stands for a Counter or a defaultdict."""

    def __init__(self, *args: Any):
        super().__init__()


class Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in KNOWN or module == "torch":
            return super().find_class(module.replace("__builtin__", "builtins"), name)
        if module.split(".")[0] not in FOREIGN:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return InertDict if module == "collections" else Inert


def read_checkpoint(name: str) -> dict[str, Any]:
    """Content of tests/data/checkpoints/`name`."""
    module = types.ModuleType("restricted")
    module.Unpickler, module.load = Unpickler, lambda file, **kw: Unpickler(file, **kw).load()
    path = CHECKPOINTS / name
    return torch.load(path, map_location="cpu", pickle_module=module, weights_only=False)


def read_opennmt(name: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Weights, the generator's under "generator.", and options of an OpenNMT-py file."""
    content = read_checkpoint(name)
    generator = {f"generator.{key}": weight for key, weight in content["generator"].items()}
    return {**content["model"], **generator}, vars(content["opt"])


def read_opennmt_vocab(name: str, side: str) -> list[str]:
    """Tokens in the order of their ids, of a file of version 1 or 3."""
    vocab = read_checkpoint(name)["vocab"][side]
    return vocab if isinstance(vocab, list) else vocab.fields[0][1].vocab.itos


def read_fairseq(name: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Weights and model options of a fairseq file."""
    content = read_checkpoint(name)
    args = content.get("args") or content["cfg"]["model"]
    assert isinstance(args, argparse.Namespace)
    return content["model"], vars(args)


def pad_batch(sentences: list[list[int]], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sentences as a batch (B, S), and their lengths (B,)."""
    lengths = [len(ids) for ids in sentences]
    rows = [ids + [pad_id] * (max(lengths) - len(ids)) for ids in sentences]
    return torch.tensor(rows), torch.tensor(lengths)
