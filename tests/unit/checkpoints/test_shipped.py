"""Names of shipped models and configurations."""

import shutil
from pathlib import Path

import pytest

from onmt_lite import CheckpointError, OptionError, load_checkpoint, load_options
from onmt_lite.checkpoints import shipped
from onmt_lite.checkpoints.shipped import find_config, find_model

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", ["toy.json", "data/toy.json", "./data/toy.json"])
def test_find_model_by_name(path):
    assert (
        load_checkpoint(path).model.sources == load_checkpoint(ROOT / "data/toy.json").model.sources
    )


@pytest.mark.parametrize("path", ["nbest", "nbest.yaml", "configs/nbest.yaml", "configs/nbest"])
def test_find_config_by_name(path):
    options, resolved = load_options(["-config", path])
    assert options.search.n_best == 5
    assert resolved.origins["n_best"].startswith(f"{ROOT}/configs/nbest.yaml:")


@pytest.mark.parametrize("path", ["nbest", "configs/nbest.yaml"])
def test_existing_path_precedes_shipped_name(empty_directory, path):
    (empty_directory / "configs").mkdir()
    (empty_directory / path).write_text("n_best: 2\n", encoding="utf-8")
    assert load_options(["-config", path])[0].search.n_best == 2
    shutil.copy(ROOT / "data" / "searches.json", empty_directory / "toy.json")
    searches = load_checkpoint(ROOT / "data" / "searches.json")
    assert load_checkpoint("toy.json").model.sources == searches.model.sources


@pytest.mark.parametrize(
    "path",
    ["/nbest", "../configs/nbest.yaml", "other/nbest.yaml", "configs/x/nbest", "", ".", ".."],
)
def test_find_config_other_path_unchanged(path):
    assert find_config(path) == path


@pytest.mark.parametrize("path", ["/de-en", "models/de-en", "sample.de.txt", "", ".", "x" * 300])
def test_find_model_other_path_unchanged(path):
    assert find_model(path) == Path(path)


def test_unknown_name_error_lists_shipped_names():
    with pytest.raises(
        OptionError,
        match=r"\(nbst\); did you mean nbest\? \(shipped configurations: batch-gpu, nbest, no-",
    ):
        load_options(["-config", "nbst"])
    with pytest.raises(CheckpointError, match=r"shipped models: de-en, searches\.json, toy\.json"):
        load_checkpoint("data/de-fr")


def test_no_shipped_models_other_models_load(empty_directory, monkeypatch):
    shutil.copy(ROOT / "data" / "toy.json", empty_directory / "mine.json")
    monkeypatch.setattr(shipped, "DATA", empty_directory / "data")
    assert load_checkpoint("mine.json").model.sources
    with pytest.raises(CheckpointError, match=r"no such file .* \(shipped models: none\)"):
        load_checkpoint("de-en")
