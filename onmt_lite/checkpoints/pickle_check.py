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
MAX_OPERATIONS = 4_000_000  # a vocabulary of 256,000 tokens, stored three times, takes 3 million
COPIED = 16  # values, or characters, that are copied in the time of an operation
MAX_TUPLE = 1000  # values in a tuple and in the tuples inside it
SCALARS = {"NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
SCALARS |= {"BINUNICODE", "SHORT_BINSTRING"}
DAMAGED = "its pickle is damaged"


# -- values of other packages ---------------------------------------------------------------------


class InertObject:
    """An object of another package: the arguments it was made with, and its attributes."""

    name = ""  # of its class
    args: tuple
    state: dict[str, Any]

    def __new__(cls, *args: Any) -> "InertObject":
        record = super().__new__(cls)
        record.args, record.state = args, {}
        return record

    def __setstate__(self, state: Any) -> None:
        for part in state if isinstance(state, tuple) else (state,):  # __dict__ and __slots__
            self.state.update(part if isinstance(part, dict) else {})

    def get(self, attribute: str, default: Any = None) -> Any:
        return self.state.get(attribute, default)


def make_inert_classes(
    names: set[str],
) -> list[Callable[..., Any] | tuple[Callable[..., Any], str]]:
    """Return what torch is to use for each inert name."""
    found: dict[str, Callable[..., Any]] = {
        name: type("InertObject", (InertObject,), {"name": name}) for name in names
    }
    if "collections.defaultdict" in found:  # torch would not set its items
        found["collections.defaultdict"] = lambda *_: {}
    return [(stand_in, name) for name, stand_in in found.items()]


# -- the check ------------------------------------------------------------------------------------


class Name(str):
    """A class or function on the stack."""


class Made(str):
    """An object on the stack, by the name of the class or function that makes it."""


class Tuple(tuple):
    """A tuple on the stack, and how many values it and the tuples inside it hold."""

    n_values: int


class Keys(list):
    """A dict on the stack, by its keys."""


def check_pickle(stream: IO[bytes], n_bytes: int) -> set[str]:
    """Check the pickle at the stream's position, up to its end.

    Args:
        stream: a binary file.
        n_bytes: size of the file, which no storage can exceed.

    Returns:
        The inert names in the pickle.

    Raises:
        ValueError: if the pickle is damaged or does more than a model's.
    """
    checker = _Checker(n_bytes)
    for opcode, argument, _ in pickletools.genops(stream):
        checker.step(opcode, argument)
    if len(checker.stack) != 1:
        raise ValueError(DAMAGED)
    return checker.inert


class _Checker:
    """The stack of the pickle machine, with names, keys and sizes in place of objects."""

    def __init__(self, n_bytes: int):
        self.n_bytes, self.n_left = n_bytes, MAX_OPERATIONS
        self.inert: set[str] = set()
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def step(self, opcode: pickletools.OpcodeInfo, argument: Any) -> None:
        name = opcode.name
        self.spend(1)
        if name in SCALARS:
            self.stack.append(argument)
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[argument])
        elif name == "MARK":
            self.marks.append(len(self.stack))
        elif name == "GLOBAL":
            self.stack.append(self.allowed(argument.replace(" ", ".")))
        elif name in RESULTS:
            marked = pickletools.markobject in opcode.stack_before
            n = len(opcode.stack_before)
            start = self.marks.pop() - n + 2 if marked else len(self.stack) - n
            if start < 0:
                raise ValueError(DAMAGED)
            items = self.stack[start:]
            self.stack[start:] = [RESULTS[name](self, *items)]
        elif name != "STOP" and (name, argument) != ("PROTO", 2):
            what = f"protocol {argument}" if name == "PROTO" else name
            raise ValueError(f"its pickle uses {what}, which torch.save does not write")

    def spend(self, n: int) -> None:
        self.n_left -= n
        if self.n_left < 0:
            raise ValueError("its pickle is longer than any model's, or copies more values")

    def allowed(self, path: str) -> Name:
        for old, new in PYTHON_2.items():
            path = path.replace(old, new, 1) if path.startswith(old) else path
        if INERT.fullmatch(path):
            self.inert.add(path)
        elif not NATIVE.fullmatch(path):
            raise ValueError(f"it names {path[:80]!r}, which no model needs; nothing was run")
        return Name(path)

    def tuple(self, *items: Any) -> Tuple:
        """Nested deeply or shared often, one as a key would not be hashed."""
        found = Tuple(items)
        found.n_values = sum(i.n_values + 1 if isinstance(i, Tuple) else 1 for i in items)
        if found.n_values > MAX_TUPLE:
            raise ValueError("its pickle has a larger tuple than any model's")
        return found

    def extend(self, target: Any, *items: Any) -> Any:
        if isinstance(target, list):
            target.extend(items[::2] if isinstance(target, Keys) else items)
        return target

    def storage(self, description: Any) -> Made:
        if not isinstance(description, Tuple):
            raise ValueError("a storage has a description that is not understood")
        self.spend(len(description))
        if any(isinstance(n, int) and n > self.n_bytes for n in description):
            raise ValueError("a storage is larger than the file")
        return Made("storage")

    def call(self, function: Any, args: Any) -> Made:
        """Torch prints what is no function.  A tensor, which need not hold all its numbers, must
        not become a set."""
        if not isinstance(function, Name) or not isinstance(args, Tuple):
            raise ValueError(f"{DAMAGED}: it calls what is no function")
        self.spend(len(args))
        if not function.startswith("torch._utils.") and not INERT.fullmatch(function):
            if any(isinstance(arg, Made) for arg in args):
                raise ValueError(f"its pickle makes a {function} of another object")
            if function == "_codecs.encode" and args[1:] != ("latin1",):
                raise ValueError("its pickle has bytes in a form that no model needs")
            n_copied = sum(len(arg) for arg in args if isinstance(arg, (list, tuple, str)))
            self.spend(n_copied // COPIED)
        return Made(function)

    def n_most(self, value: Any) -> int:
        """How many attributes a value sets at most: what a call has made is not known."""
        if isinstance(value, Made):
            return MAX_OPERATIONS - self.n_left
        return len(value) if isinstance(value, Keys) else 1

    def build(self, target: Any, state: Any) -> Any:
        """Of a dict's attributes, only the one that torch gives the weights of a model is read."""
        parts = state if isinstance(state, Tuple) else (state,)
        self.spend(sum(map(self.n_most, parts)) // COPIED)
        if not isinstance(target, Made) or not INERT.fullmatch(target):
            known = isinstance(state, Keys) and all(key == "_metadata" for key in state)
            if target != "collections.OrderedDict" or not known:
                raise ValueError("its pickle sets attributes of a value that has none")
        return target


# What an instruction leaves on the stack, of what it takes from it
RESULTS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"), _Checker.tuple),
    **dict.fromkeys(("APPEND", "APPENDS", "SETITEM", "SETITEMS"), _Checker.extend),
    **dict.fromkeys(("REDUCE", "NEWOBJ"), _Checker.call),
    "EMPTY_LIST": lambda _: [],
    "EMPTY_DICT": lambda _: Keys(),
    "BINPERSID": _Checker.storage,
    "BUILD": _Checker.build,
}
