"""Option names of CTranslate2, Eole, fairseq, Marian and transformers suggest the equivalent."""

import re

import pytest

from onmt_lite.config.options import OPTIONS, TranslateOptions, load_options
from onmt_lite.config.other_tools import (
    NO_EQUIVALENT,
    TRAINING_ONLY,
    find_hint,
    load_opennmt_options,
    load_peers,
    parse_option_name,
)
from onmt_lite.ray.options import load_ray_options
from tests.support.option_problems import catch_problem, catch_problems, spellings

# Name of another tool and the equivalent option, from the documentation of the tools
EQUIVALENTS = """
num_hypotheses n_best; no_repeat_ngram_size block_ngram_repeat; max_decoding_length max_length;
min_decoding_length min_length; sampling_topk random_sampling_topk;
sampling_temperature random_sampling_temp; disable_unk ban_unk_token; replace_unknowns replace_unk;
return_scores with_score; max_batch_size batch_size; compute_type precision;
target_prefix tgt_file_prefix; return_attention attn_debug;
beam beam_size; nbest n_best; lenpen alpha; max-len-b max_length; max-len-a max_length_ratio;
min-len min_length; no-repeat-ngram-size block_ngram_repeat; max-tokens batch_size;
max-sentences batch_size; diverse-beam-groups beam_groups; diverse-beam-strength diversity_rate;
sampling do_sample; temperature random_sampling_temp; print-alignment report_align;
remove-bpe detokenizer; prefix-size tgt_file_prefix; score-reference score_only;
constraints force_words; path model; unkpen ban_unk_token;
models model; input src; n-best n_best; normalize alpha; max-length-factor max_length_ratio;
mini-batch batch_size; cpu-threads threads; devices device; alignment report_align;
word-scores token_scores; force-decode tgt_file_prefix; output-sampling do_sample;
allow-unk ban_unk_token; weights model_weights; quiet-translation quiet;
num_beams beam_size; num_return_sequences n_best; max_new_tokens max_length;
min_new_tokens min_length; top_k random_sampling_topk; top_p random_sampling_topp;
num_beam_groups beam_groups; diversity_penalty diversity_rate; bad_words_ids ban_words;
force_words_ids force_words; forced_bos_token_id tgt_prefix; output_scores token_scores;
model_path model; compute_dtype precision; c config; engine search;
source_path src; output_path output; target_path tgt; with_scores with_score;
bpe-codes src_subword_model; sentencepiece-model src_subword_model; device-id gpu;
nbest-size n_best; max-output-length max_length; length-penalty-alpha alpha;
json-input input_format;
beam_alpha alpha; load_model model; return_prob token_scores; min_output_length min_length;
decoder_input_ids tgt_file_prefix; load_in_8bit precision
"""
PAIRS = [tuple(pair.split()) for pair in EQUIVALENTS.split(";")]
# All translation options of each tool, from its source (Marian: from its documentation)
ALL_NAMES = {
    "CTranslate2 4.8.5": """
model_path device device_index compute_type inter_threads intra_threads max_queued_batches
flash_attention tensor_parallel files source target_prefix max_batch_size batch_type asynchronous
beam_size patience num_hypotheses length_penalty coverage_penalty repetition_penalty
no_repeat_ngram_size no_repeat_ngram disable_unk suppress_sequences end_token return_end_token
prefix_bias_beta max_input_length max_decoding_length min_decoding_length use_vmap return_scores
return_logits_vocab return_attention return_alternatives min_alternative_expansion_prob
sampling_topk sampling_topp sampling_temperature replace_unknowns callback source_path output_path
target_path read_batch_size with_scores source_tokenize_fn target_tokenize_fn target_detokenize_fn
offset with_tokens_score tokens_score target
""",
    "fairseq 0.12.2": """
path post_process remove_bpe quiet model_overrides results_path beam nbest max_len_a max_len_b
min_len match_source_len unnormalized no_early_stop no_beamable_mm lenpen unkpen replace_unk
sacrebleu score_reference prefix_size no_repeat_ngram_size sampling sampling_topk sampling_topp
constraints temperature diverse_beam_groups diverse_beam_strength diversity_rate print_alignment
print_step lm_path lm_weight iter_decode_eos_penalty iter_decode_max_iter iter_decode_force_max_iter
iter_decode_with_beam iter_decode_with_external_reranker retain_iter_history retain_dropout
retain_dropout_modules decoding_format no_seed_provided eos_token buffer_size input num_workers
skip_invalid_size_inputs_valid_test max_tokens batch_size max_sentences required_batch_size_multiple
required_seq_len_multiple dataset_impl data_buffer_size train_subset valid_subset gen_subset
num_shards shard_id seed cpu tpu bf16 fp16 memory_efficient_fp16 memory_efficient_bf16
no_progress_bar log_interval log_format log_file tensorboard_logdir user_dir empty_cache_freq
profile data source_lang target_lang load_alignments left_pad_source left_pad_target
max_source_positions max_target_positions upsample_primary truncate_source num_batch_buckets
eval_bleu task scoring tokenizer bpe bpe_codes sentencepiece_model moses_source_lang
moses_target_lang moses_no_dash_splits moses_no_escape criterion lang_pairs langs encoder_langtok
decoder_langtok arch distributed_world_size distributed_rank device_id model_parallel_size
quantization_config_path checkpoint_shard_count checkpoint_suffix fp16_init_scale bpe_separator
sentencepiece_enable_sampling sentencepiece_alpha bpe_vocab subword_nmt_vocab bpe_dropout
""",
    "Marian c9f287d": """
config workspace log log_level log_time_zone quiet quiet_translation seed check_nan
interpolate_env_vars relative_paths dump_config sigterm input input_types output vocabs beam_size
normalize max_length_factor word_penalty allow_unk allow_special n_best alignment force_decode
word_scores stat_freq no_spm_decode no_spm_encode max_length max_length_crop tsv tsv_fields devices
num_devices cpu_threads mini_batch mini_batch_words maxi_batch maxi_batch_sort data_threads optimize
skip_cost fp16 precision gemm_type quantize_range model_mmap models ignore_model_config type
shortlist weights output_sampling output_approx_knn right_left mini_batch_round_up cost_breakdown
no_reload port
""",
    "Sockeye 3.1.34": """
input input_factors output output_type json_input models checkpoints nbest_size beam_size greedy
beam_search_stop batch_size chunk_size sample seed ensemble_mode bucket_width max_input_length
max_output_length_num_stds max_output_length restrict_lexicon restrict_lexicon_topk skip_nvs
nvs_thresh strip_unknown_words length_penalty_alpha length_penalty_beta brevity_penalty_type
brevity_penalty_weight brevity_penalty_constant_length_ratio dtype use_cpu device_id tf32 env
loglevel loglevel_secondary_workers quiet quiet_secondary_workers no_logfile knn_index knn_lambda
clamp_to_dtype sure_align_threshold override_dtype avoid_list prevent_unk lock_dir
""",
    "JoeyNMT 2.3.0": """
output_path save_attention save_scores skip_test use_ddp batch_size batch_type eval_metrics
sacrebleu_cfg n_best beam_size beam_alpha return_prob repetition_penalty load_model
max_output_length min_output_length return_attention generate_unk no_repeat_ngram_size postprocess
""",
    "Eole 0.6.4": """
beam_size ratio top_k top_p temperature length_penalty alpha coverage_penalty beta stepwise_penalty
min_length max_length max_length_ratio context_length prefill_chunk_size prefill_cache_size
block_ngram_repeat ignore_when_blocking replace_unk ban_unk_token phrase_table n_best dump_beam
verbose with_score timestamps language task initial_prompt condition_on_previous_text
fallback_temperatures compression_ratio_threshold logprob_threshold no_speech_threshold estim_only
attn_debug align_debug report_align gold_align report_time self_speculative_decoding
self_speculative_num_tokens fuse_kvq fuse_gate profile batch_size dynamic_shapes batch_type
avg_raw_probs data_type chat_template optional_eos transforms transforms_configs skip_empty_level
share_vocab src_subword_vocab model model_path hf_token src tgt ref score_level tgt_file_prefix
output engine gpu_ranks world_size parallel_mode gpu_backend gpu_verbose_level master_ip master_port
timeout lora_layers lora_embedding lora_rank lora_alpha lora_dropout quant_layers quant_type w_bit
group_size autoround_packing_format autoround_sym quant_exclude_modules seed log_file report_every
valid_metrics scorer_modules scorer_configs wer_normalize self_attn_backend compute_dtype
torch_compile
""",
    "LibreTranslate 1.9.6": """
from_lang to_lang port host char_limit req_limit req_limit_storage hourly_req_limit
hourly_req_limit_decay daily_req_limit req_flood_threshold req_time_cost batch_limit debug ssl
frontend_language_source frontend_language_target frontend_language frontend_title frontend_timeout
api_keys api_keys_db_path api_keys_remote get_api_key_link require_api_key_origin
require_api_key_secret require_api_key_fingerprint hide_api under_attack shared_storage secondary
load_only alternatives_limit threads suggestions disable_files_translation disable_web_ui
update_models force_update_models metrics metrics_auth_token translation_cache url_prefix q source
target format alternatives api_key file
""",
    "transformers 5.24.0": """
max_length max_new_tokens min_length min_new_tokens early_stopping max_time stop_strings do_sample
num_beams use_mtp use_cache cache_implementation cache_config max_cache_len temperature top_k top_p
min_p top_h typical_p epsilon_cutoff eta_cutoff repetition_penalty encoder_repetition_penalty
length_penalty no_repeat_ngram_size bad_words_ids renormalize_logits forced_bos_token_id
forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens
begin_suppress_tokens sequence_bias token_healing guidance_scale watermarking_config
num_return_sequences output_attentions output_hidden_states output_scores compute_output_logits
return_dict_in_generate pad_token_id bos_token_id eos_token_id encoder_no_repeat_ngram_size
decoder_start_token_id is_assistant num_assistant_tokens num_assistant_tokens_schedule
assistant_confidence_threshold prompt_lookup_num_tokens max_matching_ngram_size assistant_early_exit
assistant_lookbehind target_lookbehind assistant_ensemble_weight speculation_type compile_config
disable_compile continuous_batching_config low_memory penalty_alpha dola_layers diversity_penalty
num_beam_groups constraints force_words_ids prefill_chunk_size transformers_version
stopping_criteria logits_processor prefix_allowed_tokens_fn streamer assistant_model
generation_config synced_gpus negative_prompt_ids decoder_input_ids forced_decoder_ids src_lang
tgt_lang device device_map torch_dtype dtype load_in_8bit load_in_4bit trust_remote_code
attn_implementation tokenizer truncation padding clean_up_tokenization_spaces skip_special_tokens
return_tensors return_text revision cache_dir local_files_only token framework model_kwargs
""",
}
TOOLS, OTHERS = load_peers()["tools"], load_peers()["other_names"]


