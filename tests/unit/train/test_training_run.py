"""What a training run reads, refuses, tells and leaves behind."""

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
from onmt_lite.config.option import META_NAMES
from onmt_lite.errors import (
    CheckpointError,
    DataError,
    FileError,
    MemoryExhausted,
    OnmtLiteError,
    OptionError,
)
from onmt_lite.train import calibrate, chart, data
from onmt_lite.train import options as training_options
from onmt_lite.train import trainer as module
from onmt_lite.train.options import load_train_options
from onmt_lite.train.run_directory import (
    Row,
    format_resume_hint,
    format_translate_command,
    lock_directory,
)
from onmt_lite.train.trainer import Trainer, train
from tests.support.tiny_training import tiny_run


@pytest.fixture
def options(corpus, tmp_path):
    """options(*more) -> TrainOptions of a tiny run into tmp_path/run."""

    return partial(tiny_run, corpus, tmp_path / "run")


@pytest.fixture
def run(options, tmp_path):
    """run(*more) -> the directory of a run that is over."""

    def start(*more):
        train(options(*more))
        return tmp_path / "run"

    return start


def table(folder):
    with open(folder / "train.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def everything(folder):
    """All files below a folder, with their contents."""
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


# Reading


def test_a_table_as_people_have_it(tmp_path):
    """Byte order mark, CR LF, blank lines, a third column, spaces around, no last line feed."""
    path = tmp_path / "my.txt"
    text = "\ufeffJa.\tYes.\tCC-BY\r\n\r\n \t \n Nein. \t No. \n\u2028Gut\u2028so\tFine"
    path.write_bytes(text.encode("utf-8"))
    found = [("Ja.", "Yes."), ("Nein.", "No."), ("Gut\u2028so", "Fine")]
    assert data.read_pairs(path) == found
    path.write_bytes(gzip.compress(path.read_bytes()))  # whatever its name
    assert data.read_pairs(path) == found


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            b"a\tb\n\na;b\na\tb\nc;d\n\te\n",
            r"my\.tsv:3: .*'a;b' \(and 2 more lines\).*paste a\.src",
        ),
        (b"a\tb\nsch\xf6n\tfine\n", r"my\.tsv:2: not utf-8.*iconv"),
        ("a\tb\n".encode("utf-16"), r"my\.tsv is .*; convert it: iconv"),
        (b"\n \n\t\n", "holds no pairs"),
        (b"", "holds no pairs"),
        (b"a\tb\n\tb\n", r"my\.tsv:2: not a"),
        (gzip.compress(b"a\tb\n" * 99)[:-9], r"cannot unpack .*my\.tsv: it is cut off"),
    ],
)
def test_what_is_no_table_of_pairs_is_refused(tmp_path, content, problem):
    (tmp_path / "my.tsv").write_bytes(content)
    with pytest.raises(OnmtLiteError, match=problem):
        data.read_pairs(tmp_path / "my.tsv")


def test_held_out_pairs_share_no_side_with_those_that_are_learned():
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


def test_without_valid_a_run_holds_pairs_out(tmp_path, options):
    path = tmp_path / "my.tsv"
    path.write_text("".join(f"satz {n}\tsentence {n}\n" for n in range(200)), encoding="utf-8")
    given = options("-train", path, "-vocab_size", 24)
    given = replace(given, data=replace(given.data, valid=()))
    with module.logging_to(module.JobOptions()):
        trainer = Trainer(given)
    assert sum(len(batch.src) for batch in trainer.valid[0]) == len(trainer.shown) == 4
    assert len(trainer.text.pairs) == 196 and not set(trainer.shown) & set(trainer.text.pairs)
    assert "4 held out" in (tmp_path / "run" / "train.log").read_text(encoding="utf-8")


