"""The trainer: training runs, loss, optimizers, batches and export limits."""

import re
from collections import Counter
from operator import eq
from random import Random

import pytest
import sentencepiece as spm
import torch
import torch.nn.functional as F

from onmt_lite import Translator
from onmt_lite.__main__ import main as translate
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.errors import CheckpointError, DataError, OptionError
from onmt_lite.export import ExportOptions, export
from onmt_lite.models.config import TransformerConfig
from onmt_lite.models.transformer import Transformer
from onmt_lite.train import data
from onmt_lite.train.data import make_batches, pad_batch
from onmt_lite.train.network import (
    CHUNK,
    Muon,
    build_optimizers,
    cast_embeddings,
    compute_smoothed_nll,
    orthogonalize,
)
from onmt_lite.train.run import train
from onmt_lite.train.trainer import Trainer
from tests.support import tiny
from tests.support.files import DATA
from tests.support.tiny_training import WORDS, compute_valid_loss
from tests.support.tiny_training import make_tiny_options as options


def read_weights(output):
    return (output / "weights.safetensors").read_bytes()


def test_resume_equals_an_uninterrupted_run(corpus, tmp_path):
    # Warm-up and cooldown depend on the step; sampling and dropout depend on all random numbers
    # drawn so far: the test fails if the state lacks anything
    train(options(corpus, tmp_path / "whole"))
    stopped = Trainer(options(corpus, tmp_path / "parts"))
    step = stopped.step

    def step_or_stop(batch):
        stopped.stop_signal = stopped.n_steps == 2
        return step(batch)

    stopped.step = step_or_stop
    stopped.run()
    assert stopped.n_steps == 3
    resumed = Trainer(options(corpus, tmp_path / "parts", "-resume"))
    assert resumed.n_steps == 3
    resumed.run()
    assert resumed.n_steps == 8
    assert read_weights(tmp_path / "parts") == read_weights(tmp_path / "whole")


def test_train_weights_too_small_for_any_pair_is_an_error(corpus, tmp_path):
    with pytest.raises(DataError, match="train_weights: an epoch would be empty"):
        train(options(corpus, tmp_path / "run", "-train_weights", "0.0001"))


def test_train_then_translate_gives_correct_output(corpus, tmp_path):
    train(options(corpus, tmp_path / "run", "-train_steps", "400", "-dropout", "0"))
    translator = Translator.from_pretrained(tmp_path / "run", device="cpu")
    found = translator.translate(["vier eins zwei.", "acht."])
    assert [t.hyps[0].text for t in found] == ["four one two.", "eight."]


def test_train_with_several_files_equals_one_file(corpus, tmp_path):
    lines = corpus.read_text(encoding="utf-8").splitlines(keepends=True)
    parts = tmp_path / "some.tsv", tmp_path / "rest.tsv"
    for part, some in zip(parts, (lines[:90], lines[90:])):
        part.write_text("".join(some), encoding="utf-8")
    train(options(corpus, tmp_path / "whole"))
    train(options(corpus, tmp_path / "parts", "-train", *parts))
    assert read_weights(tmp_path / "parts") == read_weights(tmp_path / "whole")
    doubled = Trainer(options(corpus, tmp_path / "twice", "-train", corpus, corpus))
    assert len(doubled.text.pairs) == 2 * len(lines)


def test_init_from_starts_with_the_weights_of_the_model(corpus, tmp_path):
    train(options(corpus, tmp_path / "first", "-train_steps", "3"))
    more = ["-init_from", tmp_path / "first", "-d_model", "64"]
    start = Trainer(options(corpus, tmp_path / "second", *more))
    known = Translator.from_pretrained(tmp_path / "first", device="cpu").model
    assert start.model.cfg == known.cfg
    for name, weight in known.state_dict().items():
        assert torch.equal(start.model.state_dict()[name], weight), name
    with pytest.raises(CheckpointError):
        Trainer(options(corpus, tmp_path / "third", "-init_from", tmp_path / "none"))
    with pytest.raises(OptionError, match="fairseq"):
        Trainer(options(corpus, tmp_path / "fourth", "-init_from", DATA / "fs12_tf"))


