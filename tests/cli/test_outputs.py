"""Where output goes: no file that is read is harmed, and what is there keeps its rights."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from onmt_lite.checkpoints.shipped import DEFAULT_MODEL
from onmt_lite.config.files import descriptor_of, is_device
from tests.cli.conftest import redirected
from tests.support.files import DATA
from tests.support.stops import stopped_before_part

OUT = "ein\nü\n\nx y z\n".encode()  # of the fixture src


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.fixture
def umask():
    before = os.umask(0o027)
    yield
    os.umask(before)


READ = {
    "phrase_table": ("phrases", "a|||b\n", ["-replace_unk"]),
    "src_subword_model": ("codes", "#version: 0.2\na b\n", ["-tokenizer", "bpe"]),
    "src_subword_vocab": ("counts", "a 3\n", []),
    "tgt_subword_vocab": ("counts", "a 3\n", []),
}


WRITTEN = ["output", "log_file", "report", "save_config"]


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("writes", WRITTEN)
def test_files_of_words_are_not_written_to(main, src, tmp_path, name, writes):
    file, text, more = READ[name]
    (tmp_path / file).write_text(text)
    done = main("-src", src, f"-{name}", file, *more, f"-{writes}", file)
    done.failed(2, f"{writes} {file} is the same file as {name} {file}; choose another")
    assert (tmp_path / file).read_text() == text


@pytest.mark.parametrize("writes", WRITTEN)
def test_the_model_and_the_configuration_are_not_written_to(main, src, table, tmp_path, writes):
    shutil.copy(table, tmp_path / "m.json")
    (tmp_path / "one.yaml").write_text("beam_size: 3\n")
    (tmp_path / "two.yaml").write_text("beam_size: 2\n")
    os.link("m.json", "linked")
    for path, name in [("m.json", "model m.json"), ("linked", "model m.json")]:
        done = main("-src", src, "-model", "m.json", f"-{writes}", path)
        done.failed(2, f"{writes} {path} is the same file as {name}; choose another")
    done = main("-src", src, "-config", "one.yaml", "two.yaml", f"-{writes}", "two.yaml")
    done.failed(2, f"{writes} two.yaml is the same file as config two.yaml; choose another")
    assert (tmp_path / "m.json").read_bytes() == table.read_bytes()
    assert (tmp_path / "two.yaml").read_text() == "beam_size: 2\n"


@pytest.mark.parametrize("writes", WRITTEN)
@pytest.mark.parametrize("file", ["source.spm", "model.safetensors"])
def test_no_file_of_a_models_directory_is_written_to(main, src, tmp_path, file, writes):
    model = shutil.copytree(DATA / "hf" / "marian", tmp_path / "model")
    before = (model / file).read_bytes()
    os.link(model / file, tmp_path / "linked")
    for path in (f"model/{file}", "linked"):
        done = main("-src", src, "-model", "model", f"-{writes}", path)
        same = f"{writes} {path} is the same file as model model/{file}; choose another"
        done.failed(2, same)
    assert (model / file).read_bytes() == before


def test_the_shipped_model_is_not_written_to(process, tmp_path):
    """It is there without -model; a link leads to it, in case the test fails."""
    os.symlink(Path(__file__).parents[2] / "data" / "de-en" / "model.json", tmp_path / "link")
    before = (tmp_path / "link").read_bytes()
    job = process("-model=", "-output", "link")
    assert job.wait(timeout=200) == 2
    assert (tmp_path / "link").read_bytes() == before


def test_a_saved_configuration_replaces_no_file_of_the_job(main, src, table, tmp_path):
    (tmp_path / "out").write_text("older")
    for name, path in (("src", src), ("output", "out"), ("model", DEFAULT_MODEL / "model.json")):
        before = Path(path).read_bytes()
        os.link(path, "linked") if name == "src" else os.symlink(path, "linked")
        models = [] if name == "model" else ["-model", table]
        words = ["-src", src, "-output", "out", "-save_config", "linked"]
        done = main(*words, *models) if models else main(*words, "-model", "de-en")
        done.failed(2, f"save_config linked is the same file as {name} {path}; choose another")
        assert Path(path).read_bytes() == before
        os.remove("linked")


def test_a_configuration_is_saved_whole_or_not_at_all(main, tmp_path, monkeypatch):
    (tmp_path / "saved.yaml").write_text("older")
    os.chmod("saved.yaml", 0o600)

    def full(fd, data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("onmt_lite.text.whole.write_all", full)
        done = main("-save_config", "saved.yaml")
    done.failed(5, "cannot write saved.yaml: No space left on device")
    assert (tmp_path / "saved.yaml").read_text() == "older"
    assert main("-save_config", "saved.yaml").code == 0
    assert "beam_size: 5  # default" in (tmp_path / "saved.yaml").read_text("utf-8")
    assert mode("saved.yaml") == 0o600
    assert os.listdir(tmp_path) == ["saved.yaml"]


def test_a_configuration_may_go_to_a_stream(shell, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    said = shell("", "-print_config").out
    assert shell("", "-save_config", "/dev/stdout").out == said
    assert shell("", "-save_config", "pipe", first="cat pipe & exec").out == said
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)
    full = shell("", "-save_config", "/dev/full")
    full.failed(5, "cannot write /dev/full: No space left on device")


def test_streams_of_the_shell_are_files_too(shell, src):
    """Reading what is just written would never end."""
    before = src.read_bytes()
    done = shell(f">> {src}", "-src", src)
    done.failed(2, f"standard output is the same file as src {src}; choose another")
    done = shell(f"< {src}", "-output", src)
    done.failed(2, f"output {src} is the same file as standard input; choose another")
    assert src.read_bytes() == before


@pytest.mark.parametrize("old", [0o600, 0o644, 0o660, 0o444, 0o755])
def test_a_replaced_file_keeps_its_mode(main, src, tmp_path, umask, old):
    (tmp_path / "out").write_bytes(b"older\n")
    os.chmod("out", old)
    assert main("-src", src, "-output", "out").code == 0
    assert ((tmp_path / "out").read_bytes(), mode("out")) == (OUT, old)


def test_a_new_file_follows_the_umask(main, src, umask):
    assert main("-src", src, "-output", "out").code == 0
    assert mode("out") == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_replaced_file_keeps_its_owner(main, src, tmp_path):
    (tmp_path / "out").write_bytes(b"older\n")
    os.chown("out", 1234, 4321)
    assert main("-src", src, "-output", "out").code == 0
    found = os.stat("out")
    assert (found.st_uid, found.st_gid) == (1234, 4321)


def test_an_unfinished_file_is_as_private_as_what_it_replaces(process, tmp_path, until):
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
def test_standard_output_by_name_is_appended_to_as_the_shell_does(main, src, tmp_path, path):
    os.symlink("/dev/stdout", tmp_path / "link")
    (tmp_path / "all").write_bytes(b"earlier\n")
    with redirected(1, "all", os.O_APPEND):
        assert main("-src", src, "-output", path).code == 0
    assert (tmp_path / "all").read_bytes() == b"earlier\n" + OUT
    # One file for three programs, each of which goes on where the last one stopped
    with redirected(1, "all", os.O_TRUNC):
        os.write(1, b"head\n")
        assert main("-src", src, "-output", path).code == 0
        os.write(1, b"tail\n")
    assert (tmp_path / "all").read_bytes() == b"head\n" + OUT + b"tail\n"
    assert sorted(os.listdir(tmp_path)) == ["all", "link", "src.txt"]


def test_what_another_process_has_open_is_written_through(main, src, tmp_path):
    """A path under /proc is never renamed onto, and what the file holds stays."""
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
        5, "cannot write /dev/none: No such file or directory"
    )


def test_devices_by_name(tmp_path):
    os.symlink("/dev/fd/7", tmp_path / "link")
    os.symlink(tmp_path / "link", tmp_path / "second")
    for path in ("/dev/null", "/dev/stdout", "/proc/self/fd/1", "/dev/none", "/proc/none"):
        assert is_device(path)
    assert is_device(str(tmp_path / "link")) and is_device(str(tmp_path / "second"))
    for path in ("/dev/shm/out", "/proc/self/cwd/out", str(tmp_path / "out"), "out", "/devout"):
        assert not is_device(path)


def test_other_descriptors_by_name(main, src, tmp_path):
    with open(tmp_path / "other", "wb") as other:
        assert main("-src", src, "-output", f"/dev/fd/{other.fileno()}").code == 0
    assert (tmp_path / "other").read_bytes() == OUT
    with redirected(2, "two", os.O_TRUNC):
        assert main("-src", src, "-output", "/dev/stderr", "-quiet").code == 0
    assert (tmp_path / "two").read_bytes() == OUT
    done = main("-src", src, "-output", "/dev/fd/997")
    done.failed(5, "cannot write /dev/fd/997: Bad file descriptor")


def test_the_log_goes_to_a_descriptor_too(main, src, tmp_path):
    """Opened by name, a log would be written over what else goes to that file."""
    (tmp_path / "said").write_bytes(b"earlier\n")
    with redirected(2, "said", os.O_APPEND):
        done = main("-src", src, "-log_file", "/dev/stderr", "-quiet")
    assert (done.code, done.out) == (0, OUT)
    said = (tmp_path / "said").read_text()
    assert said.startswith("earlier\n[2") and "empty: 1 of 4 lines" in said


@pytest.mark.timeout(60)
def test_links_in_a_circle(tmp_path):
    os.symlink("b", tmp_path / "a")
    os.symlink("a", tmp_path / "b")
    assert descriptor_of(str(tmp_path / "a")) is None


@pytest.mark.parametrize("where", ["2> /dev/full", "2> pipe"])
def test_a_stderr_that_takes_nothing_does_not_matter(shell, src, tmp_path, where):
    os.mkfifo(tmp_path / "pipe")
    gone = "sh -c 'exec < pipe' &"  # a reader that leaves at once
    argv = ["-src", src, "-output", "out", "-report_time", "-verbose", "-log_file", "log"]
    done = shell(where, *argv, first=f"{gone} exec" * ("p" in where))
    assert (done.code, (tmp_path / "out").read_bytes()) == (0, OUT)
    assert "empty: 1 of 4 lines" in (tmp_path / "log").read_text("utf-8")


def test_an_error_keeps_its_code_where_stderr_is_full(shell):
    assert shell("2> /dev/full", "-nope").code == 2
    assert shell("2> /dev/full", "-src", "none").code == 5


@pytest.mark.parametrize(
    ("model", "output"),
    [
        ("m.pt", "m.safetensors"),
        ("c2", "c2/model/model.bin"),
        ("mn/model.npz", "mn/vocab.spm"),
        ("de-en", str(DEFAULT_MODEL / "model.json")),
    ],
)
def test_no_file_beside_a_model_is_written_to(main, src, tmp_path, model, output):
    if not Path(output).is_absolute():
        for path in (tmp_path / model, tmp_path / output):
            if not path.exists() and path.suffix:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("mine")
    before = Path(output).read_bytes()
    done = main("-src", src, "-model", model, "-output", output)
    assert done.code == 2 and "is the same file as model" in done.err
    assert Path(output).read_bytes() == before


def test_a_job_may_write_into_the_folder_of_its_model(main, src, table, tmp_path, monkeypatch):
    """Going on, again, and with what the shell has made for `>`."""
    model = shutil.copytree(DATA / "hf" / "marian", tmp_path / "model")
    monkeypatch.chdir(model)
    argv = ["-src", src, "-model", ".", "-output", "out.txt", "-report", "notes"]
    argv += ["-bucket_lines", 1, "-log_file", "job.log"]
    with stopped_before_part(1):
        assert main(*argv).code == 143
    assert (model / "out.txt.parts").exists()
    done = main(*argv, "-resume")
    assert done.code == 0 and "going on; 1 of 4 lines" in done.err
    if hasattr(os, "listxattr") and os.listxattr("out.txt"):  # the mark of a complete output
        assert main(*argv).code == 0
    with redirected(1, "fresh", os.O_TRUNC | os.O_CREAT):
        assert main("-src", src, "-model", ".").code == 0
