"""The variables in the file of a CTranslate2 model, model.bin.

Little-endian: u32 version, text specification, u32 revision, u32 n, then n variables (text name,
u8 rank, u32 dimensions, u8 type, u32 bytes, the bytes), u32 n, then n aliases (text name, text of
which variable).  A text is u16 length, its bytes and a NUL, which the length counts.
"""

import math
import struct
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from onmt_lite.checkpoints import others
from onmt_lite.checkpoints.weights import MAX_TENSORS, is_shape, tensor_of
from onmt_lite.errors import CheckpointError

VERSIONS, SPECIFICATION, REVISION = (5, 6), "TransformerSpec", 7
TYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)


def read_variables(path: Path) -> tuple[int, dict[str, Tensor]]:
    """The binary version, and all variables as float32 or, where these are no weights, as stored.

    Aliases are the variables that they name.  CheckpointError for another kind of model, and for
    a file that is not what its own sizes say.
    """
    with open(path, "rb") as stream:
        try:
            return _Fields(stream, path.stat().st_size).model()
        except ValueError as error:
            raise CheckpointError(f"{path}: {error}") from None


class _Fields:
    """A file's fields, one after the other.  ValueError where the file does not hold them."""

    def __init__(self, stream: BinaryIO, n_bytes: int):
        self.stream, self.left = stream, n_bytes

    def model(self) -> tuple[int, dict[str, Tensor]]:
        version = self.number("I")
        if version == 1:
            raise ValueError(f"{others.MARIAN}; give the .npz file")
        if version not in VERSIONS:
            raise ValueError(
                f"a model.bin of version {version}; CTranslate2's versions "
                f"{' and '.join(map(str, VERSIONS))} are read, so convert the model again"
            )
        specification, revision = self.text(), self.number("I")
        if (specification, revision > REVISION) != (SPECIFICATION, False):
            raise ValueError(
                f"a CTranslate2 model of {specification[:50]!r}, revision {revision}; of these, "
                f"translators are read: {SPECIFICATION} up to revision {REVISION}"
            )
        variables: dict[str, Tensor] = {}
        for _ in range(self.count("variables")):
            name = self.text()
            if name in variables:
                raise ValueError(f"it has {name[:80]!r} twice")
            variables[name] = self.variable(name)
        variables = _without_scales(variables)
        aliases = {self.text(): self.text() for _ in range(self.count("aliases"))}
        if self.left:
            raise ValueError("longer than its fields")
        for name, other in aliases.items():
            if other not in variables or name in variables:
                raise ValueError(f"{name[:80]!r} cannot be another name of {other[:80]!r}")
        return version, variables | {name: variables[other] for name, other in aliases.items()}

    def variable(self, name: str) -> Tensor:
        shape = [self.number("I") for _ in range(self.number("B"))]
        kind, n_bytes = self.number("B"), self.number("I")
        if not is_shape(shape) or kind >= len(TYPES):
            raise ValueError(f"{name[:80]!r} has the shape {str(shape)[:80]} and type {kind}")
        if math.prod(shape) * TYPES[kind].itemsize != n_bytes:
            raise ValueError(f"{name[:80]!r} does not have the size it claims")
        return tensor_of(self.bytes(n_bytes), TYPES[kind], shape)

    def count(self, what: str) -> int:
        n = self.number("I")
        if n > MAX_TENSORS:
            raise ValueError(f"{n:,} {what}, more than any model has")
        return n

    def text(self) -> str:
        data = self.bytes(self.number("H"))
        if data[-1:] != b"\0":
            raise ValueError("a name without its end")
        return data[:-1].decode("utf-8", "backslashreplace")

    def number(self, form: str) -> int:
        return struct.unpack(f"<{form}", self.bytes(struct.calcsize(f"<{form}")))[0]

    def bytes(self, n: int) -> bytearray:
        """Nothing is allocated for a mere claim."""
        self.left -= n
        data = bytearray(max(0, n if self.left >= 0 else 0))
        if self.left < 0 or self.stream.readinto(data) != n:  # type: ignore[attr-defined]
            raise ValueError("cut off")
        return data


def _without_scales(variables: dict[str, Tensor]) -> dict[str, Tensor]:
    """The numbers that 8 and 16 bits stand for: each row divided by its scale, or all by one.

    Done before aliases are looked at: those share the weight and its scale.
    """
    found = {}
    for name, stored in variables.items():
        scale = variables.get(f"{name}_scale")
        if name.endswith("_scale") and name.removesuffix("_scale") in variables:
            continue
        if scale is not None:
            rows = scale.view(-1, *[1] * (stored.dim() - 1)) if scale.dim() else scale
            if scale.shape not in ((), stored.shape[:1]):
                raise ValueError(f"{name[:80]!r} has {list(scale.shape)} scales")
            if not (scale > 0).all():
                raise ValueError(f"{name[:80]!r} has a scale that is not above 0")
            stored = stored.float() / rows
        found[name] = stored.float() if stored.dim() and stored.is_floating_point() else stored
    return found
