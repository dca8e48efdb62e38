"""What the processor has, as far as the choice of kernels depends on it.  No torch here."""

from functools import cache

MIN_INT8_WIDTH = 128  # a narrower layer takes longer to quantise than to multiply
# Maker and features of processors on which oneDNN's product of float32 beats `F.linear`: 320 rows
# of 512 to 512 on one core.  AMD has avx_vnni from Zen 5 on, where oneDNN multiplies in 512 bits
# and MKL in 256: 2.3 times.  Measured and left: an Intel Xeon and others, 1.0 to 1.2
ONEDNN_PROCESSORS = ({"AuthenticAMD", "avx512f", "avx_vnni"},)


@cache
def read_cpu_flags() -> frozenset[str]:
    """What Linux says about the processor, such as maker and features; else nothing."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", newline="\n") as file:
            return frozenset(file.read(1 << 16).split())
    except (OSError, ValueError):
        return frozenset()