def test_too_many_and_too_few_pieces(corpus):
    pairs = data.read_pairs(corpus)
    for wrong, what in ((5000, "largest"), (16, "smallest")):
        with pytest.raises(OptionError, match=f"vocab_size {wrong}: .* the {what}") as error:
            data.train_sentencepiece(pairs, wrong)
        works = int(str(error.value).rsplit(" ", 1)[1])
        assert data.train_sentencepiece(pairs, works)
        with pytest.raises(OptionError):
            data.train_sentencepiece(pairs, works + (1 if wrong == 5000 else -1))


def test_without_vocab_size_any_text_gives_pieces_and_more_text_more():
    def pieces(pairs, *every):
        return spm.SentencePieceProcessor(model_proto=data.train_sentencepiece(pairs, None, *every))

    for n in (1, 5, 300):
        pairs = [(f"Satz Nummer {i}, ja.", f"Sentence number {i}, yes.") for i in range(n)]
        for every in (False, True):
            sp = pieces(pairs, every)
            assert sp.unk_id() not in sp.encode(pairs[-1][0])
    words = [f"{Random(n).getrandbits(40):x}" for n in range(9000)]
    few, many = ([(word, word) for word in words[:n]] for n in (1000, 9000))
    assert pieces(few).vocab_size() < pieces(many).vocab_size()


# Refusing


REFUSED = [
    # what is there before, options, error, what it says
    ("", "-train no/a.tsv", FileError, "train no/a.tsv: there is no such file"),
    ("", "-train file -valid no/c.tsv", FileError, "valid no/c.tsv: there is no such file"),
    ("", "-train .", FileError, r"train \.: it is a directory"),
    ("", "-init_from no/model", CheckpointError, "no/model"),
    ("", "-output file/run", FileError, "file/run"),
    ("", "-output /proc/run", FileError, "/proc"),
    ("", "-log_file no/folder/log", FileError, "cannot write no/folder/log: No such file"),
    ("", "-log_file .", FileError, "cannot write .: Is a directory"),
    ("", "-log_file file", OptionError, "log_file .* is the same file as train .*"),
    ("", "-log_file run/train_state.pt", OptionError, "log_file .* is the same file as output"),
    ("", "-resume", OptionError, "leave -resume out"),
    ("", "-device cuda:7", OptionError, "usable GPU"),
    ("model.json", "", OptionError, "holds a model already"),
    ("train_state.pt", "", OptionError, "holds a run already; continue it with -resume"),
    ("train.csv", "-train run/train.csv", OptionError, "is the same file as train"),
    ("train.log", "-train run/train.log", OptionError, "is the same file as train"),
    ("model.json", "-train run/model.json", OptionError, "is the same file as train"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "words", "error", "says"), REFUSED)
def test_what_cannot_work_is_refused_before_any_work(
    options, corpus, tmp_path, monkeypatch, before, words, error, says
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(corpus.read_bytes())
    if before:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / before).write_bytes(corpus.read_bytes())
    monkeypatch.setattr(data, "train_sentencepiece", lambda *_: pytest.fail("work was begun"))
    given = options("-train", "file", *words.split())
    there = everything(tmp_path)
    with pytest.raises(error, match=says) as caught:
        train(given)
    assert "\n" not in str(caught.value)
    assert everything(tmp_path) == there


@pytest.mark.parametrize(
    "more",
    ["-vocab_size 9999", "-valid empty.tsv", "-vocab_size 20 -train long.tsv -max_positions 8"],
)
def test_what_the_data_refuse_leaves_nothing_behind(options, tmp_path, monkeypatch, more):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.tsv").write_text("\n", encoding="utf-8")
    (tmp_path / "long.tsv").write_text("eins " * 9 + "\t" + "one " * 9, encoding="utf-8")
    given, there = options(*more.split()), everything(tmp_path)
    with pytest.raises((OptionError, DataError)):
        train(given)
    assert everything(tmp_path) == there


# Going on


