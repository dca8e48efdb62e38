"""The options that report what a model attends to; their names are OpenNMT-py's."""

from dataclasses import dataclass
from typing import ClassVar

from onmt_lite.config.schema import opt


@dataclass(frozen=True)
class AttentionOptions:
    """Which source tokens the tokens of a translation come from."""

    title: ClassVar[str] = "Attention"

    report_align: bool = opt(
        False,
        "Report from which source token each target token comes: pairs `source-target` behind "
        "`|||` in text and moses, of words where tokens are pieces of words; in jsonl `align` of "
        "each hypothesis, of tokens, and `src_tokens`",
    )
    alignment_layer: int | None = opt(
        None,
        "Align by the attention of this decoder layer, from 0, or from the end: -1 is the last; "
        "without it, by what an OpenNMT-py model was made for, or else the second to last",
        min=-1000,
        max=1000,
        needs="-report_align or -attn_debug or -replace_unk",
        example="-1 -report_align",
    )
    alignment_heads: int | None = opt(
        None,
        "Align by the mean of the first N heads of the layer, 0: of all; without it, as many as "
        "an OpenNMT-py model was made for, or else all",
        min=0,
        max=1000,
        needs="-report_align or -attn_debug or -alignment_layer",
        example="1 -report_align",
    )

    gold_align: bool = opt(
        False,
        "Report the alignment of the reference in place of that of the translation; in jsonl "
        "beside it, as `gold_align`",
        requires="-report_align and -tgt and no -replace_unk and no -tgt_file_prefix",
        example="-report_align -tgt reference.en",
    )
    attn_debug: bool = opt(
        False,
        "Log for the best hypothesis of each line with which weight each of its tokens attends to "
        "each token of the line: those of the last layer's first head, or of alignment_layer",
    )

    @property
    def chosen(self) -> bool:
        """Whether unknown tokens are replaced by these alignments, and not by what the search
        has attended to."""
        return self.report_align or self.alignment_layer is not None
