"""Growing a trained model, and training with one file per epoch."""

from pathlib import Path
from random import Random

import pytest
import sentencepiece as spm
import torch

from onmt_lite import Translator
from onmt_lite.checkpoints import native
from onmt_lite.errors import OptionError
from onmt_lite.models.config import TransformerConfig
from onmt_lite.models.transformer import Transformer
from onmt_lite.train import data
from onmt_lite.train.run import train
from onmt_lite.train.trainer import Trainer
from recipes.de_en import grow
from recipes.de_en import train as in_turn
from recipes.de_en.grow import add_all_characters, add_layers, replace_subwords, spell
from recipes.de_en.widen import widen
from tests.support import tiny
from tests.support.tiny_training import compute_valid_loss, make_tiny_options


def train_subwords(corpus, *given):
    proto = data.train_sentencepiece(data.read_pairs(corpus), *given)
    return spm.SentencePieceProcessor(model_proto=proto)


@pytest.fixture
def options(corpus, tmp_path):
    """Return a function (name, *args) -> TrainOptions of a run that writes to tmp_path/name."""

    return lambda name, *more: make_tiny_options(corpus, tmp_path / name, *more)


@pytest.fixture(scope="module")
def start(corpus, tmp_path_factory):
    """A briefly trained model with 26 subwords."""
    path = tmp_path_factory.mktemp("start") / "model"
    train(make_tiny_options(corpus, path, "-vocab_size", 26, "-train_steps", 300))
    return path


def run_grow(start, output, *words):
    assert grow.main(list(map(str, ["-model", start, "-output", output, *words]))) == 0
    return output


# Layers


def test_added_layers_start_as_the_identity_and_learn(options, tmp_path, capfd):
    train(options("start", "-train_steps", 40))
    start = tmp_path / "start"
    deep = run_grow(start, tmp_path / "deep", "-enc_layers", 3, "-dec_layers", 2)
    assert capfd.readouterr().out == f"model: {deep}\n"
    more = Trainer(options("more", "-init_from", deep, "-train_steps", 200))
    same = Trainer(options("same", "-init_from", start))
    assert (more.model.cfg.enc_layers, more.model.cfg.dec_layers) == (3, 2)
    before = compute_valid_loss(more)
    assert before == pytest.approx(compute_valid_loss(same), rel=1e-5)
    for batch in more.valid[0] * 10:
        more.step(batch)
    assert compute_valid_loss(more) < before


def test_add_layers_rejects_post_norm_models():
    with pytest.raises(OptionError, match="pre-norm"):
        add_layers(tiny.make_model(pre_norm=False), 9, 1)


# Width

WIDTHS = [(24, 4, 48), (32, 8, 32), (32, 4, 32), (16, 4, 64), (48, 6, 50)]


@torch.no_grad()
def compute_logits(model, seed=5):
    """Return the logits of random tokens in sentences of several lengths."""
    rng = torch.Generator().manual_seed(seed)
    src, tgt = (
        torch.randint(4, model.vocab_size, (3, n), generator=rng).tolist() for n in (40, 30)
    )
    memory = model.encode(torch.tensor(src), torch.tensor([40, 1, 17]))
    return model(memory, torch.tensor(tgt))


@pytest.mark.parametrize("sizes", WIDTHS)
def test_widen_keeps_the_logits(sizes):
    narrow = tiny.make_model().double()
    wide = widen(narrow, *sizes).double()
    assert (wide.cfg.d_model, wide.cfg.heads, wide.cfg.d_ff) == sizes
    torch.testing.assert_close(compute_logits(wide), compute_logits(narrow), rtol=0, atol=2e-5)
    again = widen(wide.float(), *(2 * size for size in sizes))
    torch.testing.assert_close(
        compute_logits(again).double(), compute_logits(narrow), rtol=0, atol=1e-4
    )
    assert widen(narrow, 8, 2, 8) is narrow


