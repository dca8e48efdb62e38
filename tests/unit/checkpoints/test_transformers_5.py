"""Directories with conflicting or unusual files, compared with transformers 5.

`data/families/transformers_5.json` has its token IDs, texts and outputs
(`peers/make_transformers_5.py`).
"""

import json

import pytest
import torch

from onmt_lite import Translator
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.text.lines import make_lines_from_texts
from tests.exactness.peers import make_transformers_5 as peer

REFERENCE = json.loads(peer.FILE.read_text("utf-8"))
IDS = {f"{case['model']}-{case['layout']}": case for case in REFERENCE["ids"]}
CONFLICTS = {f"{case['row'][0]}-{i}": case for i, case in enumerate(REFERENCE["conflicts"])}


def load(path, target, **options):
    settings = dict(device="cpu", precision="fp32", threads=1, **options)
    return Translator.from_pretrained(path, **settings | (dict(tgt_lang=target) if target else {}))


def encode_sources(translator, lines):
    make = translator.pipeline.preprocessor.make_example
    direction = translator.pipeline.direction(translator.options)
    return [make(line, direction=direction).src_ids for line in make_lines_from_texts(lines, "x")]


@pytest.mark.parametrize("case", IDS.values(), ids=IDS)
def test_source_ids_added_tokens_in_every_layout_equal_transformers(case, tmp_path):
    path = peer.write_layout(case["model"], case["layout"], tmp_path, REFERENCE["charsmap"])
    ids = encode_sources(load(path, peer.FAMILIES[case["model"]]), case["lines"])
    wrong = [x for x in zip(case["lines"], ids, case["ids"]) if x[1] != x[2]]
    assert wrong == []


@pytest.mark.parametrize("case", REFERENCE["texts"], ids=lambda case: str(case["settings"]))
def test_marian_text_any_ids_equals_transformers(case, tmp_path):
    path = peer.write_layout("marian", "saved", tmp_path)
    peer.write_json(path / "target_vocab.json", peer.read_json(path / "vocab.json"))
    settings = peer.read_json(path / "tokenizer_config.json") | case["settings"]
    peer.write_json(path / "tokenizer_config.json", settings)
    checkpoint = load_checkpoint(path)
    decode = checkpoint.tokenizers["sentencepiece"].decode
    texts = [decode(checkpoint.tgt_vocab.decode(ids)) for ids in peer.generate_sequences(120)]
    assert texts == case["texts"]


@pytest.mark.parametrize("case", CONFLICTS.values(), ids=CONFLICTS)
def test_output_conflicting_configs_equals_transformers(case, tmp_path):
    path, target = peer.write_conflict(case["row"], tmp_path), peer.get_target(case["row"])
    translator = load(path, target, search="transformers-5")
    checkpoint, expected = translator.checkpoint, case["rows"]
    assert encode_sources(translator, case["sources"]) == [ids for ids, _ in expected]
    eos, n_forced = checkpoint.eos_id, checkpoint.count_forced_tokens("")
    for translation, (_, returned) in zip(translator.translate(case["sources"]), expected):
        ids = returned[1 + n_forced :]
        ended = eos in ids
        ids = ids[: ids.index(eos)] if ended else ids
        best = translation.hyps[0]
        assert (best.tokens, best.ended) == (checkpoint.tgt_vocab.decode(ids), ended)


@pytest.mark.parametrize("case", REFERENCE["mt5"], ids=lambda case: f"head-{case['head']}")
def test_mt5_shared_table_is_head_equals_transformers(case, tmp_path):
    model = load_checkpoint(peer.write_tied_mt5(tmp_path, case["head"])).model
    memory = model.encode(torch.tensor([case["src"]]), torch.tensor([len(case["src"])]))
    logits = model.forward(memory, torch.tensor([[0, 5, 6, 7]]))[0, :, :20]
    torch.testing.assert_close(logits, torch.tensor(case["logits"]), atol=1e-4, rtol=1e-4)