@pytest.mark.sweep
def test_norm_after_model_trains_and_exports_to_marian(corpus, tmp_path):
    run = options(corpus, tmp_path / "run", *"-norm after -train_steps 200".split())
    start = compute_valid_loss(Trainer(run))
    train(run)
    export(ExportOptions(str(tmp_path / "run"), "marian", str(tmp_path / "marian")))
    ours, theirs = (
        Translator.from_pretrained(tmp_path / name, device="cpu") for name in ("run", "marian")
    )
    lines = ["eins zwei.", "vier drei acht.", "zwei."]
    found = [t.hyps[0] for t in theirs.translate(lines)]
    assert [h.text for h in found] == [t.hyps[0].text for t in ours.translate(lines)]
    scores = ours.score(lines, [h.text for h in found])
    assert [h.log_prob for h in found] == pytest.approx(scores, abs=1e-3)
    sources, targets = zip(*data.read_pairs(corpus)[:50])
    n_tokens = sum(len(ours.tokenizer.encode(tgt)) + 1 for tgt in targets)
    assert -sum(ours.score(sources, targets)) / n_tokens < start / 2


@pytest.mark.parametrize(
    ("words", "excluded", "advice"),
    [
        ("-norm before", ["Marian"], "; train with -norm after to export to Marian"),
        ("-norm after", ["OpenNMT-py"], "; train with -norm before to export to OpenNMT-py"),
        ("-max_positions 6000", ["OpenNMT-py", "Marian"], "; train with -norm after"),
    ],
)
def test_export_limits_are_logged_before_training(corpus, tmp_path, words, excluded, advice):
    train(options(corpus, tmp_path / "run", "-train_steps", 1, *words.split()))
    log = (tmp_path / "run" / "train.log").read_text(encoding="utf-8")
    before = log[: log.index("at the measured speed of")]
    reasons = dict(re.findall(r"export: (\S+) does not support this model \((.*)\)", before))
    assert [*reasons] == excluded and advice in before
    names = {"opennmt-py": ("OpenNMT-py", "run.pt"), "marian": ("Marian", "marian")}
    for to, (title, output) in names.items():
        export_options = ExportOptions(str(tmp_path / "run"), to, str(tmp_path / output))
        if title not in reasons:
            export(export_options)
            continue
        with pytest.raises(CheckpointError) as error:
            export(export_options)
        assert str(error.value).startswith(
            f"{title} does not support this model: {reasons[title]}; "
        )


@pytest.mark.sweep
def test_save_bits_8_model_is_trained_further_and_exported(corpus, tmp_path):
    train(options(corpus, tmp_path / "run", *"-train_steps 200 -dropout 0".split()))
    same = "-train_steps 1 -matrix_lr 1e-9 -vector_lr 1e-9".split()
    small = ["-init_from", str(tmp_path / "run"), "-save_bits", "8", *same]
    train(options(corpus, tmp_path / "small", *small))
    assert len(read_weights(tmp_path / "small")) < 0.75 * len(read_weights(tmp_path / "run"))
    again = Trainer(options(corpus, tmp_path / "again", "-init_from", str(tmp_path / "small")))
    whole = Trainer(options(corpus, tmp_path / "whole", "-init_from", str(tmp_path / "run")))
    assert compute_valid_loss(again) == pytest.approx(compute_valid_loss(whole), abs=0.01)
    export(ExportOptions(str(tmp_path / "small"), "opennmt-py", str(tmp_path / "small.pt")))
    ours, theirs = (load_checkpoint(tmp_path / name).model for name in ("small", "small.pt"))
    assert torch.equal(ours.output.weight, theirs.output.weight)
    batch = again.valid[0][0]
    logits = [m(m.encode(batch.src, batch.src_lengths), batch.tgt_in) for m in (ours, theirs)]
    torch.testing.assert_close(*logits, atol=1e-4, rtol=1e-4)


def test_reverse_swaps_source_and_target(corpus):
    forward, backward = data.read_pairs(corpus), data.read_pairs(corpus, reverse=True)
    assert [(b, a) for a, b in forward] == backward


