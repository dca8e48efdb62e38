"""Names of CTranslate2, fairseq, Marian and transformers: refused with ours, table and hints."""

import re
from pathlib import Path

import pytest

from onmt_lite import OptionError, Translator
from onmt_lite.checkpoints.shipped import model_paths
from onmt_lite.config.options import ELSEWHERE, OPTIONS, TranslateOptions, load_options
from onmt_lite.config.peer_options import NAMES, NOTHING, hints, migration_table, option_of
from onmt_lite.ray.options import NOT_HERE
from onmt_lite.ray.options import OPTIONS as RAY_OPTIONS

README = Path(__file__).resolve().parents[1] / "README.md"
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
force_words_ids force_words; forced_bos_token_id tgt_prefix; output_scores token_scores
"""
PAIRS = [tuple(pair.split()) for pair in EXPECTED.split(";")]


def hint_of(theirs: str, ours: str) -> str:
    """The beginning of what is said of a name."""
    return f"unknown option {theirs}; " + (f"here it is {ours}" if ours in OPTIONS else NOTHING)


def spellings(theirs: str) -> list[str]:
    """With hyphens and with underscores, but for what is a name of ours."""
    both = {theirs.replace("-", "_"), theirs.replace("_", "-")}
    return sorted(both - set(OPTIONS))


def problems_of(load) -> tuple[str, ...]:
    with pytest.raises(OptionError) as caught:
        load()
    return caught.value.problems


@pytest.mark.parametrize(("theirs", "ours"), PAIRS)
def test_a_name_is_refused_with_ours_wherever_it_stands(theirs, ours, tmp_path):
    path = tmp_path / "a.yaml"
    for name in spellings(theirs):
        path.write_text(f"{name}: 2\n", encoding="utf-8")
        sources = [
            lambda name=name: load_options([f"-{name}", "2"]),
            lambda name=name: load_options([f"--{name}", "2"]),
            lambda name=name: load_options([f"--{name}=2"]),
            lambda: load_options(["-config", str(path)]),
            lambda name=name: TranslateOptions.of(**{name: 2}),
        ]
        for load in sources:
            (problem,) = problems_of(load)
            assert re.match(rf"{re.escape(hint_of(name, ours))}\b", problem), problem


def test_python_says_the_same():
    for theirs, ours in [("num_hypotheses", "n_best"), ("no-repeat-ngram-size", "block_ngram_")]:
        (problem,) = problems_of(
            lambda theirs=theirs: Translator.from_pretrained(model_paths(())[0], **{theirs: 2})
        )
        assert problem.startswith(f"unknown option {theirs}; here it is {ours}")


def test_the_table_has_every_name():
    listed = {theirs: option_of(ours) for names in NAMES.values() for theirs, ours in names.items()}
    assert {theirs: listed.get(theirs) for theirs, _ in PAIRS} == dict(PAIRS)


def test_a_name_of_several_tools_leads_to_one_option():
    found: dict[str, set[str]] = {}
    for names in NAMES.values():
        for theirs, ours in names.items():
            found.setdefault(theirs.replace("-", "_"), set()).add(ours)
    assert [name for name, several in found.items() if len(several) > 1] == []


def test_no_hint_names_an_option_that_the_program_does_not_have():
    for said, options in ((ELSEWHERE, OPTIONS), (NOT_HERE, RAY_OPTIONS)):
        named = [re.match(r"here it is (\w+)", hint) for hint in said.values()]
        assert {found[1] for found in named if found} <= {*options}
        assert not set(said) & set(options) - {"workers", "gpu"}


def test_a_hint_appears_with_the_option():
    assert hints({})["word_scores"] == hints({"n_best"})["word_scores"] == NOTHING
    assert hints({"token_scores"})["word_scores"] == "here it is token_scores"
    assert "token_scores" not in migration_table({"n_best"})
    assert "word-scores → `token_scores`" in migration_table({"token_scores"})


@pytest.mark.parametrize("name", sorted(set(OPTIONS) - {"config"}))
def test_a_name_of_ours_with_hyphens_is_refused_with_ours(name):
    if "_" not in name:
        return
    spelt = name.replace("_", "-")
    (problem,) = problems_of(lambda: load_options([f"--{spelt}", "1"]))
    assert problem == f"unknown option {spelt}; here it is {name} (command line)"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("data-type", "it is spelt data_type"),
        ("world-size", "it is spelt world_size"),
        ("lm-weight", NOTHING),
        ("workspace", NOTHING),
        ("word-penalty", NOTHING),
    ],
)
def test_no_name_gets_the_nearest_one_of_another_meaning(name, hint):
    (problem,) = problems_of(lambda: load_options([f"--{name}", "1"]))
    assert problem == f"unknown option {name}; {hint} (command line)"


def test_names_that_are_ours_too_go_on_working():
    words = "-beam_size 4 -n_best 2 -max_length 9 -early_stopping true -repetition_penalty 1.2"
    options, _ = load_options([*words.split(), "-search", "transformers"])
    assert (options.search.beam_size, options.search.n_best) == (4, 2)


def test_the_front_page_and_the_program_agree():
    """Each pair that the README shows is what the program says."""
    page = README.read_text(encoding="utf-8").split("<!-- names -->")[1].split("<!-- /names -->")[0]
    shown = re.findall(r"([\w-]+) → `(\w+)", page)
    assert len(shown) >= 60
    for theirs, ours in shown:
        (problem,) = problems_of(lambda theirs=theirs: load_options([f"--{theirs}"]))
        assert re.match(rf"unknown option {theirs}; here it is {ours}\b", problem)
    there = {t for t, ours in PAIRS if ours in OPTIONS}
    assert there <= {theirs for theirs, _ in shown}
