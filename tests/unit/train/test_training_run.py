"""Training runs: input files, errors, resuming, logs, metrics and other output files."""

import csv
import errno
import gzip
import math
import os
import re
import shlex
import shutil
import stat
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest
import sacrebleu
import sentencepiece as spm
import torch

from onmt_lite import Translator
from onmt_lite.checkpoints.shipped import DATA
from onmt_lite.config.job_options import JobOptions
from onmt_lite.config.option import META_NAMES
from onmt_lite.errors import (
    CheckpointError,
    DataError,
    FileError,
    MemoryExhausted,
    OnmtLiteError,
    OptionError,
)
from onmt_lite.jobs.progress import configure_logging
from onmt_lite.train import calibrate, chart, data, validation
from onmt_lite.train import options as training_options
from onmt_lite.train import trainer as trainer_module
from onmt_lite.train.options import load_train_options
from onmt_lite.train.run import train
from onmt_lite.train.run_directory import (
    Row,
    format_resume_hint,
    format_translate_command,
    lock_directory,
)
from onmt_lite.train.trainer import Trainer
from tests.support.tiny_training import make_tiny_options


@pytest.fixture
def options(corpus, tmp_path):
    """options(*more) -> TrainOptions of a tiny run into tmp_path/run."""

    return partial(make_tiny_options, corpus, tmp_path / "run")


@pytest.fixture
def run(options, tmp_path):
    """run(*more) -> the directory of a finished run."""

    def start(*more):
        train(options(*more))
        return tmp_path / "run"

    return start


def read_metrics(directory):
    with open(directory / "train.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_all_files(directory):
    """Return all files below a directory with their contents."""
    return {path: path.is_file() and path.read_bytes() for path in directory.rglob("*")}


# ---- Input files ----


def test_read_pairs_accepts_bom_crlf_gzip_and_extra_columns(tmp_path):
    """Byte order mark, CR LF, blank lines, a third column, spaces around, no last line feed."""
    path = tmp_path / "my.txt"
    text = "\ufeffJa.\tYes.\tCC-BY\r\n\r\n \t \n Nein. \t No. \n\u2028Gut\u2028so\tFine"
    path.write_bytes(text.encode("utf-8"))
    found = [("Ja.", "Yes."), ("Nein.", "No."), ("Gut\u2028so", "Fine")]
    assert data.read_pairs(path) == found
    path.write_bytes(gzip.compress(path.read_bytes()))  # the name does not matter
    assert data.read_pairs(path) == found


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            b"a\tb\n\na;b\na\tb\nc;d\n\te\n",
            r"my\.tsv:3: .*'a;b' \(and 2 more lines\).*paste a\.src",
        ),
        (b"a\tb\nsch\xf6n\tfine\n", r"my\.tsv:2: the line is not UTF-8.*iconv"),
        ("a\tb\n".encode("utf-16"), r"my\.tsv is .*; convert it: iconv"),
        (b"\n \n\t\n", "contains no pairs"),
        (b"", "contains no pairs"),
        (b"a\tb\n\tb\n", r"my\.tsv:2: the line is not"),
        (gzip.compress(b"a\tb\n" * 99)[:-9], r"cannot unpack .*my\.tsv: it is truncated"),
    ],
)
def test_read_pairs_rejects_file_without_pairs(tmp_path, content, problem):
    (tmp_path / "my.tsv").write_bytes(content)
    with pytest.raises(OnmtLiteError, match=problem):
        data.read_pairs(tmp_path / "my.tsv")


def test_hold_out_removes_training_pairs_that_share_a_side():
    rng = Random(5)
    pairs = [(f"s{rng.randrange(700)}", f"t{rng.randrange(700)}") for _ in range(2000)]
    corpora = [pairs[:1500], pairs[1500:]]
    (first, second), held_out = data.hold_out(corpora)
    assert len(held_out) == 2000 // 50
    assert sum(pair in set(pairs[1500:]) for pair in held_out) >= 10  # from all over the corpora
    sources, targets = ({pair[side] for pair in held_out} for side in (0, 1))
    for before, after in zip(corpora, (first, second)):
        assert after == [p for p in before if p[0] not in sources and p[1] not in targets]
    many = [(f"s{n}", f"t{n}") for n in range(60_000)]
    assert len(data.hold_out([many])[1]) == 500
    with pytest.raises(DataError, match="-valid"):
        data.hold_out([[("a", "b")] * 100])


