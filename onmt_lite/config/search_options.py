"""Options of the search and of its reports: hypotheses, sampling, attention, phrases."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from onmt_lite.config.option import File, opt, switch
from onmt_lite.search.presets import PRESETS

FORM = "TAB between them; a file of one line holds for all lines, else it has a line for each line"


@dataclass(frozen=True)
class SearchOptions:
    """The search; meanings and defaults of its options can depend on `search`."""

    title: ClassVar[str] = "Search"

    search: str = opt(
        "opennmt",
        "Search as this system does: `opennmt` is our own search, the others equal their "
        "originals token for token and bring their own defaults",
        choices=tuple(PRESETS),
        example="fairseq",
    )
    beam_size: int = opt(
        5, "Keep N hypotheses per sentence; 1 is greedy search", within=(1, 1000), example="8"
    )
    n_best: int = opt(
        1, "Return the N best hypotheses per sentence, at most beam_size", min=1, example="5"
    )
    n_best_unique: bool = switch(
        "Return n_best hypotheses with different texts: if a line has fewer, double its beam "
        "until there are enough or no more are found, at most up to 1,000",
        example="-n_best 5",
    )
    min_length: int = opt(0, "Allow the end only after N tokens", min=0, example="3")
    max_length: int = opt(
        250, "Stop after N tokens, the end token counted", within=(1, 100000), example="100"
    )
    max_length_ratio: float = opt(
        2.0,
        "Stop after X*S+5 tokens in a line of S source tokens (tensor2tensor, tensorflow: X*S+50, "
        "marian: X*S), unless max_length of these three is given; 0 sets no such limit",
        within=(0, 1000),
        example="1.5",
    )
    length_penalty: Literal["none", "wu", "avg"] = opt(
        "avg",
        "Divide the log_prob of T tokens by T^alpha (`avg`), ((5+T)/6)^alpha (`wu`) or 1 (`none`) "
        "to get the score",
        example="wu -alpha 0.6",
    )
    alpha: float = opt(
        1.0,
        "Set the exponent of the length penalty; above 1 favours long translations",
        within=(-10, 10),
        example="0.6",
    )
    block_ngram_repeat: int = opt(
        0, "Forbid the second occurrence of any N tokens in a row; 0 is off", min=0, example="3"
    )
    ignore_when_blocking: tuple[str, ...] = opt(
        (),
        "Allow the repetition of n-grams that hold one of these tokens",
        value="TOKEN",
        example=". , -block_ngram_repeat 3",
    )
    repetition_penalty: float = opt(
        1.0,
        "Multiply the log-probabilities of tokens that the translation already holds by X",
        above=0,
        max=100,
        example="1.2 -search transformers",
    )
    ban_unk_token: bool = switch("Never produce the unknown token")
    coverage_penalty: Literal["none", "wu", "summary"] = opt(
        "none",
        "Lower the score for source tokens attended too little (`wu`: -sum log min(c,1)) or too "
        "much (`summary`: sum max(c,1) - S)",
        example="wu -beta 0.2",
    )
    beta: float = opt(
        0.0,
        "Set the weight of the coverage penalty",
        within=(0, 1000),
        example="0.2 -coverage_penalty wu",
    )
    stepwise_penalty: bool = switch(
        "Apply the coverage penalty at every step, not only to finished hypotheses",
        example="-coverage_penalty summary -beta 5",
    )
    early_stopping: Literal["true", "false", "never"] | None = opt(
        None,
        "Stop when beam_size hypotheses are finished (`true`), when no open one is likely to be "
        "better (`false`), or when none can be (`never`)",
        example="true -search transformers",
    )
    ratio: float = opt(
        0.0,
        "Stop when the best finished hypothesis scores at least as much per token as the first "
        "row does per token of a translation X times as long as the source; 0 is off",
        within=(0, 1000),
        example="1.2",
    )
    patience: float | None = opt(
        None,
        "Stop when beam_size * X hypotheses are finished",
        above=0,
        max=1000,
        example="2 -search ctranslate2",
    )
    beam_groups: int = opt(
        1,
        "Split the beam into N groups, which diversity_rate keeps apart (diverse beam search)",
        within=(1, 1000),
        example="3 -beam_size 6 -diversity_rate 0.5 -search transformers",
    )
    diversity_rate: float = opt(
        0.0,
        "Take X off the score of a token each time an earlier group has chosen the token",
        within=(0, 1000),
        example="0.5 -beam_groups 3 -beam_size 6 -search transformers",
    )


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are drawn at random."""

    title: ClassVar[str] = "Sampling"

    do_sample: bool = switch(
        "Draw tokens at random: n_best samples per sentence (opennmt-3, fairseq: the n_best of "
        "beam_size samples; transformers: beam sampling)",
        example="-n_best 5",
    )
    random_sampling_topk: int = opt(
        0,
        "Draw from the N best tokens; 0 and -1 set no limit. The opennmt searches draw when this "
        "or random_sampling_topp is given, the others need -do_sample; 1 alone, the default of "
        "2018, leaves a beam of -search opennmt as it is",
        min=-1,
        example="10",
    )
    random_sampling_topp: float = opt(
        0.0,
        "Draw from the best tokens that have this probability together; 0 sets no limit",
        within=(0, 1),
        example="0.9",
    )
    random_sampling_temp: float = opt(
        1.0,
        "Draw from probabilities raised to 1/X: above 1 more evenly, below 1 more greedily",
        above=0,
        max=1000,
        example="0.7 -do_sample",
    )
    seed: int = opt(
        829,
        "Start the random numbers here; the same seed draws the same tokens for a line",
        within=(0, 2**63 - 1),
        example="42 -do_sample",
    )


