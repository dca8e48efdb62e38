"""Choice of kernels by the features of the processor, from a table of measurements.

No clock is read, so that two starts of the same command compute the same numbers.  A processor
that no row describes computes with torch's own products.  Nothing here needs torch.
"""

from collections.abc import Set
from functools import cache

# A kernel of `onmt_lite.models.linear`, or "bf16_keys": keys and values kept in bfloat16; and words
# of /proc/cpuinfo, the maker's name among them, which a processor needs for it.  Measured: times
# as fast as torch's own product on one core; 320 rows of 512 to 512, int8 with quantising, beside
# `F.linear` in float32; bf16_keys: 64 sentences of 5 rows, 8 heads of 64, 80 entries.  Zen 5 is an
# AMD EPYC of family 26
TABLE = (
    ("int8", "avx512_vnni"),  # Intel Xeon 2.8, Zen 5 5.7 (beside a slow MKL)
    ("int8", "amx_int8"),  # Intel Xeon 5
    ("int8", "avx_vnni"),  # not measured: as avx512_vnni, half as wide
    # AMD has avx_vnni from Zen 5 on, where oneDNN multiplies in 512 bits and MKL in 256
    ("packed", "AuthenticAMD avx512f avx_vnni"),  # Zen 5 2.3
    ("bf16_keys", "avx512_bf16"),  # Zen 5: keys 2.0, values 2.7; Intel Xeon not measured
)
# Measured and left: packed float32 on other processors, an Intel Xeon among them, 1.0 to 1.2;
# packed bfloat16 on Zen 5 1.05, on an Intel Xeon with AMX 1.06.  int8 without VNNI or AMX is
# wrong: AVX2 adds two products in 16 bits, which cuts large sums off


def fits(kernel: str, features: Set[str]) -> bool:
    """Whether the table has the kernel for a processor with these features."""
    return any(name == kernel and features >= set(words.split()) for name, words in TABLE)


def kernels_for(precision: str, is_wide: bool, features: Set[str]) -> list[str]:
    """The kernels of linear layers that fit, the fastest first.

    is_wide  whether linear layers take most of the time; else only int8 that is asked for
    """
    by_precision = {"int8": ["int8"], "auto": ["int8", "packed"], "fp32": ["packed"]}
    if not is_wide and precision != "int8":
        return []
    return [kernel for kernel in by_precision.get(precision, []) if fits(kernel, features)]


@cache
def processor_words() -> frozenset[str]:
    """What Linux says about the processor, such as maker and features; else nothing."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", newline="\n") as file:
            return frozenset(file.read(1 << 16).split())
    except (OSError, ValueError):
        return frozenset()
