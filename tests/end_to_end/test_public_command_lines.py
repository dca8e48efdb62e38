"""Published command lines and YAML files for OpenNMT-py 0.6 to 3.5 run unchanged."""

import logging
import re
import shlex
from pathlib import Path

import pytest
import yaml

import translate
from onmt_lite import OptionError, Translator
from onmt_lite.config.options import load_options
from tests.support.files import DATA

HERE = Path(__file__).parents[1] / "data" / "transforms"
SOURCE = "dog man\nman\n\ndog dog\n"
TARGET = "DOG MAN\nMAN\n\nDOG DOG\n"

PUBLIC = Path(__file__).parents[1] / "data" / "public_lines"
PLACES = "model: m.pt\nsrc: src.txt\noutput: out.txt\n"
# command line -> options with a notice
LINES = dict(line.split("\t") for line in (PUBLIC / "lines.txt").read_text().split("\n")[1:-1])
# The inference file for NLLB in the documentation of OpenNMT-py 3 without its GPU, every default of
# translate.py, and others; the first line lists options with a notice
FILES = {path.stem: path.read_text("utf-8") for path in sorted(PUBLIC.glob("*.yaml"))}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for path in HERE.iterdir():
        (tmp_path / path.name).symlink_to(path)
    for path in DATA.glob("m35_st_step_2.*"):  # its weights are in a separate file
        (tmp_path / f"m{path.suffix}").symlink_to(path)
    (tmp_path / "src.txt").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "tgt.txt").write_text(TARGET, encoding="utf-8")
    (tmp_path / "phrases.txt").write_text("dog|||DOG\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    logging.getLogger("onmt_lite").handlers.clear()


def find_notices(err):
    """Return the options with a notice, in order."""
    return [re.match(r"NOTE: (\w+)", line)[1] for line in err.split("\n") if "NOTE" in line]


assert (len(LINES), len(FILES)) == (40, 12)
RUNS = [(shlex.split(line), "", notes) for line, notes in LINES.items()]
RUNS += [
    (["-config", "a.yaml"], text, text.split("\n")[0].removeprefix("# noted:"))
    for text in FILES.values()
]


@pytest.mark.parametrize(("words", "text", "notes"), RUNS, ids=[*LINES, *FILES])
def test_public_command_line_runs_unchanged(folder, capfd, words, text, notes):
    (folder / "a.yaml").write_text(PLACES + text, encoding="utf-8")
    assert translate.main(words) == 0
    out, err = capfd.readouterr()
    assert out == "" and sorted(find_notices(err)) == sorted(notes.split())
    options, _ = load_options(words)
    written = (folder / "out.txt").read_text(encoding="utf-8")
    assert written.count("\n") == SOURCE.count("\n") * options.search.n_best


def test_tgt_prefix_of_nllb_file_starts_every_translation(folder, capfd):
    more = "output_format: jsonl\n"
    (folder / "a.yaml").write_text(PLACES + FILES["nllb"] + more, encoding="utf-8")
    assert translate.main(["-config", "a.yaml", "-quiet"]) == 0
    forced = [yaml.safe_load(line) for line in (folder / "out.txt").read_text().split("\n")[:-1]]
    for record, line in zip(forced, SOURCE.split("\n")):
        assert record["hyps"][0]["tokens"][:1] == (["DOG"] if line else [])
        assert not record["hyps"][0]["text"].startswith("DOG")  # the transform removes it
    # Equals a prefix file with this prefix on every line, without the transform
    (folder / "begin.txt").write_text("DOG\n" * 4, encoding="utf-8")
    plain = FILES["nllb"].replace('tgt_prefix: "DOG"', "tgt: begin.txt")
    plain = plain.replace("sentencepiece, ", "")
    plain = plain.replace("[prefix", "[sentencepiece, prefix")
    (folder / "b.yaml").write_text(PLACES + plain + more, encoding="utf-8")
    options, _ = load_options(["-config", "a.yaml"])
    by_hand = Translator.load(options).translate(["dog man"], prefixes=None)
    assert by_hand[0].hyps[0].tokens == forced[0]["hyps"][0]["tokens"]


def test_tgt_prefix_without_transform_is_tokens(folder):
    options = dict(model="m.pt", tgt_prefix="DOG MAN", tgt_file_prefix=True)
    (forced,) = Translator.from_pretrained(**options).translate(["man dog"])
    plain = Translator.from_pretrained(model="m.pt")
    (by_prefixes,) = plain.translate(["man dog"], prefixes=["DOG MAN"])
    assert forced.hyps == by_prefixes.hyps
    assert forced.hyps[0].tokens[:2] == ["DOG", "MAN"]
    with pytest.raises(OptionError, match="tgt_prefix: 'cat' is not in the model's vocabulary"):
        Translator.from_pretrained(**{**options, "tgt_prefix": "cat"}).translate(["man"])