def test_settings_of_another_run_are_named(run, options, tmp_path):
    folder = run("-train_steps", "2")
    other = tmp_path / "other.tsv"
    other.write_text("eins.\tone.\n" * 40, encoding="utf-8")
    there = everything(folder)
    sizes = r"d_model \(32 before, 64 now\), vocab_size \(30 before, 29"
    for words, named in [
        ("-d_model 64 -vocab_size 29", sizes),
        (f"-train {other}", r"train \(other pairs\)"),
        (f"-valid {other}", r"[^,]*: valid \(other pairs\);"),
    ]:
        with pytest.raises(OptionError, match=named):
            train(options("-resume", *words.split()))
        assert everything(folder) == there
    # Where to stop and how fast to learn may be another
    train(options("-resume", "-train_steps", "3", "-matrix_lr", "0.01", "-dropout", "0.3"))
    assert table(folder)[-1]["step"] == "3"
    # A state that knows no held-out pairs goes on; a damaged one is refused in one line
    state = torch.load(folder / "train_state.pt", weights_only=True)
    del state["settled"]["valid"]
    torch.save(state, folder / "train_state.pt")
    train(options("-resume", "-train_steps", "4"))
    assert table(folder)[-1]["step"] == "4"
    (folder / "train_state.pt").write_bytes(b"PK nonsense")
    with pytest.raises(DataError, match="cannot resume from .*train_state.pt") as error:
        train(options("-resume"))
    assert "\n" not in str(error.value)


def test_a_complete_run_says_so(run, options, capsys):
    folder = run("-train_steps", "2")
    rows = table(folder)
    capsys.readouterr()
    train(options("-train_steps", "2", "-resume"))
    assert "this run is complete; earlier runs count" in capsys.readouterr().err
    assert table(folder) == rows
    assert "held-out pairs are in train too" in (folder / "train.log").read_text(encoding="utf-8")


def test_the_options_of_a_run_are_a_configuration(run, options, corpus, tmp_path, monkeypatch):
    path = tmp_path / ", ü |, and .tsv"
    path.write_bytes(corpus.read_bytes())
    folder = run("-train", path, "-train_weights", "0.5")
    again, _ = load_train_options(["-config", str(folder / "train.yaml")])
    assert again == options("-train", path, "-train_weights", "0.5")
    named = {*training_options.to_config(options()), "resume"}
    assert named == set(training_options.OPTIONS) - {"config", *META_NAMES}
    monkeypatch.chdir(tmp_path)  # a shipped model is named by where it lies
    assert options("-init_from", "de-en").data.init_from == str(DATA / "de-en")


def test_a_run_without_room_keeps_what_it_had(run, options, monkeypatch):
    folder = run("-train_steps", "2")
    names = ("weights.safetensors", "train_state.pt")
    kept = {name: (folder / name).read_bytes() for name in names}
    more = options("-resume", "-train_steps", "40", "-dropout", "0")
    calls = []

    def full(fd):
        calls.extend([fd] * stat.S_ISREG(os.fstat(fd).st_mode))
        if len(calls) > 4:  # options, pieces, held-out pairs and table of the start fit
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(FileError, match="No space left.*make room and run: .*-resume"):
            train(more)
    assert {name: (folder / name).read_bytes() for name in kept} == kept
    assert not list(folder.glob(".*.tmp"))
    Translator.from_pretrained(folder, device="cpu")
    train(more)
    steps = [int(row["step"]) for row in table(folder)]
    assert steps == sorted(set(steps))


# Telling


