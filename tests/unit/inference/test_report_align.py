"""-report_align and the attention it uses, compared with the weights and with OpenNMT-py."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import translate
from onmt_lite import Translator
from onmt_lite.checkpoints import native
from onmt_lite.checkpoints.config_reader import ConfigReader
from onmt_lite.checkpoints.opennmt.models import _read_alignment_heads
from onmt_lite.errors import OptionError
from onmt_lite.inference.runner import Runner
from onmt_lite.models.base import LAST_LAYER, HeadSelection
from onmt_lite.models.ensemble import Ensemble
from onmt_lite.models.transformer import Transformer
from onmt_lite.search.teacher_forcing import compute_target_attention
from tests.support import tiny
from tests.support.random_models import make_cnn, make_copying_transformer, make_rnn

DATA = Path(__file__).parents[2] / "data" / "checkpoints"
LINES = ["der hund sieht den alten garten", "", "heute regnet es in der stadt", "das haus"]


def compute_attention(model: Transformer, src: list[int], read: list[int], layer: int) -> Tensor:
    """Return the attention (H, T, S) of all heads of a decoder layer for one sentence.

    Softmax of the scaled dot products; keys and queries are recomputed from the weights.
    """
    attention, seen = model.decoder[layer].cross_attn, []

    def watch(module, inputs, out):
        x, _, norm, _ = inputs
        seen.append(x if norm is None else norm(x))

    hook = attention.register_forward_hook(watch)
    with torch.inference_mode():
        memory = model.encode(torch.tensor([src]), torch.tensor([len(src)]))
        model.forward(memory, torch.tensor([read]))
        hook.remove()
        n_heads, d = attention.heads, attention.q.out_features // attention.heads
        queries = seen[0][0] @ attention.q.weight.T
        keys = memory.bank[0] @ attention.kv.weight[: n_heads * d].T
        if attention.q.bias is not None:
            queries = queries + attention.q.bias
            keys = keys + attention.kv.bias[: n_heads * d]
        found = []
        for h in range(n_heads):
            q, k = queries[:, h * d : h * d + d], keys[:, h * d : h * d + d]
            found.append(((q @ k.T) / math.sqrt(d)).softmax(-1))
        return torch.stack(found)


class TestAttention:
    SOURCES, TARGETS = [[4, 9, 5, 17, 3], [8, 8], [30, 6, 12]], [[7, 11], [5, 6, 9, 20], []]

    def attend(self, model, heads: HeadSelection) -> list[Tensor]:
        """Return the attention of all sentences in one padded batch."""
        width = max(map(len, self.SOURCES))
        src = torch.tensor([s + [tiny.PAD] * (width - len(s)) for s in self.SOURCES])
        lengths = torch.tensor([*map(len, self.SOURCES)])
        starts = [[tiny.BOS]] * len(self.TARGETS)
        return compute_target_attention(model, src, lengths, self.TARGETS, starts, tiny.EOS, heads)

    @pytest.mark.parametrize("n_heads", [0, 1, 2, 4, 9])
    @pytest.mark.parametrize("layer", [0, 1, 2, -1, -3])
    def test_attention_equals_weights(self, layer, n_heads):
        model = tiny.make_model(dec_layers=3)
        for src, tgt, found in zip(
            self.SOURCES, self.TARGETS, self.attend(model, HeadSelection(layer, n_heads))
        ):
            heads = compute_attention(model, src, [tiny.BOS, *tgt], layer)
            expected = heads[: n_heads or None].mean(0)
            assert found.shape == (len(tgt) + 1, len(src))
            torch.testing.assert_close(found, expected)

    @pytest.mark.parametrize("config", [dict(kv_heads=2), dict(dec_self_attn="average")])
    def test_attention_of_variants_sums_to_one(self, config):
        for found in self.attend(tiny.make_model(**config), HeadSelection(0, 2)):
            torch.testing.assert_close(found.sum(1), torch.ones(len(found)))

    @pytest.mark.parametrize(
        "dec_layers, layer", [(1, 0), (2, 0), (3, 1)], ids=["the only one", "two", "three"]
    )
    def test_alignment_layer_default_is_second_to_last_with_all_heads(self, dec_layers, layer):
        model = tiny.make_model(dec_layers=dec_layers)
        pairs = zip(
            self.attend(model, HeadSelection()), self.attend(model, HeadSelection(layer, 0))
        )
        assert all(torch.equal(one, other) for one, other in pairs)

    def test_alignment_layer_of_model_config(self):
        model = tiny.make_model(dec_layers=3, report_layer=1, report_heads=2)
        pairs = zip(self.attend(model, HeadSelection()), self.attend(model, HeadSelection(0, 2)))
        assert all(torch.equal(one, other) for one, other in pairs)

    @pytest.mark.parametrize(
        "make", [make_rnn, make_cnn, tiny.make_model, make_copying_transformer]
    )
    def test_attention_equals_single_steps(self, make):
        """First head of the last layer. A model with one attention always returns it."""
        model = make()
        for src, tgt, found in zip(self.SOURCES, self.TARGETS, self.attend(model, LAST_LAYER)):
            with torch.inference_mode():
                lengths = torch.tensor([len(src)])
                state = model.init_state(model.encode(torch.tensor([src]), lengths))
                steps = [model.step(torch.tensor([y]), state)[1] for y in [tiny.BOS, *tgt]]
            torch.testing.assert_close(found, torch.cat(steps))

    def test_attention_of_ensemble_is_mean(self):
        members = [tiny.make_model(seed=1), tiny.make_model(seed=2)]
        each = [self.attend(member, HeadSelection(0, 0)) for member in members]
        mixed = self.attend(Ensemble(members, weights=[3, 1]), HeadSelection(0, 0))
        for one, other, found in zip(*each, mixed):
            torch.testing.assert_close(found, 0.75 * one + 0.25 * other)

    def test_attention_of_ensemble_with_unequal_depth(self):
        shallow, deep = tiny.make_model(dec_layers=1), tiny.make_model(dec_layers=3)
        mixed = Ensemble([shallow, deep])
        assert mixed.has_heads(HeadSelection(2)) and not mixed.has_heads(HeadSelection(3))
        pairs = zip(self.attend(mixed, HeadSelection(2, 0)), self.attend(deep, HeadSelection(2, 0)))
        assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("max_length", [5, 100])
def test_alignment_of_output_at_position_limit_follows_weights(tmp_path, tiny_pieces, max_length):
    """A translation of maximum length leaves no position for an end token."""
    model = tiny.make_model(seed=3, max_positions=12)
    model.output.bias[tiny.EOS] -= 100
    native.save(tmp_path, model, tiny_pieces)
    options = dict(report_align=True, alignment_layer=0, alignment_heads=0, attn_debug=True)
    translator = Translator.from_pretrained(tmp_path, device="cpu", max_length=max_length)
    checkpoint, line = translator.checkpoint, "der hund"
    (found,) = translator.translate([line], max_length_ratio=0, **options)
    hyp = found.hyps[0]
    assert not hyp.ended and len(hyp.ids) == min(max_length, 12)
    src = checkpoint.src_vocab.encode(found.src_tokens)
    read = [checkpoint.start_id, *hyp.ids[:-1]]
    weights = compute_attention(translator.model, [*src, *checkpoint.src_end], read, 0).mean(0)
    sources = weights[:, : len(src)].argmax(1).tolist()
    assert hyp.align == sorted((s, t) for t, s in enumerate(sources))
    assert len(found.attn_table) == 1 + len(hyp.ids)


@pytest.mark.parametrize(
    "opt, layer, n_heads",
    [
        ({}, 0, 0),
        ({"alignment_layer": -3, "alignment_heads": 2}, 4, 2),
        ({"alignment_layer": 0, "alignment_heads": 0}, 1, 0),
        ({"alignment_layer": 5}, 6, 0),
        ({"alignment_layer": 6, "alignment_heads": 2}, 0, 0),  # does not exist
        ({"alignment_layer": -7, "alignment_heads": 2}, 0, 0),
    ],
)
def test_alignment_layer_of_opennmt_model(opt, layer, n_heads):
    """Six layers. Options count layers from 1; 0 means not set."""
    found = _read_alignment_heads(ConfigReader(opt, Path("m.pt")), 6)
    assert found.get("report_layer", 0) == layer
    assert found.get("report_heads", 0) == n_heads


def test_attention_equals_opennmt():
    """OpenNMT-py 3.5.1 returns the first head of the last layer."""
    file = json.loads((DATA / "references/onmt351_transformer.opennmt-3.json").read_text())
    translator = Translator.from_pretrained(
        DATA / "onmt351_transformer.pt", device="cpu", precision="fp32"
    )
    rows = file["attention"]["rows"]
    lines = file["sources"][: len(rows)]
    chosen = dict(report_align=True, alignment_layer=-1, alignment_heads=1)
    found = translator.translate(
        lines, search="opennmt-3", n_best=2, length_penalty="none", **chosen
    )
    n = 0
    for translation, row in zip(found, rows):
        for hyp, theirs in zip(translation.hyps, row):
            if hyp.text == theirs["text"]:
                weights = theirs["attn"][: len(hyp.tokens)]
                pairs = [(max(range(len(w)), key=w.__getitem__), t) for t, w in enumerate(weights)]
                assert hyp.align == sorted(pairs)
                n += 1
    assert n >= len(rows)


class TestReportAlign:
    def test_align_is_source_with_largest_weight(self, translator):
        """Only tokens of the line; the end token does not count."""
        checkpoint = translator.checkpoint
        found = translator.translate(LINES, report_align=True, n_best=2, alignment_layer=1)
        for translation in found:
            for hyp in translation.hyps:
                ids = [checkpoint.tgt_vocab.ids[token] for token in hyp.tokens]
                src = [checkpoint.src_vocab.ids[token] for token in translation.src_tokens]
                assert not ids or len(hyp.align) == len(ids)
                if ids and src:
                    read = [checkpoint.start_id, *ids[:-1]]
                    src += checkpoint.src_end
                    weights = compute_attention(translator.model, src, read, 1).mean(0)
                    best = weights[:, : len(translation.src_tokens)].argmax(1).tolist()
                    assert hyp.align == sorted((s, t) for t, s in enumerate(best))

    def test_align_does_not_depend_on_batch_or_search(self, translator):
        given = dict(report_align=True, beam_size=3)
        together = translator.translate(LINES, **given)
        apart = [translator.translate([line], **given)[0] for line in LINES]
        searched = translator.translate(LINES, **given, search="fairseq")
        for one, other, third in zip(together, apart, searched):
            assert one.hyps[0].align == other.hyps[0].align
            if one.hyps[0].tokens == third.hyps[0].tokens:
                assert one.hyps[0].align == third.hyps[0].align

    def test_report_align_does_not_change_translation(self, translator):
        plain = translator.translate(LINES, n_best=2)
        assert [h for t in plain for h in t.hyps if h.align is not None] == []
        for one, other in zip(plain, translator.translate(LINES, n_best=2, report_align=True)):
            assert [h.text for h in one.hyps] == [h.text for h in other.hyps]
            assert [h.score for h in one.hyps] == [h.score for h in other.hyps]

    def test_alignment_layer_out_of_range_is_rejected(self, translator):
        with pytest.raises(OptionError, match="alignment_layer=2: the decoder does not have"):
            translator.translate(LINES, report_align=True, alignment_layer=2)

    def test_report_align_out_of_memory_runs_smaller_batches(self, translator, monkeypatch):
        """Examples that do not fit at once are aligned in parts."""
        given, sizes = Runner._score_inputs, []

        def limited(self, part):
            sizes.append(len(part))
            if sizes[-1] > 1:
                raise MemoryError
            return given(self, part)

        expected = [t.hyps[0].align for t in translator.translate(LINES, report_align=True)]
        monkeypatch.setattr(Runner, "_score_inputs", limited)
        monkeypatch.setattr(translator.pipeline.runner.align_retry, "max_size", math.inf)
        found = translator.translate(LINES, report_align=True)
        assert [t.hyps[0].align for t in found] == expected
        assert sizes[0] > 1 and sizes[-1] == 1


@pytest.fixture
def run(tiny_checkpoint, tmp_path, capfd):
    def run_once(lines: list[str], *argv: str) -> list[str]:
        src = tmp_path / "src.txt"
        src.write_text("\n".join(lines) + "\n", "utf-8")
        words = ["-model", str(tiny_checkpoint), "-src", str(src), "-device", "cpu", "-quiet"]
        assert translate.main([*words, *argv]) == 0
        return capfd.readouterr().out.splitlines()

    return run_once


def pairs(text: str) -> list[list[int]]:
    return [[*map(int, pair.split("-"))] for pair in text.split()]


class TestReportAlignFormats:
    def test_report_align_jsonl(self, run):
        records = [*map(json.loads, run(LINES, "-report_align", "-output_format", "jsonl"))]
        for record in records:
            for hyp in record["hyps"]:
                assert hyp["align"] == sorted(hyp["align"])
                assert sorted(t for _, t in hyp["align"]) == [*range(len(hyp["tokens"]))]
                assert all(0 <= s < len(record["src_tokens"]) for s, _ in hyp["align"])
        assert records[1]["src_tokens"] == records[1]["hyps"][0]["align"] == []

    def test_report_align_text_counts_words(self, run):
        options = ("-report_align", "-n_best", "2")
        lines = run(LINES, *options)
        records = [*map(json.loads, run(LINES, *options, "-output_format", "jsonl"))]
        for record in records:
            source = word_indices(record["src_tokens"])
            for hyp in record["hyps"]:
                text, found = lines.pop(0).split(" ||| ")
                target = word_indices(hyp["tokens"])
                expected = sorted({(source[s], target[t]) for s, t in hyp["align"]})
                assert (text, pairs(found)) == (hyp["text"], [*map(list, expected)])
            if len(record["hyps"]) == 1:  # an empty line
                assert lines.pop(0) == " ||| "
        assert not lines

    def test_report_align_moses_fifth_field_and_text_score(self, run):
        texts = run(LINES, "-report_align", "-with_score")
        moses = run(LINES, "-report_align", "-output_format", "moses")
        columns = run(LINES, "-report_align", "-output_format", "tsv")
        assert [row.split("\t")[5] for row in columns] == [row.split(" ||| ")[4] for row in moses]
        for i, (text, row) in enumerate(zip(texts, moses, strict=True)):
            first, *score = text.split("\t")
            number, words, _, total, found = row.split(" ||| ")
            assert first == f"{words} ||| {found}" and number == str(i)
            assert score == [total] * bool(words)

    def test_report_align_counts_tokens_of_tokenized_lines(self, run):
        options = ("-report_align", "-tokenizer", "space")
        lines = run(["▁der ▁hund"], *options)
        (record,) = map(json.loads, run(["▁der ▁hund"], *options, "-output_format", "jsonl"))
        (text, found), hyp = lines[0].split(" ||| "), record["hyps"][0]
        assert (text.split(), pairs(found)) == (hyp["tokens"], hyp["align"])


def word_indices(tokens: list[str]) -> list[int]:
    """Return the word index of each token; a single spacer belongs to the next token."""
    texts = ["".join(tokens[:n]).replace("▁", " ") for n in range(1, len(tokens) + 1)]
    n_words = [len(text.split()) - (not text.endswith(" ")) for text in texts]
    return [min(n, len(texts[-1].split()) - 1) for n in n_words]


def test_attn_debug(translator):
    """First head of the last layer: a row for each token and the end; a star marks the maximum."""
    (found,) = translator.translate(LINES[:1], report_align=True, attn_debug=True)
    head, *rows = found.attn_table
    assert head.split() == found.src_tokens
    best = found.hyps[0]
    assert [row.split()[0] for row in rows] == [*best.tokens, "</s>"][: len(best.token_log_probs)]
    checkpoint = translator.checkpoint
    src = [checkpoint.src_vocab.ids[token] for token in found.src_tokens]
    read = [checkpoint.start_id, *best.ids][: len(rows)]
    weights = compute_attention(translator.model, [*src, *checkpoint.src_end], read, 1)[0]
    for row, own in zip(rows, weights[:, : len(src)].tolist()):
        cells = row.split()[1:]
        assert [float(cell.strip("*")) for cell in cells] == pytest.approx(own, abs=1e-5)
        assert cells[own.index(max(own))].startswith("*")


def test_gold_align(run, tmp_path):
    """If the reference is the translation, it is aligned like the translation."""
    (own,) = map(json.loads, run(LINES[:1], "-report_align", "-output_format", "jsonl"))
    (tmp_path / "tgt").write_text(own["hyps"][0]["text"] + "\n", "utf-8")
    options = ("-report_align", "-gold_align", "-tgt", str(tmp_path / "tgt"))
    (record,) = map(json.loads, run(LINES[:1], *options, "-output_format", "jsonl"))
    assert record["hyps"] == own["hyps"]
    assert all(s < len(record["src_tokens"]) for s, _ in record["gold_align"])
    (line,) = run(LINES[:1], *options)
    assert {t for _, t in pairs(line.split(" ||| ")[1])} == {
        *range(len(record["hyps"][0]["text"].split()))
    }


def test_report_align_counts_words_of_masked_line():
    """Masked spans count as words of the line."""
    translator = Translator.from_pretrained(device="cpu", threads=1, report_align=True)
    with_items, without = "🙂 Das kostet {n} Euro 🙂 in Berlin.", "Das kostet 14 Euro in Berlin."
    pairs = []
    for line in (with_items, without):
        (found,) = translator.translate([line])
        src, tgt = line.split(), found.text.split()
        pairs.append({(src[i], tgt[j]) for i, j in found.hyps[0].word_align})
    assert {("Euro", "euros"), ("Berlin.", "Berlin.")} <= pairs[0] & pairs[1]
    assert not any(word == "🙂" for word, _ in pairs[0])
