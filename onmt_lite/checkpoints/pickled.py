"""Reads pickles as data: classes are never looked up and nothing is ever called.

A pickle is a program for a stack machine that may name any function of any module and call it.
This machine knows the instructions by which models are stored, and builds plain values from them.
An object of a class becomes a `Record` with the name of the class.  A name that no model needs is
refused, although nothing would be called: such a file is not a model.
"""

import math
import pickletools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import torch

ALLOWED = re.compile(
    r"""argparse\.Namespace | functools\.partial | _codecs\.encode | copy_?reg\._reconstructor
    | collections\.(OrderedDict|Counter|defaultdict)
    | (builtins|__builtin__)\.(set|frozenset|dict|list|tuple|int|long|float|bool|str|object)
    | torch\.(Size|device|\w+Storage|float\d+|bfloat16|half) | torch\.torch_version\.TorchVersion
    | torch\._utils\._rebuild_(tensor|tensor_v2|parameter) | torch\.optim\.[\w.]+
    | typing\.\w+ | numpy\.(_?core\.multiarray\.(scalar|_reconstruct)|dtype|ndarray)
    | (onmt|torchtext|fairseq|omegaconf)\.[\w.]+""",
    re.VERBOSE,
)

MAX_OPERATIONS = 4_000_000  # a vocabulary of 256,000 tokens, stored three times, takes 3 million
MAX_DEPTH = 1000  # of marks
MAX_DIMS = 16
MAX_SIZE = 1 << 48
DTYPES = {
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
}


@dataclass(frozen=True)
class Name:
    """Name of a function or class in a pickle: `module.attribute`."""

    path: str


@dataclass(eq=False, repr=False)
class Record:
    """An object: the name of its class, the arguments it was made with, its attributes."""

    name: str
    args: tuple = ()
    state: dict[str, Any] = field(default_factory=dict)

    def get(self, attribute: str, default: Any = None) -> Any:
        return self.state.get(attribute, default)


@dataclass(frozen=True)
class Storage:
    """Flat array of numbers outside the pickle, under `key`."""

    dtype: torch.dtype
    key: str
    numel: int


@dataclass(frozen=True)
class StoredTensor:
    """View of a storage: the tensor's offset, size and stride, in numbers."""

    storage: Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


def parse(stream: IO[bytes], storages: dict[str, Storage] | None = None) -> Any:
    """Read the value of the pickle that starts at the stream's position, and stop behind its end.

    storages  is filled with the storages that the pickle refers to

    Raises ValueError for a pickle that is damaged or not of a model.
    """
    machine = _Machine({} if storages is None else storages)
    try:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
            if number > MAX_OPERATIONS:
                raise ValueError("its pickle is longer than any model's")
            operation = getattr(machine, f"op_{opcode.name.lower()}", None)
            if operation is not None:
                operation(argument)
            elif opcode.name in LITERALS:
                machine.stack.append(argument)
            elif opcode.name not in IGNORED:
                raise ValueError(f"its pickle uses {opcode.name}, which no model needs")
        (value,) = machine.stack
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"its pickle is damaged ({type(error).__name__})") from None
    return value