def test_valid_not_given_holds_out_training_pairs(tmp_path, options):
    path = tmp_path / "my.tsv"
    path.write_text("".join(f"satz {n}\tsentence {n}\n" for n in range(200)), encoding="utf-8")
    given = options("-train", path, "-vocab_size", 24)
    given = replace(given, data=replace(given.data, valid=()))
    with configure_logging(JobOptions()):
        trainer = Trainer(given)
    assert sum(len(batch.src) for batch in trainer.valid[0]) == len(trainer.bleu_pairs) == 4
    assert len(trainer.text.pairs) == 196 and not set(trainer.bleu_pairs) & set(trainer.text.pairs)
    assert "4 held out" in (tmp_path / "run" / "train.log").read_text(encoding="utf-8")


def test_vocab_size_too_large_or_small_error_gives_the_limit(corpus):
    pairs = data.read_pairs(corpus)
    for wrong, what in ((5000, "largest"), (16, "smallest")):
        with pytest.raises(OptionError, match=f"vocab_size {wrong}: .* the {what}") as error:
            data.train_sentencepiece(pairs, wrong)
        works = int(str(error.value).rsplit(" ", 1)[1])
        assert data.train_sentencepiece(pairs, works)
        with pytest.raises(OptionError):
            data.train_sentencepiece(pairs, works + (1 if wrong == 5000 else -1))


def test_vocab_size_default_grows_with_the_text():
    def train_processor(pairs, *every):
        return spm.SentencePieceProcessor(model_proto=data.train_sentencepiece(pairs, None, *every))

    for n in (1, 5, 300):
        pairs = [(f"Satz Nummer {i}, ja.", f"Sentence number {i}, yes.") for i in range(n)]
        for every in (False, True):
            sp = train_processor(pairs, every)
            assert sp.unk_id() not in sp.encode(pairs[-1][0])
    words = [f"{Random(n).getrandbits(40):x}" for n in range(9000)]
    few, many = ([(word, word) for word in words[:n]] for n in (1000, 9000))
    assert train_processor(few).vocab_size() < train_processor(many).vocab_size()


# ---- Errors ----


FILE_ERRORS = [
    # existing file in the output directory, options, error, message
    ("", "-train no/a.tsv", FileError, "train no/a.tsv: the file does not exist"),
    ("", "-train file -valid no/c.tsv", FileError, "valid no/c.tsv: the file does not exist"),
    ("", "-train .", FileError, r"train \.: it is a directory"),
    ("", "-init_from no/model", CheckpointError, "no/model"),
    ("", "-output file/run", FileError, "file/run"),
    ("", "-output /proc/run", FileError, "/proc"),
    ("", "-log_file no/folder/log", FileError, "cannot write no/folder/log: No such file"),
    ("", "-log_file .", FileError, "cannot write .: Is a directory"),
    ("", "-log_file file", OptionError, "log_file .* is the same file as train .*"),
    ("", "-log_file run/train_state.pt", OptionError, "log_file .* is the same file as output"),
    ("", "-resume", OptionError, "omit -resume"),
    ("", "-device cuda:7", OptionError, "usable GPU"),
    ("model.json", "", OptionError, "already contains a model"),
    ("train_state.pt", "", OptionError, "already contains a run; continue it with -resume"),
    ("train.csv", "-train run/train.csv", OptionError, "is the same file as train"),
    ("train.log", "-train run/train.log", OptionError, "is the same file as train"),
    ("model.json", "-train run/model.json", OptionError, "is the same file as train"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "words", "error", "message"), FILE_ERRORS)
def test_check_files_error_comes_before_any_work(
    options, corpus, tmp_path, monkeypatch, before, words, error, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(corpus.read_bytes())
    if before:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / before).write_bytes(corpus.read_bytes())
    monkeypatch.setattr(data, "train_sentencepiece", lambda *_: pytest.fail("work has started"))
    given = options("-train", "file", *words.split())
    files_before = read_all_files(tmp_path)
    with pytest.raises(error, match=message) as caught:
        train(given)
    assert "\n" not in str(caught.value)
    assert read_all_files(tmp_path) == files_before


