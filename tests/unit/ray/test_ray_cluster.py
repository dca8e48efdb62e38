"""`python -m onmt_lite.ray` on a local cluster of two nodes, with failures of all kinds.

Skipped without Ray, which is a large package.  To run these tests:
pip install 'ray[data]>=2.60,<2.64' && python -m pytest tests/unit/ray/test_ray_cluster.py
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import translate
from onmt_lite import Translator
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import OptionError
from tests.support.stop_signals import restore_default_signals

pytest.importorskip("ray")
pa = pytest.importorskip("pyarrow")

ROOT = Path(__file__).resolve().parents[3]
SAMPLE = (ROOT / "data" / "sample.de.txt").read_text(encoding="utf-8").split("\n")[:-1]
TOY = str(ROOT / "data" / "toy.json")
STORE = 80 << 20
ACTOR = b"ray::TranslateBucket"


def lines(n):
    """Realistic lines: empty ones, bad bytes, unusual separators."""
    odd = ["", "\u2028 Haus", "Guten\rTag", "\v", "Katze \udcff", "katze katze"]
    texts = [f"{SAMPLE[i % len(SAMPLE)]} {i}" if i % 9 else odd[i // 9 % 6] for i in range(n)]
    return [text.encode("utf-8", "surrogateescape") + b"\n" for text in texts]


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": STORE}
    made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    made.add_node(**node)
    yield made
    made.shutdown()


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def expected(here):
    """expected(words) -> the output of translate.py."""

    def run(*words):
        assert translate.main([*words, "-output", "expected", "-quiet"]) in (0, 7)
        return (here / "expected").read_bytes()

    return run


RAY = [sys.executable, "-m", "onmt_lite.ray"]


class Job:
    """A driver in a separate process."""

    def __init__(self, *words, cwd, address=None, program=RAY):
        self.words = [*program, *words, *(["-address", address] if address else [])]
        self.process = subprocess.Popen(
            self.words,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=restore_default_signals,
        )

    def end(self):
        """Return exit code and stderr."""
        out, err = self.process.communicate(timeout=200)
        assert out == b""  # Ray would print a good deal
        return self.process.returncode, err.decode("utf-8")


@pytest.fixture
def start(here, cluster):
    """start(words) -> a Job on the cluster of this module."""
    jobs = []

    def run(*words):
        jobs.append(Job(*words, cwd=here, address=cluster.address))
        return jobs[-1]

    yield run
    for job in jobs:
        if job.process.poll() is None:
            job.process.kill()
            job.process.wait()


def parts(here):
    """Return the names of the partial files."""
    return sorted(path.name for path in (here / "out.parts").glob("[0-9]*"))


def read(here):
    return (here / "out").read_bytes() if (here / "out").exists() else b""


def actors(doing=b""):
    """Return process ids; `doing`: only of actors that are running this method."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(ACTOR + doing):
                found.append(int(path.parent.name))
    return found


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.05)
    return found


class TestSameAsTranslatePy:
    def test_ray_text_files_equal_translate_py(self, here, start, expected):
        every = lines(90)
        (here / "all").write_bytes(b"".join(every))
        every[24] = every[24].removesuffix(b"\n")
        cuts = [0, 25, 25, 26, 90]
        (here / "in").mkdir()
        for i, (a, b) in enumerate(zip(cuts, cuts[1:])):
            (here / "in" / f"{i}\udcff.txt").write_bytes(b"".join(every[a:b]))
        options = ["-beam_size", "2", "-n_best", "2"]
        job = start("-src", "in", "-output", "out", "-bucket_lines", "10", *options)
        code, err = job.end()
        assert code == 0, err
        assert read(here) == expected("-src", "all", *options)
        assert "lines 1, 28, 55 and 82: the input line is empty" in err
        assert not (here / "out.parts").exists()

    def test_ray_jsonl_files_equal_translate_py(self, here, start, expected):
        texts = [line[:-1].decode("utf-8", "replace") for line in lines(30)]
        records = [json.dumps({"text": text, "n": i}) for i, text in enumerate(texts)]
        (here / "a.jsonl").write_text("\n".join([*records, "[]\n"]), encoding="utf-8")
        options = ["-src", "a.jsonl", "-bucket_lines", "8", "-random_sampling_topk", "5"]
        code, err = start(*options, "-output", "out").end()
        wanted = expected(*options, "-output_format", "jsonl")
        assert code == 7, err  # the last line is not a JSON object
        assert read(here) == wanted
        assert "line 31: the input is not a JSON object" in err

    def test_ray_other_output_format_and_empty_input(self, here, start, expected):
        for data in (b"katze\nkatze\n\n", b""):
            (here / "a.txt").write_bytes(data)
            given = ["-src", "a.txt", "-model", TOY, "-bucket_lines", "2"]
            given += ["-output_format", "jsonl"]
            code, err = start(*given, "-output", "out").end()
            assert (code, (here / "out").read_bytes()) == (0, expected(*given)), err

    def test_ray_option_notices_are_logged_once(self, here, start):
        (here / "a.txt").write_bytes(b"katze\nkatze\n")
        given = ["-bucket_lines", "1", "-model", TOY, "-precision", "bf16", "-beta", "1"]
        given += ["-log_file", "log"]
        code, err = start("-src", "a.txt", "-output", "out", *given).end()
        assert code == 0 and err.count("NOTE: precision: has no effect") == 1
        assert err.count("NOTE: beta: has no effect") == 1 and "(command line)" in err
        assert (here / "log").read_text("utf-8").count(" INFO] precision fp32 on cpu\n") == 1


