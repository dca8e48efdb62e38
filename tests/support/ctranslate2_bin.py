"""model.bin of CTranslate2, taken apart and put together by struct alone."""

import struct
from dataclasses import dataclass, field


@dataclass
class ModelBin:
    version: int
    specification: str
    revision: int
    variables: dict[str, tuple[list[int], int, bytes]]  # shape, type, numbers
    aliases: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, data: bytes) -> "ModelBin":
        at = 0

        def number(form):
            nonlocal at
            (value,) = struct.unpack_from("<" + form, data, at)
            at += struct.calcsize("<" + form)
            return value

        def take(n):
            nonlocal at
            at += n
            return data[at - n : at]

        def text():
            return take(number("H"))[:-1].decode()

        found = cls(number("I"), text(), number("I"), {})
        for _ in range(number("I")):
            name, rank = text(), number("B")
            shape, kind = [number("I") for _ in range(rank)], number("B")
            found.variables[name] = shape, kind, take(number("I"))
        for _ in range(number("I")):
            name = text()
            found.aliases[name] = text()
        assert at == len(data)
        return found

    def dump(self) -> bytes:
        parts = [struct.pack("<I", self.version), _text(self.specification)]
        parts.append(struct.pack("<II", self.revision, len(self.variables)))
        for name, (shape, kind, data) in self.variables.items():
            parts += [_text(name), struct.pack(f"<B{len(shape)}I", len(shape), *shape)]
            parts += [struct.pack("<BI", kind, len(data)), data]
        parts.append(struct.pack("<I", len(self.aliases)))
        parts += [_text(name) for pair in self.aliases.items() for name in pair]
        return b"".join(parts)


def _text(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"
