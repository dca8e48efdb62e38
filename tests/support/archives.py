"""An independent loader of OpenNMT-py and fairseq checkpoints for tests of the model builders.

Unlike the loader of the package, it trusts the files, because they are part of the project.
"""

import argparse
import pickle
import types
from pathlib import Path
from typing import Any

import torch

CHECKPOINTS = Path(__file__).resolve().parent.parent / "data" / "checkpoints"
ALLOWED = {
    ("collections", "OrderedDict"),
    ("argparse", "Namespace"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_parameter"),
    ("__builtin__", "set"),
}
INERT = ("onmt", "torchtext", "functools", "collections")


class Inert:
    """Stand-in for an object of a missing package; keeps its arguments and state."""

    def __init__(self, *args: Any, **kwargs: Any):
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state if isinstance(state, dict) else {"state": state})


class InertDict(dict):
    """Stand-in for a Counter or a defaultdict."""

    def __init__(self, *args: Any):
        super().__init__()


class Unpickler(pickle.Unpickler):
    """An unpickler that replaces the classes of missing packages."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in ALLOWED or module == "torch":
            return super().find_class(module.replace("__builtin__", "builtins"), name)
        if module.split(".")[0] not in INERT:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return InertDict if module == "collections" else Inert


def read_checkpoint(name: str) -> dict[str, Any]:
    """Load tests/data/checkpoints/`name`."""
    module = types.ModuleType("restricted")
    module.Unpickler, module.load = Unpickler, lambda file, **kw: Unpickler(file, **kw).load()
    path = CHECKPOINTS / name
    return torch.load(path, map_location="cpu", pickle_module=module, weights_only=False)


def read_opennmt(name: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the weights (generator with prefix "generator.") and options of an OpenNMT-py file."""
    content = read_checkpoint(name)
    generator = {f"generator.{key}": weight for key, weight in content["generator"].items()}
    return {**content["model"], **generator}, vars(content["opt"])


def read_opennmt_vocab(name: str, side: str) -> list[str]:
    """Return the tokens by id, from a file of version 1 or 3."""
    vocab = read_checkpoint(name)["vocab"][side]
    return vocab if isinstance(vocab, list) else vocab.fields[0][1].vocab.itos


def read_fairseq(name: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the weights and model options of a fairseq file."""
    content = read_checkpoint(name)
    args = content.get("args") or content["cfg"]["model"]
    assert isinstance(args, argparse.Namespace)
    return content["model"], vars(args)


def pad_batch(sentences: list[list[int]], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad token ids to a batch (B, S); return it and the lengths (B,)."""
    lengths = [len(ids) for ids in sentences]
    padded = [ids + [pad_id] * (max(lengths) - len(ids)) for ids in sentences]
    return torch.tensor(padded), torch.tensor(lengths)