SLOW = ["-beam_size", "8", "-bucket_lines", "40", "-actors", "2"]


class TestFailures:
    @pytest.fixture
    def wanted(self, here, expected):
        (here / "a.txt").write_bytes(b"".join(lines(400)))
        return expected("-src", "a.txt", "-beam_size", "8")

    def test_ray_killed_actor_is_replaced(self, here, start, wanted):
        job = start("-src", "a.txt", "-output", "out", *SLOW)
        wait_for(lambda: parts(here))
        os.kill(actors()[0], signal.SIGKILL)
        code, err = job.end()
        assert (code, read(here)) == (0, wanted), err
        assert "NOTE: an actor was lost, " in err and not (here / "out.parts").exists()

    def test_ray_removed_node_is_tolerated(self, here, start, wanted, cluster):
        node = cluster.add_node(num_cpus=1, object_store_memory=STORE)
        try:
            job = start("-src", "a.txt", "-output", "out", *SLOW, "-actors", "3")
            wait_for(lambda: len(actors()) == 3 and parts(here))
        finally:
            cluster.remove_node(node, allow_graceful=False)
        code, err = job.end()
        assert (code, read(here)) == (0, wanted), err
        assert not (here / "out.parts").exists()

    def test_ray_killed_driver_can_resume(self, here, wanted):
        """The private Ray dies with the driver; finished work is not repeated."""
        job = Job("-src", "a.txt", "-output", "out", *SLOW, cwd=here)
        wait_for(lambda: len(parts(here)) > 2)
        job.process.kill()
        job.end()
        wait_for(lambda: not actors(), 30)
        n_lines = 40 * len(parts(here))
        assert n_lines < 400
        code, err = Job("-src", "a.txt", "-output", "out", *SLOW, "-resume", cwd=here).end()
        assert (code, read(here)) == (0, wanted), err
        assert f"resuming: {n_lines} of 400 lines are done" in err

    @pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
    def test_ray_stop_signal_can_resume(self, here, wanted, name):
        """The printed command resumes the job after Ray has ended."""
        job = Job("-src", "a.txt", "-output", "out", *SLOW, cwd=here)
        wait_for(lambda: parts(here))
        job.process.send_signal(signal.Signals[name])
        code, err = job.end()
        assert code == 128 + signal.Signals[name], err
        assert f"stopped by {name} " in err and not actors()
        command = err.split("\n")[-2]
        assert shlex.split(command) == [*job.words, "-resume"]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        assert subprocess.run(["sh", "-c", command], cwd=here, env=env).returncode == 0
        assert read(here) == wanted

    def test_ray_bucket_that_kills_actors_is_an_error(self, here, start, wanted):
        job = start("-src", "a.txt", "-output", "out", *SLOW, "-actors", "1")
        wait_for(lambda: parts(here))
        killed = set()
        while job.process.poll() is None:
            for pid in set(actors(b".do")) - killed:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            time.sleep(0.01)
        code, err = job.end()
        assert (code, len(killed)) == (1, 3), err
        said = [line for line in err.split("\n") if "error" in line]
        assert len(said) == 1 and "3 actors died at lines " in said[0] and "Traceback" not in err
        code, err = start("-src", "a.txt", "-output", "out", *SLOW, "-resume").end()
        assert (code, read(here)) == (0, wanted), err


@pytest.mark.parametrize("first", ["ray", "workers"])
def test_ray_resumes_jobs_of_translate_py_and_vice_versa(here, start, expected, first):
    (here / "a.txt").write_bytes(b"".join(lines(400)))
    words = ["-src", "a.txt", "-beam_size", "8", "-bucket_lines", "40", "-report", "notes"]
    wanted = expected(*words), (here / "notes").read_bytes()

    def begin(kind, *more):
        if kind == "ray":
            return start(*words, "-output", "out", *more)
        program = [sys.executable, str(ROOT / "translate.py"), "-workers", "2"]
        return Job(*words, "-output", "out", *more, cwd=here, program=program)

    job = begin(first)
    wait_for(lambda: len(parts(here)) > 2)
    job.process.kill()
    job.end()
    wait_for(lambda: not actors(), 30)
    n_lines = 40 * len(parts(here))
    assert n_lines < 400 and not (here / "out").exists()
    code, err = begin("workers" if first == "ray" else "ray", "-resume").end()
    assert code == 0 and f"resuming: {n_lines} of 400 lines are done" in err, err
    assert (read(here), (here / "notes").read_bytes()) == wanted
    assert not list(here.glob("*.parts"))


