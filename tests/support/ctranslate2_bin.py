"""An independent parser and writer of CTranslate2's model.bin, based on struct."""

import struct
from dataclasses import dataclass, field


@dataclass
class ModelBin:
    """Content of a model.bin."""

    version: int
    specification: str
    revision: int
    variables: dict[str, tuple[list[int], int, bytes]]  # shape, dtype id, data
    aliases: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, data: bytes) -> "ModelBin":
        at = 0

        def read_int(code):
            nonlocal at
            (value,) = struct.unpack_from("<" + code, data, at)
            at += struct.calcsize("<" + code)
            return value

        def read_bytes(n):
            nonlocal at
            at += n
            return data[at - n : at]

        def read_str():
            return read_bytes(read_int("H"))[:-1].decode()

        result = cls(read_int("I"), read_str(), read_int("I"), {})
        for _ in range(read_int("I")):
            name, rank = read_str(), read_int("B")
            shape, dtype = [read_int("I") for _ in range(rank)], read_int("B")
            result.variables[name] = shape, dtype, read_bytes(read_int("I"))
        for _ in range(read_int("I")):
            name = read_str()
            result.aliases[name] = read_str()
        assert at == len(data)
        return result

    def dump(self) -> bytes:
        parts = [struct.pack("<I", self.version), _encode_str(self.specification)]
        parts.append(struct.pack("<II", self.revision, len(self.variables)))
        for name, (shape, dtype, data) in self.variables.items():
            parts += [_encode_str(name), struct.pack(f"<B{len(shape)}I", len(shape), *shape)]
            parts += [struct.pack("<BI", dtype, len(data)), data]
        parts.append(struct.pack("<I", len(self.aliases)))
        parts += [_encode_str(name) for pair in self.aliases.items() for name in pair]
        return b"".join(parts)


def _encode_str(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"