def test_widened_shipped_model_translates_as_before(tmp_path):
    cfg = native.load(Path("data/de-en")).model.cfg
    wider = ["-d_model", cfg.d_model * 5 // 4, "-heads", cfg.heads + 1, "-d_ff", cfg.d_ff + 64]
    wide = run_grow("data/de-en", tmp_path / "wide", *wider)
    lines = Path("recipes/de_en/lines.de").read_text(encoding="utf-8").splitlines()[:12]
    given = dict(device="cpu", precision="fp32", unknown="model", split_longer=0)
    before, after = (
        [t.hyps[0] for t in Translator.from_pretrained(path, **given).translate(lines)]
        for path in ("data/de-en", wide)
    )
    assert [hyp.text for hyp in after] == [hyp.text for hyp in before]
    for one, other in zip(after, before):
        assert one.log_prob == pytest.approx(other.log_prob, abs=0.02)  # half precision


def test_new_dimensions_units_and_heads_learn_different_weights(options, tmp_path):
    """No two of them learn the same weights."""
    train(options("start", "-train_steps", 40))
    wide = run_grow(tmp_path / "start", tmp_path / "wide", "-d_model", 48, "-heads", 3, "-d_ff", 40)
    more = Trainer(options("more", "-init_from", wide, "-train_steps", 200))
    before = compute_valid_loss(more)
    assert before == pytest.approx(
        compute_valid_loss(Trainer(options("same", "-init_from", tmp_path / "start"))), rel=1e-3
    )
    for batch in more.valid[0] * 10:
        more.step(batch)
    assert compute_valid_loss(more) < before
    layer = more.model.encoder[0]
    for learned in (
        more.model.output.weight[:, 32:].T,  # (16, V)
        layer.ffn.down.weight[:, 32:].T,  # new units
        layer.self_attn.out.weight[:, 32:].T,  # the new head
    ):
        assert learned.abs().amax(1).min() > 0
        assert torch.corrcoef(learned).fill_diagonal_(0).abs().max() < 0.999


@pytest.mark.parametrize(
    ("config", "heads", "problem"),
    [
        (dict(pre_norm=False), 4, "pre-norm"),
        (dict(norm="rms"), 4, "pre-norm"),
        (dict(positions="none"), 4, "pre-norm"),
        (dict(tie_output=False), 4, "pre-norm"),
        ({}, 8, "8 heads would have 3 dimensions each"),
        ({}, 5, "24 is odd or not divisible by heads"),
    ],
)
def test_widen_rejects_models_it_cannot_preserve(config, heads, problem):
    with pytest.raises(OptionError, match=problem):
        widen(tiny.make_model(**config), 24, heads, 32)


# Subwords


@pytest.mark.sweep
def test_new_subwords_start_as_the_sum_of_their_parts(start, corpus, options, tmp_path):
    words = ["-train", corpus, "-vocab_size", 33, "-enc_layers", 2]
    more = Trainer(options("more", "-init_from", run_grow(start, tmp_path / "run_grow", *words)))
    same = Trainer(options("same", "-init_from", start))
    was, became = (
        {t.sp.id_to_piece(i): t.model.output.weight[i] for i in range(t.sp.vocab_size())}
        for t in (same, more)
    )
    assert (len(was), len(became)) == (26, 33)
    for piece in was.keys() & became.keys():
        assert torch.equal(became[piece], was[piece]), piece
    for piece in became.keys() - was.keys():
        parts = spell(piece, same.sp)
        assert "".join(map(same.sp.id_to_piece, parts)) == piece
        mean = same.model.output.weight[parts].sum(0) / len(parts) ** 0.5
        torch.testing.assert_close(became[piece], mean, atol=1e-3, rtol=1e-3)  # half precision
    # It is far better than a new model, and training continues from it
    assert compute_valid_loss(more) < compute_valid_loss(Trainer(options("none"))) - 0.5
    more.run()
    written = Translator.from_pretrained(tmp_path / "more", device="cpu").model
    assert (written.cfg.enc_layers, written.cfg.tgt_vocab_size) == (2, 33)


def test_spell_uses_existing_subwords(corpus):
    sp = train_subwords(corpus, 26)
    for piece in ("<unk>", "<s>", "</s>", "<blank>", "▁"):
        assert spell(piece, sp) == [sp.piece_to_id(piece)]
    assert [sp.id_to_piece(i) for i in spell("▁nonne", sp)][0].startswith("▁")
    assert "".join(sp.id_to_piece(i) for i in spell("nonne", sp)) == "nonne"
    assert spell("ß", sp) == [sp.unk_id()]


def test_new_byte_subwords_start_with_different_embeddings(corpus):
    few, all_ = train_subwords(corpus, 30), train_subwords(corpus, 735, True)
    model = replace_subwords(Transformer(TransformerConfig(30, 30, 8, 2, 16, 1, 1)), few, all_)
    table = model.output.weight[[i for i in range(735) if all_.is_byte(i)]]
    assert len(table) == 256 == len(table.unique(dim=0))


def test_all_characters_adds_subwords_and_keeps_the_logits(start, options, tmp_path):
    large = run_grow(start, tmp_path / "large", "-all_characters")
    few, more = (native.load(path) for path in (start, large))
    old, new = (
        spm.SentencePieceProcessor(model_file=str(path / native.SENTENCEPIECE))
        for path in (start, large)
    )
    n = old.vocab_size()
    assert [old.id_to_piece(i) for i in range(n)] == [new.id_to_piece(i) for i in range(n)]
    for text in ("vier eins zwei.", "eins"):
        assert new.encode(text) == old.encode(text)
    for text in ("Dvořák 🙂 €", "中文", "\U0001f9ff eins."):
        assert old.unk_id() in old.encode(text)
        assert new.unk_id() not in new.encode(text)
        assert new.decode(new.encode(text)) == text
    known, table = few.model.output.weight, more.model.output.weight
    assert torch.equal(table[:n], known)
    assert len(table[n:].unique(dim=0)) > 256
    batch = Trainer(options("same", "-init_from", start)).valid[0][0]
    logits = [
        m(m.encode(batch.src, batch.src_lengths), batch.tgt_in) for m in (few.model, more.model)
    ]
    torch.testing.assert_close(logits[1][..., :n], logits[0])
    # Existing byte subwords are kept
    pieces = (large / native.SENTENCEPIECE).read_bytes()
    assert add_all_characters(pieces) == pieces
    again = native.load(run_grow(large, tmp_path / "again", "-all_characters"))
    assert torch.equal(again.model.output.weight, table)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-output new", "model is missing"),
        ("-model {start} -output {start}", "already exists"),
        ("-model {start} -output new -vocab_size 30", "vocab_size requires train"),
        ("-model {start} -output new -save_bits 4", "8 or 16"),
        ("-model tests/data/checkpoints/fs12_tf -output new", "is not an onmt_lite model"),
    ],
)
def test_grow_rejects_invalid_options(start, capsys, words, message):
    assert grow.main(words.format(start=start).split()) == 2
    assert message in capsys.readouterr().err


