"""Options of the search: beam search, sampling, attention and phrases."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from onmt_lite.config.option import File, opt
from onmt_lite.search.presets import PRESETS


@dataclass(frozen=True)
class SearchOptions:
    """Beam search; some defaults and meanings depend on `search`."""

    title: ClassVar[str] = "Search"

    search: str = opt("opennmt", choices=tuple(PRESETS))
    beam_size: int = opt(5, within=(1, 1000))
    n_best: int = opt(1, min=1)
    n_best_unique: bool = False
    min_length: int = opt(0, min=0)
    max_length: int = opt(250, within=(1, 100000))
    max_length_ratio: float = opt(2.0, within=(0, 1000))
    length_penalty: Literal["none", "wu", "avg"] = "avg"
    alpha: float = opt(1.0, within=(-10, 10))
    block_ngram_repeat: int = opt(0, min=0)
    ignore_when_blocking: tuple[str, ...] = opt((), metavar="TOKEN")
    repetition_penalty: float = opt(1.0, above=0, max=100)
    ban_unk_token: bool = False
    coverage_penalty: Literal["none", "wu", "summary"] = "none"
    beta: float = opt(0.0, within=(0, 1000))
    stepwise_penalty: bool = False
    early_stopping: Literal["true", "false", "never"] | None = None
    ratio: float = opt(0.0, within=(0, 1000))
    patience: float | None = opt(None, above=0, max=1000)
    beam_groups: int = opt(1, within=(1, 1000))
    diversity_rate: float = opt(0.0, within=(0, 1000))


@dataclass(frozen=True)
class SamplingOptions:
    """Random sampling."""

    title: ClassVar[str] = "Sampling"

    do_sample: bool = False
    random_sampling_topk: int = opt(0, min=-1)
    random_sampling_topp: float = opt(0.0, within=(0, 1))
    random_sampling_temp: float = opt(1.0, above=0, max=1000)
    seed: int = opt(829, within=(0, 2**63 - 1))


@dataclass(frozen=True)
class AttentionOptions:
    """Alignments and attention; option names are those of OpenNMT-py."""

    title: ClassVar[str] = "Attention"

    report_align: bool = False
    alignment_layer: int | None = opt(None, within=(-1000, 1000))
    alignment_heads: int | None = opt(None, within=(0, 1000))
    gold_align: bool = False
    attn_debug: bool = False

    @property
    def uses_alignment(self) -> bool:
        """True if replace_unk uses alignment heads instead of the attention of the search."""
        return self.report_align or self.alignment_layer is not None


@dataclass(frozen=True)
class PhraseOptions:
    """Phrases that translations must or must not contain."""

    title: ClassVar[str] = "Phrases"

    force_words: File | None = None
    ban_words: File | None = None
