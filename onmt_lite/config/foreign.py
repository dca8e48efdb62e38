"""Options of other programs: those of OpenNMT-py's `translate.py`, 2018 to 3.5.1, that do nothing
here, and names from other tools, which are refused with ours.

Values that ask for nothing are taken without a word, so that configurations work as they stand.
Other values get a note, or are refused if the output would not be what was asked for.
"""

import functools
import re
from collections.abc import Container
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

SWITCHED_OFF = ("false", "")
ONE_PROCESS = (
    "without effect here; gpu names the GPUs, such as -gpu 0 1, and each has a process of its own"
)
NO_FEATURES = "models with word features are not read; leave it out"
NOT_QUANTISED = "without effect here; weights are held in the type of -precision"
NOTHING = "nothing here does the same; -help lists all"
FOR_TRAINING = "it is for training (python -m onmt_lite.train); leave it out"


@dataclass(frozen=True)
class Foreign:
    """An option of another program that has nothing to do here, taken so that its files load.

    An entry for an option that we have too says which values are as if it were not given, and what
    to add to the message about a wrong value.
    """

    off: tuple[str, ...] | None  # values that ask for nothing, as words; None: all do
    says: str = "without effect here"  # what a note says of any other value
    refused: bool = False  # other values are refused; `says` is the reason and the remedy
    unless: tuple[str, str] | None = None  # an option and a value with which they are noted instead
    renamed: str = ""  # our option that has the same values
    switch: tuple[str, Any] | None = None  # our option and its value if the switch is on

    def asks_for(self, words: str) -> bool:
        """Return whether the value would have an effect in the other program."""
        return self.off is not None and _plain(words) not in map(_plain, self.off)


def _plain(words: str) -> str:
    """.02 and 0.020 are the same number."""
    try:
        return f"{float(words) + 0.0:g}"
    except ValueError:
        return words


def _each(table: str, says: str = "without effect here", **more: Any) -> dict[str, Foreign]:
    """Read `option value, option value`: each option with the value that asks for nothing."""
    pairs = (pair.partition(" ") for pair in table.split(", "))
    return {name: Foreign((value,), says, **more) for name, _, value in pairs}