@pytest.mark.parametrize(
    "more",
    ["-vocab_size 9999", "-valid empty.tsv", "-vocab_size 20 -train long.tsv -max_positions 8"],
)
def test_data_error_leaves_no_files(options, tmp_path, monkeypatch, more):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.tsv").write_text("\n", encoding="utf-8")
    (tmp_path / "long.tsv").write_text("eins " * 9 + "\t" + "one " * 9, encoding="utf-8")
    given, files_before = options(*more.split()), read_all_files(tmp_path)
    with pytest.raises((OptionError, DataError)):
        train(given)
    assert read_all_files(tmp_path) == files_before


# ---- Resuming ----


def test_resume_with_changed_options_names_them(run, options, tmp_path):
    directory = run("-train_steps", "2")
    other = tmp_path / "other.tsv"
    other.write_text("eins.\tone.\n" * 40, encoding="utf-8")
    files_before = read_all_files(directory)
    sizes = r"d_model \(32 before, 64 now\), vocab_size \(30 before, 29"
    for words, named in [
        ("-d_model 64 -vocab_size 29", sizes),
        (f"-train {other}", r"train \(different pairs\)"),
        (f"-valid {other}", r"[^,]*: valid \(different pairs\);"),
    ]:
        with pytest.raises(OptionError, match=named):
            train(options("-resume", *words.split()))
        assert read_all_files(directory) == files_before
    # Limits, learning rates and dropout may change
    train(options("-resume", "-train_steps", "3", "-matrix_lr", "0.01", "-dropout", "0.3"))
    assert read_metrics(directory)[-1]["step"] == "3"
    # A state without a digest of the held-out pairs is accepted; a damaged one is an error
    state = torch.load(directory / "train_state.pt", weights_only=True)
    del state["settled"]["valid"]
    torch.save(state, directory / "train_state.pt")
    train(options("-resume", "-train_steps", "4"))
    assert read_metrics(directory)[-1]["step"] == "4"
    (directory / "train_state.pt").write_bytes(b"PK nonsense")
    with pytest.raises(DataError, match="resume: cannot read .*train_state.pt") as error:
        train(options("-resume"))
    assert "\n" not in str(error.value)


def test_resume_of_complete_run_trains_no_more(run, options, capsys):
    directory = run("-train_steps", "2")
    rows = read_metrics(directory)
    capsys.readouterr()
    train(options("-train_steps", "2", "-resume"))
    assert "this run is complete; to continue it, raise train_minutes" in capsys.readouterr().err
    assert read_metrics(directory) == rows
    assert "held-out pairs also occur in train" in (directory / "train.log").read_text(
        encoding="utf-8"
    )


def test_train_yaml_reproduces_the_options(run, options, corpus, tmp_path, monkeypatch):
    path = tmp_path / ", ü |, and .tsv"
    path.write_bytes(corpus.read_bytes())
    directory = run("-train", path, "-train_weights", "0.5")
    again, _ = load_train_options(["-config", str(directory / "train.yaml")])
    assert again == options("-train", path, "-train_weights", "0.5")
    named = {*training_options.to_config(options()), "resume"}
    assert named == set(training_options.OPTIONS) - {"config", *META_NAMES}
    monkeypatch.chdir(tmp_path)  # a shipped model is recorded as a path
    assert options("-init_from", "de-en").data.init_from == str(DATA / "de-en")


def test_full_disk_keeps_previous_model_and_state(run, options, monkeypatch):
    directory = run("-train_steps", "2")
    names = ("weights.safetensors", "train_state.pt")
    kept = {name: (directory / name).read_bytes() for name in names}
    more = options("-resume", "-train_steps", "40", "-dropout", "0")
    calls = []

    def full(fd):
        calls.extend([fd] * stat.S_ISREG(os.fstat(fd).st_mode))
        if len(calls) > 4:  # options, tokenizer, held-out pairs and table fit
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(FileError, match="No space left.*free disk space .*-resume"):
            train(more)
    assert {name: (directory / name).read_bytes() for name in kept} == kept
    assert not list(directory.glob(".*.tmp"))
    Translator.from_pretrained(directory, device="cpu")
    train(more)
    steps = [int(row["step"]) for row in read_metrics(directory)]
    assert steps == sorted(set(steps))