def test_the_table_has_each_step_once(run, options):
    folder = run("-train_steps", "5")
    rows = table(folder)
    assert tuple(rows[0]) == Row._fields
    assert [row["step"] for row in rows] == list("12345")
    assert [bool(row["valid_loss"]) for row in rows] == [False] * 4 + [True]
    last = rows[-1]
    assert float(last["perplexity"]) == pytest.approx(math.exp(float(last["valid_loss"])), rel=1e-4)
    # A process that was killed later, in the middle of a line
    with open(folder / "train.csv", "a", encoding="utf-8") as file:
        file.write("6,0,0.1,99,1,1,1,,,\n7,0,0.")
    train(options("-train_steps", "8", "-resume"))
    again = table(folder)
    assert again[:5] == rows
    assert [row["step"] for row in again] == list("12345678")
    tokens = [int(row["target_tokens"]) for row in again]
    assert tokens == sorted(set(tokens)) and tokens[5] != 99


def test_rows_tell_of_the_steps_since_the_row_before(options, monkeypatch):
    monkeypatch.setattr(module, "ROWS", 2)
    trainer = Trainer(options("-train_steps", "8"))
    losses, step = [], trainer.step

    def told(batch):
        before = trainer.n_tokens
        losses.append(step(batch) * (trainer.n_tokens - before))
        return losses[-1]

    trainer.step = told
    trainer.run()
    (first, second), tokens = trainer.metrics.rows, trainer.n_tokens
    assert (first.step, second.step) == (4, 8)
    assert first.train_loss == pytest.approx(sum(losses[:4]) / first.target_tokens, rel=1e-4)
    rest = tokens - first.target_tokens
    assert second.train_loss == pytest.approx(sum(losses[4:]) / rest, rel=1e-4)
    minutes = second.minutes - first.minutes
    assert second.tokens_per_second == pytest.approx(rest / (60 * minutes), rel=1e-3)


def test_bleu_and_samples_are_what_the_model_translates(run, corpus):
    folder = run("-train_steps", "300", "-dropout", "0")
    pairs = data.pick_evenly(data.read_pairs(corpus), 200)
    translator = Translator.from_pretrained(folder, device="cpu")
    greedy = translator.translate([src for src, _ in pairs], beam_size=1)
    outputs = [translation.hyps[0].text for translation in greedy]
    expected = sacrebleu.corpus_bleu(outputs, [[tgt for _, tgt in pairs]]).score
    assert float(table(folder)[-1]["bleu"]) == pytest.approx(expected, abs=1)  # half precision
    log = (folder / "train.log").read_text(encoding="utf-8")
    for (src, tgt), output in list(zip(pairs, outputs))[:2]:
        assert re.search(rf"source +{src}\n.* reference +{tgt}\n.* output +{output}\n", log)


@pytest.mark.skipif(not chart.HAS_MATPLOTLIB, reason="matplotlib is missing")
def test_plot_of_a_run_shows_losses_and_bleu(run):
    folder = run()
    shown = re.findall(r"<text [^>]*>([^<]*)</text>", (folder / "train.svg").read_text("utf-8"))
    assert {"wall-clock minutes", "training", "held out", "BLEU"} <= set(shown)


def test_run_without_matplotlib_names_the_extra_once_and_keeps_the_table(run, monkeypatch):
    monkeypatch.setattr(module, "HAS_MATPLOTLIB", False)
    folder = run("-valid_minutes", "1e-9")
    assert not (folder / "train.svg").exists() and len(table(folder)) == 8
    log = (folder / "train.log").read_text(encoding="utf-8")
    (line,) = (line for line in log.split("\n") if "extra" in line)
    assert line.endswith(
        "no plot: matplotlib, the extra `plots`, is missing (pip install matplotlib); train.csv "
        "has the numbers"
    )
    assert "train.svg" not in log


def test_without_sacrebleu_there_is_no_bleu(run, monkeypatch):
    monkeypatch.setattr(module, "has_sacrebleu", lambda: False)
    folder = run()
    assert table(folder)[-1]["bleu"] == ""
    assert "pip install sacrebleu" in (folder / "train.log").read_text(encoding="utf-8")


