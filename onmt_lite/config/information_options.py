"""The options of what is said beside the translations."""

from dataclasses import dataclass
from typing import ClassVar

from onmt_lite.config.schema import opt


@dataclass(frozen=True)
class InformationOptions:
    """What is said on the way, on stderr."""

    title: ClassVar[str] = "Information"

    verbose: bool = opt(False, "Log each sentence with its hypotheses and scores")
    report_time: bool = opt(
        False, "Log seconds in all, by line and by phase, and tokens per second"
    )
    report_bleu: bool = opt(
        False,
        "Log BLEU and chrF of the translations against tgt, by sacrebleu, which must be installed",
        needs="-tgt and no -tgt_file_prefix and no -score_only",
        example="-tgt reference.en",
    )
    report_unsure: bool = opt(
        False,
        "Note `unsure` for lines whose translation is more probably wrong than right; the model "
        "must be calibrated, as the shipped one is",
    )
    dump_beam: str | None = opt(
        None,
        "Show how the first 100 lines were found, step by step: FILE.html is a page to read, with "
        "reasons and attention; FILE.json has OpenNMT-py's keys",
        form=(r".*\.(json|html)", "a file that ends in .json or .html"),
        value="FILE",
        example="beam.html",
    )
    print_model: bool = opt(
        False, "Print family, sizes, vocabularies and writer of the models, and exit"
    )
