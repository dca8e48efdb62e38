"""Duplicate lines are decoded once, without any effect on the output."""

import dataclasses
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import translate
from onmt_lite.inference import runner as runner_module
from onmt_lite.inference.pipeline import PER_LINE_FIELDS, Deduplicator, make_deduplication_key
from onmt_lite.inference.records import Example
from onmt_lite.inference.search_setup import SearchConfig
from onmt_lite.text.lines import Line
from tests.support import cases
from tests.support.sweeps import mark_sweeps

# Some lines are repeated, adjacent or not, and some differ but have the same tokens
LINES = [
    *("der hund", "die katze sieht den see", "", "der hund", "ein kind", "der  hund", "der hund"),
    *("", "ein kind", "EIN KIND", "die katze sieht den see", "ein"),
]
TARGETS = [
    *("the dog", "the cat", "", "the dog", "a child", "the dog", "a dog", "x", "a child"),
    *("a child", "the cat", ""),
]
KINDS = 7  # distinct (line, target) pairs that are decoded


@pytest.fixture
def decoded(monkeypatch):
    """Return the list of the sentences of each decoded batch."""
    sizes, decode = [], runner_module.decode

    def noted(model, sentences, *args, **named):
        sizes.append(len(sentences))
        return decode(model, sentences, *args, **named)

    monkeypatch.setattr(runner_module, "decode", noted)
    return sizes


def one_by_one(translator, lines, prefixes=None, **options):
    """Translate each line separately, keeping its line number."""
    pairs = [*zip(lines, prefixes or [None] * len(lines))]
    alone = {}
    for line, prefix in dict.fromkeys(pairs):
        prefixes = None if prefix is None else [prefix]
        (alone[line, prefix],) = translator.translate([line], prefixes, **options)
    return [replace(alone[pair], id=i) for i, pair in enumerate(pairs)]


@pytest.mark.parametrize(
    "lines, prefixes, n",
    [
        (["der hund"] * 250, None, 1),
        (["der hund", "ein"] * 9, None, 2),
        ([f"der hund {i}" for i in range(20)], None, 20),
        (["der hund"] * 4, ["the", "a", "the", ""], 3),
    ],
)
def test_duplicate_lines_are_decoded_once(translator, decoded, lines, prefixes, n):
    found = translator.translate(lines, prefixes, deterministic=True)
    assert sum(decoded) == n
    assert found == one_by_one(translator, lines, prefixes, deterministic=True)
    assert [t.id for t in found] == [*range(len(lines))]


@settings(max_examples=15)
@given(st.lists(st.sampled_from(LINES), max_size=8), st.integers(1, 3))
def test_duplicate_lines_equal_separate_translations(translator, lines, n_best):
    options = dict(n_best=n_best, beam_size=3, deterministic=True)
    found = translator.translate(lines, **options)
    assert found == one_by_one(translator, lines, **options)
    assert len({id(t.hyps) for t in found}) == len(found)  # lists are not shared


@pytest.mark.parametrize("score_only", [False, True])
def test_progress_counts_duplicate_lines(translator, score_only):
    def counted(lines, targets):
        calls = []
        sources, targets = ([Line(i, x) for i, x in enumerate(each)] for each in (lines, targets))
        options = translator.options.updated(score_only=score_only, tgt="tgt")
        translator.pipeline.translate_lines(sources, targets, options, lambda *n: calls.append(n))
        return [sum(n) for n in zip(*calls)]

    alone = [counted([line], [tgt]) for line, tgt in zip(LINES, TARGETS)]
    n_lines, n_tokens = counted(LINES, TARGETS)
    assert n_lines == len(LINES)
    assert n_tokens == sum(n for _, n in alone) > 30


def test_sampling_decodes_duplicate_lines_separately(decoded):
    translator = cases.make_translator(cases.make_varied_transformer())
    found = translator.translate(["w1 w2"] * 20, do_sample=True, beam_size=1)
    assert sum(decoded) == 20
    assert len({t.text for t in found}) > 5


@pytest.mark.parametrize("search", cases.PRESETS)
def test_only_opennmt_2018_decodes_duplicate_lines_separately(search, decoded):
    """With this preset, the other lines of a batch can change a translation."""
    translator = cases.make_translator(cases.make_varied_transformer())
    if search == "opennmt-2018":
        translator.translate(["w1 w2"] * 20, search=search)
        assert sum(decoded) == 20
        return
    options = dict(search=search, deterministic=True)
    found = translator.translate(["w1 w2"] * 20, **options)
    assert sum(decoded) == 1
    assert found == one_by_one(translator, ["w1 w2"] * 20, **options)