# One file per epoch


def test_each_training_file_is_one_epoch(corpus, options, tmp_path):
    first, second = tmp_path / "1.tsv", tmp_path / "2.tsv"
    first.write_text("eins zwei drei\tone two three\n" * 20, encoding="utf-8")
    second.write_text("zwei drei ß\ttwo three\n" * 30, encoding="utf-8")
    given = options("run", "-train", first, second, "-vocab_size", 16, "-train_steps", 4)
    trainer = Trainer(given, in_turn.InTurn)
    expected = [("eins zwei drei", "one two three")] * 20, [("zwei drei ß", "two three")] * 30
    for epoch in range(5):
        assert trainer.text.sample_epoch(epoch, Random(1)) == expected[epoch % 2]
    assert trainer.sp.unk_id() in trainer.sp.encode("ß")  # not in the first file
    trainer.run()
    more = ["-train", first, second, "-vocab_size", 16, "-resume", "-train_steps", 5]
    with pytest.raises(OptionError, match=r"text \(InTurn before, Text now\)"):
        Trainer(options("run", *more))
    config = str(tmp_path / "run" / "train.yaml")
    words = ["-config", config, "-resume", "-train_steps", "5"]
    assert in_turn.main(words) == 0
    assert "step 5" in (tmp_path / "run" / "train.log").read_text(encoding="utf-8")


def test_one_file_per_epoch_needs_valid_and_no_weights():
    for words, problem in (
        ("", "valid: is missing"),
        ("-valid b -train_weights 2", "train_weights: is not supported"),
    ):
        with pytest.raises(OptionError, match=problem):
            in_turn.load_in_turn_options(f"-train a -output c -train_steps 3 {words}".split())
