"""Processor features that decide which kernels are used.  Does not import torch."""

from functools import cache

MIN_INT8_WIDTH = 128  # in narrower layers, quantization takes longer than the product
# Vendor and features of processors where float32 products of oneDNN beat `F.linear` (320 rows, 512
# to 512, one core).  AMD has avx_vnni since Zen 5, where oneDNN uses 512-bit registers and MKL
# 256-bit: 2.3 times as fast.  Tried and left: an Intel Xeon and other processors, 1.0 to 1.2 times
ONEDNN_PROCESSORS = ({"AuthenticAMD", "avx512f", "avx_vnni"},)


@cache
def read_cpu_flags() -> frozenset[str]:
    """Return the words of /proc/cpuinfo, such as vendor and features; empty outside Linux."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", newline="\n") as file:
            return frozenset(file.read(1 << 16).split())
    except (OSError, ValueError):
        return frozenset()