@pytest.mark.sweep
def test_back_translation_gives_pairs_that_train(corpus, tmp_path):
    """The steps in docs/training.md: reverse model, sampled translations, mixed pairs."""
    run = options(corpus, tmp_path / "back", *"-reverse -train_steps 400 -dropout 0".split())
    train(run)
    english = [tgt for _, tgt in data.read_pairs(corpus)[:40]]
    (tmp_path / "english.txt").write_text("\n".join(english) + "\n", encoding="utf-8")
    drawn = "-beam_size 1 -random_sampling_topk 3 -min_length 1 -seed 1 -quiet".split()
    files = ["-src", str(tmp_path / "english.txt"), "-output", str(tmp_path / "german.txt")]
    assert translate(["-model", str(tmp_path / "back"), *files, *drawn]) == 0
    german = (tmp_path / "german.txt").read_text(encoding="utf-8").splitlines()
    synthetic = tmp_path / "made-by-machine.tsv"
    synthetic.write_text("".join(map("{}\t{}\n".format, german, english)), encoding="utf-8")
    both = ["-train", str(corpus), str(synthetic), "-train_weights", "2", "1"]
    trainer = Trainer(options(corpus, tmp_path / "run", *both))
    assert len(trainer.text.sample_epoch(0, Random(1))) == 2 * 300 + 40
    words = dict(map(reversed, WORDS))
    right = [" ".join(words[w] for w in line.rstrip(".").split()) + "." for line in english]
    assert sum(map(eq, german, right)) > 20


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ("-heads 3", "heads"),
        ("-train_steps 0", "train_minutes"),
        ("-output=", "output"),
        ("-droput 0.3", "dropout"),
        ("-train_weights 1 2", "2 weights for 1 train files"),
        ("-train_weights 0", "above 0"),
        ("-train_weights 1e9", "at most 10,000"),
        (f"-seed {2**63}", "seed: .* between 0 and"),
        ("-threads 999", "between 1 and 256"),
        ("-vocab_size 99999999999", "between 16 and 500,000"),
        ("-save_bits 4", "8 or 16"),
    ],
)
def test_train_options_invalid_error_names_the_option(corpus, tmp_path, more, problem):
    with pytest.raises(OptionError, match=problem):
        options(corpus, tmp_path, *more.split())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("has_bias", [True, False])
def test_smoothed_nll_equals_cross_entropy(smoothing, has_bias):
    torch.manual_seed(0)
    n, d, v = 2 * CHUNK + 7, 8, 50
    hidden, weight = torch.randn(n, d, requires_grad=True), torch.randn(v, d, requires_grad=True)
    bias = torch.randn(v, requires_grad=True) if has_bias else None
    inputs = [x for x in (hidden, weight, bias) if x is not None]
    targets = torch.randint(v, (n,))
    ours = compute_smoothed_nll(hidden, weight, bias, targets, smoothing)
    logits = F.linear(hidden, weight, bias)
    plain = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(ours, plain)
    grads = zip(torch.autograd.grad(3 * ours, inputs), torch.autograd.grad(3 * plain, inputs))
    for grad, expected in grads:
        torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(2, 24, 24), (1, 48, 16), (1, 16, 48)])
def test_orthogonalize_makes_singular_values_nearly_one(shape):
    g = torch.randn(shape, generator=torch.Generator().manual_seed(5))
    values = torch.linalg.svdvals(orthogonalize(g))
    assert 0.5 < values.min() <= values.max() < 1.3


def test_muon_orthogonalizes_stacked_matrices_separately():
    torch.manual_seed(0)
    stacked = torch.nn.Parameter(torch.zeros(6, 2))
    stacked.grad = torch.randn(6, 2)
    apart = [torch.nn.Parameter(torch.zeros(2, 2)) for _ in range(3)]
    for p, g in zip(apart, stacked.grad.chunk(3)):
        p.grad = g.clone()
    Muon([(stacked, 3)], lr=1.0).step()
    Muon([(p, 1) for p in apart], lr=1.0).step()
    torch.testing.assert_close(stacked.detach(), torch.cat([p.detach() for p in apart]))


