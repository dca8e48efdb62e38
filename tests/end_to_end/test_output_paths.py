"""Output paths: inputs are never damaged, and existing files keep their permissions."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from onmt_lite.checkpoints.shipped import DEFAULT_MODEL
from onmt_lite.config.files import find_descriptor, is_device
from tests.end_to_end.conftest import redirect_descriptor
from tests.support.files import DATA
from tests.support.stop_signals import stop_before_part

OUT = "ein\nü\n\nx y z\n".encode()  # of the fixture src


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.fixture
def files(src, table, tmp_path):
    """Files that a job may read, in tmp_path; tests leave them unchanged."""
    for name in ("tgt", "codes", "counts", "phrases", "out", "m.pt", "m.safetensors", "in.json"):
        (tmp_path / name).write_text(f"{name}|||\n")
    for name in ("c2/model/model.bin", "mn/model.npz", "mn/vocab.spm"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("mine")
    (tmp_path / "one.yaml").write_text("beam_size: 3\n")
    (tmp_path / "two.yaml").write_text("beam_size: 2\n")
    shutil.copy(table, tmp_path / "m.json")
    shutil.copytree(DATA / "hf" / "marian", tmp_path / "marian")
    os.symlink(src, tmp_path / "soft")
    os.symlink("out", tmp_path / "link")
    for name in ("src.txt", "m.json", "marian/source.spm"):
        os.link(tmp_path / name, tmp_path / f"hard {Path(name).suffix}")

    def state():
        paths = [path for path in tmp_path.rglob("*") if path.is_file()] + [SHIPPED]
        return {path: path.read_bytes() for path in paths}

    before = state()
    yield
    assert state() == before


SHIPPED = DEFAULT_MODEL / "model.json"
READ = [  # what a job reads, a path to that file, and what it is called
    ("-src src.txt", "src.txt", "src src.txt"),
    ("-src src.txt", "./src.txt", "src src.txt"),
    ("-src src.txt", "soft", "src src.txt"),
    ("-src soft", "hard .txt", "src soft"),
    ("-tgt tgt", "tgt", "tgt tgt"),
    ("-replace_unk -phrase_table phrases", "phrases", "phrase_table phrases"),
    ("-tokenizer bpe -src_subword_model codes", "codes", "src_subword_model codes"),
    ("-src_subword_vocab counts", "counts", "src_subword_vocab counts"),
    ("-tgt_subword_vocab counts", "counts", "tgt_subword_vocab counts"),
    ("-config one.yaml two.yaml", "two.yaml", "config two.yaml"),
    ("-model m.json", "m.json", "model m.json"),
    ("-model m.json", "hard .json", "model m.json"),
    ("-model marian", "marian/model.safetensors", "model marian/model.safetensors"),
    ("-model marian", "marian/source.spm", "model marian/source.spm"),
    ("-model marian", "hard .spm", "model marian/source.spm"),
    ("-model m.pt", "m.safetensors", "model m.safetensors"),
    ("-model c2", "c2/model/model.bin", "model c2/model/model.bin"),
    ("-model mn/model.npz", "mn/vocab.spm", "model mn/vocab.spm"),
    ("-model de-en", str(SHIPPED), f"model {SHIPPED}"),
]


@pytest.mark.parametrize(("reads", "path", "name"), READ)
def test_output_that_is_an_input_is_rejected(main, files, reads, path, name):
    words = ["-src", "src.txt"] if "-src " not in reads else []
    for writes in ("output", "log_file", "report", "save_config"):
        done = main(*words, *reads.split(), f"-{writes}", path)
        done.failed(2, f"{writes} {path} is the same file as {name}; choose another path")


def test_output_paths_must_differ(main, files, tmp_path):
    for words, problem in [
        ("-log_file log -report log", "report log is the same file as log_file log"),
        ("-output out -report out", "report out is the same file as output out"),
        ("-output out -log_file out", "log_file out is the same file as output out"),
        ("-output out -save_config link", "save_config link is the same file as output out"),
        ("-tgt in.json -dump_beam in.json", "dump_beam in.json is the same file as tgt in.json"),
    ]:
        main("-src", "src.txt", *words.split()).failed(2, f"{problem}; choose another path")
    store = f"{tmp_path}/out.parts, where output out is stored until it is complete"
    for path in ("out.parts", "out.parts/000000"):
        done = main("-src", "src.txt", "-output", "out", "-report", path)
        done.failed(2, f"report {path} is in {store}; choose another path")


def test_output_inside_shipped_model_is_rejected(process, tmp_path):
    """The default model counts as an input.  A link protects it in case the test fails."""
    os.symlink(Path(__file__).parents[2] / "data" / "de-en" / "model.json", tmp_path / "link")
    before = (tmp_path / "link").read_bytes()
    job = process("-model=", "-output", "link")
    assert job.wait(timeout=200) == 2
    assert (tmp_path / "link").read_bytes() == before


def test_save_config_is_atomic(main, tmp_path, monkeypatch):
    (tmp_path / "saved.yaml").write_text("older")
    os.chmod("saved.yaml", 0o600)

    def full(fd, data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("onmt_lite.system.atomic_files.write_all", full)
        done = main("-save_config", "saved.yaml")
    done.failed(
        5,
        "cannot write saved.yaml: No space left on device; free some space or choose another disk",
    )
    assert (tmp_path / "saved.yaml").read_text() == "older"
    assert main("-save_config", "saved.yaml").code == 0
    assert "beam_size: 5  # default" in (tmp_path / "saved.yaml").read_text("utf-8")
    assert mode("saved.yaml") == 0o600
    assert os.listdir(tmp_path) == ["saved.yaml"]


def test_save_config_to_stream(shell, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    printed = shell("", "-print_config").out
    assert shell("", "-save_config", "/dev/stdout").out == printed
    assert shell("", "-save_config", "pipe", first="cat pipe & exec").out == printed
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)
    full = shell("", "-save_config", "/dev/full")
    full.failed(
        5, "cannot write /dev/full: No space left on device; free some space or choose another disk"
    )


def test_output_redirected_by_shell_that_is_an_input_is_rejected(shell, src):
    """Reading the output while writing it would never end."""
    before = src.read_bytes()
    done = shell(f">> {src}", "-src", src)
    done.failed(2, f"standard output is the same file as src {src}; choose another path")
    done = shell(f"< {src}", "-output", src)
    done.failed(2, f"output {src} is the same file as standard input; choose another path")
    assert src.read_bytes() == before


@pytest.mark.parametrize("old", [0o600, 0o644, 0o660, 0o444, 0o755, None])
def test_output_keeps_mode_and_new_file_follows_umask(main, src, tmp_path, old):
    if old is not None:
        for name in ("out", "beam.json"):
            (tmp_path / name).write_bytes(b"older\n")
            os.chmod(name, old)
    umask = os.umask(0o027)
    try:
        assert main("-src", src, "-output", "out", "-dump_beam", "beam.json").code == 0
    finally:
        os.umask(umask)
    assert (tmp_path / "out").read_bytes() == OUT and b"scores" in Path("beam.json").read_bytes()
    assert mode("out") == mode("beam.json") == (0o640 if old is None else old)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_output_keeps_owner(main, src, tmp_path):
    (tmp_path / "out").write_bytes(b"older\n")
    os.chown("out", 1234, 4321)
    assert main("-src", src, "-output", "out").code == 0
    found = os.stat("out")
    assert (found.st_uid, found.st_gid) == (1234, 4321)


def test_output_unfinished_file_is_private(process, tmp_path, until):
    (tmp_path / "out").write_bytes(b"older\n")
    os.chmod(tmp_path / "out", 0o600)
    job = process("-output", "out", stdin=-1)
    job.stdin.write(b"one\n")
    job.stdin.flush()
    part = tmp_path / "out.parts" / "output"
    until(lambda: job.poll() is not None or (part.exists() and part.read_bytes() == b"ein\n"))
    assert mode(part) == 0o600 and mode(tmp_path / "out.parts") & 0o777 == 0o700
    job.stdin.close()
    assert job.wait(timeout=200) == 0
    assert mode(tmp_path / "out") == 0o600


@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link"])
def test_output_dev_stdout_is_appended_to(main, src, tmp_path, path):
    os.symlink("/dev/stdout", tmp_path / "link")
    (tmp_path / "all").write_bytes(b"earlier\n")
    with redirect_descriptor(1, "all", os.O_APPEND):
        assert main("-src", src, "-output", path).code == 0
    assert (tmp_path / "all").read_bytes() == b"earlier\n" + OUT
    # One file for three programs; each continues after the last
    with redirect_descriptor(1, "all", os.O_TRUNC):
        os.write(1, b"head\n")
        assert main("-src", src, "-output", path).code == 0
        os.write(1, b"tail\n")
    assert (tmp_path / "all").read_bytes() == b"head\n" + OUT + b"tail\n"
    assert sorted(os.listdir(tmp_path)) == ["all", "link", "src.txt"]


def test_output_proc_path_is_written_in_place(main, src, tmp_path):
    """A path under /proc is never replaced, and the file keeps its contents."""
    (tmp_path / "all").write_bytes(b"earlier\n")
    with (
        open(tmp_path / "all", "ab") as out,
        subprocess.Popen(["sleep", "60"], stdout=out) as other,
    ):
        os.symlink(f"/proc/{other.pid}/fd/1", tmp_path / "link")
        inode = os.stat(tmp_path / "all").st_ino
        assert main("-src", src, "-output", "link").code == 0
        assert main("-src", src, "-output", f"/proc/{other.pid}/fd/1").code == 0
        other.kill()
    assert (tmp_path / "all").read_bytes() == b"earlier\n" + OUT + OUT
    assert os.stat(tmp_path / "all").st_ino == inode
    main("-src", src, "-output", "/dev/none").failed(
        5, "cannot write /dev/none: No such file or directory; create its directory first"
    )


@pytest.mark.timeout(60)
def test_output_to_devices(tmp_path):
    os.symlink("/dev/fd/7", tmp_path / "link")
    os.symlink(tmp_path / "link", tmp_path / "second")
    for path in ("/dev/null", "/dev/stdout", "/proc/self/fd/1", "/dev/none", "/proc/none"):
        assert is_device(path)
    assert is_device(str(tmp_path / "link")) and is_device(str(tmp_path / "second"))
    for path in ("/dev/shm/out", "/proc/self/cwd/out", str(tmp_path / "out"), "out", "/devout"):
        assert not is_device(path)
    os.symlink("b", tmp_path / "a")
    os.symlink("a", tmp_path / "b")  # a circle
    assert find_descriptor(str(tmp_path / "a")) is None


def test_output_to_descriptor_path(main, src, tmp_path):
    with open(tmp_path / "other", "wb") as other:
        assert main("-src", src, "-output", f"/dev/fd/{other.fileno()}").code == 0
    assert (tmp_path / "other").read_bytes() == OUT
    with redirect_descriptor(2, "two", os.O_TRUNC):
        assert main("-src", src, "-output", "/dev/stderr", "-quiet").code == 0
    assert (tmp_path / "two").read_bytes() == OUT
    done = main("-src", src, "-output", "/dev/fd/997")
    done.failed(5, "cannot write /dev/fd/997: Bad file descriptor; check the path")


def test_log_file_to_descriptor_path(main, src, tmp_path):
    """Opening the path would overwrite other output to the same file."""
    (tmp_path / "log").write_bytes(b"earlier\n")
    with redirect_descriptor(2, "log", os.O_APPEND):
        done = main("-src", src, "-log_file", "/dev/stderr", "-quiet")
    assert (done.code, done.out) == (0, OUT)
    log = (tmp_path / "log").read_text()
    assert log.startswith("earlier\n[2") and "line 3: the input line is empty" in log


@pytest.mark.parametrize("where", ["2> /dev/full", "2> pipe"])
def test_stderr_write_error_is_ignored(shell, src, tmp_path, where):
    os.mkfifo(tmp_path / "pipe")
    gone = "sh -c 'exec < pipe' &"  # a reader that leaves at once
    argv = ["-src", src, "-output", "out", "-report_time", "-verbose", "-log_file", "log"]
    done = shell(where, *argv, first=f"{gone} exec" * ("p" in where))
    assert (done.code, (tmp_path / "out").read_bytes()) == (0, OUT)
    assert "line 3: the input line is empty" in (tmp_path / "log").read_text("utf-8")


def test_exit_code_is_kept_if_stderr_is_full(shell):
    assert shell("2> /dev/full", "-nope").code == 2
    assert shell("2> /dev/full", "-src", "none").code == 5


def test_output_inside_model_directory_is_allowed(main, src, table, tmp_path, monkeypatch):
    """Covers resumed and repeated jobs, and the empty file that the shell creates for `>`."""
    model = shutil.copytree(DATA / "hf" / "marian", tmp_path / "model")
    monkeypatch.chdir(model)
    argv = ["-src", src, "-model", ".", "-output", "out.txt", "-report", "notes"]
    argv += ["-bucket_lines", 1, "-log_file", "job.log"]
    with stop_before_part(1):
        assert main(*argv).code == 143
    assert (model / "out.txt.parts").exists()
    done = main(*argv, "-resume")
    assert done.code == 0 and "resuming: 1 of 4 lines" in done.err
    if hasattr(os, "listxattr") and os.listxattr("out.txt"):  # the mark of a complete output
        assert main(*argv).code == 0
    with redirect_descriptor(1, "fresh", os.O_TRUNC | os.O_CREAT):
        assert main("-src", src, "-model", ".").code == 0