# ---- Logs and metrics ----


def test_metrics_table_has_each_step_once(run, options):
    directory = run("-train_steps", "5")
    rows = read_metrics(directory)
    assert tuple(rows[0]) == Row._fields
    assert [row["step"] for row in rows] == list("12345")
    assert [bool(row["valid_loss"]) for row in rows] == [False] * 4 + [True]
    last = rows[-1]
    assert float(last["perplexity"]) == pytest.approx(math.exp(float(last["valid_loss"])), rel=1e-4)
    # A later process was killed in the middle of a line
    with open(directory / "train.csv", "a", encoding="utf-8") as file:
        file.write("6,0,0.1,99,1,1,1,,,\n7,0,0.")
    train(options("-train_steps", "8", "-resume"))
    again = read_metrics(directory)
    assert again[:5] == rows
    assert [row["step"] for row in again] == list("12345678")
    tokens = [int(row["target_tokens"]) for row in again]
    assert tokens == sorted(set(tokens)) and tokens[5] != 99


def test_metrics_row_averages_over_steps_since_previous_row(options, monkeypatch):
    monkeypatch.setattr(trainer_module, "METRICS_ROWS", 2)
    trainer = Trainer(options("-train_steps", "8"))
    losses, step = [], trainer.step

    def record_step(batch):
        before = trainer.n_tokens
        losses.append(step(batch) * (trainer.n_tokens - before))
        return losses[-1]

    trainer.step = record_step
    trainer.run()
    (first, second), tokens = trainer.metrics.rows, trainer.n_tokens
    assert (first.step, second.step) == (4, 8)
    assert first.train_loss == pytest.approx(sum(losses[:4]) / first.target_tokens, rel=1e-4)
    rest = tokens - first.target_tokens
    assert second.train_loss == pytest.approx(sum(losses[4:]) / rest, rel=1e-4)
    minutes = second.minutes - first.minutes
    assert second.tokens_per_second == pytest.approx(rest / (60 * minutes), rel=1e-3)


def test_validation_bleu_and_samples_match_the_saved_model(run, corpus):
    directory = run("-train_steps", "300", "-dropout", "0")
    pairs = data.pick_evenly(data.read_pairs(corpus), 200)
    translator = Translator.from_pretrained(directory, device="cpu")
    greedy = translator.translate([src for src, _ in pairs], beam_size=1)
    outputs = [translation.hyps[0].text for translation in greedy]
    expected = sacrebleu.corpus_bleu(outputs, [[tgt for _, tgt in pairs]]).score
    assert float(read_metrics(directory)[-1]["bleu"]) == pytest.approx(
        expected, abs=1
    )  # half precision
    log = (directory / "train.log").read_text(encoding="utf-8")
    for (src, tgt), output in list(zip(pairs, outputs))[:2]:
        assert re.search(rf"source +{src}\n.* reference +{tgt}\n.* output +{output}\n", log)


@pytest.mark.skipif(not chart.HAS_MATPLOTLIB, reason="matplotlib is missing")
def test_plot_shows_losses_and_bleu(run):
    directory = run()
    shown = re.findall(r"<text [^>]*>([^<]*)</text>", (directory / "train.svg").read_text("utf-8"))
    assert {"wall-clock minutes", "training", "held out", "BLEU"} <= set(shown)


def test_plot_without_matplotlib_logs_the_extra_once(run, monkeypatch):
    monkeypatch.setattr(trainer_module, "HAS_MATPLOTLIB", False)
    directory = run("-valid_minutes", "1e-9")
    assert not (directory / "train.svg").exists() and len(read_metrics(directory)) == 8
    log = (directory / "train.log").read_text(encoding="utf-8")
    (line,) = (line for line in log.split("\n") if "extra" in line)
    assert line.endswith(
        "no plot: matplotlib, the extra `plots`, is not installed (pip install matplotlib); see "
        "train.csv for the numbers"
    )
    assert "train.svg" not in log


