"""Confidence: the calibration curve, its training and its use."""

import json
import math
import random
import shutil
import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest
import sacrebleu
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import translate
from onmt_lite import Translator
from onmt_lite.checkpoints import native
from onmt_lite.checkpoints.checkpoint import Confidence
from onmt_lite.checkpoints.loading import load_checkpoints
from onmt_lite.errors import CheckpointError, OptionError
from onmt_lite.inference.records import Hypothesis, Translation
from onmt_lite.jobs.reports import format_jsonl, quote
from onmt_lite.text.lines import Line
from onmt_lite.text.placeholders import UnknownPolicy
from onmt_lite.train.calibrate import (
    Point,
    find_alignment_head,
    find_attended_tokens,
    find_rare_symbols,
    fit_confidence,
    format_reliability_table,
    is_split,
    load_calibrate_options,
)
from onmt_lite.train.calibrate import calibrate as run
from tests.support import tiny

SHIPPED = "data/de-en"


def hyp(*log_probs: float) -> Hypothesis:
    return Hypothesis("a", ["a"], 0.0, sum(log_probs), list(log_probs), True)


@pytest.fixture
def model(tiny_checkpoint, tmp_path):
    """A copy of the tiny model, calibrated so that half of the sentences are above 0.5."""
    path = tmp_path / "model"
    shutil.copytree(tiny_checkpoint, path)
    made = Translator.from_pretrained(path, device="cpu").translate(tiny.SENTENCES)
    middle = statistics.median(t.hyps[0].log_prob / len(t.hyps[0].token_log_probs) for t in made)
    native.update_manifest(path, {}, UnknownPolicy(), Confidence(-2.0 * middle, 2.0))
    return path


def test_confidence_curve_is_logistic():
    """In the mean token log-probability and the log of the length."""
    curve = Confidence(3.0, 6.0, 0.5)
    for log_probs in ([-0.5, -0.5], [-0.1, -0.2, -0.3], [-900.0]):
        mean, n_tokens = sum(log_probs) / len(log_probs), len(log_probs)
        odds = math.exp(3.0 + 6.0 * mean) * math.sqrt(n_tokens)
        found = curve.estimate(hyp(*log_probs))
        assert found == pytest.approx(odds / (1 + odds), abs=1e-12)
        threshold = curve.compute_threshold(n_tokens)
        assert curve.compute_probability(threshold, n_tokens) == pytest.approx(0.5)
    assert curve.estimate(Hypothesis("", [], 0.0, 0.0, [], False)) is None


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.8, -0.4]))
def test_fitted_curve_maximizes_likelihood(seed, per_log_token):
    rng = random.Random(seed)

    def chance(a: float, b: float, c: float, mean: float, n: int) -> float:
        return 1 / (1 + math.exp(-a - b * mean - c * math.log(n)))

    points = []
    for _ in range(300):
        mean, n = rng.uniform(-2, 0), rng.randint(2, 40)
        points.append(Point(mean, n, rng.random() < chance(3, 5, per_log_token, mean, n)))

    def likelihood(a: float, b: float, c: float) -> float:
        each = ((chance(a, b, c, mean, n), right) for mean, n, right in points)
        return sum(math.log(p if right else 1 - p) for p, right in each) - c * c / 2

    curve = fit_confidence(points)
    fitted = (curve.at_zero, curve.per_nat, curve.per_log_token)
    best = likelihood(*fitted)
    for i in range(3):
        for change in (-0.05, 0.05):
            assert likelihood(*(x + change * (i == j) for j, x in enumerate(fitted))) < best


def test_fit_with_one_length_has_no_length_term():
    """Many curves are equally likely; one is returned."""
    rng = random.Random(1)
    means = [rng.uniform(-2, 0) for _ in range(300)]
    curve = fit_confidence([Point(mean, 9, rng.random() < math.exp(mean)) for mean in means])
    assert abs(curve.per_log_token) < 1 and curve.per_nat > 1


RIGHT, WRONG = (lambda x: Point(x, 5, True)), (lambda x: Point(x, 5, False))


@pytest.mark.parametrize(
    "points",
    [
        [RIGHT(-1.0)] * 5,
        [WRONG(-1.0)] * 5,
        [WRONG(-1.0), RIGHT(-0.5)],
        [RIGHT(-1.0), WRONG(-0.5), WRONG(-0.9), RIGHT(-0.6)],
    ],
    ids=range(4),
)
def test_fit_rejects_separable_points(points):
    with pytest.raises(OptionError, match="valid: "):
        fit_confidence(points)


