"""Record kernel calls, so that `replay_kernels.c` can repeat them on another processor."""

import ctypes
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any, BinaryIO

import pytest
import torch
from torch import Tensor

from onmt_lite.models.kernels import bindings

BUFFER, POINTER, CALL, OUTPUT = range(4)  # steps of a recording, see `replay_kernels.c`
ARGUMENTS = 0  # the buffer for the arguments of a call
STRUCTURES = {  # by kernel and position of the argument
    "normalize": {3: bindings.Norm},
    "compute_layer": {0: bindings.Layer},
    "head": {3: bindings.Weights, 4: bindings.Norm, 7: bindings.Beams},
    "attend_self": {0: bindings.Attention},
    "attend_memory": {0: bindings.Attention},
    "attend_cached": {0: bindings.Attention},
}
LAYER_FIELDS = {"up": bindings.Weights, "down": bindings.Weights, "norm": bindings.Norm}
FIELDS = {bindings.Layer: LAYER_FIELDS}  # structures that a structure points to


class Recorder:
    """A replacement of the kernel library that records each call, then makes it.

    The content of a tensor is stored at the first call with it.  Later calls continue with the
    memory that the kernels left, here and in the replay.

    Attributes:
        calls: number of calls by kernel.
    """

    def __init__(self, file: BinaryIO):
        """Record to a binary file."""
        self.library, self.file, self.calls = bindings.get_library(), file, Counter[str]()
        self.tensors: dict[int, Tensor] = {}  # by address; this also keeps their memory alive
        self.buffers: dict[int, int] = {}  # numbers of buffers, by address
        self.contents: dict[str, Tensor] = {}  # memory of tensors, by the first call with each

    def activate(self, patch: pytest.MonkeyPatch) -> None:
        """Record the calls of the bindings until the patch is undone."""
        get_address = Tensor.data_ptr

        def data_ptr(x: Tensor) -> int:
            self.tensors[get_address(x)] = x.detach()
            return get_address(x)

        patch.setattr(Tensor, "data_ptr", data_ptr)
        patch.setattr(bindings, "get_library", lambda: self)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self.library, name)
        if name not in bindings.SIGNATURES:
            return function

        def call(*arguments: int | None) -> None:
            self.record(name, arguments)
            function(*arguments)

        return call

    def record(self, name: str, arguments: tuple[int | None, ...]) -> None:
        """Write a call of a kernel, and the memory behind its arguments."""
        self.calls[name] += 1
        case = f"{name} {self.calls[name]}"
        pointers = {}
        for i, (kind, value) in enumerate(zip(bindings.SIGNATURES[name], arguments, strict=True)):
            if kind is ctypes.c_void_p and value:
                structure = STRUCTURES.get(name, {}).get(i)
                write = self.write_structure if structure else self.write_tensor
                pointers[8 * i] = write(value, f"{case}, argument {i}", structure)
        content = struct.pack(f"<{len(arguments)}q", *(value or 0 for value in arguments))
        self.write_buffer(ARGUMENTS, content, pointers)
        self.write(CALL, list(bindings.SIGNATURES).index(name))

    def write_structure(self, address: int, case: str, kind: Any) -> tuple[int, int]:
        """Write a structure, and the structures and tensors that it points to.

        Args:
            address: address of the structure
            case: the call, for messages
            kind: the class of the structure

        Returns:
            Its buffer, and 0.
        """
        structure, pointers = kind.from_address(address), {}
        for name, field_type in kind._fields_:
            value = getattr(structure, name)
            if field_type is ctypes.c_void_p and value:
                at = getattr(kind, name).offset
                inner = FIELDS.get(kind, {}).get(name)
                write = self.write_structure if inner else self.write_tensor
                pointers[at] = write(value, f"{case}, {name}", inner)
        buffer = self.buffers.setdefault(address, len(self.buffers) + 1)
        self.write_buffer(buffer, bytes(structure), pointers)
        return buffer, 0

    def write_tensor(self, address: int, case: str, _: object = None) -> tuple[int, int]:
        """Write the memory of a tensor, unless an earlier call did.

        Args:
            address: address of the first number
            case: the call, for messages

        Returns:
            The buffer, and the offset of the first number in it in bytes.
        """
        tensor = self.tensors[address]
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
        if start not in self.buffers:
            self.buffers[start] = len(self.buffers) + 1
            self.write_buffer(self.buffers[start], ctypes.string_at(start, storage.nbytes()), {})
            if tensor.dtype != torch.uint8:  # the layout of packed weights depends on the set
                self.contents[case] = torch.empty(0, dtype=tensor.dtype).set_(storage)
        return self.buffers[start], address - start

    def write_buffer(
        self, buffer: int, content: bytes, pointers: dict[int, tuple[int, int]]
    ) -> None:
        """Write the content of a buffer, with pointers to other buffers.

        Args:
            buffer: its number
            content: its bytes
            pointers: (buffer, offset) by position in the content, in bytes
        """
        self.write(BUFFER, buffer, len(content))
        self.file.write(content)
        for at, target in pointers.items():
            self.write(POINTER, buffer, at, *target)

    def write(self, *numbers: int) -> None:
        """Write a step of the recording."""
        self.file.write(struct.pack("<5q", *numbers, *[0] * (5 - len(numbers))))

    def finish(self) -> None:
        """Write that the replay outputs the contents of all tensors, in order."""
        for memory in self.contents.values():
            self.write(OUTPUT, self.buffers[memory.data_ptr()])

    def find_differences(self, output: bytes) -> list[str]:
        """Return the calls whose tensors have other bits in the output of a replay.

        All NaN count as equal.
        """
        differences, left = [], memoryview(output)
        for case, memory in self.contents.items():
            size = memory.untyped_storage().nbytes()
            replayed = torch.frombuffer(bytearray(left[:size]), dtype=memory.dtype)
            left = left[size:]
            if not torch.equal(get_bits(replayed), get_bits(memory)):
                differences.append(case)
        return differences


def get_bits(x: Tensor) -> Tensor:
    """Return the bits of x (N,), with one value for NaN."""
    return torch.where(x.isnan(), torch.nan, x).view(torch.int32) if x.is_floating_point() else x