def test_bleu_without_sacrebleu_is_empty(run, monkeypatch):
    for module in (trainer_module, validation):
        monkeypatch.setattr(module, "has_sacrebleu", lambda: False)
    directory = run()
    assert read_metrics(directory)[-1]["bleu"] == ""
    assert "pip install sacrebleu" in (directory / "train.log").read_text(encoding="utf-8")


def test_translate_greedily_does_not_change_the_run(options):
    trainer = Trainer(options())
    before = torch.get_rng_state(), torch.get_num_threads()
    weights = {name: p.clone() for name, p in trainer.model.state_dict().items()}
    assert (
        len(validation.translate_greedily(trainer.model, trainer.sp, ["eins.", "", "zwei."])) == 3
    )
    assert torch.equal(torch.get_rng_state(), before[0]) and torch.get_num_threads() == before[1]
    assert trainer.model.training
    for name, p in trainer.model.state_dict().items():
        assert torch.equal(p, weights[name])


def test_log_file_has_the_same_content_as_train_log(run, tmp_path, capfd):
    directory = run("-log_file", tmp_path / "my.log")
    log = (directory / "train.log").read_text(encoding="utf-8")
    assert log == (tmp_path / "my.log").read_text(encoding="utf-8")
    start, *messages = [line.split("] ", 1)[1] for line in log.split("\n")[:-1]]
    printed = capfd.readouterr().err.split("\n")[:-1]
    assert re.match(r"onmt_lite \S+ begins on ", start)
    assert printed == ["training a SentencePiece model on 300 pairs", *messages]
    model, translating, calibrating = messages[-3:]
    assert translating == f"translate with it: python translate.py -model {directory} -src FILE"
    assert calibrating.startswith("calibrate it to get line confidences and `unsure` warnings: ")
    assert f"model: {directory}" in model
    for name in ("train.log", "train.csv", "valid.tsv"):
        assert name in model and (directory / name).exists()


@pytest.mark.parametrize("valid", [0, 2])
def test_reverse_saves_held_out_pairs_in_training_direction(options, corpus, valid):
    given = options("-reverse")
    train(replace(given, data=replace(given.data, valid=(str(corpus),) * valid)))
    directory = Path(given.data.output)
    lines = (directory / "valid.tsv").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("\t") for line in corpus.read_text(encoding="utf-8").splitlines()]
    if valid:
        assert lines == 2 * [f"{tgt}\t{src}" for src, tgt in pairs]
    else:
        assert 0 < len(lines) < len(pairs) and set(lines) <= {f"{tgt}\t{src}" for src, tgt in pairs}


def test_logged_calibrate_command_adds_a_confidence(run, corpus, capfd):
    directory = run("-train_steps", "80", "-valid", corpus)
    log = (directory / "train.log").read_text(encoding="utf-8")
    (command,) = re.findall(r"`unsure` warnings: (python .*)", log)
    python, _, module, *words = shlex.split(command)
    assert (python, module) == ("python", calibrate.__name__)
    assert Translator.from_pretrained(directory).translate("eins.").confidence is None
    assert calibrate.main(words) == 0
    assert capfd.readouterr().out.startswith("confidence: 300 lines")
    assert 0 < Translator.from_pretrained(directory).translate("eins.").confidence < 1


def test_logged_commands_match_the_running_program(monkeypatch, tmp_path):
    out = tmp_path / "my runs"
    monkeypatch.setattr(sys, "argv", ["/home/me/onmt_lite/train/__main__.py"])
    assert format_translate_command(out) == f"python translate.py -model '{out}' -src FILE"
    monkeypatch.chdir(tmp_path)  # no checkout
    assert format_translate_command(out) == f"python -m onmt_lite -model '{out}' -src FILE"
    monkeypatch.setattr(sys, "argv", ["/venv/bin/onmt_lite_train"])
    assert format_translate_command(out) == f"onmt_lite -model '{out}' -src FILE"
    out.mkdir()
    assert format_resume_hint(out) == ""
    (out / "train_state.pt").touch()
    resume = f"onmt_lite_train -config '{out}/train.yaml' -resume"
    assert format_resume_hint(out) == f"; continue with: {resume}"


