"""Options of OpenNMT-py's `translate.py`, 2018 to 3.5.1, that do nothing here.

Values that ask for nothing are taken without a word, so that configurations work as they stand.
Other values get a note, or are refused if the output would not be what was asked for.
"""

from onmt_lite.config.option import Foreign

ALL = None  # values that ask for nothing
SWITCHED_OFF = ("false", "")
ONE_PROCESS = (
    "without effect here; gpu names the GPUs, such as -gpu 0 1, and each has a process of its own"
)
TEXT_ONLY = "only text is translated; leave it out"
NO_FEATURES = "models with word features are not read; leave it out"
NOT_QUANTISED = "without effect here; weights are held in the type of -precision"
TRAINING = "for training only; leave it out"


def _pairs(table: str) -> dict[str, tuple[str]]:
    """Read `option value, option value`: each option with the value that asks for nothing."""
    pairs = (pair.partition(" ") for pair in table.split(", "))
    return {name: (value,) for name, _, value in pairs}


def _noted(table: str) -> dict[str, Foreign]:
    """Options without effect."""
    return {name: Foreign(off) for name, off in _pairs(table).items()}


def _of_training(transform: str, table: str) -> dict[str, Foreign]:
    """Options of a transform that does nothing in a translation: without effect if `transforms`
    name it, else refused."""
    unless = ("transforms", transform)
    pairs = _pairs(table).items()
    return {name: Foreign(off, TRAINING, refused=True, unless=unless) for name, off in pairs}


FOREIGN = {
    # Transforms that are not performed, or only in training
    **dict.fromkeys(("src_seq_length", "tgt_seq_length"), Foreign(ALL)),
    **_noted(
        "src_lang, tgt_lang, reversible_tokenization joiner, doc_length 200, max_context 1, "
        "termbase_path, src_spacy_language_model, tgt_spacy_language_model, "
        "term_corpus_ratio 0.3, term_example_ratio 0.2, tm_path, tm_delimiter \t, "
        "fuzzy_corpus_ratio 0.1, fuzzy_threshold 70, fuzzymatch_min_length 4, "
        "fuzzymatch_max_length 70"
    ),
    # Marks that those transforms put into the text
    **_noted(
        "src_term_stoken ｟src_term_start｠, tgt_term_stoken ｟tgt_term_start｠, "
        "tgt_term_etoken ｟tgt_term_end｠, term_source_delimiter ｟fuzzy｠, fuzzy_token ｟fuzzy｠"
    ),
    **_of_training(
        "bart",
        "permute_sent_ratio 0, rotate_ratio 0, insert_ratio 0, random_ratio 0, mask_ratio 0, "
        "mask_length subword, poisson_lambda 3, replace_length -1",
    ),
    **_of_training("switchout", "switchout_temperature 1"),
    **_of_training("tokendrop", "tokendrop_temperature 1"),
    **_of_training("tokenmask", "tokenmask_temperature 1"),
    **_of_training(
        "clean",
        "src_eq_tgt false, same_char false, same_word false, scripts_ok Latin Common, scripts_nok, "
        "src_tgt_ratio 2, avg_tok_min 3, avg_tok_max 20, langid",
    ),
    **_of_training(
        "inlinetags",
        "tags_dictionary_path, tags_corpus_ratio 0.1, max_tags 12, paired_stag ｟ph_#_beg｠, "
        "paired_etag ｟ph_#_end｠, isolated_tag ｟ph_#_std｠, src_delimiter ｟fuzzy｠",
    ),
    **_of_training("response_patterns", "response_patterns Response : ｟newline｠"),
    # Subwords are drawn in training; the best ones are what a translation reads
    "src_subword_nbest": Foreign(("1", "0")),
    "tgt_subword_nbest": Foreign(("1", "0")),
    "src_subword_alpha": Foreign(("0",)),
    "tgt_subword_alpha": Foreign(("0",)),
    "gpt2_pretok": Foreign(
        SWITCHED_OFF, "text is not cut into bytes; cut the file before, and leave it out", True
    ),
    # Where and how it runs
    "world_size": Foreign(("1", "0"), ONE_PROCESS),
    "gpu_ranks": Foreign(("", "0"), ONE_PROCESS),
    "parallel_mode": Foreign(("data_parallel",)),
    "gpu_backend": Foreign(("nccl",)),
    "gpu_verbose_level": Foreign(("0",)),
    "master_ip": Foreign(("localhost",)),
    "master_port": Foreign(("10000",)),
    "timeout": Foreign(("60",)),
    "self_attn_type": Foreign(("scaled-dot-flash",), "without effect here; the model says it"),
    "quant_layers": Foreign(("",), NOT_QUANTISED),
    "quant_type": Foreign(("",), NOT_QUANTISED),
    "w_bit": Foreign(("4",), NOT_QUANTISED),
    "group_size": Foreign(("128",), NOT_QUANTISED),
    "int8": Foreign(SWITCHED_OFF, "here it is precision int8", switch=("precision", "int8")),
    "fp32": Foreign(SWITCHED_OFF, "", switch=("precision", "fp32")),
    "fp16": Foreign(SWITCHED_OFF, "", switch=("precision", "fp16")),
    "fast": Foreign(SWITCHED_OFF, "without effect here; every search is batched"),
    "shard_size": Foreign(ALL),  # memory does not grow with the file
    "profile": Foreign(SWITCHED_OFF, "without effect here; -report_time says how long it took"),
    # What is read
    "data_type": Foreign(("text",), TEXT_ONLY, refused=True),
    "src_dir": Foreign(("",), TEXT_ONLY, refused=True),
    "sample_rate": Foreign(("16000",), TEXT_ONLY, refused=True),
    "window_size": Foreign(("0.02",), TEXT_ONLY, refused=True),
    "window_stride": Foreign(("0.01",), TEXT_ONLY, refused=True),
    "window": Foreign(("hamming",), TEXT_ONLY, refused=True),
    "image_channel_size": Foreign(("3",), TEXT_ONLY, refused=True),
    "n_src_feats": Foreign(("0",), NO_FEATURES, refused=True),
    "src_feats": Foreign(("", "{}"), NO_FEATURES, refused=True),
    "src_feats_defaults": Foreign(("",), NO_FEATURES, refused=True),
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
    "precision": Foreign(("",)),
    "seed": Foreign(("-1",)),
    "log_file": Foreign(("",)),
    "dump_beam": Foreign(("",)),
    "save_config": Foreign(("",)),
    "tgt_prefix": Foreign(
        ("false", ""), "here it is tgt_file_prefix", switch=("tgt_file_prefix", True)
    ),
}