@pytest.mark.parametrize(("foreign_name", "option_name"), PAIRS)
def test_foreign_name_suggests_equivalent_from_every_source(foreign_name, option_name, tmp_path):
    for name in spellings(foreign_name, OPTIONS):
        by_keyword = catch_problem(lambda name=name: TranslateOptions.of(**{name: 2}))
        for problem in (*catch_problems(name, load_options, tmp_path / "a.yaml"), by_keyword):
            assert re.match(rf"unknown option {name}; use {option_name}\b", problem), problem
    tables = [
        *TOOLS.values(),
        {name.replace("_", "-"): option_name for name, option_name in OTHERS.items()},
    ]
    spelled = (foreign_name, foreign_name.replace("_", "-"))
    assert any(
        parse_option_name(names.get(name, "")) == option_name
        for names in tables
        for name in spelled
    )


def test_foreign_names_map_to_one_existing_option():
    found: dict[str, set[str]] = {}
    for names in (*TOOLS.values(), OTHERS):
        for foreign_name, option_name in names.items():
            found.setdefault(foreign_name.replace("-", "_"), set()).add(
                parse_option_name(option_name)
            )
    assert [name for name, several in found.items() if len(several) > 1] == []
    assert set().union(*found.values()) <= set(OPTIONS)
    hinted = {*load_peers()["no_equivalent"].split(), *load_peers()["training"].split()}
    hinted |= {name for names in load_peers()["hints"].values() for name in names.split()}
    assert not {*found, *hinted} & set(load_opennmt_options()) and not set(found) & set(OPTIONS) - {
        "n_best"
    }
    assert not set(found) & hinted


