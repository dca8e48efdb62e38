"""Matrix of everything that can go wrong with a job, with tests for each row.

This module checks that the tests exist.  `kit` stands for the samples of the kits in test_kits.py.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]
KIT = "test_kits.py::test_kits_sample_reports_nothing"

# Number, what goes wrong, tests
MATRIX = """\
# A: input text
1 bytes that are not UTF-8: test_command_line.py::test_src_with_invalid_bytes_keeps_line_count, kit
2 a byte order mark: test_lines.py::test_line_reader_file_equals_split
3 UTF-16, with a mark and without: test_inputs.py::test_src_file_type_is_detected_by_first_bytes,
    test_file_types.py::test_file_types_many_nul_bytes_are_binary
4 CRLF: test_lines.py::test_line_reader_file_equals_split, kit
5 a CR inside a line: test_lines.py::test_line_reader_file_equals_split, kit
6 other line separators inside a line:
    test_translator.py::test_line_separators_are_read_as_spaces, kit
7 line separators in a translation:
    test_reports.py::test_line_breaks_become_spaces_in_text_and_escapes_in_jsonl,
    test_reports.py::test_line_breaks_in_hypothesis_do_not_end_output_line
8 a NUL inside a line: test_file_types.py::test_file_types_unusual_text_is_text, kit
9 half a character, from JSON: test_lines.py::test_line_from_text_replaces_lone_surrogate
10 an empty line: test_translator.py::test_empty_lines_are_not_encoded
11 a blank line: test_translator.py::test_empty_lines_are_not_encoded, kit
12 no line feed at the end: test_lines.py::test_line_reader_file_equals_split, kit
13 an empty file: test_command_line.py::test_src_empty_file_gives_empty_output
14 a line of a megabyte: test_translator.py::test_line_too_long_is_truncated_with_warning,
    test_lines.py::test_line_above_byte_limit_is_truncated_with_warning
15 millions of lines: test_kits.py::test_memory_does_not_grow_with_input,
    test_lines.py::test_window_is_bounded_by_bytes
16 gzip, whole and damaged: test_inputs.py::test_src_gzip_is_unpacked_regardless_of_name,
    test_inputs.py::test_src_damaged_gzip_is_rejected, kit
17 gzip that unpacks to gigabytes:
    test_lines.py::test_gzip_bomb_does_not_increase_memory
18 standard input, a FIFO: test_resume.py::test_resume_does_not_read_pipes,
    test_process.py::test_stdout_lines_appear_at_once_and_sigpipe_ends_job
19 the writer of a FIFO dies:
    test_lines.py::test_line_reader_pipe_lines_do_not_depend_on_writes
20 an input that cannot be read: test_command_line.py::test_src_unreadable_is_an_error
21 an input that changes meanwhile: test_lines.py::test_file_that_changes_while_read
22 the output is an input, the model, a configuration:
    test_output_paths.py::test_output_that_is_an_input_is_rejected, kit
23 special tokens in the text: test_translator.py::test_control_tokens_in_text_are_not_ids
24 files of different lengths: test_command_line.py::test_tgt_with_different_line_count_is_rejected,
    test_tasks.py::test_tgt_with_different_line_count_is_rejected
25 emoji, bidi controls, unassigned characters: kit
# B: options and YAML
26 an unknown key: test_sources.py::test_unknown_name_has_suggestion, kit
27 a wrong type: test_sources.py::test_yaml_invalid_value_is_rejected_with_key_and_line
28 surprises of YAML: test_sources.py::test_yaml_value_is_parsed,
    test_sources.py::test_yaml_invalid_value_is_rejected_with_key_and_line, kit
29 a key twice: test_sources.py::test_yaml_unsupported_syntax_is_rejected
30 tags that run code: test_sources.py::test_yaml_tag_is_rejected,
    test_sources.py::test_yaml_unsupported_syntax_is_rejected
31 deep nesting: test_sources.py::test_yaml_unsupported_syntax_is_rejected
32 anchors and aliases: test_sources.py::test_yaml_unsupported_syntax_is_rejected
33 documents, lists, tabs, nothing at all:
    test_sources.py::test_yaml_unsupported_syntax_is_rejected,
    test_sources.py::test_yaml_empty_file_sets_nothing,
    test_sources.py::test_any_yaml_gives_values_or_option_error