def test_translating_in_between_changes_nothing(options):
    trainer = Trainer(options())
    before = torch.get_rng_state(), torch.get_num_threads()
    weights = {name: p.clone() for name, p in trainer.model.state_dict().items()}
    assert len(module.translate_greedily(trainer.model, trainer.sp, ["eins.", "", "zwei."])) == 3
    assert torch.equal(torch.get_rng_state(), before[0]) and torch.get_num_threads() == before[1]
    assert trainer.model.training
    for name, p in trainer.model.state_dict().items():
        assert torch.equal(p, weights[name])


def test_the_log_is_beside_the_model_and_where_it_is_asked_for(run, tmp_path, capfd):
    folder = run("-log_file", tmp_path / "my.log")
    log = (folder / "train.log").read_text(encoding="utf-8")
    assert log == (tmp_path / "my.log").read_text(encoding="utf-8")
    begins, *told = [line.split("] ", 1)[1] for line in log.split("\n")[:-1]]
    said = capfd.readouterr().err.split("\n")[:-1]
    assert re.match(r"onmt_lite \S+ begins on ", begins)
    assert said == ["making pieces of the words of 300 pairs", *told]
    model, translating, calibrating = told[-3:]
    assert translating == f"translate with it: python translate.py -model {folder} -src FILE"
    assert calibrating.startswith("calibrate it to get a confidence for each line")
    assert f"model: {folder}" in model
    for name in ("train.log", "train.csv", "valid.tsv"):
        assert name in model and (folder / name).exists()


@pytest.mark.parametrize("valid", [0, 2])
def test_held_out_pairs_of_a_run_are_saved_in_its_direction(options, corpus, valid):
    given = options("-reverse")
    train(replace(given, data=replace(given.data, valid=(str(corpus),) * valid)))
    folder = Path(given.data.output)
    lines = (folder / "valid.tsv").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("\t") for line in corpus.read_text(encoding="utf-8").splitlines()]
    if valid:
        assert lines == 2 * [f"{tgt}\t{src}" for src, tgt in pairs]
    else:
        assert 0 < len(lines) < len(pairs) and set(lines) <= {f"{tgt}\t{src}" for src, tgt in pairs}


def test_calibration_command_of_a_run_gives_the_model_a_confidence(run, corpus, capfd):
    folder = run("-train_steps", "80", "-valid", corpus)
    log = (folder / "train.log").read_text(encoding="utf-8")
    (command,) = re.findall(r"`unsure` for doubtful ones: (python .*)", log)
    python, _, module, *words = shlex.split(command)
    assert (python, module) == ("python", calibrate.__name__)
    assert Translator.from_pretrained(folder).translate("eins.").confidence is None
    assert calibrate.main(words) == 0
    assert capfd.readouterr().out.startswith("confidence: 300 lines")
    assert 0 < Translator.from_pretrained(folder).translate("eins.").confidence < 1


def test_commands_are_those_of_the_copy_that_runs(monkeypatch, tmp_path):
    out = tmp_path / "my runs"
    monkeypatch.setattr(sys, "argv", ["/work/onmt_lite/train/__main__.py"])
    assert format_translate_command(out) == f"python translate.py -model '{out}' -src FILE"
    monkeypatch.chdir(tmp_path)  # no checkout
    assert format_translate_command(out) == f"python -m onmt_lite -model '{out}' -src FILE"
    monkeypatch.setattr(sys, "argv", ["/venv/bin/onmt_lite_train"])
    assert format_translate_command(out) == f"onmt_lite -model '{out}' -src FILE"
    out.mkdir()
    assert format_resume_hint(out) == ""
    (out / "train_state.pt").touch()
    again = f"onmt_lite_train -config '{out}/train.yaml' -resume"
    assert format_resume_hint(out) == f"; go on: {again}"


def test_progress_is_told_now_and_then(options, monkeypatch, capfd):
    monkeypatch.setattr(module, "LINE_SECONDS", 1e-6)
    train(options())
    told = re.findall(r"^ *(\d+) %  .* step (\d+) .*loss", capfd.readouterr().err, re.M)
    assert told == [(f"{100 * n / 8:.0f}", str(n)) for n in range(1, 8)]


