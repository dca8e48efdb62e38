"""Checks a pickle before torch loads it with `weights_only=True`.

torch's loader calls a few constructors of its own, and the inert classes that it is given for the
names of other packages.  Beyond that it trusts the file: it hashes and prints values that a few
bytes can nest without end, and lets the attributes of a dict hide its methods.  `check` refuses
this and every name that no model needs.  It follows the stack of the pickle machine, whose
instructions are described in `pickletools`, and builds nothing.
"""

import pickletools
import re
from collections.abc import Callable
from typing import IO, Any

# Names that torch's loader knows
NATIVE = re.compile(
    r"""collections\.(OrderedDict|Counter) | builtins\.set | _codecs\.encode
    | torch\.(Double|Float|Half|BFloat16|Long|Int|Short|Char|Byte|Bool)Storage
    | torch\.(Size|device|float\d+|bfloat16) | torch\._utils\._rebuild_(tensor|tensor_v2|parameter)
    """,
    re.VERBOSE,
)
# Names for which torch gets an inert class
INERT = re.compile(
    r"""argparse\.Namespace | functools\.partial | copyreg\._reconstructor
    | builtins\.(frozenset|dict|list|tuple|int|float|bool|str|object) | collections\.defaultdict
    | typing\.\w+ | numpy\.(_?core\.multiarray\.(scalar|_reconstruct)|dtype|ndarray)
    | torch\.torch_version\.TorchVersion | torch\.optim\.[\w.]+
    | (onmt|torchtext|fairseq|omegaconf)\.[\w.]+""",
    re.VERBOSE,
)
PYTHON_2 = {
    "__builtin__.long": "builtins.int",
    "__builtin__.": "builtins.",
    "copy_reg.": "copyreg.",
}
DEFAULTDICT = "collections.defaultdict"
MAX_OPERATIONS = 4_000_000  # a vocabulary of 256,000 tokens, stored three times, takes 3 million
MAX_TUPLE = 1000  # values in a tuple and in the tuples inside it
MAX_COPIED = 64 << 20  # values, or characters of text, from which calls make others
SCALARS = {"NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
SCALARS |= {"BINUNICODE", "SHORT_BINSTRING"}
TUPLES = {"EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}


# -- values of other packages ---------------------------------------------------------------------


class Record:
    """An object of another package: the arguments it was made with, and its attributes."""

    name = ""  # of its class
    args: tuple
    state: dict[str, Any]

    def __new__(cls, *args: Any) -> "Record":
        record = super().__new__(cls)
        record.args, record.state = args, {}
        return record

    def __setstate__(self, state: Any) -> None:
        for part in state if isinstance(state, tuple) else (state,):  # __dict__ and __slots__
            self.state.update(part if isinstance(part, dict) else {})

    def get(self, attribute: str, default: Any = None) -> Any:
        return self.state.get(attribute, default)


def _make_dict(*_: Any) -> dict:
    """Stands for defaultdict, whose items torch would not set."""
    return {}


def stand_ins(names: set[str]) -> list[Callable[..., Any] | tuple[Callable[..., Any], str]]:
    """What torch is to use for each inert name."""
    classes = {name: type("Record", (Record,), {"name": name}) for name in names}
    return [(_make_dict if n == DEFAULTDICT else kind, n) for n, kind in classes.items()]


# -- the check ------------------------------------------------------------------------------------


class Name(str):
    """Name of a class or function on the stack."""


class Made(str):
    """An object on the stack, by the name of what makes it."""


class Tuple(tuple):
    """A tuple on the stack, and how many values it and the tuples inside it hold."""

    n_values: int


class Keys(list):
    """A dict on the stack, by its keys."""


def check(stream: IO[bytes], n_bytes: int) -> set[str]:
    """Find the inert names in the pickle at the stream's position; stop behind its end.

    n_bytes  size of the file, which no storage can exceed

    Raises ValueError for a pickle that is damaged or not of a model.
    """
    machine = _Machine(n_bytes)
    for number, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        if number > MAX_OPERATIONS:
            raise ValueError("its pickle is longer than any model's")
        machine.step(opcode, argument)
    if len(machine.stack) != 1:
        raise ValueError("its pickle is damaged")
    return machine.inert


class _Machine:
    def __init__(self, n_bytes: int):
        self.n_bytes = n_bytes
        self.inert: set[str] = set()
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.n_copied = 0

    def step(self, opcode: pickletools.OpcodeInfo, argument: Any) -> None:
        name = opcode.name
        if name in SCALARS:
            self.stack.append(argument)
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[argument])
        elif name == "MARK":
            self.marks.append(len(self.stack))
        elif name == "PROTO" and argument != 2:
            raise ValueError(f"a pickle of protocol {argument}, of which torch.save writes 2")
        elif name not in ("PROTO", "STOP"):
            items = self.pop(opcode.stack_before)
            self.stack.append(self.result(name, argument, items))

    def pop(self, kinds: list[pickletools.StackObject]) -> list[Any]:
        """Take the operands from the stack: so many, and all that is above the last mark."""
        marked = pickletools.markobject in kinds
        start = self.marks.pop() - len(kinds) + 2 if marked else len(self.stack) - len(kinds)
        if start < 0:
            raise ValueError("its pickle is damaged")
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def result(self, name: str, argument: Any, items: list[Any]) -> Any:
        """Check an instruction; return the value that it leaves on the stack."""
        if name == "GLOBAL":
            return self.allowed(argument.replace(" ", "."))
        if name in TUPLES:  # nested deeply, one as a key would exhaust the stack when it is hashed
            found = Tuple(items)
            found.n_values = sum(i.n_values + 1 if isinstance(i, Tuple) else 1 for i in items)
            if found.n_values > MAX_TUPLE:
                raise ValueError("its pickle has a larger tuple than any model's")
            return found
        if name in ("REDUCE", "NEWOBJ"):
            return self.call(*items)
        if name == "BINPERSID":
            return self.storage(*items)
        if name in ("EMPTY_LIST", "EMPTY_SET", "EMPTY_DICT"):
            return Keys() if name == "EMPTY_DICT" else []
        if name in ("SETITEM", "SETITEMS"):
            if isinstance(items[0], Keys):
                items[0].extend(items[1::2])
        elif name in ("APPEND", "APPENDS"):
            if isinstance(items[0], list):
                items[0].extend(items[1:])
        elif name == "BUILD":
            _check_attributes(*items)
        else:
            raise ValueError(f"its pickle uses {name}, which torch.save does not write")
        return items[0]

    def allowed(self, path: str) -> Name:
        for old, new in PYTHON_2.items():
            path = path.replace(old, new, 1) if path.startswith(old) else path
        if INERT.fullmatch(path):
            self.inert.add(path)
        elif not NATIVE.fullmatch(path):
            raise ValueError(f"it names {path[:80]!r}, which no model needs; nothing was run")
        return Name(path)

    def storage(self, description: Any) -> Made:
        if not isinstance(description, Tuple):
            raise ValueError("a storage has a description that is not understood")
        if any(isinstance(n, int) and n > self.n_bytes for n in description):
            raise ValueError("a storage is larger than the file")
        return Made("storage")

    def call(self, function: Any, args: Any) -> Made:
        """Check a call.  A tensor, which need not hold all its numbers, must not become a set."""
        if not isinstance(function, Name) or not isinstance(args, Tuple):
            raise ValueError("its pickle is damaged: it calls what is no function")
        if function.startswith("torch._utils.") or INERT.fullmatch(function):
            return Made(function)
        if any(isinstance(arg, Made) for arg in args):
            raise ValueError(f"its pickle makes a {function} of another object")
        if function == "_codecs.encode" and args[1:] != ("latin1",):
            raise ValueError("its pickle has bytes in a form that no model needs")
        self.n_copied += sum(len(arg) for arg in args if isinstance(arg, (list, tuple, str)))
        if self.n_copied > MAX_COPIED:
            raise ValueError("its pickle copies more values than any model's")
        return Made(function)


def _check_attributes(target: Any, state: Any) -> None:
    """Of a dict's attributes, only the one that PyTorch gives the weights of a model is read."""
    if isinstance(target, Made) and INERT.fullmatch(target):
        return
    known = isinstance(state, Keys) and all(key == "_metadata" for key in state)
    if target != "collections.OrderedDict" or not known:
        raise ValueError("its pickle sets attributes of a value that has none")