class TestDeduplicationKey:
    @pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Example)])
    def test_key_depends_on_every_field_of_example(self, name):
        example = Example(Line(0, "a"), [1], 1)
        others = {"line": Line(0, "b"), "src_ids": [2], "tgt_ids": [1], "copy_ids": [1]}
        other = replace(example, **{name: others.get(name, ("other",))})
        assert make_deduplication_key(other) != make_deduplication_key(example)

    @pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Line)])
    def test_key_depends_on_every_field_of_line_but_id_and_fields(self, name):
        example = Example(Line(0, "a"), [1], 1)
        other = replace(example, line=replace(example.line, **{name: "other"}))
        assert (
            (make_deduplication_key(other) == make_deduplication_key(example))
            == (name in PER_LINE_FIELDS)
            == (name in "id fields")
        )

    def test_key_accepts_values_that_are_not_hashable(self):
        values = [[1, [2]], ((1, 2), [3]), {"a": [1]}, {1, 2}, None]
        examples = [Example(Line(i, "a"), value, 1) for i, value in enumerate(values * 2)]
        copies = Deduplicator(examples, merge=True)
        assert copies.distinct == examples[:5]
        assert copies.representatives == examples[:5] * 2


JOBS = {
    "text": "",
    "n_best": "-n_best 3 -beam_size 3",
    "scores": "-with_score -token_scores",
    "jsonl": "-output_format jsonl -n_best 2",
    "moses": "-output_format moses -n_best 2 -report_align",
    "tsv": "-output_format tsv -n_best 2",
    "log": "-verbose -attn_debug -output_format jsonl",
    "gold": "-tgt {tgt} -verbose -output_format jsonl",
    "gold align": "-tgt {tgt} -report_align -gold_align -output_format jsonl",
    "score_only": "-tgt {tgt} -score_only",
    "prefixes": "-tgt {tgt} -tgt_file_prefix -output_format jsonl",
    "objects": "-input_format jsonl -output_format jsonl",
    "drawn": "-do_sample -n_best 2 -output_format jsonl",
    "dump": "-dump_beam {dump}",
    "notes": "-report {report} -min_length 4 -max_length 5",
    "buckets": "-bucket_lines 5 -output_format jsonl",
    "workers": "-bucket_lines 4 -workers 2 -verbose -output_format jsonl",
    "2018": "-search opennmt-2018 -batch_size 64 -output_format jsonl -deterministic false",
}


DAILY = ["n_best", "moses", "gold align", "objects", "drawn", "dump", "workers", "2018"]


class TestJobs:
    @pytest.fixture
    def run(self, tiny_checkpoint, tmp_path):
        """Return all files that a job writes, by name; the log without times."""

        def run(words):
            lines = LINES
            if "-input_format jsonl" in words:
                lines = [json.dumps({"text": line, "n": i}) for i, line in enumerate(LINES)]
            (tmp_path / "src").write_text("".join(f"{line}\n" for line in lines))
            (tmp_path / "tgt").write_text("".join(f"{line}\n" for line in TARGETS))
            written = {name: tmp_path / name for name in ("out", "log", "report", "dump.json")}
            for path in written.values():
                path.unlink(missing_ok=True)
            names = {name.partition(".")[0]: path for name, path in written.items()}
            names |= {"tgt": tmp_path / "tgt"}
            argv = f"-model {tiny_checkpoint} -src {tmp_path}/src -output {tmp_path}/out -quiet "
            argv += f"-log_file {tmp_path}/log -device cpu -deterministic " + words.format(**names)
            argv = argv.replace("-quiet", "") if "-verbose" in words else argv
            assert translate.main(argv.split()) == 0
            found = {name: p.read_text() for name, p in written.items() if p.exists()}
            log = [line.split("] ", 1)[-1] for line in found["log"].split("\n")]
            found["log"] = [line for line in log if "lines -> " not in line]
            return found

        return run

    @pytest.mark.parametrize("words", mark_sweeps(JOBS, DAILY))
    def test_job_output_equals_job_without_deduplication(self, run, words, monkeypatch, decoded):
        words = JOBS[words]
        found, n_merged = run(words), sum(decoded)
        monkeypatch.setattr(SearchConfig, "can_deduplicate", False)
        decoded.clear()
        assert found == run(words.replace("-workers 2", "-workers 1"))
        assert found["out"].count("\n") >= len(LINES)
        same = any(name in words for name in ("2018", "-do_sample", "-score_only"))
        assert (n_merged == sum(decoded)) == same

    def test_job_averages_count_duplicate_lines(self, run):
        log = run("")["log"]
        assert any(line.endswith(f"NB SENTENCES: {len(LINES) - 2}") for line in log)
        assert any(line.startswith("lines 3 and 8: the input line is empty") for line in log)
