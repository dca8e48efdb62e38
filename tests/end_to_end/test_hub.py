"""Models by name, from a hub on the loopback address: tests/support/hub.py has its answers."""

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
from tests.support.hub import TOKEN, files_of, running

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "checkpoints"
MARIAN = DATA / "hf" / "marian"
DESCRIPTIONS = ["config.json", "generation_config.json", "source.spm", "target.spm"]
DESCRIPTIONS += ["tokenizer_config.json", "vocab.json"]
TEXT = b"ein kind liest\nder hund sieht den garten\n" * 8
NONE = "no such file or directory (shipped models: de-en, searches.json, toy.json)"


def made_of(*names):
    return {name: name.encode() for name in names}


# Nothing of ours reads these
OTHERS = made_of("README.md", ".gitattributes", "tf_model.h5", "rust_model.ot", "onnx/model.onnx")
OTHERS |= made_of("onnx/config.json", "old/source.spm", "a.yml")


def marian():
    """A Marian directory whose files all differ: of equal ones, one is fetched."""
    files = files_of(MARIAN)
    words = files["target.spm"]
    return {**files, "target.spm": words + b"\x1a\x00"}  # an empty trainer_spec


def with_torch(*names):
    """The same with its weights in files of PyTorch; of several, an index lists those of even
    number."""
    files = marian()
    tensors = sorted(safetensors.parse(files.pop("model.safetensors")).items())
    listed = names[::2]
    for i, name in enumerate(names):
        buffer = io.BytesIO()
        torch.save(dict(tensors[i // 2 :: len(listed)]), buffer)
        files[name] = buffer.getvalue()
    if len(names) > 1:
        where = {tensor: listed[i % len(listed)] for i, (tensor, _) in enumerate(tensors)}
        files["pytorch_model.bin.index.json"] = json.dumps({"weight_map": where}).encode()
    return files


# The files of a repository, those that are not needed, and the model in a folder of the others
KINDS = {
    "safetensors": (marian, ("pytorch_model.bin", "optimizer.pt", "model.fp16.safetensors"), ""),
    "bin": (lambda: with_torch("pytorch_model.bin"), ("training_args.bin",), ""),
    "shards": (
        lambda: with_torch("a.bin", "unlisted.bin", "b of 2.bin", "pytorch_model-1.bin"),
        ("unlisted.bin", "pytorch_model-1.bin"),
        "",
    ),
    "ctranslate2": (lambda: files_of(DATA / "ct2" / "marian_int8"), (), ""),
    "npz": (lambda: files_of(DATA / "marian_npz" / "opus"), ("model.npz",), ""),
    "fairseq": (lambda: files_of(DATA / "fs12_tf"), (), ""),
    "opennmt": (
        lambda: {file.name: file.read_bytes() for file in DATA.glob("m35_st_step_2.*")},
        (),
        "m35_st_step_2.pt",
    ),
    "ours": (lambda: files_of(ROOT / "data" / "de-en"), ("README.md",), ""),
}


@pytest.fixture
def hub():
    with running() as hub:
        yield hub


@pytest.fixture
def env(env, hub, tmp_path):
    env = {name: value for name, value in env.items() if not name.startswith("HF_")}
    return {**env, "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "cache"), "NO_PROXY": "*"}


@pytest.fixture
def run(process, env):
    """run(*argv, **variables) -> exit code, standard output and standard error, as text."""

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


@pytest.mark.parametrize("kind", KINDS)
def test_of_every_kind_the_files_that_are_needed_are_fetched_once(hub, run, tmp_path, kind):
    make, unneeded, path = KINDS[kind]
    files = make()
    hub.add("team/model", OTHERS | made_of(*unneeded) | files)
    done = run("-print_model", "-model", "team/model")
    first, _, said = done[1].partition("\n")
    assert (done[0], done[2]) == (0, "")
    folder = Path(first.removesuffix(path))
    needed = files.keys() - {*unneeded}
    assert {str(file.relative_to(folder)) for file in folder.rglob("*")} == needed
    asked = hub.files_asked()
    assert {*asked} <= needed and len(asked) == len({*asked})
    (tmp_path / "local").mkdir()
    for name in needed:
        (tmp_path / "local" / name).write_bytes(files[name])
    code, known, _ = run("-print_model", "-model", tmp_path / "local" / path)
    assert code == 0 and known.partition("\n")[2] == said
    assert run("-print_model", "-model", "team/model") == done
    assert hub.files_asked() == asked  # the cache has all


def test_a_path_that_exists_and_a_shipped_model_are_no_names(hub, run, src, tmp_path):
    shutil.copytree(MARIAN, tmp_path / "team" / "model")
    known = run("-src", src, "-model", MARIAN)
    assert known[0] == 0 and run("-src", src, "-model", "team/model") == known
    assert run("-src", src, "-model", "data/toy.json")[0] == 3  # it knows other lines
    assert run("-src", src, "-model", "team/model/") == known
    for path in ("./team/other", "team/other.pt", "a/b/c", "other"):
        code, out, err = run("-src", src, "-model", path)
        shown = os.path.normpath(path)
        assert (code, out) == (4, "") and f"no model at {shown}: {NONE}; -model takes" in err
    assert hub.asked == []


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
def test_an_address_of_the_hub_is_the_name_of_its_model(monkeypatch, address):
    """Without a network, the error has the name."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    name = REVISIONS.get(address, "team/model")
    with pytest.raises(CheckpointError, match=re.escape(f"no model at {name}: {NONE}, and the")):
        Translator.from_pretrained(address)


def test_an_address_of_the_hub_is_fetched(hub, run, src):
    hub.add("team/model", marian())
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
def test_another_url_is_refused_with_a_remedy(main, src, url):
    main("-src", src, "-model", url).failed(
        4,
        f"model {url}: this URL is not supported; download the model and give its path, or give "
        "TEAM/NAME for a model of the Hugging Face hub",
    )


def test_translations_equal_those_of_the_directory(hub, run, src, tmp_path):
    hub.add("team/model", marian())
    known = run("-src", src, "-model", MARIAN)
    assert known[0] == 0 and known[1].strip()
    assert run("-src", src, "-model", "team/model") == known
    offline = run("-src", src, "-model", "team/model", HF_HUB_OFFLINE="1")
    assert offline == known


def test_an_ensemble_by_name(hub, run, src):
    hub.add("team/one", marian())
    hub.add("team/other", marian())
    known = run("-src", src, "-model", MARIAN, MARIAN, "-with_score")
    assert run("-src", src, "-model", "team/one", "team/other", "-with_score") == known


def test_a_revision_is_a_branch_a_tag_or_a_commit(hub, run, src):
    repository = hub.add("team/model", marian())
    older = repository.refs["main"]
    repository.refs["v1"] = repository.refs["refs/pr/1"] = older
    newer = repository.commit(made_of("README.md"))
    for revision in ("v1", "refs/pr/1", older):
        code, out, _ = run("-print_model", "-model", f"team/model@{revision}")
        assert code == 0 and out.partition("\n")[0].endswith(f"/snapshots/{older}")
        assert run("-src", src, "-model", f"team/model@{revision}")[0] == 0
    code, _, err = run("-print_model", "-model", "team/model")
    assert code == 4 and newer in err  # which has no weights


@pytest.fixture
def t5(tmp_path):
    """The files of a T5 model that asks for three beams, which also are in the directory t5."""
    files = files_of(ROOT / "tests" / "data" / "families" / "t5")
    said = json.loads(files["generation_config.json"]) | {"num_beams": 3}
    files |= {"generation_config.json": json.dumps(said).encode()}
    (tmp_path / "t5").mkdir()
    for name, data in files.items():
        (tmp_path / "t5" / name).write_bytes(data)
    return files


def test_hub_model_defaults_apply_once_it_is_loaded(hub, run, src, t5):
    """n_best 3 needs the three beams that the model asks for."""
    hub.add("team/t5", t5)
    words = ["-src", src, "-search", "transformers", "-n_best", 3, "-max_length", 9]
    known = run(*words, "-model", "t5")
    assert known[0] == 0
    assert run(*words, "-model", "team/t5") == known
    code, out, err = run(*words[:4], "-n_best", 4, "-model", "team/t5")
    assert (code, out) == (2, "") and "n_best 4 is more than beam_size 3; raise" in err


def test_print_config_asks_nothing_of_the_hub(hub, run, t5):
    hub.add("team/t5", t5)
    code, out, err = run("-print_config", "-search", "transformers", "-model", "team/t5")
    assert (code, err) == (0, "") and hub.asked == []
    assert yaml.safe_load(out)["model"] == ["team/t5"]
    assert "# command line; its defaults are read once it is fetched\n" in out


def test_wrong_options_and_inputs_are_told_before_anything_is_fetched(hub, run, src):
    hub.add("team/model", marian())
    assert run("-src", src, "-model", "team/model", "-n_best", 9)[0] == 2
    assert run("-src", "absent", "-model", "team/model")[0] == 5
    assert hub.asked == []


# -- failures -------------------------------------------------------------------------------------

ABSENT = f"no model at {{name}}: {NONE}, and "
REFUSED = {
    "unknown": ("team/absent", {}, f"{ABSENT}{{hub}} has no such model, or a private one: give"),
    "private": ("team/private", {}, f"{ABSENT}{{hub}} has no such model, or a private one: give"),
    "gated": ("team/gated", {}, "team/gated is gated: ask for access at {hub}/team/gated, and"),
    "token": ("team/private", {"HF_TOKEN": "hf_no"}, "{hub} refuses access to team/private (401)"),
    "revision": ("team/model@v2", {}, "team/model has no revision 'v2'; give another"),
    "commit": (f"team/model@{'0' * 40}", {}, f"team/model has no revision '{'0' * 40}'"),
    "offline": (
        "team/model",
        {"HF_HUB_OFFLINE": "1"},
        f"{ABSENT}the cache ({{home}}/hub) does not hold all of such a model of the hub; unset",
    ),
    "unreachable": (
        "team/model",
        {"HF_ENDPOINT": "http://127.0.0.1:9"},
        "team/model cannot be fetched from http://127.0.0.1:9: ",
    ),
    "no cache": ("team/model", {"HF_HOME": "/dev/null/x"}, "cannot use /dev/null/x"),
    "not a name": ("team/a--b", {}, f"{ABSENT}{{hub}} has no such model"),
    "no model": ("team/empty", {}, "the repository holds no model of a supported type"),
    "gguf": ("team/gguf", {}, "only a GGUF or GGML model (llama.cpp), which is not supported"),
    "several": (
        "team/several",
        {},
        "several models (a.pt, b.pt); download it, hf download team/several --local-dir DIR, and",
    ),
    "eole": ("team/eole", {}, "the repository holds only an Eole model, which is not supported"),
    "llama": ("team/llama", {}, "a model of type 'llama' is not supported; give a model of type"),
}


@pytest.fixture
def stocked(hub):
    hub.add("team/model", marian())
    hub.add("team/private", marian(), private=True)
    hub.add("team/gated", marian(), gated=True)
    hub.add("team/empty", made_of("README.md"))
    hub.add("team/gguf", made_of("model.gguf", "config.json"))
    hub.add("team/eole", made_of("config.json", "model.00.safetensors", "vocab.json"))
    hub.add("team/several", made_of("a.pt", "b.pt"))
    hub.add("team/llama", {"config.json": b'{"model_type": "llama"}', "model.safetensors": b""})
    return hub


@pytest.mark.parametrize("name", REFUSED)
def test_a_failure_is_one_line(stocked, run, src, env, name):
    model, variables, expected = REFUSED[name]
    code, out, err = run("-src", src, "-model", model, **variables)
    assert (code, out) == (4, "")
    assert err.startswith("onmt_lite: error: ") and err.index("\n") == len(err) - 1
    assert expected.format(name=model, hub=stocked.address, home=env["HF_HOME"]) in err
    assert "model.safetensors" not in stocked.files_asked()


@pytest.mark.parametrize("name", ["team/private", "team/gated"])
def test_a_token_opens_what_is_private_or_gated(stocked, run, src, name):
    assert run("-src", src, "-model", name, HF_TOKEN=TOKEN)[0] == 0


def test_a_hub_that_is_down_is_told_unless_the_cache_has_the_model(hub, run, src, tmp_path):
    hub.add("team/model", marian())
    known = run("-src", src, "-model", "team/model")
    hub.status = 503
    argv = ["-src", src, "-model", "team/model"]
    code, out, err = run(*argv)
    note, rest = err.split("\n", 1)
    assert note.startswith("NOTE: team/model is taken as the cache has it: ") and "503" in note
    assert (code, out, rest) == known
    code, _, err = run(*argv, HF_HOME=str(tmp_path / "empty"))
    assert code == 4 and f"team/model cannot be fetched from {hub.address}: " in err
    assert "503" in err and err.endswith("and try again: files that have arrived are kept\n")


def test_revision_that_is_gone_from_the_hub_is_taken_from_the_cache_with_a_note(hub, run, src):
    repository = hub.add("team/model", marian())
    repository.refs["v1"] = repository.refs["main"]
    known = run("-src", src, "-model", "team/model@v1")
    assert known[0] == 0
    del repository.refs["v1"]
    code, out, err = run("-src", src, "-model", "team/model@v1")
    note, rest = err.split("\n", 1)
    assert note.startswith("NOTE: team/model@v1 is taken as the cache has it: RevisionNotFound")
    assert (code, out, rest) == known


def test_a_download_that_is_cut_off_goes_on_later(hub, run, src):
    hub.add("team/model", marian())
    hub.cut = "model.safetensors"
    code, out, err = run("-src", src, "-model", "team/model")
    assert (code, out) == (4, "") and err.count("\n") == 1
    assert err.startswith(f"onmt_lite: error: team/model cannot be fetched from {hub.address}: ")
    assert "there is no such path either" in err
    assert err.endswith(" try again: files that have arrived are kept\n")
    code, _, err = run("-src", src, "-model", "team/model", HF_HUB_OFFLINE="1")
    assert code == 4 and "does not hold all of such a model of the hub; unset" in err
    hub.cut, before = None, hub.files_asked().count("vocab.json")
    assert run("-src", src, "-model", "team/model")[0] == 0
    assert hub.files_asked().count("vocab.json") == before


def test_a_disk_that_is_full_is_told(hub, process, src, env):
    """The largest file meets a limit."""
    hub.add("team/model", marian())
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (300_000, 300_000))
    job = process("-src", src, "-model", "team/model", env=env, preexec_fn=limit)
    err = job.communicate()[1].decode("utf-8")
    home = re.escape(env["HF_HOME"])
    said = rf"onmt_lite: error: cannot use {home}\S*: File too large; HF_HOME names another .*\n"
    assert job.returncode == 4 and re.fullmatch(said, err)


def test_without_the_package_two_commands_are_told(main, src, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for name, wanted in (("a/b", "a/b"), ("a/b@v1", "a/b --revision v1")):
        main("-src", src, "-model", name).failed(
            4,
            f"no model at {name}: {NONE}; to fetch it from the Hugging Face hub: "
            "pip install huggingface_hub; or elsewhere: "
            f"hf download {wanted} --local-dir b, and give that folder",
        )


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_signal_ends_a_download(hub, process, src, env, until, file):
    hub.add("team/model", marian())
    hub.stalls = file
    job = process("-src", src, "-output", "out", "-model", "team/model", env=env)
    until(lambda: file in hub.files_asked())
    job.send_signal(signal.SIGINT)
    _, err = job.communicate(timeout=30)
    assert job.returncode == 130
    assert err.startswith(
        b"onmt_lite: stopped by SIGINT before the first line; out was not written"
    )


# -- jobs -----------------------------------------------------------------------------------------


def test_workers_use_what_their_parent_has_fetched(hub, run, src, tmp_path):
    hub.add("team/model", marian())
    argv = ["-src", src, "-output", "out", "-bucket_lines", 4, "-model", "team/model"]
    assert run(*argv, "-workers", 1, HF_HOME=str(tmp_path / "other"))[0] == 0
    alone, translated = list(hub.asked), (tmp_path / "out").read_bytes()
    hub.asked.clear()
    assert run(*argv, "-workers", 2)[0] == 0
    assert sorted(hub.asked) == sorted(alone)
    assert (tmp_path / "out").read_bytes() == translated


def test_a_job_that_goes_on_notices_another_model(hub, run, src, tmp_path):
    repository = hub.add("team/model", marian())
    argv = ["-src", src, "-output", "out", "-bucket_lines", 4, "-workers", 1]
    argv += ["-model", "team/model"]
    assert run(*argv, KIT_FAULT="die:write:4")[0] == 9
    first = repository.refs["main"]
    repository.commit(marian() | made_of("README.md"))  # with other files, which nobody reads
    files = marian() | {"generation_config.json": b"{}"}
    repository.commit(files, "changed")
    assert list((tmp_path / "out.parts").glob("0*"))
    code, _, err = run(*argv, "-resume")
    assert code == 2 and "generation_config.json of model was changed" in err
    code, _, err = run(*argv[:-1], f"team/model@{first}", "-resume")
    assert code == 0 and "NOTE: going on; " in err


def test_the_log_names_the_commit(hub, run, src, tmp_path):
    commit = hub.add("team/model", marian()).refs["main"]
    argv = ["-src", src, "-output", "out", "-model", "team/model"]
    line = f"team/model: {tmp_path}/cache/hub/models--team--model/snapshots/{commit}\n"
    assert run(*argv, "-log_file", "log", "-verbose")[2].count(line) == 1
    assert (tmp_path / "log").read_text(encoding="utf-8").count(line) == 1
    assert line not in run(*argv)[2]


@pytest.mark.parametrize("words", [[], ["-quiet"]])
def test_a_download_has_a_bar_on_a_terminal(hub, process, src, env, words):
    hub.add("team/model", marian())
    screen = Terminal(80)
    job = process("-src", src, "-model", "team/model", *words, env=env, stderr=screen.theirs)
    job.communicate()
    shown = screen.read()
    os.close(screen.ours), os.close(screen.theirs)
    assert job.returncode == 0
    assert re.search(r"model.safetensors: *100%", shown) if not words else shown == ""


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


def test_from_python(hub, env, tmp_path):
    repository = hub.add("team/model", marian())
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


def test_a_failure_in_python_is_a_checkpoint_error():
    """With HF_HUB_OFFLINE, as all tests have it."""
    for given in (dict(path="team/model"), dict(model=["team/model"], workers=2)):
        with pytest.raises(CheckpointError, match="no model at team/model: .*unset HF_HUB_OFFLINE"):
            Translator.from_pretrained(**given)


def test_the_families_that_are_told_are_those_that_are_read():
    assert {*formats.FAMILIES} == {*reader.FAMILIES}