def test_progress_is_logged_at_intervals(options, monkeypatch, capfd):
    monkeypatch.setattr(trainer_module, "PROGRESS_SECONDS", 1e-6)
    train(options())
    logged = re.findall(r"^ *(\d+) %  .* step (\d+) .*loss", capfd.readouterr().err, re.M)
    assert logged == [(f"{100 * n / 8:.0f}", str(n)) for n in range(1, 8)]


def test_signal_during_validation_ends_the_run_after_it(options):
    trainer = Trainer(options("-valid_minutes", "1e-9"))
    validate, steps = trainer.validate, []

    def validate_then_stop():
        validate()
        steps.append(trainer.n_steps)
        trainer.stop_signal = trainer.n_steps == 2

    trainer.validate = validate_then_stop
    trainer.run()
    assert steps == [1, 2] == [row.step for row in trainer.metrics.rows]


@pytest.mark.parametrize(
    ("words", "minutes"),
    [
        ("-train_minutes 3", 1), ("-train_minutes 40", 4), ("-train_minutes 500", 10),
        ("-train_steps 9", 10), ("-train_minutes 40 -valid_minutes 0.5", 0.5),
    ],
)  # fmt: skip
def test_valid_minutes_default_is_a_tenth_of_the_run(options, words, minutes):
    assert options(*words.split()).learning.minutes_between_validations == minutes


@pytest.mark.parametrize("stopping", [None, 15])
def test_loss_not_finite_ends_the_run_and_keeps_the_state(options, run, tmp_path, stopping):
    trainer = Trainer(options())
    next(trainer.model.parameters()).data += math.nan
    with pytest.raises(OptionError, match="not finite.*lower matrix_lr"):
        trainer.run()
    assert not (tmp_path / "run" / "model.json").exists()
    shutil.rmtree(tmp_path / "run")
    state = run() / "train_state.pt"
    kept = state.read_bytes()
    trainer = Trainer(options("-resume", "-train_steps", 20))
    trainer.stop_signal = stopping
    next(trainer.model.parameters()).data += math.nan
    with pytest.raises(OptionError, match=f"resume from {re.escape(str(state))} with lower"):
        trainer.run()
    assert state.read_bytes() == kept


def test_signal_while_writing_metrics_ends_the_run_after_next_step(options, tmp_path):
    trainer = Trainer(options("-train_steps", 200))
    add = trainer.metrics.add
    trainer.metrics.add = lambda row: (setattr(trainer, "stop_signal", 15), add(row))
    trainer.run()
    assert trainer.n_steps < 200
    resumed = Trainer(options("-train_steps", 200, "-resume"))
    assert resumed.n_steps == trainer.n_steps


def test_output_locked_by_another_run_is_rejected(options, tmp_path):
    (tmp_path / "run").mkdir()
    with lock_directory(tmp_path / "run"):
        with pytest.raises(OptionError, match="another run writes to"):
            train(options())
    train(options())


def test_out_of_memory_error_suggests_lower_batch_tokens(options, monkeypatch, tmp_path):
    def short(trainer, batch):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9")

    monkeypatch.setattr(Trainer, "step", short)
    with pytest.raises(MemoryExhausted, match="^out of memory at step 0; use a lower batch_tok"):
        train(options())


def test_skipped_pairs_are_counted_in_the_log(options, run, tmp_path):
    """The vocabulary comes from the first file, which lacks some characters."""
    odd = tmp_path / "odd.tsv"
    odd.write_text("eins\t中\n" * 7 + "eins\tone\n" * 50, encoding="utf-8")
    start = run()
    start.rename(tmp_path / "start")
    out = run("-train", odd, "-init_from", tmp_path / "start")
    assert "NOTE: 7 pairs per epoch are skipped" in (out / "train.log").read_text("utf-8")
    assert "are skipped" not in (tmp_path / "start" / "train.log").read_text("utf-8")


def test_precision_auto_is_fp32_on_cpu(options, tmp_path):
    losses = {}
    for name in ("auto", "fp32", "bf16"):
        trainer = Trainer(options("-precision", name, "-output", tmp_path / name))
        losses[name] = trainer.compute_held_out_losses()[0]
    assert losses["auto"] == losses["fp32"] != losses["bf16"]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.02)