def test_ray_unreachable_cluster_is_an_error(here):
    (here / "a.txt").write_bytes(b"katze\n")
    job = Job("-src", "a.txt", "-output", "out", cwd=here, address="127.0.0.1:1")
    code, err = job.end()
    assert code == 2 and err.count("\n") == 1
    assert "cannot reach the Ray cluster at 127.0.0.1:1" in err
    assert not (here / "out").exists()


def test_ray_resume_rejects_different_job(here, start):
    (here / "a.txt").write_bytes(b"katze\nkatze\n")
    given = ["-src", "a.txt", "-output", "out", "-model", TOY, "-bucket_lines", "1"]
    assert start(*given).end()[0] == 0
    before = os.stat(here / "out")
    code, err = start(*given, "-resume").end()
    assert code == 0 and "is already complete" in err
    assert os.stat(here / "out").st_ino == before.st_ino


def test_ray_actor_with_different_model_is_an_error(here, start):
    (here / "a.txt").write_bytes(b"katze\n")
    (here / "m.json").write_bytes(b"{}")
    code, err = start("-src", "a.txt", "-output", "out", "-model", "m.json").end()
    assert code == 4 and err.count("error") == 1 and "m.json" in err
    assert not (here / "out").exists()


DATASET = """
import json
import sys

import ray

ray.init(sys.argv[1], logging_level="error", log_to_driver=False)
ray.data.DataContext.get_current().enable_progress_bars = False
from onmt_lite.ray import translate_dataset

rows = [{"n": i, "body": body} for i, body in enumerate(["katze", "", "katze"] * 4)]
ds = translate_dataset(
    ray.data.from_items(rows), column="body", actors=2, model=sys.argv[2], beam_size=2
)
print(json.dumps(sorted(ds.take_all(), key=lambda row: row["n"])))
"""


def test_translate_dataset_on_cluster(here, cluster):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", DATASET, cluster.address, TOY]
    done = subprocess.run(words, cwd=here, env=env, capture_output=True, timeout=200)
    assert done.returncode == 0, done.stderr.decode()
    rows = json.loads(done.stdout)
    bodies = ["katze", "", "katze"] * 4
    assert [(row.pop("n"), row.pop("body")) for row in rows] == list(enumerate(bodies))
    assert_translated(rows, bodies, beam_size=2)


def assert_translated(rows, texts, **options):
    """Check the three new columns."""
    wanted = Translator.from_pretrained(TOY, **options).translate(texts)
    for row, t in zip(rows, wanted, strict=True):
        best = t.hyps[0]
        score = pytest.approx(best.score, abs=1e-5) if best.tokens else None
        assert row == {"translation": best.text, "notes": list(t.notes), "score": score}


def test_translate_rows_adds_columns():
    """Existing columns are kept, whatever the type of the text column."""
    from onmt_lite.ray.dataset import TranslateRows

    texts = ["katze", None, "", "\u2028 katze", "katze"]
    rows = TranslateRows(TranslateOptions.of(model=TOY, output_format="jsonl"), "body")
    tags = pa.array([["a", None]] * 5, pa.list_(pa.string()))
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())):
        columns = {"id": pa.array(range(5), pa.int16()), "body": pa.array(texts, kind)}
        table = pa.table({**columns, "tags": tags})
        found = rows(table)
        assert found.select(table.column_names).equals(table)
        made = found.drop_columns(table.column_names).to_pylist()
        assert_translated(made, [text or "" for text in texts])
    nothing = rows(table.slice(0, 0))
    assert nothing.column_names == [*table.column_names, "translation", "score", "notes"]
    assert len(nothing) == 0


def test_translate_dataset_invalid_columns_are_rejected():
    from onmt_lite.ray.dataset import check_columns

    schema = pa.table({"text": ["katze"], "score": [1.0], "n": [1]}).schema
    for column, said in (
        ("text", "column score already exists"),
        ("body", r"no text column body; its columns are text \(string\), score \(double\), n"),
        ("n", r"no text column n; its columns are text .*, n \(int64\)"),
    ):
        with pytest.raises(OptionError, match=said):
            check_columns(schema, column)


def test_translate_dataset_invalid_options_are_rejected():
    """Without a cluster."""
    from onmt_lite.ray import translate_dataset

    for given, said in (
        (dict(beam_siz=3), "beam_siz"),
        (dict(n_best=2), "n_best 2"),
        (dict(tgt="a"), "tgt: is only supported on the command line"),
    ):
        with pytest.raises(OptionError, match=said):
            translate_dataset(None, **given)