def test_a_signal_during_a_validation_ends_the_run_with_it(options):
    trainer = Trainer(options("-valid_minutes", "1e-9"))
    report, told = trainer.report, []

    def interrupted():
        report()
        told.append(trainer.n_steps)
        trainer.stopping = trainer.n_steps == 2

    trainer.report = interrupted
    trainer.run()
    assert told == [1, 2] == [row.step for row in trainer.metrics.rows]


@pytest.mark.parametrize(
    ("words", "minutes"),
    [
        ("-train_minutes 3", 1), ("-train_minutes 40", 4), ("-train_minutes 500", 10),
        ("-train_steps 9", 10), ("-train_minutes 40 -valid_minutes 0.5", 0.5),
    ],
)  # fmt: skip
def test_validations_are_a_tenth_of_the_run_apart(options, words, minutes):
    assert options(*words.split()).learning.minutes_between_validations == minutes


@pytest.mark.parametrize("stopping", [None, 15])
def test_a_loss_that_is_no_number_ends_the_run_and_keeps_the_state(
    options, run, tmp_path, stopping
):
    trainer = Trainer(options())
    next(trainer.model.parameters()).data += math.nan
    with pytest.raises(OptionError, match="not finite.*lower matrix_lr"):
        trainer.run()
    assert not (tmp_path / "run" / "model.json").exists()
    shutil.rmtree(tmp_path / "run")
    state = run() / "train_state.pt"
    kept = state.read_bytes()
    trainer = Trainer(options("-resume", "-train_steps", 20))
    trainer.stopping = stopping
    next(trainer.model.parameters()).data += math.nan
    with pytest.raises(OptionError, match=f"resume from {re.escape(str(state))} with lower"):
        trainer.run()
    assert state.read_bytes() == kept


def test_a_signal_while_the_table_is_written_is_of_the_next_step(options, tmp_path):
    trainer = Trainer(options("-train_steps", 200))
    add = trainer.metrics.add
    trainer.metrics.add = lambda row: (setattr(trainer, "stopping", 15), add(row))
    trainer.run()
    assert trainer.n_steps < 200
    resumed = Trainer(options("-train_steps", 200, "-resume"))
    assert resumed.n_steps == trainer.n_steps


def test_two_runs_do_not_write_to_one_directory(options, tmp_path):
    (tmp_path / "run").mkdir()
    with lock_directory(tmp_path / "run"):
        with pytest.raises(OptionError, match="another run writes to"):
            train(options())
    train(options())


def test_memory_that_is_short(options, monkeypatch, tmp_path):
    def short(trainer, batch):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9")

    monkeypatch.setattr(Trainer, "step", short)
    with pytest.raises(MemoryExhausted, match="^out of memory at step 0; give a lower batch_tok"):
        train(options())


def test_pairs_that_cannot_be_learned_are_counted(options, run, tmp_path):
    """The pieces are those of the first file, which has no such characters."""
    odd = tmp_path / "odd.tsv"
    odd.write_text("eins\t中\n" * 7 + "eins\tone\n" * 50, encoding="utf-8")
    start = run()
    start.rename(tmp_path / "start")
    out = run("-train", odd, "-init_from", tmp_path / "start")
    assert "NOTE: 7 pairs of an epoch are left out" in (out / "train.log").read_text("utf-8")
    assert "left out" not in (tmp_path / "start" / "train.log").read_text("utf-8")


def test_automatic_precision_is_single_on_a_processor(options, tmp_path):
    losses = {}
    for name in ("auto", "fp32", "bf16"):
        trainer = Trainer(options("-precision", name, "-output", tmp_path / name))
        losses[name] = trainer.held_out_losses()[0]
    assert losses["auto"] == losses["fp32"] != losses["bf16"]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.02)