34 infinity and NaN: test_sources.py::test_yaml_invalid_value_is_rejected_with_key_and_line,
    test_sources.py::test_number_too_long_for_float_is_rejected
35 values out of range, all reported at once: test_options.py::test_error_has_remedy,
    test_options.py::test_errors_of_all_sources_are_reported_together
36 a beam larger than the vocabulary:
    test_brute_force.py::test_beam_as_large_as_search_space_equals_brute_force
37 command line against YAML: test_options.py::test_config_later_source_overrides_earlier
38 options that do not go together, a GPU that is absent:
    test_options.py::test_error_has_remedy,
    test_command_line.py::test_gpu_missing_is_reported_before_model_is_loaded
39 a configuration that cannot be read: test_sources.py::test_yaml_missing_file_is_rejected,
    test_sources.py::test_yaml_binary_file_is_rejected
40 an output that cannot be written: test_command_line.py::test_output_unwritable_is_an_error, kit
41 variables of the environment: test_sources.py::test_yaml_value_is_parsed
# C: models
42 missing and unexpected weights:
    test_corrupted_checkpoints.py::test_load_changed_weight_is_rejected,
    test_loading.py::test_missing_key_refused
43 a wrong shape or type: test_corrupted_checkpoints.py::test_load_changed_weight_is_rejected,
    test_archive.py::test_load_invalid_tensor_description_is_rejected
44 a file that is cut off: test_opennmt_reader.py::test_load_truncated_file_is_rejected, kit
45 a flipped bit:
    test_corrupted_checkpoints.py::test_load_corrupted_bytes_equals_original_or_is_rejected, kit
46 weights that are NaN or infinite: test_loading.py::test_weights_not_finite_refused,
    test_corrupted_checkpoints.py::test_load_changed_weight_is_rejected
47 pickles that run something:
    test_archive.py::test_load_malicious_file_is_rejected_without_execution, kit
48 bombs: test_archive.py::test_load_compressed_member_is_rejected,
    test_archive.py::test_load_invalid_tensor_description_is_rejected,
    test_archive.py::test_load_deep_or_recursive_value_terminates
49 a member twice: test_archive.py::test_load_unexpected_or_duplicate_member_is_rejected
50 a file of another kind: test_loading.py::test_file_with_unsupported_content_named_in_error
51 a later format: test_loading.py::test_unknown_format_refused
52 vocabularies that do not fit: test_loading.py::test_sentencepiece_model_of_other_size_refused,
    test_loading.py::test_weights_of_another_model_refused,
    test_opennmt_reader.py::test_load_vocabulary_of_wrong_size_is_rejected
53 an ensemble that does not fit:
    test_ensemble.py::test_incompatible_models_error_names_the_difference
54 a sentencepiece model that is damaged:
    test_transforms.py::test_sentencepiece_random_bytes_are_rejected, kit
55 another model when a job is resumed: test_store.py::test_resume_error_names_each_difference
56 sizes that the weights do not have:
    test_loading.py::test_config_that_does_not_match_weights_refused, kit
# D: search
57 nothing is possible: test_command_line.py::test_src_line_without_possible_translation,
    test_nan.py::test_reference_with_nan_has_warning_tgt_not_a_number
58 a vocabulary smaller than twice the beam:
    test_brute_force.py::test_n_best_equals_reference_search,
    test_brute_force.py::test_beam_as_large_as_search_space_equals_brute_force
59 min_length above max_length: test_options.py::test_error_has_remedy
60 n-gram blocking leaves nothing:
    test_brute_force.py::test_ngram_block_keeps_best_row_when_all_blocked
61 the end comes first: test_command_line.py::test_empty_translation
62 NaN from the model: test_nan.py::test_nan_in_every_search_leaves_other_sentences_unchanged,
    test_untranslated_lines.py::test_untranslated_lines_output_is_complete
63 max_length 1: test_brute_force.py::test_max_length_limits_tokens_without_eos
64 a prefix longer than the limit, an unknown word in one:
    test_tgt_file_prefix.py::test_prefix_beyond_limit_is_kept_with_warning,
    test_tgt_file_prefix.py::test_unknown_prefix_word_names_line