# Options of a transform that does nothing in a translation: without effect if `transforms` name it,
# else refused
OF_TRANSFORMS = {
    "bart": "permute_sent_ratio 0, rotate_ratio 0, insert_ratio 0, random_ratio 0, mask_ratio 0, "
    "mask_length subword, poisson_lambda 3, replace_length -1",
    "switchout": "switchout_temperature 1",
    "tokendrop": "tokendrop_temperature 1",
    "tokenmask": "tokenmask_temperature 1",
    "clean": "src_eq_tgt false, same_char false, same_word false, scripts_ok Latin Common, "
    "scripts_nok, src_tgt_ratio 2, avg_tok_min 3, avg_tok_max 20, langid",
    "inlinetags": "tags_dictionary_path, tags_corpus_ratio 0.1, max_tags 12, "
    "paired_stag ｟ph_#_beg｠, paired_etag ｟ph_#_end｠, isolated_tag ｟ph_#_std｠, "
    "src_delimiter ｟fuzzy｠",
    "response_patterns": "response_patterns Response : ｟newline｠",
}
FOREIGN = {
    # Transforms that are not performed, or only in training
    **dict.fromkeys(("src_seq_length", "tgt_seq_length"), Foreign(None)),
    **_each(
        "src_lang, tgt_lang, reversible_tokenization joiner, doc_length 200, max_context 1, "
        "termbase_path, src_spacy_language_model, tgt_spacy_language_model, "
        "term_corpus_ratio 0.3, term_example_ratio 0.2, tm_path, tm_delimiter \t, "
        "fuzzy_corpus_ratio 0.1, fuzzy_threshold 70, fuzzymatch_min_length 4, "
        "fuzzymatch_max_length 70"
    ),
    # Marks that those transforms put into the text
    **_each(
        "src_term_stoken ｟src_term_start｠, tgt_term_stoken ｟tgt_term_start｠, "
        "tgt_term_etoken ｟tgt_term_end｠, term_source_delimiter ｟fuzzy｠, fuzzy_token ｟fuzzy｠"
    ),
    **{
        name: replace(option, unless=("transforms", transform))
        for transform, table in OF_TRANSFORMS.items()
        for name, option in _each(table, "for training only; leave it out", refused=True).items()
    },
    # Subwords are drawn in training; the best ones are what a translation reads
    **dict.fromkeys(("src_subword_nbest", "tgt_subword_nbest"), Foreign(("1", "0"))),
    **_each("src_subword_alpha 0, tgt_subword_alpha 0"),
    "gpt2_pretok": Foreign(
        SWITCHED_OFF, "text is not cut into bytes; cut the file before, and leave it out", True
    ),
    # Where and how it runs
    "world_size": Foreign(("1", "0"), ONE_PROCESS),
    "gpu_ranks": Foreign(("", "0"), ONE_PROCESS),
    **_each(
        "parallel_mode data_parallel, gpu_backend nccl, gpu_verbose_level 0, master_ip localhost, "
        "master_port 10000, timeout 60"
    ),
    **_each("self_attn_type scaled-dot-flash", "without effect here; the model says it"),
    **_each("quant_layers, quant_type, w_bit 4, group_size 128", NOT_QUANTISED),
    "int8": Foreign(SWITCHED_OFF, "here it is precision int8", switch=("precision", "int8")),
    "fp32": Foreign(SWITCHED_OFF, "", switch=("precision", "fp32")),
    "fp16": Foreign(SWITCHED_OFF, "", switch=("precision", "fp16")),
    "fast": Foreign(SWITCHED_OFF, "without effect here; every search is batched"),
    "shard_size": Foreign(None),  # memory does not grow with the file
    "profile": Foreign(SWITCHED_OFF, "without effect here; -report_time says how long it took"),
    # What is read
    **_each(
        "data_type text, src_dir, sample_rate 16000, window_size 0.02, window_stride 0.01, "
        "window hamming, image_channel_size 3",
        "only text is translated; leave it out",
        refused=True,
    ),
    **_each("n_src_feats 0, src_feats_defaults", NO_FEATURES, refused=True),
    "src_feats": Foreign(("", "{}"), NO_FEATURES, refused=True),
    "dynamic_dict": Foreign(SWITCHED_OFF, "without effect here; the model says whether it copies"),
    # How long an output may be
    "max_sent_length": Foreign((), "here it is max_length", renamed="max_length"),
    # What is reported
    "report_rouge": Foreign(
        SWITCHED_OFF, "without effect here; score the output with a tool for ROUGE"
    ),
    "align_debug": Foreign(SWITCHED_OFF, "without effect here; attn_debug shows the weights"),
    "md": Foreign(SWITCHED_OFF, "belongs on the command line", refused=True),
    # Ours too: what "not given" is there, and what else a value may mean
    "length_penalty": Foreign((), "the exponent is alpha", refused=True),  # as elsewhere
    "coverage_penalty": Foreign((), "its weight is beta", refused=True),
    **_each("precision, seed -1, log_file, dump_beam, save_config"),
    "tgt_prefix": Foreign(
        ("false", ""), "here it is tgt_file_prefix", switch=("tgt_file_prefix", True)
    ),
}


@functools.cache
def table() -> dict[str, Any]:
    """Read peers.yaml, when a name is met that no option has."""
    return yaml.safe_load(Path(__file__).with_name("peers.yaml").read_bytes())


def remark_on(name: str, options: Container[str]) -> str | None:
    """Return what to say about a name of another tool, with underscores for hyphens; None if no
    tool is known to have it."""
    peers = table()
    for names in (*peers["tools"].values(), peers["others"]):
        for theirs, ours in names.items():
            if theirs.replace("-", "_") == name:
                return f"here it is {ours}" if option_of(ours) in options else NOTHING
    if name in peers["nothing"].split():
        return NOTHING
    return FOR_TRAINING if name in peers["training"].split() else None


def option_of(ours: str) -> str:
    """Return the option that an entry of the table names."""
    return re.split(r"\W", ours, maxsplit=1)[0]
