"""What options of other tools are called here: a name of theirs is refused with ours.

README.md has the same table.  Both leave out what a program has no option for.  The names of
OpenNMT-py are in `onmt_lite.config.opennmt_options`.
"""

import re
from collections.abc import Container

SENTS = "batch_size, with batch_type sents"
SUBWORDS = "detokenizer, bpe or sentencepiece"
NO_UNKNOWN = "ban_unk_token, and what is not banned is allowed"
GOLD = "score_only, with the references as tgt"
NOTHING = "nothing here does the same; -help lists all"

# Each tool's names as it spells them, and ours, with a remark after a comma
NAMES: dict[str, dict[str, str]] = {
    "CTranslate2": {
        "num_hypotheses": "n_best",
        "no_repeat_ngram_size": "block_ngram_repeat",
        "max_decoding_length": "max_length",
        "min_decoding_length": "min_length",
        "sampling_topk": "random_sampling_topk",
        "sampling_topp": "random_sampling_topp",
        "sampling_temperature": "random_sampling_temp",
        "disable_unk": NO_UNKNOWN,
        "suppress_sequences": "ban_words",
        "replace_unknowns": "replace_unk",
        "return_scores": "with_score",
        "return_attention": "attn_debug",
        "target_prefix": "tgt_file_prefix",
        "max_batch_size": SENTS,
        "read_batch_size": "bucket_lines",
        "compute_type": "precision",
        "device_index": "gpu",
        "inter_threads": "workers",
        "intra_threads": "threads",
    },
    "fairseq": {
        "path": "model",
        "input": "src",
        "source-lang": "src_lang",
        "target-lang": "tgt_lang",
        "beam": "beam_size",
        "nbest": "n_best",
        "lenpen": "alpha",
        "unnormalized": "length_penalty none",
        "max-len-b": "max_length",
        "max-len-a": "max_length_ratio",
        "min-len": "min_length",
        "no-repeat-ngram-size": "block_ngram_repeat",
        "max-tokens": "batch_size",
        "max-sentences": SENTS,
        "buffer-size": "bucket_lines",
        "diverse-beam-groups": "beam_groups",
        "diverse-beam-strength": "diversity_rate",
        "sampling": "do_sample",
        "sampling-topk": "random_sampling_topk",
        "sampling-topp": "random_sampling_topp",
        "temperature": "random_sampling_temp",
        "unkpen": NO_UNKNOWN,
        "prefix-size": "tgt_file_prefix",
        "constraints": "force_words",
        "score-reference": GOLD,
        "print-alignment": "report_align",
        "sacrebleu": "report_bleu",
        "results-path": "output",
        "num-shards": "shard",
        "shard-id": "shard",
        "cpu": "device cpu",
        "remove-bpe": SUBWORDS,
        "post-process": SUBWORDS,
    },
    "Marian": {
        "models": "model",
        "weights": "model_weights",
        "input": "src",
        "n-best": "n_best",
        "normalize": "alpha",
        "max-length-factor": "max_length_ratio",
        "allow-unk": NO_UNKNOWN,
        "output-sampling": "do_sample",
        "force-decode": "tgt_file_prefix",
        "alignment": "report_align",
        "word-scores": "token_scores",
        "mini-batch": SENTS,
        "mini-batch-words": "batch_size",
        "cpu-threads": "threads",
        "devices": "device",
        "log": "log_file",
        "log-level": "log_file_level",
        "quiet-translation": "quiet",
    },
    "transformers": {
        "num_beams": "beam_size",
        "num_return_sequences": "n_best",
        "max_new_tokens": "max_length",
        "min_new_tokens": "min_length",
        "no_repeat_ngram_size": "block_ngram_repeat",
        "temperature": "random_sampling_temp",
        "top_k": "random_sampling_topk",
        "top_p": "random_sampling_topp",
        "num_beam_groups": "beam_groups",
        "diversity_penalty": "diversity_rate",
        "bad_words_ids": "ban_words",
        "suppress_tokens": "ban_words",
        "force_words_ids": "force_words",
        "forced_bos_token_id": "tgt_prefix, or tgt_lang where the model has languages",
        "output_scores": "token_scores",
        "output_attentions": "attn_debug",
        "torch_dtype": "precision",
        "dtype": "precision",
        "device_map": "device",
    },
}
# Other spellings, and names of tools beside these
MORE = {
    "model_name_or_path": "model",
    "num_devices": "gpu",
    "output_file": "output",
    "src_language": "src_lang",
    "tgt_language": "tgt_lang",
    "num_processes": "workers",
}
# Names whose nearest one here would mislead
NO_COUNTERPART = (
    "end_token max_input_length lm_path lm_weight print_step workspace max_length_crop port "
    "max_source_length encoder_repetition_penalty use_cache word_penalty"
).split()


def option_of(ours: str) -> str:
    """The option that an entry of the table names."""
    return re.split(r"\W", ours, maxsplit=1)[0]


def hints(options: Container[str]) -> dict[str, str]:
    """What to say of each name of another tool in a program that has these options.

    Hyphens of the names are underscores here.
    """
    said = dict.fromkeys(NO_COUNTERPART, NOTHING)
    for names in (*NAMES.values(), MORE):
        for theirs, ours in names.items():
            name = option_of(ours)
            hint = f"here it is {ours}" if name in options else NOTHING
            said[theirs.replace("-", "_")] = hint
    return {theirs: hint for theirs, hint in said.items() if theirs not in options}


def migration_table(options: Container[str]) -> str:
    """In Markdown, a row for each tool: its names, each with the option that is here."""
    lines = ["| from | names there → here |", "|---|---|"]
    for tool, names in NAMES.items():
        pairs = [
            f"{theirs} → `{ours.split(',')[0]}`"
            for theirs, ours in names.items()
            if option_of(ours) in options
        ]
        lines.append(f"| {tool} | {', '.join(pairs)} |")
    return "\n".join(lines)