@dataclass(frozen=True)
class AttentionOptions:
    """Which source tokens the tokens of a translation come from; names are OpenNMT-py's."""

    title: ClassVar[str] = "Attention"

    report_align: bool = switch(
        "Report from which source token each target token comes: pairs `source-target` after "
        "`|||` in text and moses, of words if tokens are pieces of words; in jsonl `align` of "
        "each hypothesis, of tokens, and `src_tokens`"
    )
    alignment_layer: int | None = opt(
        None,
        "Align by the attention of this decoder layer, from 0, or from the end: -1 is the last; "
        "without it, by what an OpenNMT-py model was made for, or else the second to last",
        within=(-1000, 1000),
        example="-1 -report_align",
    )
    alignment_heads: int | None = opt(
        None,
        "Align by the mean of the first N heads of the layer, 0: of all; without it, as many as "
        "an OpenNMT-py model was made for, or else all",
        within=(0, 1000),
        example="1 -report_align",
    )
    gold_align: bool = switch(
        "Report the reference's alignment, not the translation's; in jsonl both, as `gold_align`",
        example="-report_align -tgt reference.en",
    )
    attn_debug: bool = switch(
        "Log for the best hypothesis of each line with which weight each of its tokens attends to "
        "each token of the line: those of the last layer's first head, or of alignment_layer"
    )

    @property
    def chosen(self) -> bool:
        """Return whether unknown tokens are replaced by these alignments, not by the attention of
        the search."""
        return self.report_align or self.alignment_layer is not None


@dataclass(frozen=True)
class PhraseOptions:
    """Phrases that translations must or must not contain."""

    title: ClassVar[str] = "Phrases"

    force_words: File | None = opt(
        None,
        f"Say the phrases of this file, as whole words and spelt as they are there, {FORM} of src. "
        "What a translation lacks of them is in `unmet` of its JSONL record and counted at the end",
        example="phrases.en",
    )
    ban_words: File | None = opt(
        None,
        f"Never say the phrases of this file, as whole words and spelt as they are there, {FORM} "
        "of src",
        example="banned.en",
    )
