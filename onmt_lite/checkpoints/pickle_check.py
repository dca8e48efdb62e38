"""Checks a pickle before torch loads it with `weights_only=True`.

torch's loader only calls a few safe constructors and the inert classes that replace the classes of
other packages. In all other respects it trusts the file: it hashes and prints values that a few
bytes can nest arbitrarily deep, and attributes set on a dict can shadow its methods. `check_pickle`
rejects such files, and every class or function that no model needs. It simulates the stack of the
pickle machine (see `pickletools` for the opcodes) without creating any object.
"""

import pickletools
import re
from collections.abc import Callable
from typing import IO, Any

# Globals that torch's loader resolves itself
TORCH_GLOBALS = re.compile(
    r"""collections\.(OrderedDict|Counter) | builtins\.set | _codecs\.encode
    | torch\.(Double|Float|Half|BFloat16|Long|Int|Short|Char|Byte|Bool)Storage
    | torch\.(Size|device|float\d+|bfloat16) | torch\._utils\._rebuild_(tensor|tensor_v2|parameter)
    """,
    re.VERBOSE,
)
# Globals that are replaced by an inert class
INERT_GLOBALS = re.compile(
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
COPIES_PER_OPERATION = 16  # values or characters copied in the time of one operation
MAX_TUPLE = 1000  # values in a tuple, including nested tuples
SCALARS = {"NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
SCALARS |= {"BINUNICODE", "SHORT_BINSTRING"}
DAMAGED = "its pickle is damaged"


# -- objects of other packages ---------------------------------------------------------------------


class InertObject:
    """Stand-in for an object of another package.

    Attributes:
        name: qualified name of the original class.
        args: arguments of its constructor.
        state: its attributes.
    """

    name = ""
    args: tuple
    state: dict[str, Any]

    def __new__(cls, *args: Any) -> "InertObject":
        inert = super().__new__(cls)
        inert.args, inert.state = args, {}
        return inert

    def __setstate__(self, state: Any) -> None:
        for attributes in state if isinstance(state, tuple) else (state,):  # __dict__, __slots__
            self.state.update(attributes if isinstance(attributes, dict) else {})

    def get(self, attribute: str, default: Any = None) -> Any:
        """Return an attribute of the original object."""
        return self.state.get(attribute, default)


def make_inert_classes(
    names: set[str],
) -> list[Callable[..., Any] | tuple[Callable[..., Any], str]]:
    """Make an inert class for each name, in the format of `torch.serialization.safe_globals`."""
    classes: dict[str, Callable[..., Any]] = {
        name: type("InertObject", (InertObject,), {"name": name}) for name in names
    }
    if "collections.defaultdict" in classes:  # torch would not set its items
        classes["collections.defaultdict"] = lambda *_: {}
    return [(inert_class, name) for name, inert_class in classes.items()]


# -- simulation of the pickle machine --------------------------------------------------------------


class Global(str):
    """A class or function on the stack, by its qualified name."""


class Instance(str):
    """An object on the stack, by the name of the class or function that creates it."""


class Tuple(tuple):
    """A tuple on the stack.

    Attributes:
        n_values: number of values in it, including nested tuples.
    """

    n_values: int


class Keys(list):
    """A dict on the stack, as the list of its keys."""


def check_pickle(stream: IO[bytes], n_bytes: int) -> set[str]:
    """Check one pickle, from the stream's position to its STOP opcode.

    Args:
        stream: a binary file.
        n_bytes: size of the file, the upper bound of every storage.

    Returns:
        Qualified names of the globals that need an inert class.

    Raises:
        ValueError: if the pickle is damaged or does anything that no model needs.
    """
    simulator = _Simulator(n_bytes)
    for opcode, argument, _ in pickletools.genops(stream):
        simulator.step(opcode, argument)
    if len(simulator.stack) != 1:
        raise ValueError(DAMAGED)
    return simulator.inert_names


class _Simulator:
    """The stack of the pickle machine, with names, keys and sizes in place of objects."""

    def __init__(self, n_bytes: int):
        self.n_bytes, self.n_left = n_bytes, MAX_OPERATIONS
        self.inert_names: set[str] = set()
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def step(self, opcode: pickletools.OpcodeInfo, argument: Any) -> None:
        """Execute one opcode; raise ValueError if torch.save does not write it."""
        name = opcode.name
        self.count_operations(1)
        if name in SCALARS:
            self.stack.append(argument)
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[argument])
        elif name == "MARK":
            self.marks.append(len(self.stack))
        elif name == "GLOBAL":
            self.stack.append(self.resolve_global(argument.replace(" ", ".")))
        elif name in HANDLERS:
            has_mark = pickletools.markobject in opcode.stack_before
            n = len(opcode.stack_before)
            start = self.marks.pop() - n + 2 if has_mark else len(self.stack) - n
            if start < 0:
                raise ValueError(DAMAGED)
            items = self.stack[start:]
            self.stack[start:] = [HANDLERS[name](self, *items)]
        elif name != "STOP" and (name, argument) != ("PROTO", 2):
            feature = f"protocol {argument}" if name == "PROTO" else name
            raise ValueError(f"its pickle uses {feature}, which torch.save does not write")

    def count_operations(self, n: int) -> None:
        """Subtract n operations from the limit of the pickle."""
        self.n_left -= n
        if self.n_left < 0:
            raise ValueError("its pickle is longer or copies more values than any model needs")

    def resolve_global(self, name: str) -> Global:
        """Check that a class or function is allowed, after mapping Python 2 names."""
        for old, new in PYTHON_2.items():
            name = name.replace(old, new, 1) if name.startswith(old) else name
        if INERT_GLOBALS.fullmatch(name):
            self.inert_names.add(name)
        elif not TORCH_GLOBALS.fullmatch(name):
            raise ValueError(
                f"it refers to {name[:80]!r}, which no model needs; no code was executed"
            )
        return Global(name)

    def make_tuple(self, *items: Any) -> Tuple:
        """Create a tuple of limited size, because torch may hash it as a dict key."""
        result = Tuple(items)
        result.n_values = sum(i.n_values + 1 if isinstance(i, Tuple) else 1 for i in items)
        if result.n_values > MAX_TUPLE:
            raise ValueError("its pickle has a larger tuple than any model needs")
        return result

    def extend(self, target: Any, *items: Any) -> Any:
        """Append to a list, or add the keys of key-value pairs to a dict."""
        if isinstance(target, list):
            target.extend(items[::2] if isinstance(target, Keys) else items)
        return target

    def make_storage(self, description: Any) -> Instance:
        """Check the persistent ID of a storage: its declared size must fit into the file."""
        if not isinstance(description, Tuple):
            raise ValueError("the description of a storage is not a tuple")
        self.count_operations(len(description))
        if any(isinstance(n, int) and n > self.n_bytes for n in description):
            raise ValueError("a storage is larger than the file")
        return Instance("storage")

    def call(self, function: Any, args: Any) -> Instance:
        """Check a call.

        torch would print a callee that is not a function. A tensor can have far more elements than
        its storage, so it must not be converted to a set.
        """
        if not isinstance(function, Global) or not isinstance(args, Tuple):
            raise ValueError(f"{DAMAGED}: it calls an object that is not a function")
        self.count_operations(len(args))
        if not function.startswith("torch._utils.") and not INERT_GLOBALS.fullmatch(function):
            if any(isinstance(arg, Instance) for arg in args):
                raise ValueError(f"its pickle creates a {function} from another object")
            if function == "_codecs.encode" and args[1:] != ("latin1",):
                raise ValueError("its pickle encodes bytes with a codec other than latin1")
            n_copied = sum(len(arg) for arg in args if isinstance(arg, (list, tuple, str)))
            self.count_operations(n_copied // COPIES_PER_OPERATION)
        return Instance(function)

    def bound_attributes(self, state: Any) -> int:
        """Return an upper bound on the number of attributes that BUILD sets from a state."""
        if isinstance(state, Instance):  # of unknown size
            return MAX_OPERATIONS - self.n_left
        return len(state) if isinstance(state, Keys) else 1

    def build(self, target: Any, state: Any) -> Any:
        """Check BUILD: the only dict attribute allowed is the `_metadata` of a torch state dict."""
        states = state if isinstance(state, Tuple) else (state,)
        self.count_operations(sum(map(self.bound_attributes, states)) // COPIES_PER_OPERATION)
        if not isinstance(target, Instance) or not INERT_GLOBALS.fullmatch(target):
            is_metadata = isinstance(state, Keys) and all(key == "_metadata" for key in state)
            if target != "collections.OrderedDict" or not is_metadata:
                raise ValueError("its pickle sets attributes of an object without attributes")
        return target


# Methods that compute the result of an opcode from the items that it pops
HANDLERS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"), _Simulator.make_tuple),
    **dict.fromkeys(("APPEND", "APPENDS", "SETITEM", "SETITEMS"), _Simulator.extend),
    **dict.fromkeys(("REDUCE", "NEWOBJ"), _Simulator.call),
    "EMPTY_LIST": lambda _: [],
    "EMPTY_DICT": lambda _: Keys(),
    "BINPERSID": _Simulator.make_storage,
    "BUILD": _Simulator.build,
}