LITERALS = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
LITERALS |= {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
LITERALS |= {"BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES"}
KEYS = (str, int, float, type(None), Name, StoredTensor)
IGNORED = {"PROTO", "FRAME", "STOP"}


class _Machine:
    """Stack machine; the instructions have their names in `pickletools`."""

    def __init__(self, storages: dict[str, Storage]):
        self.storages = storages
        self.stack: list[Any] = []
        self.below_marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def pop_to_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.below_marks.pop()
        return items

    def op_mark(self, _: None) -> None:
        self.below_marks.append(self.stack)
        if len(self.below_marks) > MAX_DEPTH:
            raise ValueError("its pickle is nested deeper than any model's")
        self.stack = []

    def op_none(self, _: None) -> None:
        self.stack.append(None)

    def op_newtrue(self, _: None) -> None:
        self.stack.append(True)

    def op_newfalse(self, _: None) -> None:
        self.stack.append(False)

    # -- containers -----------------------------------------------------------------------------

    def op_empty_dict(self, _: None) -> None:
        self.stack.append({})

    def op_empty_list(self, _: None) -> None:
        self.stack.append([])

    def op_empty_set(self, _: None) -> None:
        self.stack.append(set())

    def op_empty_tuple(self, _: None) -> None:
        self.stack.append(())

    def op_tuple(self, _: None) -> None:
        items = tuple(self.pop_to_mark())
        self.stack.append(items)

    def op_tuple1(self, _: None) -> None:
        self.stack[-1:] = [(self.stack[-1],)]

    def op_tuple2(self, _: None) -> None:
        self.stack[-2:] = [(self.stack[-2], self.stack[-1])]

    def op_tuple3(self, _: None) -> None:
        self.stack[-3:] = [(self.stack[-3], self.stack[-2], self.stack[-1])]

    def op_append(self, _: None) -> None:
        item = self.stack.pop()
        self._top(list).append(item)

    def op_appends(self, _: None) -> None:
        items = self.pop_to_mark()
        self._top(list).extend(items)

    def op_additems(self, _: None) -> None:
        items = self.pop_to_mark()
        self._top(set).update(_table(zip(items, items)))

    def op_setitem(self, _: None) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._top(dict).update(_table([(key, value)]))

    def op_setitems(self, _: None) -> None:
        items = self.pop_to_mark()
        self._top(dict).update(_table(zip(items[::2], items[1::2], strict=True)))

    def _top(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise TypeError(f"not a {kind.__name__}")
        return self.stack[-1]

    # -- what is used more than once ---------------------------------------------------------------

    def op_binput(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    op_long_binput = op_binput

    def op_memoize(self, _: None) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def op_binget(self, index: int) -> None:
        self.stack.append(self.memo[index])

    op_long_binget = op_binget

    # -- objects ---------------------------------------------------------------------------------

    def op_global(self, argument: str) -> None:
        self.stack.append(_allowed(argument.replace(" ", ".")))

    def op_stack_global(self, _: None) -> None:
        attribute, module = self.stack.pop(), self.stack.pop()
        if not type(attribute) is type(module) is str:
            raise TypeError("a name is no text")
        self.stack.append(_allowed(f"{module}.{attribute}"))

    def op_binpersid(self, _: None) -> None:
        kind, storage_type, key, _, numel, *view = self.stack.pop()
        dtype = DTYPES[storage_type.path.removeprefix("torch.").removesuffix("Storage")]
        if kind != "storage" or type(key) is not str or not is_size(numel) or any(view):
            raise ValueError("a storage has a description that is not understood")
        storage = Storage(dtype, key, numel)
        if self.storages.setdefault(key, storage) != storage:
            raise ValueError(f"storage {key[:20]} has two descriptions")
        self.stack.append(storage)

    def op_reduce(self, _: None) -> None:
        args, function = self.stack.pop(), self.stack.pop()
        self.stack.append(_made_by(function.path, args))

    op_newobj = op_reduce

    def op_build(self, _: None) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, Record):  # a tuple has attributes, and those of __slots__
            for part in state if isinstance(state, tuple) else (state,):
                target.state.update(_table(part.items()) if isinstance(part, dict) else {})
        elif type(target) is not dict:  # the state of an OrderedDict is not needed
            raise TypeError("a plain value has no attributes")


def _allowed(path: str) -> Name:
    if not ALLOWED.fullmatch(path):
        raise ValueError(f"it names {path[:80]!r}, which no model needs; nothing was run")
    return Name(path)


def _made_by(name: str, args: tuple) -> Any:
    """The value that a call of `name` would return."""
    kind = name.rpartition(".")[2]
    if name.startswith("torch._utils._rebuild_tensor"):
        return _tensor(*args[:4])
    if name == "torch._utils._rebuild_parameter":
        return args[0]
    if kind in ("OrderedDict", "Counter", "dict"):
        return _table(*(pairs.items() if isinstance(pairs, dict) else pairs for pairs in args))
    if kind == "defaultdict":
        return {}
    if kind in ("set", "frozenset"):
        return set(_table(*(zip(items, items) for items in args)))
    if kind == "_reconstructor":
        return Record(args[0].path)
    return Record(name, args)


def _table(pairs: Iterable[tuple[Any, Any]] = ()) -> dict[Any, Any]:
    """Make a dict of simple keys: hashing a deeply nested key could exhaust the stack."""
    table = {}
    for key, value in pairs:
        if not isinstance(key, KEYS):
            raise TypeError("a table has a key of a kind that no model uses")
        table[key] = value
    return table


def _tensor(storage: Storage, offset: int, size: tuple, stride: tuple) -> StoredTensor:
    """Check a view.  Raises ValueError unless all elements lie in the storage, none twice."""
    whole = is_size(offset) and len(size) == len(stride) and all(map(is_size, stride))
    if not whole or not is_shape(size) or not isinstance(storage, Storage):
        raise ValueError("a tensor has a description that is not understood")
    last, reached = offset, 1
    for step, n in sorted(zip(stride, size)):
        if n > 1:
            if step < reached:
                raise ValueError("a tensor uses numbers twice")
            last, reached = last + step * (n - 1), step * n
    if 0 not in size and last >= storage.numel:
        raise ValueError("a tensor reaches beyond its numbers")
    return StoredTensor(storage, offset, tuple(size), tuple(stride))


def is_shape(sizes: Sequence[Any]) -> bool:
    """Whether a tensor can have these sizes.

    PyTorch multiplies those beside a 0 too, and fails where they are too large.
    """
    if len(sizes) > MAX_DIMS or not all(map(is_size, sizes)):
        return False
    return math.prod(max(1, n) for n in sizes) < MAX_SIZE


def is_size(n: Any) -> bool:
    return type(n) is int and 0 <= n < MAX_SIZE
