"""-plan: what is counted, by hand; and that nothing is written."""

import json
import os
import re

import pytest

import translate
from onmt_lite import Translator
from onmt_lite import plan as plan_module
from onmt_lite.config.options import TranslateOptions
from onmt_lite.inference.budget import Size

NAMES = """lines blank_lines tokens longest_line over_long_lines unknown_tokens unknown_rate
expected_memory_mb expected_seconds""".split()
LINES = ["der hund", "", "die katze sieht den see", "  ", "ein kind", "der hund", "§ hund"]


@pytest.fixture
def run(tiny_checkpoint, tmp_path, monkeypatch, capfd):
    """run(words, lines) -> exit code, the plan's values by name, standard error."""
    monkeypatch.chdir(tmp_path)

    def run_once(words="", lines=LINES, name="src"):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
        argv = f"-model {tiny_checkpoint} -device cpu -src {name} -plan {words}".split()
        code = translate.main(argv)
        out, err = capfd.readouterr()
        return code, dict(line.split(": ") for line in out.splitlines()), err

    return run_once


@pytest.fixture
def tokens(tiny_checkpoint):
    """The tokens of a line, and of these those that the model does not know."""
    translator = Translator.from_pretrained(tiny_checkpoint, device="cpu")
    vocab = translator.checkpoint.src_vocab

    def tokens_of(line):
        own = translator.tokenizer.encode(line)
        return own, [t for t in own if vocab.ids.get(t, vocab.unk_id) == vocab.unk_id]

    return tokens_of


def expected(lines, tokens, room=10**9):
    known = [tokens(line) for line in lines]
    n, n_unknown = (sum(len(each[i]) for each in known) for i in (0, 1))
    return {
        "lines": str(len(lines)),
        "blank_lines": str(sum(not line.strip() for line in lines)),
        "tokens": str(n),
        "longest_line": str(max(len(own) for own, _ in known)),
        "over_long_lines": str(sum(len(own) > room for own, _ in known)),
        "unknown_tokens": str(n_unknown),
        "unknown_rate": f"{n_unknown / max(1, n):.4f}",
    }


def counted(found):
    return {name: found[name] for name in NAMES[:-2]}


def test_what_is_counted(run, tokens):
    code, found, _ = run()
    assert code == 0 and list(found) == NAMES
    assert counted(found) == expected(LINES, tokens)
    assert int(found["blank_lines"]) == 2 and int(found["unknown_tokens"]) > 0
    assert re.fullmatch(r"\d+\.\d", found["expected_seconds"])
    assert int(found["expected_memory_mb"]) > 50


def test_lines_that_are_longer_than_the_model_takes(run, tokens, tiny_checkpoint):
    translator = Translator.from_pretrained(tiny_checkpoint, device="cpu")
    most = translator.model.max_positions - 1  # and the end token
    lines = ["hund", "hund " * (most + 40)]
    code, found, err = run(lines=lines)
    assert counted(found) == expected(lines, tokens, most) | {
        name: found[name] for name in ("unknown_tokens", "unknown_rate")
    }
    assert found["over_long_lines"] == "1" and int(found["longest_line"]) > most
    assert "truncated: 1 of 2 lines (2)" in err


def test_of_the_sentences_of_long_lines(run, tokens, tmp_path):
    sentence = "Ein Hund sieht die Katze."
    lines, each = [" ".join([sentence] * 2), sentence], [sentence] * 3
    code, found, _ = run("-split_longer 30", lines)
    assert code == 0 and counted(found) == expected(each, tokens) | {"lines": "2"}
    (tmp_path / "tgt").write_text("a\n" * len(lines))  # references are of whole lines
    code, found, _ = run("-split_longer 30 -tgt tgt", lines)
    assert code == 0 and counted(found) == expected(lines, tokens)


@pytest.mark.parametrize("lines", [[], [""], ["", "", ""]])
def test_nothing_to_translate(run, lines):
    code, found, _ = run(lines=lines)
    assert code == 0 and found["lines"] == found["blank_lines"] == str(len(lines))
    assert found["tokens"] == found["longest_line"] == "0" and found["unknown_rate"] == "0.0000"


def test_of_the_lines_of_a_shard(run, tokens):
    _, found, _ = run("-bucket_lines 2 -shard 2/2")
    assert counted(found) == expected(LINES[4:], tokens)


def test_of_objects(run, tokens):
    lines = [json.dumps({"text": line, "n": i}) for i, line in enumerate(LINES)]
    _, found, _ = run(lines=lines, name="src.jsonl")
    assert counted(found) == expected(LINES, tokens)


@pytest.mark.parametrize("words", ["-n_best 3", "-workers 2", "-do_sample", "-search fairseq"])
def test_with_options_of_the_job(run, tokens, words):
    code, found, _ = run(words)
    assert code == 0 and counted(found) == expected(LINES, tokens)