65 some sentences are done, others not:
    test_brute_force.py::test_finished_sentence_is_unaffected_by_slow_sentence,
    test_brute_force.py::test_hypotheses_are_independent_of_batch
66 fewer hypotheses than n_best: test_reports.py::test_text_format_always_has_n_best_lines,
    test_reports.py::test_moses_format_has_n_best_lines_with_four_fields
67 ties:
    test_brute_force.py::test_tied_candidates_lower_row_then_lower_token_first,
    test_brute_force.py::test_n_best_equals_reference_search
68 a hypothesis of no tokens:
    test_brute_force.py::test_score_of_worked_case_has_length_and_coverage_penalty,
    test_command_line.py::test_empty_translation
# E: resources and processes
69 a batch that does not fit into memory:
    test_out_of_memory.py::test_oom_retry_loses_nothing_and_fails_rarely,
    test_out_of_memory.py::test_sentence_that_does_not_fit_is_named_in_error
70 a worker that fails: test_workers.py::test_workers_repeat_bucket_of_dead_worker
71 memory of the CPU is out:
    test_out_of_memory.py::test_failed_batch_size_is_not_tried_again
72 the kernel kills a process: test_workers.py::test_workers_repeat_bucket_of_dead_worker, kit
73 a full disk: test_command_line.py::test_output_on_full_disk_is_an_error,
    test_store.py::test_store_failing_system_call_keeps_output_and_can_resume,
    kit
74 Ctrl-C: test_process.py::test_two_stop_signals_at_once, kit
75 SIGTERM, SIGHUP: test_workers.py::test_workers_signal_to_process_group, kit
76 SIGKILL, power cuts: test_store.py::test_store_killed_before_any_system_call_can_resume,
    test_store.py::test_store_power_failure_after_any_system_call_can_resume,
    test_store.py::test_store_damaged_files_are_detected, kit
77 the reader of a pipe leaves: test_process.py::test_output_pipe_without_reader_ends_job,
    test_process.py::test_stdout_lines_appear_at_once_and_sigpipe_ends_job
78 standard output is closed or full: test_process.py::test_closed_stdout_or_stdin_is_an_error,
    test_process.py::test_stdout_full_is_an_error
79 two jobs on one output: test_command_line.py::test_output_locked_by_another_job_is_an_error, kit
80 a worker dies or hangs: test_workers.py::test_workers_repeat_bucket_of_dead_worker,
    test_workers.py::test_workers_replace_dead_idle_workers_and_fork_server
81 the parent is killed: test_workers.py::test_workers_end_with_parent
82 the clock jumps: test_architecture.py::test_durations_use_monotonic_clock
83 odd environments: test_process.py::test_output_does_not_depend_on_environment,
    test_process.py::test_closed_stderr_is_ignored
84 no terminal: test_terminal.py::test_long_job_logs_progress_periodically
85 few open files, little memory: test_process.py::test_job_with_few_file_descriptors,
    test_process.py::test_memory_limit_too_low_for_torch_is_an_error
# F: the same again
86 the same job again, and with kills:
    test_deterministic.py::test_deterministic_output_is_independent_of_batch_order_and_threads, kit
87 other batches: test_translator.py::test_results_do_not_depend_on_batch_size,
    test_tasks.py::test_bucket_lines_does_not_change_output
88 another order: test_translator.py::test_results_do_not_depend_on_order
89 shards: test_tasks.py::test_shard_outputs_concatenate_to_full_output
"""
ROWS = re.findall(r"^(\d+) ([^:]+):\s+((?:[^\s,]+(?:,\s+)?)+)$", MATRIX, re.M)


@cache
def named_in(file: str) -> set[str]:
    (path,) = TESTS.rglob(file)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_fault_matrix_is_complete():
    assert [int(number) for number, _, _ in ROWS] == list(range(1, 90))


@pytest.mark.parametrize(("number", "what", "tests"), ROWS)
def test_fault_matrix_tests_exist(number, what, tests):
    for test in re.split(r",\s+", tests):
        file, name = (KIT if test == "kit" else test).split("::")
        assert name.startswith("test_") and name in named_in(file), test
