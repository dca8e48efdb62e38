"""The speed benchmark: its figures and tables, and one run without other systems."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.__main__ import main, parse
from benchmarks.compare import SystemProcess, list_process_tree, read_memory
from benchmarks.report import (
    LEGEND,
    compute_speedups,
    format_headline,
    format_phases,
    format_processors,
    format_speed_table,
    format_table,
    format_tables,
    name_record,
    read_records,
)
from benchmarks.workloads import SHAPES, Shape, make_random_workload
from onmt_lite import Translator
from onmt_lite.checkpoints.loading import load_checkpoint

SMALL = Shape(1, 16, 32, 2, 60, n_lines=6, n_tokens=7)


@pytest.mark.parametrize("words", ["-tgt x", "-workload big", "-rounds 0", "-threads 0"])
def test_parse_rejects_invalid_options(words, capsys):
    with pytest.raises(SystemExit):
        parse(words.split())
    assert "benchmarks: error: " in capsys.readouterr().err


@pytest.mark.sweep
def test_benchmark_measures_and_reports_every_figure(monkeypatch, tmp_path, capfd):
    """Two rounds of onmt_lite without other systems."""
    monkeypatch.setitem(SHAPES, "tiny", SMALL)
    words = "-workload tiny -against -rounds 2 -threads 2 -beam_size 2 -lines 5"
    assert main([*words.split(), "-json", str(tmp_path / "speed.json")]) == 0
    (record,) = read_records(tmp_path / "speed.json").values()
    work = record["workloads"]["tiny"]
    assert (record["beam_size"], record["threads"], work["lines"]) == (2, 2, 5)
    assert work["left_out"] == {} and work["systems"]["onmt_lite"]["detail"].endswith("2 workers")
    assert {system["precision"] for system in work["systems"].values()} == {"fp32", "int8"}
    for system in work["systems"].values():
        assert len(system["seconds"]) == 2 and min(system["seconds"]) > 0
        assert system["n_tokens"] == 5 * SMALL.n_tokens
        assert system["equal"] == 5 or system["precision"] != "fp32"
        assert system["memory"] is None or system["memory"] > 50 << 20
    for measured in work["phases"].values():
        assert list(measured["seconds"]) == ["tokenize", "encode", "decode", "write"]
    with_phases = f"{format_phases(work)}\n\n{LEGEND}"
    assert capfd.readouterr().out == format_tables(record).replace(LEGEND, with_phases) + "\n"


# -- workloads ------------------------------------------------------------------------------------


def test_random_workload_has_fixed_lengths_and_is_reproducible(tmp_path):
    small = make_random_workload(SMALL, tmp_path / "small")
    limits = {"min_length": small.length, "max_length": small.length}
    found = Translator.from_pretrained(small.model, beam_size=3).translate(small.lines, **limits)
    assert {len(t.hyps[0].token_log_probs) for t in found} == {SMALL.n_tokens}
    assert all(len(t.hyps[0].text.split()) == SMALL.n_tokens for t in found)
    assert len({t.hyps[0].text for t in found}) > 1  # outputs depend on the source
    checkpoint = load_checkpoint(small.model)
    tokens = [checkpoint.tokenizers["sentencepiece"].encode(line) for line in small.lines]
    assert {len(line) + len(checkpoint.src_end) for line in tokens} == {SMALL.n_tokens}
    assert all(token in checkpoint.src_vocab.ids for line in tokens for token in line)
    cfg = checkpoint.model.cfg
    assert (cfg.pre_norm, cfg.tie_output, cfg.activation) == (False, True, "relu")
    again = make_random_workload(SMALL, tmp_path / "again", 4)
    assert again.lines == small.lines[:4]
    files = [Path(work.model, "model.safetensors").read_bytes() for work in (small, again)]
    assert files[0] == files[1]


# -- processes ------------------------------------------------------------------------------------


@pytest.fixture
def start_process():
    """Return a function that runs a Python program as a SystemProcess, without the protocol."""
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("no /proc here")
    processes = []

    def start(program):
        process = SystemProcess.__new__(SystemProcess)
        process._process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.close()
        assert list_process_tree(process._process.pid) == []


def test_cpu_seconds_include_descendants(start_process):
    """A process that uses 0.3 s of CPU time, with a child that uses 0.3 s."""
    burn = "import time\nwhile time.process_time() < 0.3: pass\n"
    inner = burn + "print(1, flush=True); time.sleep(60)"
    outer = f"import subprocess, sys\np = subprocess.Popen([sys.executable, '-c', {inner!r}])\n"
    process = start_process(outer + burn + "p.wait()")
    before = process.cpu_seconds()
    process._process.stdout.readline()
    while process.cpu_seconds() < 0.56:  # two clocks that tick 100 times a second
        time.sleep(0.01)
    assert before < 0.56
    assert len(list_process_tree(process._process.pid)) == 2


MEMORY_PROGRAM = """
import os, sys, time
shared = bytearray(b"1") * (64 << 20)
if os.fork() == 0:
    shared[: 16 << 20] = bytes(16 << 20)  # now private