@pytest.mark.parametrize("words", ["", "-score_only", "-tgt_file_prefix"])
def test_with_references(run, tokens, tmp_path, words):
    (tmp_path / "tgt").write_text("a\n" * len(LINES))
    code, found, _ = run(f"-tgt tgt {words}")
    assert code == 0 and counted(found) == expected(LINES, tokens)
    (tmp_path / "tgt").write_text("a\n")
    code, found, err = run(f"-tgt tgt {words}")
    assert code == 3 and not found and "src has 7 lines, tgt has 1" in err


def test_of_standard_input(tiny_checkpoint, tmp_path, monkeypatch, capfd, tokens):
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in LINES))
    with open(tmp_path / "in", encoding="utf-8") as file:
        monkeypatch.setattr("sys.stdin", file)
        assert translate.main(["-model", str(tiny_checkpoint), "-device", "cpu", "-plan"]) == 0
    found = dict(line.split(": ") for line in capfd.readouterr().out.splitlines())
    assert counted(found) == expected(LINES, tokens)


def test_nothing_is_written(run, tmp_path):
    """Beside an output that is there, and what a stopped job has left."""
    for name in ("out", "out.part", "out.part.journal", "log"):
        (tmp_path / name).write_text(name)
    run("-output out -log_file log -report notes -dump_beam beam.json -resume")
    names = {p.name: p.read_text() for p in tmp_path.iterdir() if p.name != "src"}
    assert names == {name: name for name in ("out", "out.part", "out.part.journal", "log")}


def test_what_a_job_would_refuse(run, tmp_path):
    assert run("-src missing")[0] == 5
    assert run("-beam_size 2 -n_best 3")[0] == 2
    code, _, err = run("-output src")
    assert code == 2 and "output src is the same file as src" in err
    (tmp_path / "words").write_text("cat\n" * 3)
    code, _, err = run("-force_words words")
    assert code == 3 and "words" in err
    os.mkfifo(tmp_path / "pipe")
    code, _, err = run("-src pipe -shard 1/2")
    assert code == 2 and "lines of pipe cannot be counted first" in err


class TestSeconds:
    @pytest.fixture
    def surveyor(self, translator, monkeypatch):
        """One whose clock is the work that it does: a second for each token read."""
        made = plan_module.Surveyor(translator, TranslateOptions.of(device="cpu"))
        made.timed = []

        def timed(sample):
            made.timed.append(len(sample))
            return float(sum(work for _, _, work in sample))

        monkeypatch.setattr(made, "_timed", timed)
        return made

    def add(self, surveyor, lines):
        rows = [plan_module.Line(i, line) for i, line in enumerate(lines)]
        surveyor.add(plan_module.Bucket(0, rows))

    def test_a_second_for_each_token(self, surveyor, tokens):
        lines = [f"hund {i} {'katze ' * (i % 5)}" for i in range(3000)]
        self.add(surveyor, lines)
        n = sum(len(tokens(line)[0]) + 1 for line in lines)  # and the end token
        assert surveyor.seconds() == pytest.approx(n)
        assert len(surveyor.survey.sample) == plan_module.SAMPLE

    def test_the_sample_doubles_until_time_is_up(self, surveyor, monkeypatch):
        monkeypatch.setattr(plan_module, "SECONDS", 400.0)
        self.add(surveyor, [f"hund {i}" for i in range(3000)])
        surveyor.seconds()
        n = surveyor.timed
        assert n == [2**i for i in range(len(n))] and 2 < len(n) < 9

    def test_copies_take_no_time(self, surveyor):
        self.add(surveyor, ["der hund"] * 90)
        once = surveyor.survey.work
        assert surveyor.timed == [] and surveyor.seconds() == once and surveyor.timed == [1]

    def test_it_is_bounded_by_a_line(self, surveyor, monkeypatch):
        monkeypatch.setattr(plan_module, "SECONDS", 0.0)
        self.add(surveyor, ["der hund", "katze", "see"])
        assert surveyor.seconds() > 0 and surveyor.timed == [1]


def test_memory_grows_with_the_largest_batch(translator):
    """By the sizes from which batches are made."""
    options = TranslateOptions.of(device="cpu", batch_size=2, batch_type="sents")
    surveyor = plan_module.Surveyor(translator, options)
    lines = ["hund", "der hund sieht den see", "katze", "see", "ein kind"]
    rows = [plan_module.Line(i, line) for i, line in enumerate(lines)]
    surveyor.add(plan_module.Bucket(0, rows))
    lengths = sorted((len(translator.tokenizer.encode(line)) + 1 for line in lines), reverse=True)
    size = Size.of([translator.model])
    assert surveyor.survey.n_bytes == size.bytes(2, lengths[0], options.search.beam_size)
    said = plan_module.told(surveyor.survey, 10**9 + surveyor.survey.n_bytes, 1.0)
    assert "lines: 5\n" in said and "expected_memory_mb: 100" in said
