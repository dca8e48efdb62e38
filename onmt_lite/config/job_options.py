"""Options for speed, jobs and diagnostics."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from onmt_lite.config.option import DEVICE_PATTERN, File, opt
from onmt_lite.system.resources import may_have_gpu

# Log levels by name and by number
LEVELS = tuple("NOTSET DEBUG INFO WARNING ERROR CRITICAL 0 10 20 30 40 50".split())


@dataclass(frozen=True)
class SpeedOptions:
    """Device, precision and batch size."""

    title: ClassVar[str] = "Speed"

    batch_size: int | None = opt(None, min=1)
    batch_type: Literal["tokens", "sents"] = "tokens"
    device: str = opt("auto", pattern=DEVICE_PATTERN, metavar="DEVICE")
    gpu: tuple[int, ...] = opt((), within=(-1, 99))
    precision: Literal["auto", "fp32", "bf16", "fp16", "int8"] = "auto"
    threads: int | None = opt(None, within=(1, 1024))
    deterministic: bool = False

    @property
    def expects_gpu(self) -> bool:
        """True if the model probably runs on a GPU; a guess that does not import torch."""
        if self.device == "auto" and not self.gpu:
            return may_have_gpu()
        return self.device != "cpu" and self.gpu != (-1,)


@dataclass(frozen=True)
class JobOptions:
    """Logs, resuming and workers."""

    title: ClassVar[str] = "Jobs"

    quiet: bool = False
    log_file: str | None = opt(None, metavar="FILE")
    log_file_level: str = opt("0", choices=LEVELS, metavar="LEVEL")
    report: File | None = None
    resume: bool = False
    bucket_lines: int | None = opt(None, within=(1, 10_000_000))
    shard: str | None = opt(
        None,
        pattern=(r"[1-9][0-9]{0,8}/[1-9][0-9]{0,8}", "I/N with I from 1 to N"),
        metavar="I/N",
    )
    workers: int | None = opt(None, within=(1, 256))


@dataclass(frozen=True)
class InformationOptions:
    """Logging and diagnostics."""

    title: ClassVar[str] = "Information"

    verbose: bool = False
    report_time: bool = False
    report_bleu: bool = False
    dump_beam: File | None = opt(
        None, pattern=(r".*\.(json|html)", "a file name that ends in .json or .html")
    )
    print_model: bool = False
