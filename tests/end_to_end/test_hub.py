"""Hub models: downloads from a fake hub on the loopback address (tests/support/hub.py)."""

import io
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml

from onmt_lite import Translator
from onmt_lite.checkpoints import safetensors
from onmt_lite.checkpoints.huggingface import formats, reader
from onmt_lite.errors import CheckpointError
from tests.end_to_end.test_terminal import Terminal
from tests.support.hub import TOKEN, read_files, run_hub

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "checkpoints"
MARIAN = DATA / "hf" / "marian"
CONFIG_FILES = ["config.json", "generation_config.json", "source.spm", "target.spm"]
CONFIG_FILES += ["tokenizer_config.json", "vocab.json"]
TEXT = b"ein kind liest\nder hund sieht den garten\n" * 8
NONE = "no such file or directory (shipped models: de-en, searches.json, toy.json)"


def make_files(*names):
    return {name: name.encode() for name in names}


# Files that no reader needs
UNNEEDED = make_files(
    "README.md", ".gitattributes", "tf_model.h5", "rust_model.ot", "onnx/model.onnx"
)
UNNEEDED |= make_files("onnx/config.json", "old/source.spm", "a.yml")


def make_marian():
    """A Marian directory without identical files, because the client downloads those once."""
    files = read_files(MARIAN)
    subwords = files["target.spm"]
    return {**files, "target.spm": subwords + b"\x1a\x00"}  # an empty trainer_spec


