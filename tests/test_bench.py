"""The comparison with other systems: same work, honest figures, and what is said where."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from onmt_lite.bench import compare, phases
from onmt_lite.bench.__main__ import main
from onmt_lite.bench.child import Child, Gone, family
from onmt_lite.bench.m2m100 import obstacle
from onmt_lite.bench.options import BenchOptions, load_bench_options
from onmt_lite.bench.report import (
    aligned,
    chart_of,
    floor_share,
    headline,
    ratios,
    speed_table,
    tables_of,
)
from onmt_lite.bench.systems import PEERS, Job, build
from onmt_lite.bench.workloads import (
    SHAPES,
    Shape,
    make_workload,
    random_workload,
    read_lines,
    write_formats,
)
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.errors import DataError, FileError, OptionError
from onmt_lite.search import scheduler as feed
from tests.support import tiny

SMALL = Shape(1, 16, 32, 2, 60, n_lines=6, n_tokens=7)
INSTALLED = {kind.name for kind in PEERS if kind.version}


# -- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, problem",
    [
        ("-model x", "give the lines to translate as well, with -src"),
        ("-model x -src y -workload base", "model and workload contradict each other"),
        ("-tgt x", "give the lines that it translates"),
        ("-workload base -src x", "have their own lines"),
        ("-workload big", "expected one of base, tiny, shipped"),
        ("-rounds 0", "at least 1"),
    ],
)
def test_wrong_options(words, problem):
    with pytest.raises(OptionError, match=problem):
        load_bench_options(words.split())


def test_help_needs_no_torch():
    code = (
        "import sys; from onmt_lite.bench.__main__ import main; main(['-help'])\n"
        "sys.exit(bool({'torch', 'ctranslate2', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "-against" in done.stdout


# -- workloads ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return random_workload("small", SMALL, tmp_path_factory.mktemp("small"), None)


def test_shapes_are_those_of_marian():
    for name, sizes in (("base", (6, 512, 2048, 8, 32000)), ("tiny", (3, 256, 1024, 4, 8000))):
        shape = SHAPES[name]
        found = (shape.layers, shape.d_model, shape.d_ff, shape.heads, shape.vocab_size)
        assert (found, shape.n_tokens) == (sizes, 24)


def test_a_random_model_reads_and_writes_as_many_tokens_as_it_says(small):
    ours = build(Job("ours", "fp32", small.model, "", 6, 1, 3, small.length))
    texts, n_tokens = ours.translate(small.lines)
    assert n_tokens == SMALL.n_tokens * len(small.lines)
    assert all(len(text.split()) == SMALL.n_tokens for text in texts)
    assert len(set(texts)) > 1  # the source matters
    checkpoint = load_checkpoint(small.model)
    tokens = [checkpoint.tokenizers["sentencepiece"].encode(line) for line in small.lines]
    assert {len(line) + len(checkpoint.src_end) for line in tokens} == {SMALL.n_tokens}
    assert all(token in checkpoint.src_vocab.ids for line in tokens for token in line)
    cfg = checkpoint.model.cfg
    assert (cfg.pre_norm, cfg.tie_output, cfg.activation) == (False, True, "relu")


def test_a_random_model_is_the_same_in_every_run(small, tmp_path):
    again = random_workload("small", SMALL, tmp_path, 4)
    assert again.lines == small.lines[:4]
    files = [Path(each.model, "model.safetensors").read_bytes() for each in (small, again)]
    assert files[0] == files[1]


def test_lines_of_files(tmp_path):
    src, tgt = tmp_path / "src", tmp_path / "tgt"
    src.write_text("a\n\nb\u2028c\n", encoding="utf-8")
    tgt.write_text("A\n\nB\n", encoding="utf-8")
    assert read_lines(BenchOptions(src=str(src))) == (["a", "b\u2028c"], None)
    assert read_lines(BenchOptions(src=str(src), tgt=str(tgt))) == (["a", "b\u2028c"], ["A", "B"])
    given = make_workload("given", BenchOptions(model="m", src=str(src), lines=1), tmp_path)
    assert (given.model, given.lines) == ("m", ["a"])
    tgt.write_text("A\n", encoding="utf-8")
    with pytest.raises(DataError, match="src has 3 lines but tgt 1"):
        read_lines(BenchOptions(src=str(src), tgt=str(tgt)))
    src.write_bytes(b"\xff\n")
    with pytest.raises(DataError, match="not UTF-8"):
        read_lines(BenchOptions(src=str(src)))
    src.write_text("\n \n", encoding="utf-8")
    with pytest.raises(DataError, match="no lines"):
        read_lines(BenchOptions(src=str(src)))
    with pytest.raises(FileError, match="cannot read"):
        read_lines(BenchOptions(src=str(tmp_path / "none")))


@pytest.mark.parametrize(
    "words, error",
    [
        ("-src {here}/none", "src: cannot read"),
        ("-json {here}/none/x.json", "json: cannot write .* in a folder that is there"),
        ("-svg {here}", "svg: cannot write"),
        ("-src {here}/lines -json {here}/lines", "is the same file as src"),
    ],
)
def test_files_are_looked_at_before_minutes_are_spent(words, error, tmp_path, capfd):
    (tmp_path / "lines").write_text("a\n", encoding="utf-8")
    assert main(words.format(here=tmp_path).split()) in (2, 5)
    out, err = capfd.readouterr()
    assert re.search(error, err) and (out, err.count("\n")) == ("", 1)


def test_formats_of_both_shapes(small, tiny_checkpoint, tmp_path):
    marian = write_formats(small, tmp_path / "marian")
    assert marian.marian is not None and marian.opennmt is None
    assert "norms after the sublayers" in marian.why_not
    pre_norm = make_workload(
        "given", BenchOptions(model=str(tiny_checkpoint), src=__file__), tmp_path
    )
    opennmt = write_formats(pre_norm, tmp_path / "opennmt")
    assert opennmt.opennmt is not None and opennmt.marian is None
    assert (tmp_path / "opennmt" / "source.spm").exists()
    assert obstacle(load_checkpoint(tiny_checkpoint)) == ""
    assert "norms after" in obstacle(load_checkpoint(small.model))


# -- processes ------------------------------------------------------------------------------------


def test_processor_time_and_memory_are_of_the_whole_family(small, tmp_path):
    """A child that burns 0.3 s, beside one of its own that burns as much and 64 MiB."""
    if not Path("/proc/self/stat").exists():
        pytest.skip("no /proc here")
    burn = "import time\nwhile time.process_time() < 0.3: pass\n"
    inner = burn + "x = bytearray(b'1') * (64 << 20); print(1, flush=True); time.sleep(60)"
    outer = f"import subprocess, sys\np = subprocess.Popen([sys.executable, '-c', {inner!r}])\n"
    outer += burn + "p.wait()"
    child = Child.__new__(Child)
    child.process = subprocess.Popen(
        [sys.executable, "-c", outer], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    before = child.processor_seconds()
    child.process.stdout.readline()
    while child.processor_seconds() < 0.56:  # two clocks that tick 100 times a second
        time.sleep(0.01)
    assert before < 0.56
    assert len(family(child.process.pid)) == 2
    assert 64 << 20 < child.peak_memory() < 200 << 20
    child.close()
    assert family(child.process.pid) == []


def test_a_child_that_ends_says_why(small, tmp_path):
    job = Job("ours", "fp8", small.model, "", 6, 1, 5, None)
    with pytest.raises(Gone, match="precision: expected one of"):
        Child("ours", job, {"PYTHONPATH": ":".join(sys.path)}, tmp_path / "log")


# -- phases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for names in phases.PHASES.values() for name in names])
def test_what_is_wrapped_exists(name):
    owner, attribute = phases.find(name)
    assert callable(getattr(owner, attribute))


def test_time_belongs_to_the_innermost_phase(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "process_time", lambda: now[0])

    def spend(seconds, *inside):
        now[0] += seconds
        for each in inside:
            each()
            now[0] += seconds

    watch = phases.Watch()
    attention = watch.wrap("attention", spend)
    whole = watch.wrap("encode", lambda: spend(1, lambda: attention(10)))
    step = watch.wrap("rest of a step", lambda: spend(100, lambda: attention(1000)))
    spend(10000, whole, step)
    watch.stop()
    assert watch.seconds == {
        "attention": 1000,
        "encode": 12,
        "rest of a step": 200,
        phases.HOST: 30000,
    }


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_phases_of_a_translation(small, precision):
    """Every phase takes time, all is as before afterwards, and the products are counted."""
    before = [getattr(*phases.find(n)) for names in phases.PHASES.values() for n in names]
    ours = build(Job("ours", precision, small.model, "", 6, 1, 2, small.length))
    answer = ours.phases(small.lines)
    assert before == [getattr(*phases.find(n)) for names in phases.PHASES.values() for n in names]
    assert list(answer["phases"]) == [*phases.PHASES, phases.HOST]
    assert min(answer["phases"].values()) > 0 and answer["floor"] > 0
    d, ff, n = SMALL.d_model, SMALL.d_ff, len(small.lines)
    encoder = 4 * d * d + 2 * d * ff
    decoder = 6 * d * d + 2 * d * ff + d * SMALL.vocab_size
    # With keys and values of the source, of padding, too
    per_line = SMALL.n_tokens * encoder + feed.WIDTHS["cpu"] * 2 * d * d
    # Both hypotheses of each step, but the first of which there is one
    expected = 2 * n * (per_line + (2 * SMALL.n_tokens - 1) * decoder)
    assert answer["gflop"] == pytest.approx(expected / 1e9, rel=0.08)


@pytest.mark.parametrize("precision", phases.KERNELS)
def test_kernels_compute_the_product(precision):
    """What runs here is a product: for numbers that 8 bits hold, the same one."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    torch.manual_seed(1)
    x, weight = (torch.randint(-40, 41, size).to(dtype) / 40 for size in ((16, 32), (64, 32)))
    expected = x.float() @ weight.float().t()
    ran = 0
    for name, kernel in phases.KERNELS[precision].items():
        try:
            found = kernel(x, weight)()
        except (RuntimeError, AttributeError, NotImplementedError):
            continue
        scale = {"_int_mm": 1 / 1600}.get(name, 1.0)
        torch.testing.assert_close(found.float() * scale, expected, atol=0.15, rtol=0.02)
        ran += 1
    assert ran


