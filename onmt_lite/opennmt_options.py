"""Options of OpenNMT-py's `translate.py`, 2018 to 3.5.1, that have nothing to do here.

They are taken while they ask for nothing, so that configurations work as they stand, and refused
by name where they ask for what is not done.
"""

from onmt_lite.schema import Foreign

ALL = None  # values that ask for nothing
SWITCHED_OFF = ("false", "")
LATER = "it is not there yet; leave it out"
ONE_PROCESS = "one process translates; for several GPUs start a job on each, with its own lines"
TEXT_ONLY = "only text is translated"

# Options of transforms that do nothing in a translation, or that are refused themselves
OF_TRANSFORMS = (
    "src_seq_length tgt_seq_length permute_sent_ratio rotate_ratio insert_ratio random_ratio "
    "mask_ratio mask_length poisson_lambda replace_length switchout_temperature "
    "tokendrop_temperature tokenmask_temperature src_eq_tgt same_char same_word scripts_ok "
    "scripts_nok src_tgt_ratio avg_tok_min avg_tok_max langid src_lang tgt_lang penn "
    "norm_quote_commas norm_numbers pre_replace_unicode_punct post_remove_control_chars "
    "reversible_tokenization upper_corpus_ratio doc_length max_context termbase_path "
    "src_spacy_language_model tgt_spacy_language_model term_corpus_ratio term_example_ratio "
    "src_term_stoken tgt_term_stoken tgt_term_etoken term_source_delimiter tm_path "
    "fuzzy_corpus_ratio fuzzy_threshold tm_delimiter fuzzy_token fuzzymatch_min_length "
    "fuzzymatch_max_length tags_dictionary_path tags_corpus_ratio max_tags paired_stag "
    "paired_etag isolated_tag src_delimiter response_patterns"
).split()

FOREIGN = {
    **{name: Foreign(ALL) for name in OF_TRANSFORMS},
    # Subwords are drawn in training; the best ones are what a translation reads
    "src_subword_nbest": Foreign(("1", "0")),
    "tgt_subword_nbest": Foreign(("1", "0")),
    "src_subword_alpha": Foreign(("0",)),
    "tgt_subword_alpha": Foreign(("0",)),
    "gpt2_pretok": Foreign(SWITCHED_OFF, "text is not cut into bytes; cut it before"),
    # Where and how it runs
    "world_size": Foreign(("1", "0"), ONE_PROCESS),
    "gpu_ranks": Foreign(("", "0"), ONE_PROCESS),
    "parallel_mode": Foreign(("data_parallel",)),
    "gpu_backend": Foreign(("nccl",)),
    "gpu_verbose_level": Foreign(("0",)),
    "master_ip": Foreign(("localhost",)),
    "master_port": Foreign(("10000",)),
    "timeout": Foreign(("60",)),
    "self_attn_type": Foreign(ALL),  # the model says it
    "quant_layers": Foreign(("",), "models are not quantised"),
    "quant_type": Foreign(("",), "models are not quantised"),
    "w_bit": Foreign(ALL),
    "group_size": Foreign(ALL),
    "fast": Foreign(ALL),  # always
    "shard_size": Foreign(ALL),  # memory does not grow with the file
    "fp32": Foreign(SWITCHED_OFF, "here it is precision fp32"),
    "fp16": Foreign(SWITCHED_OFF, "here it is precision fp16"),
    "int8": Foreign(SWITCHED_OFF, LATER),
    "profile": Foreign(SWITCHED_OFF, "there is no profiler; report_time says how long it took"),
    # What is read
    "data_type": Foreign(("text",), TEXT_ONLY),
    "src_dir": Foreign(("",), TEXT_ONLY),
    "sample_rate": Foreign(("16000",), TEXT_ONLY),
    "window_size": Foreign(("0.02",), TEXT_ONLY),
    "window_stride": Foreign(("0.01",), TEXT_ONLY),
    "window": Foreign(("hamming",), TEXT_ONLY),
    "image_channel_size": Foreign(ALL),
    "n_src_feats": Foreign(("0",), "models with word features are not read"),
    "src_feats": Foreign(("", "{}"), "models with word features are not read"),
    "src_feats_defaults": Foreign(("",), "models with word features are not read"),
    "dynamic_dict": Foreign(ALL),  # a model that copies says so itself
    # What is reported
    "report_bleu": Foreign(SWITCHED_OFF, "score the output with sacrebleu"),
    "report_rouge": Foreign(SWITCHED_OFF, "score the output with a tool for it"),
    "report_align": Foreign(SWITCHED_OFF, LATER),
    "gold_align": Foreign(SWITCHED_OFF, LATER),
    "align_debug": Foreign(SWITCHED_OFF, LATER),
    "attn_debug": Foreign(SWITCHED_OFF, LATER),
    "dump_beam": Foreign(SWITCHED_OFF, LATER),
    "log_file_level": Foreign(("0", "NOTSET", "10", "DEBUG", "20", "INFO")),
    "save_config": Foreign(("",), "here it is -print_config > FILE"),
    "md": Foreign(SWITCHED_OFF, "docs/options.md has the table of options"),
    # Ours too: what "not given" is there
    "precision": Foreign(("",)),
    "seed": Foreign(("-1",)),
    "log_file": Foreign(("",)),
    "tgt_prefix": Foreign(("false",), "the flag that had this name is tgt_file_prefix"),
}