def test_fit_nearly_separable_points():
    """One wrong translation among correct ones: Newton's step is too large."""
    points = [*map(RIGHT, (-0.09, -0.429, -0.384, -0.451, -0.174)), WRONG(-5.537), WRONG(-0.45)]
    curve = fit_confidence(points)
    assert -0.46 < curve.compute_threshold(5) < -0.43 and curve.per_nat > 100


def test_fit_ignores_length_that_separates_points():
    """The wrong translations happen to be shorter than all correct ones."""
    points = [
        Point(-0.3, 9, True),
        Point(-0.5, 8, True),
        Point(-0.4, 4, False),
        Point(-1, 3, False),
    ]
    assert 0 < fit_confidence(points).per_log_token < 3


def test_find_rare_symbols():
    lines = ["Das ist gut."] * 20_000 + ["5 €"] * 3 + ["a (b)"] * 5
    assert find_rare_symbols("Dasgut.€()[a", lines) == "[€"


@pytest.mark.parametrize(
    "calibrated, value, told",
    [(False, None, "absent"), (True, None, None), (True, 0.8765432, 0.8765)],
)
def test_confidence_in_jsonl(calibrated, value, told):
    """Missing without a curve, null if the model generated nothing."""
    translation = Translation(0, "a", [hyp(-1.0)], confidence=value, calibrated=calibrated)
    assert json.loads(format_jsonl(translation)).get("confidence", "absent") == told


def test_calibrated_model_outputs_confidence_and_unsure(model, tmp_path, capfd):
    lines = [*tiny.SENTENCES, "", "🙂"]
    translator = Translator.from_pretrained(model, device="cpu", unknown="copy")
    found = translator.translate(lines)
    for t in found[:-2]:
        mean = t.hyps[0].log_prob / len(t.hyps[0].token_log_probs)
        at_zero = translator.checkpoint.confidence.at_zero
        by_curve = 1 / (1 + math.exp(-at_zero - 2 * mean))
        flawed = {"unfinished", "repeats"} & {*t.notes}
        assert (
            t.confidence < min(0.5, by_curve) if flawed else t.confidence == pytest.approx(by_curve)
        )
    assert [t.confidence for t in found[-2:]] == [None, None]
    unsure = [i for i, t in enumerate(found) if t.confidence is not None and t.confidence < 0.75]
    assert unsure
    assert [i for i, t in enumerate(found) if "unsure" in t.notes] == unsure

    (tmp_path / "src").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    argv = f"-model {model} -src {tmp_path}/src -device cpu -unknown copy".split()
    assert translate.main([*argv, "-output_format", "jsonl"]) == 0
    out, err = capfd.readouterr()
    records = [json.loads(line) for line in out.split("\n")[:-1]]
    assert [i for i, r in enumerate(records) if "unsure" in r["notes"]] == unsure
    shown = [str(i + 1) for i in unsure[:5]] + [f"{len(unsure) - 5} more"] * (len(unsure) > 5)
    shown = f"lines {', '.join(shown[:-1])} and {shown[-1]}: the model is not confident"
    quotes = [(i + 1, lines[i], quote(records[i]["hyps"][0]["text"])) for i in unsure[:3]]
    first = "".join(f"    {number}: {src} -> {text}\n" for number, src, text in quotes)
    assert f"{shown}; the translation may be wrong [unsure]\n{first}" in err
    assert translate.main([*argv, "-quiet"]) == 0
    assert capfd.readouterr().err == ""


def test_uncalibrated_model_has_no_confidence(tiny_checkpoint, capfd, model):
    (found,) = Translator.from_pretrained(tiny_checkpoint, device="cpu").translate(["der hund"])
    assert found.confidence is None and "confidence" not in found.to_dict()
    src = str(tiny_checkpoint / native.MANIFEST)
    assert translate.main(["-model", str(tiny_checkpoint), "-src", src]) == 0
    assert "unsure" not in capfd.readouterr().err
    assert load_checkpoints([model, model]).confidence is None  # ensemble scores are not calibrated