def make_pytorch(*names):
    """The Marian directory with PyTorch weight files; an index lists every other one."""
    files = make_marian()
    tensors = sorted(safetensors.parse(files.pop("model.safetensors")).items())
    listed = names[::2]
    for i, name in enumerate(names):
        buffer = io.BytesIO()
        torch.save(dict(tensors[i // 2 :: len(listed)]), buffer)
        files[name] = buffer.getvalue()
    if len(names) > 1:
        weight_map = {tensor: listed[i % len(listed)] for i, (tensor, _) in enumerate(tensors)}
        files["pytorch_model.bin.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    return files


# Format: repository files, files that are not needed, path of the model in the cached directory
FORMATS = {
    "safetensors": (
        make_marian,
        ("pytorch_model.bin", "optimizer.pt", "model.fp16.safetensors"),
        "",
    ),
    "bin": (lambda: make_pytorch("pytorch_model.bin"), ("training_args.bin",), ""),
    "shards": (
        lambda: make_pytorch("a.bin", "unlisted.bin", "b of 2.bin", "pytorch_model-1.bin"),
        ("unlisted.bin", "pytorch_model-1.bin"),
        "",
    ),
    "ctranslate2": (lambda: read_files(DATA / "ct2" / "marian_int8"), (), ""),
    "npz": (lambda: read_files(DATA / "marian_npz" / "opus"), ("model.npz",), ""),
    "fairseq": (lambda: read_files(DATA / "fs12_tf"), (), ""),
    "opennmt": (
        lambda: {file.name: file.read_bytes() for file in DATA.glob("m35_st_step_2.*")},
        (),
        "m35_st_step_2.pt",
    ),
    "native": (lambda: read_files(ROOT / "data" / "de-en"), ("README.md",), ""),
}


@pytest.fixture
def hub():
    with run_hub() as hub:
        yield hub


@pytest.fixture
def env(env, hub, tmp_path):
    env = {name: value for name, value in env.items() if not name.startswith("HF_")}
    return {**env, "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "cache"), "NO_PROXY": "*"}


@pytest.fixture
def run(process, env):
    """run(*argv, **variables) returns exit code, stdout and stderr as text."""

    def start(*argv, stdin=None, **variables):
        job = process(*argv, env={**env, **variables}, stdin=stdin or subprocess.DEVNULL)
        out, err = (data.decode("utf-8") for data in job.communicate())
        assert "Traceback" not in err, err
        return job.returncode, out, err

    return start


@pytest.fixture
def src(tmp_path):
    (tmp_path / "src").write_bytes(TEXT)
    return "src"


@pytest.mark.parametrize("name", FORMATS)
def test_download_every_format_needed_files_once(hub, run, tmp_path, name):
    make, unneeded, path = FORMATS[name]
    files = make()
    hub.add("team/model", UNNEEDED | make_files(*unneeded) | files)
    done = run("-print_model", "-model", "team/model")
    first, _, summary = done[1].partition("\n")
    assert (done[0], done[2]) == (0, "")
    directory = Path(first.removesuffix(path))
    needed = files.keys() - {*unneeded}
    assert {str(file.relative_to(directory)) for file in directory.rglob("*")} == needed
    downloaded = hub.list_requested_files()
    assert {*downloaded} <= needed and len(downloaded) == len({*downloaded})
    (tmp_path / "local").mkdir()
    for name in needed:
        (tmp_path / "local" / name).write_bytes(files[name])
    code, known, _ = run("-print_model", "-model", tmp_path / "local" / path)
    assert code == 0 and known.partition("\n")[2] == summary
    assert run("-print_model", "-model", "team/model") == done
    assert hub.list_requested_files() == downloaded  # all files are cached


def test_model_existing_path_and_shipped_model_precede_hub(hub, run, src, tmp_path):
    shutil.copytree(MARIAN, tmp_path / "team" / "model")
    known = run("-src", src, "-model", MARIAN)
    assert known[0] == 0 and run("-src", src, "-model", "team/model") == known
    assert run("-src", src, "-model", "data/toy.json")[0] == 3  # a table model of other lines
    assert run("-src", src, "-model", "team/model/") == known
    for path in ("./team/other", "team/other.pt", "a/b/c", "other"):
        code, out, err = run("-src", src, "-model", path)
        normalized = os.path.normpath(path)
        assert (code, out) == (4, "") and f"no model at {normalized}: {NONE}; -model takes" in err
    assert hub.requests == []


ADDRESSES = """
team/model/
https://huggingface.co/team/model
http://www.huggingface.co/team/model/
https://hf.co/team/model?library=transformers#usage
https://huggingface.co/team/model/tree/main
https://huggingface.co/team/model.git
HuggingFace.co/team/model
hf.co/team/model/tree/main/
hf://team/model
""".split()
REVISIONS = {
    "https://huggingface.co/team/model/tree/v1": "team/model@v1",
    "hf.co/team/model/tree/refs%2Fpr%2F1/": "team/model@refs/pr/1",
    "team/model@v1/": "team/model@v1",
}


@pytest.mark.parametrize("address", [*ADDRESSES, *REVISIONS])
def test_model_url_of_hub_is_parsed(monkeypatch, address):
    """The error in offline mode contains the parsed name."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    name = REVISIONS.get(address, "team/model")
    with pytest.raises(CheckpointError, match=re.escape(f"no model at {name}: {NONE}, and the")):
        Translator.from_pretrained(address)


def test_model_url_of_hub_is_downloaded(hub, run, src):
    hub.add("team/model", make_marian())
    known = run("-src", src, "-model", "team/model")
    assert known[0] == 0
    for address in ("https://huggingface.co/team/model/tree/main", "team/model/"):
        assert run("-src", src, "-model", address) == known


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/model.zip",
        "s3://bucket/model",
        "https://huggingface.co/team/model/resolve/main/model.safetensors",
        "https://huggingface.co/team",
    ],
)
def test_model_other_url_refused_with_remedy(main, src, url):
    main("-src", src, "-model", url).failed(
        4,
        f"model {url}: this URL is not supported; download the model and pass its path, or pass "
        "TEAM/NAME for a model on the Hugging Face hub",
    )


def test_hub_model_same_translations_as_directory(hub, run, src, tmp_path):
    hub.add("team/model", make_marian())
    known = run("-src", src, "-model", MARIAN)
    assert known[0] == 0 and known[1].strip()
    assert run("-src", src, "-model", "team/model") == known
    offline = run("-src", src, "-model", "team/model", HF_HUB_OFFLINE="1")
    assert offline == known


def test_hub_ensemble_same_output_as_directories(hub, run, src):
    hub.add("team/one", make_marian())
    hub.add("team/other", make_marian())
    known = run("-src", src, "-model", MARIAN, MARIAN, "-with_score")
    assert run("-src", src, "-model", "team/one", "team/other", "-with_score") == known


def test_revision_branch_tag_or_commit(hub, run, src):
    repository = hub.add("team/model", make_marian())
    older = repository.refs["main"]
    repository.refs["v1"] = repository.refs["refs/pr/1"] = older
    newer = repository.commit(make_files("README.md"))
    for revision in ("v1", "refs/pr/1", older):
        code, out, _ = run("-print_model", "-model", f"team/model@{revision}")
        assert code == 0 and out.partition("\n")[0].endswith(f"/snapshots/{older}")
        assert run("-src", src, "-model", f"team/model@{revision}")[0] == 0
    code, _, err = run("-print_model", "-model", "team/model")
    assert code == 4 and newer in err  # this commit has no weights


@pytest.fixture
def t5(tmp_path):
    """Files of a T5 model with num_beams 3, also written to the directory t5."""
    files = read_files(ROOT / "tests" / "data" / "families" / "t5")
    config = json.loads(files["generation_config.json"]) | {"num_beams": 3}
    files |= {"generation_config.json": json.dumps(config).encode()}
    (tmp_path / "t5").mkdir()
    for name, data in files.items():
        (tmp_path / "t5" / name).write_bytes(data)
    return files


def test_hub_model_defaults_apply_after_download(hub, run, src, t5):
    """n_best 3 is only valid with the num_beams of the model."""
    hub.add("team/t5", t5)
    words = ["-src", src, "-search", "transformers", "-n_best", 3, "-max_length", 9]
    known = run(*words, "-model", "t5")
    assert known[0] == 0
    assert run(*words, "-model", "team/t5") == known
    code, out, err = run(*words[:4], "-n_best", 4, "-model", "team/t5")
    assert (code, out) == (2, "") and "n_best 4 is more than beam_size 3; raise" in err


def test_print_config_sends_no_request_to_hub(hub, run, t5):
    hub.add("team/t5", t5)
    code, out, err = run("-print_config", "-search", "transformers", "-model", "team/t5")
    assert (code, err) == (0, "") and hub.requests == []
    assert yaml.safe_load(out)["model"] == ["team/t5"]
    assert "# command line; its defaults are read when it is downloaded\n" in out


def test_wrong_options_and_inputs_fail_before_download(hub, run, src):
    hub.add("team/model", make_marian())
    assert run("-src", src, "-model", "team/model", "-n_best", 9)[0] == 2
    assert run("-src", "absent", "-model", "team/model")[0] == 5
    assert hub.requests == []


# -- Failures -------------------------------------------------------------------------------------

ABSENT = f"no model at {{name}}: {NONE}, and "
REFUSED = {
    "unknown": ("team/absent", {}, f"{ABSENT}{{hub}} has no such model, or it is private: use"),
    "private": ("team/private", {}, f"{ABSENT}{{hub}} has no such model, or it is private: use"),
    "gated": ("team/gated", {}, "team/gated is gated: request access at {hub}/team/gated, and"),
    "token": ("team/private", {"HF_TOKEN": "hf_no"}, "{hub} denies access to team/private (401)"),
    "revision": ("team/model@v2", {}, "team/model has no revision 'v2'; use another"),
    "commit": (f"team/model@{'0' * 40}", {}, f"team/model has no revision '{'0' * 40}'"),
    "offline": (
        "team/model",
        {"HF_HUB_OFFLINE": "1"},
        f"{ABSENT}the cache ({{home}}/hub) has no complete hub model of that name; unset",
    ),
    "unreachable": (
        "team/model",
        {"HF_ENDPOINT": "http://127.0.0.1:9"},
        "team/model cannot be downloaded from http://127.0.0.1:9: ",
    ),
    "no cache": ("team/model", {"HF_HOME": "/dev/null/x"}, "cannot use /dev/null/x"),
    "not a name": ("team/a--b", {}, f"{ABSENT}{{hub}} has no such model"),
    "no model": ("team/empty", {}, "the repository contains no model of a supported type"),
    "gguf": ("team/gguf", {}, "only a GGUF or GGML model (llama.cpp) (not supported)"),
    "several": (
        "team/several",
        {},
        "several models (a.pt, b.pt); download it (hf download team/several --local-dir DIR) and",
    ),
    "eole": ("team/eole", {}, "the repository contains only an Eole model (not supported)"),
    "llama": ("team/llama", {}, "a model of type 'llama' is not supported; use a model of type"),
}


@pytest.fixture
def hub_with_models(hub):
    hub.add("team/model", make_marian())
    hub.add("team/private", make_marian(), private=True)
    hub.add("team/gated", make_marian(), gated=True)
    hub.add("team/empty", make_files("README.md"))
    hub.add("team/gguf", make_files("model.gguf", "config.json"))
    hub.add("team/eole", make_files("config.json", "model.00.safetensors", "vocab.json"))
    hub.add("team/several", make_files("a.pt", "b.pt"))
    hub.add("team/llama", {"config.json": b'{"model_type": "llama"}', "model.safetensors": b""})
    return hub


@pytest.mark.parametrize("name", REFUSED)
def test_failure_one_line_error(hub_with_models, run, src, env, name):
    model, variables, expected = REFUSED[name]
    code, out, err = run("-src", src, "-model", model, **variables)
    assert (code, out) == (4, "")
    assert err.startswith("onmt_lite: error: ") and err.index("\n") == len(err) - 1
    assert expected.format(name=model, hub=hub_with_models.address, home=env["HF_HOME"]) in err
    assert "model.safetensors" not in hub_with_models.list_requested_files()


@pytest.mark.parametrize("name", ["team/private", "team/gated"])
def test_token_private_or_gated_model_translates(hub_with_models, run, src, name):
    assert run("-src", src, "-model", name, HF_TOKEN=TOKEN)[0] == 0


def test_hub_down_cached_model_used_with_note(hub, run, src, tmp_path):
    hub.add("team/model", make_marian())
    known = run("-src", src, "-model", "team/model")
    hub.status = 503
    argv = ["-src", src, "-model", "team/model"]
    code, out, err = run(*argv)
    note, rest = err.split("\n", 1)
    assert note.startswith("NOTE: team/model: using the cached version: ") and "503" in note
    assert (code, out, rest) == known
    code, _, err = run(*argv, HF_HOME=str(tmp_path / "empty"))
    assert code == 4 and f"team/model cannot be downloaded from {hub.address}: " in err
    assert "503" in err and err.endswith("and try again (downloaded files are kept)\n")


def test_revision_deleted_on_hub_cached_version_used_with_note(hub, run, src):
    repository = hub.add("team/model", make_marian())
    repository.refs["v1"] = repository.refs["main"]
    known = run("-src", src, "-model", "team/model@v1")
    assert known[0] == 0
    del repository.refs["v1"]
    code, out, err = run("-src", src, "-model", "team/model@v1")
    note, rest = err.split("\n", 1)
    assert note.startswith("NOTE: team/model@v1: using the cached version: RevisionNotFound")
    assert (code, out, rest) == known


def test_download_interrupted_resumes_later(hub, run, src):
    hub.add("team/model", make_marian())
    hub.cut = "model.safetensors"
    code, out, err = run("-src", src, "-model", "team/model")
    assert (code, out) == (4, "") and err.count("\n") == 1
    assert err.startswith(f"onmt_lite: error: team/model cannot be downloaded from {hub.address}: ")
    assert "no such path exists either" in err
    assert err.endswith(" try again (downloaded files are kept)\n")
    code, _, err = run("-src", src, "-model", "team/model", HF_HUB_OFFLINE="1")
    assert code == 4 and "has no complete hub model of that name; unset" in err
    hub.cut, before = None, hub.list_requested_files().count("vocab.json")
    assert run("-src", src, "-model", "team/model")[0] == 0
    assert hub.list_requested_files().count("vocab.json") == before


def test_disk_full_error_names_cache(hub, process, src, env):
    """A file size limit below the size of the weights simulates a full disk."""
    hub.add("team/model", make_marian())
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (300_000, 300_000))
    job = process("-src", src, "-model", "team/model", env=env, preexec_fn=limit)
    err = job.communicate()[1].decode("utf-8")
    home = re.escape(env["HF_HOME"])
    expected = (
        rf"onmt_lite: error: cannot use {home}\S*: File too large; set HF_HOME to another .*\n"
    )
    assert job.returncode == 4 and re.fullmatch(expected, err)


def test_huggingface_hub_not_installed_error_has_two_remedies(main, src, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for name, arguments in (("a/b", "a/b"), ("a/b@v1", "a/b --revision v1")):
        main("-src", src, "-model", name).failed(
            4,
            f"no model at {name}: {NONE}; to download it from the Hugging Face hub: "
            "pip install huggingface_hub; or on another machine: "
            f"hf download {arguments} --local-dir b, and pass that directory",
        )


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_sigint_ends_download(hub, process, src, env, until, file):
    hub.add("team/model", make_marian())
    hub.stalls = file
    job = process("-src", src, "-output", "out", "-model", "team/model", env=env)
    until(lambda: file in hub.list_requested_files())
    job.send_signal(signal.SIGINT)
    _, err = job.communicate(timeout=30)
    assert job.returncode == 130
    assert err.startswith(
        b"onmt_lite: stopped by SIGINT before the first line; out was not written"
    )


# -- Jobs -----------------------------------------------------------------------------------------


def test_workers_use_download_of_parent(hub, run, src, tmp_path):
    hub.add("team/model", make_marian())
    argv = ["-src", src, "-output", "out", "-bucket_lines", 4, "-model", "team/model"]
    assert run(*argv, "-workers", 1, HF_HOME=str(tmp_path / "other"))[0] == 0
    single, translated = list(hub.requests), (tmp_path / "out").read_bytes()
    hub.requests.clear()
    assert run(*argv, "-workers", 2)[0] == 0
    assert sorted(hub.requests) == sorted(single)
    assert (tmp_path / "out").read_bytes() == translated


def test_resume_changed_model_refused(hub, run, src, tmp_path):
    repository = hub.add("team/model", make_marian())
    argv = ["-src", src, "-output", "out", "-bucket_lines", 4, "-workers", 1]
    argv += ["-model", "team/model"]
    assert run(*argv, KIT_FAULT="die:write:4")[0] == 9
    first = repository.refs["main"]
    repository.commit(make_marian() | make_files("README.md"))  # with files that no reader needs
    files = make_marian() | {"generation_config.json": b"{}"}
    repository.commit(files, "changed")
    assert list((tmp_path / "out.parts").glob("0*"))
    code, _, err = run(*argv, "-resume")
    assert code == 2 and "generation_config.json of model has changed" in err
    code, _, err = run(*argv[:-1], f"team/model@{first}", "-resume")
    assert code == 0 and "NOTE: resuming: " in err


def test_log_names_commit(hub, run, src, tmp_path):
    commit = hub.add("team/model", make_marian()).refs["main"]
    argv = ["-src", src, "-output", "out", "-model", "team/model"]
    line = f"team/model: {tmp_path}/cache/hub/models--team--model/snapshots/{commit}\n"
    assert run(*argv, "-log_file", "log", "-verbose")[2].count(line) == 1
    assert (tmp_path / "log").read_text(encoding="utf-8").count(line) == 1
    assert line not in run(*argv)[2]


@pytest.mark.parametrize("words", [[], ["-quiet"]])
def test_download_on_terminal_shows_progress_bar_unless_quiet(hub, process, src, env, words):
    hub.add("team/model", make_marian())
    screen = Terminal(80)
    job = process("-src", src, "-model", "team/model", *words, env=env, stderr=screen.tty_fd)
    job.communicate()
    screen_text = screen.read()
    os.close(screen.pty_fd), os.close(screen.tty_fd)
    assert job.returncode == 0
    assert re.search(r"model.safetensors: *100%", screen_text) if not words else screen_text == ""


# -- Python ---------------------------------------------------------------------------------------

PROGRAM = """\
import sys
from onmt_lite import Translator, load_checkpoint
if __name__ == "__main__":
    translator = Translator.from_pretrained("team/model@v1", quiet=True)
    print(translator.options.model.model[0])
    print(translator.translate(["ein kind liest"], beam_size=2)[0].text)
    with Translator.from_pretrained("team/model", workers=2) as translator:
        print(translator.translate(["ein kind liest"], beam_size=2)[0].text)
    print(load_checkpoint("team/model").toolkit)
"""


def test_python_api_loads_hub_models(hub, env, tmp_path):
    repository = hub.add("team/model", make_marian())
    repository.refs["v1"] = repository.refs["main"]
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    env["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    path, *texts, toolkit = done.stdout.splitlines()
    assert done.stderr == "" and path.endswith(f"/snapshots/{repository.refs['v1']}")
    known = Translator.from_pretrained(MARIAN).translate(["ein kind liest"], beam_size=2)[0].text
    assert (texts, toolkit) == ([known, known], "marian")


def test_python_api_failure_raises_checkpoint_error():
    """All tests run with HF_HUB_OFFLINE."""
    for given in (dict(path="team/model"), dict(model=["team/model"], workers=2)):
        with pytest.raises(CheckpointError, match="no model at team/model: .*unset HF_HUB_OFFLINE"):
            Translator.from_pretrained(**given)


def test_families_in_errors_are_families_of_reader():
    assert {*formats.FAMILIES} == {*reader.FAMILIES}