print(1, flush=True)
for line in sys.stdin:
    x = bytearray(b"1") * (48 << 20)
    time.sleep(0.3)
    del x
    print(2, flush=True)
time.sleep(60)
"""


def test_memory_is_proportional_set_size_of_tree(start_process):
    """Two processes that share 48 MiB and have 16 MiB each; one allocates 48 MiB for a while."""
    process = start_process(MEMORY_PROGRAM)
    for _ in range(2):
        process._process.stdout.readline()
    tree = list_process_tree(process._process.pid)
    memory = read_memory(tree)
    assert len(tree) == 2 and 80 << 20 < memory < 112 << 20  # with two Pythons

    def allocate(lines):
        process._process.stdin.write(b"line\n")
        process._process.stdin.flush()
        process._process.stdout.readline()

    process.translate = allocate
    peak = process.measure_peak_memory(["line"])
    assert 40 << 20 < peak - memory < 56 << 20
    assert read_memory(tree) < memory + (8 << 20)
    assert read_memory([]) == 0


# -- figures --------------------------------------------------------------------------------------


def make_system(seconds, cpu_seconds, **fields):
    """Return the measurements of a system."""
    defaults = dict(version="", detail="", n_tokens=40, memory=3 << 20, equal=8, bleu=None)
    return dict(seconds=seconds, processor_seconds=cpu_seconds, **{**defaults, **fields})


WORK = {
    "about": "toys",
    "lines": 8,
    "systems": {
        "onmt_lite": make_system([2.0, 1.0, 4.0], [3.0, 2.0, 4.0], detail="bf16", bleu=30.04),
        "transformers float32": make_system([9.0, 9.0, 9.0], [18.0, 18.0, 18.0], version="5.0"),
        "CTranslate2 int8": make_system([4.0, 3.0, 4.0], [6.0, 6.0, 2.0], version="4.8.5"),
    },
    "left_out": {"CTranslate2 float32": "it is not installed"},
    "phases": {"bf16": {"lines": 4, "seconds": {"encode": 0.3, "decode": 0.1}}},
}
RECORD = {
    "processor": "Xeon",
    "torch": "2.13",
    "capability": "AVX512",
    "environment": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "threads": 2,
    "beam_size": 5,
    "workloads": {"base": WORK},
}


def test_speedups_compare_times_of_the_same_round():
    assert compute_speedups(WORK, "onmt_lite", "seconds") == [2.0, 3.0, 1.0]
    assert compute_speedups(WORK, "onmt_lite", "processor_seconds") == [2.0, 3.0, 0.5]
    assert compute_speedups(WORK, "CTranslate2 int8", "seconds") == [1.0, 1.0, 1.0]


def test_tables_contain_medians_details_and_phases():
    (head, _, ours, *_) = format_speed_table(WORK).split("\n")
    cells = [cell.strip() for cell in ours.split("|")[1:-1]]
    assert "× CTranslate2 int8, wall-clock" in head
    assert cells[0] == "onmt_lite (bf16)"
    assert cells[1:3] == ["4.0", "20"]  # the median round took 2 s
    assert cells[3:] == ["2.00 (1.00–3.00)", "2.00 (0.50–3.00)", "3", "8", "30.0"]
    text = format_tables(RECORD)
    assert text.startswith("Xeon, torch 2.13 (AVX512), ONEDNN_MAX_CPU_ISA=AVX2\n")
    assert "- CTranslate2 float32: skipped; it is not installed" in text
    assert "bf16: encode 75.00 (75%), decode 25.00 (25%), total 100.00" in format_phases(WORK)
    headline = format_headline(RECORD)
    assert "base 2.00" in headline and "CTranslate2 int8" in headline
    assert len({len(line) for line in format_table([["a", "bbb"], ["cc", "d"]]).split("\n")}) == 1


def test_processor_table_has_a_row_per_record_and_unmeasured_processors():
    avx2 = RECORD | {"kernels": "avx2"}
    avx2_greedy = avx2 | {"beam_size": 1}
    assert [*map(name_record, (avx2, avx2_greedy))] == ["avx2", "avx2, beam 1"]
    table = format_processors({"avx2": avx2, "avx2, beam 1": avx2_greedy})
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.split("\n")]
    assert rows[0] == ["processor", "beam", "base, int8", "base, fp32"]
    assert [row for row in rows if "AVX2" in row[0]] == [
        ["limited to AVX2", "5", "2.00", "–"],  # no CTranslate2 float32 in WORK
        ["limited to AVX2", "1", "2.00", "–"],
    ]
    assert ["AVX-VNNI", "not measured", "–", "–"] in rows and len(rows) == 8


def test_speed_table_without_cpu_time_or_other_systems():
    work = {**WORK, "systems": {"onmt_lite": make_system([2.0], [], memory=None)}}
    assert "–" in format_speed_table(work)
    assert compute_speedups(work, "onmt_lite", "seconds") == [1.0]