# -- figures --------------------------------------------------------------------------------------


def system(seconds, cpu, **more):
    fields = dict(
        version="", detail="", n_tokens=40, memory=3 << 20, equal=8, bleu=None, search="x"
    )
    return dict(seconds=seconds, processor_seconds=cpu, **{**fields, **more})


WORK = {
    "about": "toys",
    "lines": 8,
    "systems": {
        "onmt_lite": system([2.0, 1.0, 4.0], [3.0, 2.0, 4.0], detail="bf16", bleu=30.04),
        "transformers float32": system([9.0, 9.0, 9.0], [18.0, 18.0, 18.0], version="5.0"),
        "CTranslate2 int8": system([4.0, 3.0, 4.0], [6.0, 6.0, 2.0], version="4.8.5"),
    },
    "left_out": {"OpenNMT-py": "it is not installed"},
    "profiles": {
        "onmt_lite": {
            "lines": 4,
            "precision": "bf16",
            "phases": {"encode": 0.3, "host": 0.1},
            "floor": 0.6,
        }
    },
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


def test_ratios_are_of_the_same_round():
    assert ratios(WORK, "onmt_lite", "seconds") == [2.0, 3.0, 1.0]
    assert ratios(WORK, "onmt_lite", "processor_seconds") == [2.0, 3.0, 0.5]
    assert ratios(WORK, "CTranslate2 int8", "seconds") == [1.0, 1.0, 1.0]


def test_tables():
    (head, _, ours, *_) = speed_table(WORK).split("\n")
    cells = [cell.strip() for cell in ours.split("|")[1:-1]]
    assert "× CTranslate2 int8, clock" in head
    assert cells[0] == "onmt_lite (bf16)"
    assert cells[1:3] == ["4.0", "20"]  # the median round took 2 s
    assert cells[3:] == ["2.00 (1.00–3.00)", "2.00 (0.50–3.00)", "3", "8", "30.0"]
    text = tables_of(RECORD)
    assert text.startswith("Xeon, torch 2.13 (AVX512), ONEDNN_MAX_CPU_ISA=AVX2\n")
    assert "- OpenNMT-py: left out; it is not installed" in text
    # 0.6 s of products for 4 lines, of 3 s for 8
    assert floor_share(WORK, "onmt_lite") == pytest.approx(0.15 / 0.375)
    assert "| 150.00" in text and "40%" in text and "| 75.00" in text and "75%" in text
    assert "base 2.00" in headline(RECORD) and "CTranslate2 int8" in headline(RECORD)
    assert len({len(line) for line in aligned([["a", "bbb"], ["cc", "d"]]).split("\n")}) == 1


def test_without_processor_time_or_peers():
    alone = {**WORK, "systems": {"onmt_lite": system([2.0], [], memory=None)}}
    assert "–" in speed_table(alone)
    assert floor_share(alone, "onmt_lite") is None
    assert ratios(alone, "onmt_lite", "seconds") == [1.0]


def test_the_chart_has_a_bar_for_each_ratio():
    chart = chart_of(RECORD)
    assert "times as fast as CTranslate2 int8" in chart
    assert [f">{bar}</text>" in chart for bar in ("2", "0.44")] == [True, True]


# -- the whole program ----------------------------------------------------------------------------


def test_a_comparison(tiny_checkpoint, tmp_path, capfd):
    """Two rounds of each system that is installed; figures in all places."""
    src, tgt = tmp_path / "src", tmp_path / "tgt"
    src.write_text("\n".join(tiny.SENTENCES) + "\n", encoding="utf-8")
    tgt.write_text("\n".join(tiny.SENTENCES) + "\n", encoding="utf-8")
    words = f"-model {tiny_checkpoint} -src {src} -tgt {tgt} -rounds 2 -threads 1 -beam_size 2"
    words += f" -lines 5 -json {tmp_path}/speed.json -svg {tmp_path}/speed.svg"
    assert main(words.split()) == 0
    record = json.loads((tmp_path / "speed.json").read_text(encoding="utf-8"))
    (work,) = record["workloads"].values()
    assert (record["beam_size"], record["threads"], work["lines"]) == (2, 1, 5)
    assert INSTALLED <= set(work["systems"]) | set(work["left_out"])
    for name, system in work["systems"].items():
        assert len(system["seconds"]) == 2 and min(system["seconds"]) > 0
        assert system["n_tokens"] > 5 and 0 <= system["equal"] <= 5
        assert 0 <= system["bleu"] <= 100
        if name.endswith(("fp32", "float32")) or "fp32" in system["detail"]:
            assert system["equal"] == 5
    assert set(work["profiles"]) <= set(work["systems"])
    out, err = capfd.readouterr()
    assert out == tables_of(record) + "\n"
    assert all(f"{name}: left out; {why}" in err for name, why in work["left_out"].items())
    assert (tmp_path / "speed.svg").read_text(encoding="utf-8") == chart_of(record)


def test_peers_that_nobody_asks_for_are_not_started(small, tmp_path):
    options, _ = load_bench_options(["-against", "transformers"])
    formats = write_formats(small, tmp_path / "formats")
    left_out: dict[str, str] = {}
    kinds = compare.kinds(options, small, formats, left_out)
    named = {kind.option for kind in kinds} | {name.split()[0] for name in left_out}
    assert {"ours", "transformers"} == named
