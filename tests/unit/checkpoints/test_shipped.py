"""Names of shipped models and configurations, where no such path exists."""

import shutil
from pathlib import Path

import pytest

from onmt_lite import CheckpointError, OptionError, load_checkpoint, load_options
from onmt_lite.checkpoints import shipped
from onmt_lite.checkpoints.shipped import find_config, find_model

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", ["toy.json", "data/toy.json", "./data/toy.json"])
def test_a_models_name(path):
    assert (
        load_checkpoint(path).model.sources == load_checkpoint(ROOT / "data/toy.json").model.sources
    )


@pytest.mark.parametrize("path", ["nbest", "nbest.yaml", "configs/nbest.yaml", "configs/nbest"])
def test_a_configurations_name(path):
    options, resolved = load_options(["-config", path])
    assert options.search.n_best == 5
    assert resolved.origins["n_best"].startswith(f"{ROOT}/configs/nbest.yaml:")


@pytest.mark.parametrize("path", ["nbest", "configs/nbest.yaml"])
def test_a_path_that_exists_wins(elsewhere, path):
    (elsewhere / "configs").mkdir()
    (elsewhere / path).write_text("n_best: 2\n", encoding="utf-8")
    assert load_options(["-config", path])[0].search.n_best == 2
    shutil.copy(ROOT / "data" / "searches.json", elsewhere / "toy.json")
    searches = load_checkpoint(ROOT / "data" / "searches.json")
    assert load_checkpoint("toy.json").model.sources == searches.model.sources


@pytest.mark.parametrize(
    "path",
    ["/nbest", "../configs/nbest.yaml", "other/nbest.yaml", "configs/x/nbest", "", ".", ".."],
)
def test_other_paths_are_what_they_say(path):
    assert find_config(path) == path


@pytest.mark.parametrize("path", ["/de-en", "models/de-en", "sample.de.txt", "", ".", "x" * 300])
def test_other_models_are_what_they_say(path):
    assert find_model(path) == Path(path)


def test_an_unknown_name_is_told_the_known_ones():
    with pytest.raises(
        OptionError,
        match=r"\(nbst\); did you mean nbest\? \(shipped are batch-gpu, nbest, no-repeats",
    ):
        load_options(["-config", "nbst"])
    with pytest.raises(CheckpointError, match=r"shipped models: de-en, searches\.json, toy\.json"):
        load_checkpoint("data/de-fr")


def test_without_the_shipped_models_others_load(elsewhere, monkeypatch):
    shutil.copy(ROOT / "data" / "toy.json", elsewhere / "mine.json")
    monkeypatch.setattr(shipped, "DATA", elsewhere / "data")
    assert load_checkpoint("mine.json").model.sources
    with pytest.raises(CheckpointError, match=r"no such file .* \(shipped models: none\)"):
        load_checkpoint("de-en")