def test_muon_in_bfloat16_is_close_to_float32(corpus, tmp_path):
    updates = []
    for dtype in (torch.float32, torch.bfloat16):
        p = torch.nn.Parameter(torch.zeros(24, 16))
        p.grad = torch.randn(24, 16, generator=torch.Generator().manual_seed(2))
        Muon([(p, 1)], lr=1.0, dtype=dtype).step()
        updates.append(p.detach())
    assert not torch.equal(*updates)
    assert (updates[1] - updates[0]).norm() < 0.05 * updates[0].norm()
    low = Trainer(options(corpus, tmp_path / "low", "-precision", "bf16"))
    assert low.optimizers[0].dtype == torch.bfloat16
    assert Trainer(options(corpus, tmp_path / "full")).optimizers[0].dtype == torch.float32


def test_build_optimizers_assigns_each_parameter_once():
    model = Transformer(TransformerConfig(20, 20, 8, 2, 16, 1, 1))
    optimizers = build_optimizers(model, 0.1, 0.1)
    held = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    assert sorted(map(id, held)) == sorted(map(id, model.parameters()))
    splits = {group["split"] for group in optimizers[0].param_groups}
    assert splits == {1, 2, 3}


def test_make_batches_has_each_example_once_within_batch_tokens():
    rng = Random(1)
    examples = [([n] * rng.randrange(1, 9), [n] * rng.randrange(1, 9)) for n in range(4, 200)]
    batches = list(map(pad_batch, make_batches(examples, 64, Random(2))))
    seen = [int(row[0]) for batch in batches for row in batch.src]
    assert sorted(seen) == list(range(4, 200))
    for b in batches:
        assert max(b.src.numel(), b.tgt_in.numel()) <= 64
        assert torch.equal((b.src != data.PAD).sum(1), b.src_lengths)
        real = b.tgt_out[:, 1:] != data.PAD
        assert torch.equal(b.tgt_in[:, 1:][real], b.tgt_out[:, :-1][real])
        assert (b.tgt_in[:, 0] == data.BOS).all()
        assert ((b.tgt_out == data.EOS).sum(1) == 1).all()


def test_train_weights_repeat_pairs_by_weight():
    corpora = [[("a", "A"), ("b", "B")], [(str(n), str(n)) for n in range(10)], [("c", "C")] * 3]
    found = Counter(data.repeat_by_weight(corpora, (2.5, 0.3, 1), Random(1)))
    assert sorted((found["a", "A"], found["b", "B"])) == [2, 3]
    assert sum(n for (s, _), n in found.items() if s.isdigit()) == 3
    assert max(n for (s, _), n in found.items() if s.isdigit()) == 1
    assert found["c", "C"] == 3
    samples = {
        tuple(data.repeat_by_weight(corpora[1:2], (0.3,), Random(seed))) for seed in range(9)
    }
    assert len(samples) > 1  # the sampled fraction differs between epochs


def test_target_with_unknown_character_is_skipped(corpus, tmp_path):
    train(options(corpus, tmp_path / "few", "-train_steps", "1"))
    odd = tmp_path / "odd.tsv"
    odd.write_text("zwei 🙂\ttwo\nzwei\ttwo 🙂\n" * 30, encoding="utf-8")
    more = ["-init_from", tmp_path / "few", "-train"]
    trainer = Trainer(options(corpus, tmp_path / "run", *more, corpus, odd))
    unk = trainer.sp.unk_id()
    examples = [example for batch in trainer.epochs(0).batches for example in batch]
    assert sum(unk in src for src, _ in examples) == 30
    assert not any(unk in tgt for _, tgt in examples)
    assert len(examples) == 300 + 30
    odd.write_text("zwei\ttwo 🙂\n" * 30, encoding="utf-8")
    none = Trainer(options(corpus, tmp_path / "none", *more, odd))
    with pytest.raises(DataError, match="-all_characters"):
        none.epochs(0)