@pytest.mark.parametrize("tool", ALL_NAMES)
def test_foreign_names_of_tool_all_have_hint(tool):
    known = {*OPTIONS, *load_opennmt_options()}
    names = [name for name in ALL_NAMES[tool].split() if name not in known]
    assert [name for name in names if find_hint(name, OPTIONS) is None] == []


@pytest.mark.parametrize("name", [name for name in sorted(OPTIONS) if "_" in name])
def test_option_with_hyphens_suggests_underscores(name):
    spelled = name.replace("_", "-")
    problem = catch_problem(lambda: load_options([f"--{spelled}", "1"]))
    assert problem == f"unknown option {spelled}; use {name} instead (command line)"


def load_ray(words):
    return load_ray_options(["-src", "a", "-output", "b", *words])


@pytest.mark.parametrize(
    ("load", "name", "hint"),
    [
        (load_options, "data-type", "use data_type instead"),
        (load_options, "world-size", "use world_size instead"),
        (load_options, "lm-weight", NO_EQUIVALENT),
        (load_options, "prefix_bias_beta", NO_EQUIVALENT),
        (load_options, "no_repeat_ngram", "use block_ngram_repeat instead"),
        (load_options, "eos-token", "the model config sets it; remove it"),
        (load_options, "workspace", NO_EQUIVALENT),
        (load_options, "word-penalty", NO_EQUIVALENT),
        (load_options, "rnn_size", TRAINING_ONLY),
        (load_ray, "num_beams", "use beam_size instead"),
        (load_ray, "word-scores", NO_EQUIVALENT),  # only translate.py has token_scores
        (load_ray, "tgt", "only supported by translate.py; remove it"),
    ],
)
def test_foreign_name_without_equivalent_gets_matching_hint(load, name, hint):
    problem = catch_problem(lambda: load([f"--{name}", "1"]))
    assert problem == f"unknown option {name}; {hint} (command line)"


def test_shared_names_are_accepted_without_reading_peers():
    load_peers.cache_clear()
    words = "-beam_size 4 -n_best 2 -max_length 9 -early_stopping true -repetition_penalty 1.2"
    options, _ = load_options([*words.split(), "-search", "transformers"])
    assert (options.search.beam_size, options.search.n_best) == (4, 2)
    assert load_peers.cache_info().misses == 0