def test_shipped_model_confidence_matches_model_card():
    """The figures in its config, which are also in its model card."""
    manifest = json.loads(open(f"{SHIPPED}/model.json", encoding="utf-8").read())
    curve = manifest["confidence"]
    (found,) = Translator.from_pretrained(device="cpu").translate(["Guten Morgen!"])
    mean = found.hyps[0].log_prob / len(found.hyps[0].token_log_probs)
    odds = curve["at_zero"] + curve["per_nat"] * mean
    odds += curve["per_log_token"] * math.log(len(found.hyps[0].token_log_probs))
    assert found.confidence == pytest.approx(1 / (1 + math.exp(-odds)))
    card = open(f"{SHIPPED}/README.md", encoding="utf-8").read()
    terms = "{at_zero} + {per_nat} s + {per_log_token} log(n)".format(**curve)
    assert f"1 / (1 + exp(-({terms})))" in card


def changed(path, **values):
    manifest = json.loads((path / native.MANIFEST).read_text(encoding="utf-8")) | values
    manifest["sha256"] = native._checksum(manifest)
    (path / native.MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")


@pytest.mark.parametrize(
    "values",
    [
        *({"confidence": x} for x in ({"at_zero": 1.0}, {"at_zero": "1", "per_nat": 1.0})),
        {"confidence": {"at_zero": 1.0, "per_nat": 0.0}},
        {"confidence": {"at_zero": float("nan"), "per_nat": 1.0}},
        {"confidence": {"at_zero": 1.0, "per_nat": 1.0, "per_log_token": True}},
        *({"confidence": [1.0, 2.0]}, {"unknown": "copy"}, {"split_longer": -1}),
        *({"unknown": x} for x in ({"rules": "copy"}, {"rule": "keep"})),
        *({"unknown": {"rule": "copy", "names": x}} for x in ("Tom", ["Tom", 3])),
        *({"unknown": {"rule": "copy", "words": x}} for x in (["&"], {"&": 1})),
        *({"unknown": {"rule": "copy", **x}} for x in ({"numbers": [""]}, {"rare": ["€"]})),
        *({"config": x} for x in ({"align_layer": 9}, {"align_layer": -1})),
        *({"config": x} for x in ({"align_head": 9}, {"align_late": 1})),
    ],
    ids=str,
)
def test_invalid_model_config_is_rejected(model, values):
    if "config" in values:
        manifest = json.loads((model / native.MANIFEST).read_text(encoding="utf-8"))
        changed(model, config=manifest["config"] | values["config"])
    else:
        changed(model, **values)
    with pytest.raises(CheckpointError, match="align_" if "config" in values else "model.json"):
        native.load(model)


def test_older_model_configs_still_load(model):
    manifest = json.loads((model / native.MANIFEST).read_text(encoding="utf-8"))
    for name in ("unknown", "confidence"):
        del manifest[name]
    config = {k: v for k, v in manifest["config"].items() if not k.startswith("align_")}
    manifest["config"] = config
    (model / native.MANIFEST).write_text("{}", encoding="utf-8")
    changed(model, **manifest)
    checkpoint = native.load(model)
    assert (checkpoint.unknown, checkpoint.confidence) == (UnknownPolicy(), None)


def test_calibrate_leaves_out_split_lines():
    line = "Er kam. Sie ging."
    assert is_split(line, 10) and not is_split(line, 20) and not is_split(line, 0)
    assert not is_split("Er kam, sie ging.", 10)


class TestCalibrate:
    def test_calibrate_end_to_end(self, tiny_checkpoint, tmp_path, capfd):
        """Calibrate a model and check its confidence.

        References are the model's own translations if they should count as correct: the most
        confident translations, and one of the rest.
        """
        path = tmp_path / "model"
        shutil.copytree(tiny_checkpoint, path)
        weights = (path / native.WEIGHTS).read_bytes()
        lines = [f"{a} {b}" for a in "der die das ein".split() for b in "hund katze kind".split()]
        translator = Translator.from_pretrained(path, device="cpu")
        made = translator.translate(lines)
        means = [t.hyps[0].log_prob / len(t.hyps[0].token_log_probs) for t in made]
        order = sorted(range(len(lines)), key=lambda i: -means[i])
        right = {*order[:5], order[7]}
        pairs = [f"{t.src}\t{t.text if i in right else 'XXXX'}\n" for i, t in enumerate(made)]
        (tmp_path / "valid.tsv").write_text("".join(pairs), encoding="utf-8")
        argv = (
            f"-model {path} -valid {tmp_path}/valid.tsv -unknown copy -names Tom Ann -words &=und"
        )
        run(load_calibrate_options(argv.split())[0])
        # And pairs of neighboring lines, joined
        refs = [pair.strip().split("\t")[1] for pair in pairs]
        made += translator.translate([f"{a} {b}" for a, b in zip(lines[::2], lines[1::2])])
        refs += [f"{a} {b}" for a, b in zip(refs[::2], refs[1::2])]
        points = []
        for t, ref in zip(made, refs, strict=True):
            n_tokens = len(t.hyps[0].token_log_probs)
            is_right = sacrebleu.sentence_chrf(t.text, [ref]).score >= 50
            points.append(Point(t.hyps[0].log_prob / n_tokens, n_tokens, is_right))
        assert [p.is_correct for p in points[: len(lines)]] == [
            i in right for i in range(len(lines))
        ]
        checkpoint = native.load(path)
        assert checkpoint.confidence == fit_confidence(points)
        n_right = sum(p.is_correct for p in points)
        out = capfd.readouterr().out
        assert out.startswith(
            f"confidence: 12 lines, 6 concatenations of two; {n_right} of 18 correct; "
        )
        assert checkpoint.unknown == UnknownPolicy("copy", ("Tom", "Ann"), (), {"&": "und"})
        assert (path / native.WEIGHTS).read_bytes() == weights
        # Values that are not set stay
        run(load_calibrate_options(argv.split()[:4])[0])
        assert native.load(path).unknown == checkpoint.unknown

    def test_calibrate_missing_files_and_other_models(self, tmp_path):
        with pytest.raises(OptionError) as caught:
            load_calibrate_options(["-words", "&"])
        assert len(caught.value.problems) == 3
        with pytest.raises(CheckpointError, match="only onmt_lite models can be calibrated"):
            run(load_calibrate_options(["-model", str(tmp_path), "-valid", "x"])[0])

    @pytest.mark.parametrize(
        "words",
        [["-names", "Ann", "Tom Smith"], ["-numbers", ""], ["-numbers", "1\u20092"]]
        + [["-names", "\udcff"], ["-words", "&="], ["-words", "=und"], ["-words", "&=und so"]],
    )
    def test_calibrate_rejects_invalid_config_values(self, words):
        with pytest.raises(OptionError, match=f"{words[0][1:]}: "):
            load_calibrate_options(["-model", "x", "-valid", "y", *words])

    def test_attended_skips_words_that_start_inside_a_token(self, monkeypatch):
        """No single decoding step generates them."""
        tokens = ["▁a-b"]
        example = SimpleNamespace(src_tokens=tokens)
        pipeline = SimpleNamespace(preprocessor=SimpleNamespace(make_example=lambda line: example))
        made = SimpleNamespace(id=0, src="a-b", hyps=[SimpleNamespace(tokens=tokens)])
        monkeypatch.setattr("onmt_lite.train.calibrate.find_attended_tokens", lambda *_: [[[0, 0]]])
        config = {"align_layer": 1, "align_head": 0, "align_late": False}
        assert find_alignment_head(pipeline, [made]) == (config, 1, 1)

    def test_attended_of_each_head_and_layer(self):
        """For a model of several layers, with kernels that return weights on request."""
        pipeline = Translator.from_pretrained(device="cpu", threads=1).pipeline
        (example,) = (
            pipeline.preprocessor.make_example(Line(0, "Tom wohnt mit Maria in Boston.")),
        )
        tokens = ["▁Tom", "▁lives", "▁in", "▁Boston"]
        found = find_attended_tokens(pipeline, example, tokens)
        cfg = pipeline.model.cfg
        assert len(found) == cfg.dec_layers and {*map(len, found)} == {cfg.heads}
        # Attention in float32 with torch matmul
        plain = native.load(Path(SHIPPED))
        ids = [plain.start_id, *plain.tgt_vocab.encode(tokens)]
        with torch.inference_mode():
            src = torch.tensor([example.src_ids])
            memory = plain.model.encode(src, torch.tensor([src.size(1)]))
            for layer, heads in enumerate(found):
                weights = plain.model.get_layer_attention(memory, torch.tensor([ids]), layer)[0]
                for own, exact in zip(heads, weights, strict=True):
                    highest = exact[:, : len(example.src_tokens)].amax(-1)
                    assert (exact[range(len(ids)), own] > highest - 0.05).all()

    def test_calibrate_table(self):
        """Ten bins, without empty bins."""
        points = [Point(0.0, 1, True), Point(0.0, 1, False), Point(-1.0, 1, False)]
        rows = format_reliability_table(points, Confidence(math.log(3), 3.0)).split("\n")
        assert rows[2] == "| 0.1 to 0.2 | 1 | 13% | 0% |"
        assert rows[3] == "| 0.7 to 0.8 | 2 | 75% | 50% |"
