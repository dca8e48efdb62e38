"""Options of speed, of how a job behaves, and of what it says about its work."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from onmt_lite.config.option import DEVICE, File, opt, switch
from onmt_lite.system.resources import may_have_gpu

# Levels of a log, by name and by number
LEVELS = tuple("NOTSET DEBUG INFO WARNING ERROR CRITICAL 0 10 20 30 40 50".split())


@dataclass(frozen=True)
class SpeedOptions:
    """Device, precision and sizes of batches."""

    title: ClassVar[str] = "Speed"

    batch_size: int | None = opt(
        None,
        "Decode N at once, in units of batch_type; without it, as many as suit model and device",
        min=1,
        example="64 -batch_type sents",
    )
    batch_type: Literal["tokens", "sents"] = opt(
        "tokens", "Count a batch in source tokens or in sentences", example="sents"
    )
    device: str = opt(
        "auto",
        "Run on `cpu`, `cuda`, `cuda:N`, or (`auto`) on a GPU if there is one",
        form=DEVICE,
        value="DEVICE",
        example="cuda:1",
    )
    gpu: tuple[int, ...] = opt(
        (),
        "Run on GPU number N, -1 on the CPU: OpenNMT's spelling of -device; with several numbers, "
        "on all of these GPUs, one worker each",
        within=(-1, 99),
        example="0",
    )
    precision: Literal["auto", "fp32", "bf16", "fp16", "int8"] = opt(
        "auto",
        "Compute with numbers of this type. `int8`, on a CPU: linear layers multiply bytes. `auto` "
        "is int8 on a processor that is made for it, unless the model is small or -search names "
        "another system, fp32 on other CPUs, and bf16 on a GPU that has it",
        example="fp32",
    )
    threads: int | None = opt(
        None,
        "Use N CPU threads, each worker; without it, one per core, which workers share",
        within=(1, 1024),
        example="4",
    )
    deterministic: bool = switch(
        "Decode each sentence alone, with one CPU thread, in about four times the time: scores are "
        "the same to the last bit whatever the batch size, the order and the other lines"
    )

    @property
    def expects_gpu(self) -> bool:
        """Whether the model runs on a GPU, as far as that is known without torch."""
        if self.device == "auto" and not self.gpu:
            return may_have_gpu()
        return self.device != "cpu" and self.gpu != (-1,)


@dataclass(frozen=True)
class JobOptions:
    """Logs, resuming and workers."""

    title: ClassVar[str] = "Jobs"

    quiet: bool = switch("Show no progress and no log on stderr, only errors")
    log_file: str | None = opt(
        None, "Write the log and the progress to this file too", value="FILE", example="job.log"
    )
    log_file_level: str = opt(
        "0",
        "Write to log_file only what has this level or a higher one, by name or number; lines are "
        "INFO, 20, but for a few warnings",
        choices=LEVELS,
        value="LEVEL",
        example="WARNING -log_file job.log",
    )
    report: File | None = opt(
        None,
        "Write a JSON object to this file for each line with notes: its `id`, from 0, and `notes`",
        example="degraded.jsonl",
    )
    resume: bool = switch(
        "Go on where a job with the same input, models and options stopped, to the same output",
        example="-src input.de -output output.en",
    )
    bucket_lines: int | None = opt(
        None,
        "Work in buckets of N lines, each sorted by length and written when it is done; without "
        "it, 1,024 on a CPU, less for files of 64 to 4,095 lines, and 8,192 on a GPU",
        within=(1, 10_000_000),
        example="256",
    )
    shard: str | None = opt(
        None,
        "Translate the I-th of N parts of the input, cut between buckets; the N outputs, joined "
        "in order, are the output of the whole",
        form=(r"[1-9][0-9]{0,8}/[1-9][0-9]{0,8}", "I/N, where I counts from 1"),
        value="I/N",
        example="1/8 -src input.de",
    )
    workers: int | None = opt(
        None,
        "Translate in N processes, which share the memory of the model; the output is that of one. "
        "Without it, one per core with a thread each if the input is a file of 64 lines or more "
        "and runs on the CPU, unless -threads is given",
        within=(1, 256),
        example="4 -threads 1",
    )


@dataclass(frozen=True)
class InformationOptions:
    """Logging and diagnostics."""

    title: ClassVar[str] = "Information"

    verbose: bool = switch("Log each sentence with its hypotheses and scores")
    report_time: bool = opt(
        False, "Log seconds in all, by line and by phase, and tokens per second"
    )
    report_bleu: bool = switch(
        "Log BLEU and chrF of the translations against tgt, by sacrebleu, which must be installed",
        example="-tgt reference.en",
    )
    dump_beam: File | None = opt(
        None,
        "Show how the first 100 lines were found, step by step: FILE.html is a page to read, with "
        "a drawing, reasons and attention; FILE.json has OpenNMT-py's keys",
        form=(r".*\.(json|html)", "a file that ends in .json or .html"),
        example="beam.html",
    )
    print_model: bool = opt(
        False, "Print family, sizes, vocabularies and writer of the models, and exit"
    )