def test_valid_with_several_files_selects_by_mean_loss(corpus, tmp_path):
    second = tmp_path / "other.tsv"
    second.write_text("eins zwei.\tone two.\n", encoding="utf-8")

    def trainer(name, *valid):
        return Trainer(options(corpus, tmp_path / name, "-valid", *valid))

    separate = [compute_valid_loss(trainer(path.stem, path)) for path in (corpus, second)]
    both = trainer("both", corpus, second)
    assert both.compute_held_out_losses() == pytest.approx(separate, rel=1e-5)
    assert compute_valid_loss(both) == pytest.approx(sum(separate) / 2, rel=1e-5)
    losses = iter([[1.0, 5.0], [2.0, 3.0], [0.5, 9.0]])
    both.compute_held_out_losses = lambda: next(losses)
    written = []
    for _ in range(3):
        both.validate()
        written.append((both.best, read_weights(tmp_path / "both")))
        next(both.model.parameters()).data += 1
    assert [best for best, _ in written] == [3.0, 2.5, 2.5]
    assert written[0][1] != written[1][1] == written[2][1]


def test_all_characters_encodes_any_text_without_unknown_tokens(corpus):
    pairs = data.read_pairs(corpus)
    few, sp = (
        spm.SentencePieceProcessor(model_proto=data.train_sentencepiece(pairs, *given))
        for given in ((30,), (735, True))
    )
    for text in ("Dvořák 🙂 €", "Ωμέγα", "ж", "中文", "\U0001f9ff"):
        assert few.unk_id() in few.encode(text)
        assert sp.unk_id() not in sp.encode(text)
        assert sp.decode(sp.encode(text)) == text
    assert len(sp.encode("🙂")) <= 2 < len(sp.encode("\U0001f9ff"))


def test_cast_embeddings_rounds_under_autocast_only():
    model, ids = cast_embeddings(tiny.make_model()), torch.tensor([[5, 6, 7]])
    exact = model.src_embedding(ids)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model.src_embedding(ids)
    assert (exact.dtype, rounded.dtype) == (torch.float32, torch.bfloat16)
    assert rounded.equal(exact.bfloat16())


def test_mean_steps_saves_the_running_mean_of_the_weights(corpus, tmp_path):
    """The plain mean of the first steps, then a decaying mean; also in a resumed run."""
    more = ["-mean_steps", "3", "-dropout", "0"]
    trainer = Trainer(options(corpus, tmp_path / "run", *more))
    step, seen = trainer.step, []

    def record_weights(batch):
        loss = step(batch)
        seen.append({name: p.detach().clone() for name, p in trainer.model.named_parameters()})
        trainer.stop_signal = len(seen) == 5
        return loss

    trainer.step = record_weights
    trainer.run()
    resumed = Trainer(options(corpus, tmp_path / "run", *more, "-resume"))
    trainer, step = resumed, resumed.step
    trainer.step = record_weights
    trainer.run()
    assert len(seen) == 8
    for name, kept in trainer.mean_model.named_parameters():
        mean = sum(weights[name].double() for weights in seen[:3]) / 3
        for weights in seen[3:]:
            mean = mean * 2 / 3 + weights[name].double() / 3
        torch.testing.assert_close(kept.double(), mean, rtol=0, atol=1e-6)
    assert compute_valid_loss(trainer) == pytest.approx(trainer.best, rel=1e-6)
    written = load_checkpoint(tmp_path / "run").model.state_dict()
    torch.testing.assert_close(written, trainer.mean_model.state_dict(), rtol=1e-3, atol=1e-3)


def test_mean_steps_can_be_added_when_resuming(corpus, tmp_path):
    first = Trainer(options(corpus, tmp_path / "run", "-train_steps", "4"))
    first.run()
    assert first.mean_model is first.model
    more = Trainer(options(corpus, tmp_path / "run", "-resume", "-mean_steps", "2"))
    torch.testing.assert_close(more.mean_model.state_dict(), first.model.state_dict())
    more.run()
    assert not torch.equal(more.mean_model.output.bias, more.model.output.bias)
