"""-report_bleu compared with sacrebleu on the output file."""

import json
import logging
import re
import subprocess
import sys
from importlib import metadata

import pytest
import sacrebleu

import translate
from onmt_lite.jobs.reports import SACREBLEU_METHODS
from tests.support.stop_signals import stop_before_part

LINES = ["der hund", "", "die katze sieht den see", "ein kind", "der hund", "das rote haus", "ein"]
# Of the second and fourth line one side is blank
TARGETS = ["red book green", "x", "dog cat sees the lake", "", "red", "the red house", "a child ."]


@pytest.fixture
def run(tiny_checkpoint, tmp_path, monkeypatch, capfd):
    """run(*argv) -> exit code and log lines about BLEU and chrF."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").write_text("".join(f"{line}\n" for line in LINES))
    (tmp_path / "tgt").write_text("".join(f"{line}\n" for line in TARGETS))

    def run_once(*argv):
        usual = ["-model", str(tiny_checkpoint), "-device", "cpu", "-src", "src", "-output", "out"]
        code = translate.main([*usual, "-tgt", "tgt", "-report_bleu", *argv])
        return code, re.findall(r"^.*(?:BLEU|chrF|bleu).*$", capfd.readouterr().err, re.M)

    yield run_once
    logging.getLogger("onmt_lite").handlers.clear()


def said_of(texts, targets):
    """Return signatures and scores from sacrebleu."""
    found = []
    for metric in (sacrebleu.BLEU(), sacrebleu.CHRF()):
        score = metric.corpus_score(texts, [targets])
        found.append(score.format(width=2, signature=str(metric.get_signature())))
    return found


def lines_of(path):
    return path.read_text().split("\n")[:-1]


@pytest.mark.parametrize(
    "argv", [[], ["-bucket_lines", "2"], ["-bucket_lines", "2", "-workers", "2"], ["-verbose"]]
)
def test_report_bleu_equals_sacrebleu_on_output(run, tmp_path, argv):
    code, said = run(*argv)
    assert code == 0 and said == said_of(lines_of(tmp_path / "out"), TARGETS)
    assert said[0].startswith("BLEU|nrefs:1|") and said[1].startswith("chrF2|nrefs:1|")
    assert len(set(re.findall(r" = ([\d.]+)", "\n".join(said)))) > 1


def test_report_bleu_equals_sacrebleu_command(run, tmp_path):
    _, said = run()
    command = [sys.executable, "-m", "sacrebleu", *"tgt -i out -m bleu chrf -w 2".split()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=100)
    found = [(each["score"], each["signature"]) for each in json.loads(done.stdout)]
    expected = [re.search(r"^[^|]+\|(\S+) = ([\d.]+)", line).groups() for line in said]
    assert [(float(score), signature) for signature, score in expected] == found


def test_report_bleu_scores_best_hypotheses_of_shard(run, tmp_path):
    plain = run()
    assert run("-output_format", "jsonl", "-n_best", "2") == plain == run("-n_best", "3")
    _, said = run("-bucket_lines", "3", "-shard", "2/3")
    assert said == said_of(lines_of(tmp_path / "out"), TARGETS[3:6])


def test_report_bleu_resumed_job_scores_all_lines(run, tmp_path):
    """The job is stopped before its last buckets."""
    with stop_before_part(2):
        code, said = run("-bucket_lines", "2")
        assert code == 143 and not (tmp_path / "out").exists()
    code, said = run("-bucket_lines", "2", "-resume")
    assert code == 0 and said[-2:] == said_of(lines_of(tmp_path / "out"), TARGETS)


@pytest.mark.parametrize("version", [None, "1.5.1"])
def test_report_bleu_without_sacrebleu_logs_notice(run, tmp_path, monkeypatch, version):
    run()
    expected, found = (tmp_path / "out").read_text(), metadata.version

    def told(name):
        if name != "sacrebleu":
            return found(name)
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", told)
    monkeypatch.setitem(sys.modules, "sacrebleu", None)  # an import fails
    code, said = run()
    assert code == 0 and (tmp_path / "out").read_text() == expected
    (line,) = said
    assert "no supported sacrebleu is installed" in line and "pip install sacrebleu" in line


@pytest.mark.parametrize("name", SACREBLEU_METHODS)
def test_report_bleu_with_a_sacrebleu_without_statistics_scores_nothing(run, monkeypatch, name):
    for metric in (sacrebleu.metrics.base.Metric, sacrebleu.BLEU, sacrebleu.CHRF):
        monkeypatch.delattr(metric, name, raising=False)
    code, (line,) = run()
    assert code == 0 and "so nothing is scored; run: pip install" in line


def test_report_bleu_off_does_not_import_sacrebleu(tiny_checkpoint, tmp_path):
    """A job without the option, in a separate process."""
    code = (
        "import sys, translate; translate.main(sys.argv[1:]); "
        "assert 'sacrebleu' not in sys.modules, 'sacrebleu'"
    )
    argv = [sys.executable, "-c", code, "-model", str(tiny_checkpoint), "-quiet"]
    done = subprocess.run(argv, input="der hund\n", capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
