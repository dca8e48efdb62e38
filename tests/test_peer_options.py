"""Names of CTranslate2, Eole, fairseq, Marian and transformers: refused with ours."""

import re

import pytest

from onmt_lite.config.foreign import FOR_TRAINING, NOTHING, of_opennmt, option_of, table
from onmt_lite.config.options import OPTIONS, TranslateOptions, load_options
from onmt_lite.ray.options import load_ray_options
from tests.support.peers import problem_of, problems_of, spellings

# What each name must lead to, from the documentation of the tools
EXPECTED = """
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
model_path model; compute_dtype precision; c config; engine search
"""
PAIRS = [tuple(pair.split()) for pair in EXPECTED.split(";")]
TOOLS, OTHERS = table()["tools"], table()["others"]


@pytest.mark.parametrize(("theirs", "ours"), PAIRS)
def test_a_name_is_refused_with_ours_wherever_it_stands(theirs, ours, tmp_path):
    for name in spellings(theirs, OPTIONS):
        by_keyword = problem_of(lambda name=name: TranslateOptions.of(**{name: 2}))
        for problem in (*problems_of(name, load_options, tmp_path / "a.yaml"), by_keyword):
            assert re.match(rf"unknown option {name}; here it is {ours}\b", problem), problem
    assert any(option_of(names.get(theirs, "")) == ours for names in TOOLS.values())


def test_every_name_leads_to_one_option_that_exists():
    found: dict[str, set[str]] = {}
    for names in (*TOOLS.values(), OTHERS):
        for theirs, ours in names.items():
            found.setdefault(theirs.replace("-", "_"), set()).add(option_of(ours))
    assert [name for name, several in found.items() if len(several) > 1] == []
    assert set().union(*found.values()) <= set(OPTIONS)
    others = {*table()["nothing"].split(), *table()["training"].split()}
    others |= {name for names in table()["says"].values() for name in names.split()}
    assert not {*found, *others} & set(of_opennmt()) and not set(found) & set(OPTIONS) - {"n_best"}
    assert not set(found) & others


@pytest.mark.parametrize("name", [name for name in sorted(OPTIONS) if "_" in name])
def test_a_name_of_ours_with_hyphens_is_refused_with_ours(name):
    spelt = name.replace("_", "-")
    problem = problem_of(lambda: load_options([f"--{spelt}", "1"]))
    assert problem == f"unknown option {spelt}; here it is {name} (command line)"


def load_ray(words):
    return load_ray_options(["-src", "a", "-output", "b", *words])


@pytest.mark.parametrize(
    ("load", "name", "said"),
    [
        (load_options, "data-type", "it is spelt data_type"),
        (load_options, "world-size", "it is spelt world_size"),
        (load_options, "lm-weight", NOTHING),
        (load_options, "workspace", NOTHING),
        (load_options, "word-penalty", NOTHING),
        (load_options, "rnn_size", FOR_TRAINING),
        (load_ray, "num_beams", "here it is beam_size"),
        (load_ray, "word-scores", NOTHING),  # token_scores is of translate.py alone
        (load_ray, "tgt", "only translate.py has it; leave it out"),
    ],
)
def test_no_name_gets_one_of_another_meaning_or_program(load, name, said):
    problem = problem_of(lambda: load([f"--{name}", "1"]))
    assert problem == f"unknown option {name}; {said} (command line)"


def test_names_that_are_ours_too_go_on_working():
    """And the table of the others is not even read."""
    table.cache_clear()
    words = "-beam_size 4 -n_best 2 -max_length 9 -early_stopping true -repetition_penalty 1.2"
    options, _ = load_options([*words.split(), "-search", "transformers"])
    assert (options.search.beam_size, options.search.n_best) == (4, 2)
    assert table.cache_info().misses == 0
