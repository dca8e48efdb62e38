"""Makes the models of tests/data/families with transformers, and records its output.

    python -m tests.exactness.peers.make_families CORPUS.tsv      (transformers 4.46.3, then 5.23.0)

The first run makes models with random weights and small sentencepiece models, trained on the first
column of CORPUS.  Each run records n-best lists for a grid of settings.
"""

import csv
import json
import sys
from itertools import islice
from pathlib import Path

import sentencepiece as spm
import torch
import transformers as hf

ROOT = Path(__file__).resolve().parents[2] / "data" / "families"
OLD = hf.__version__.startswith("4.")
SIZES = dict(d_model=16, encoder_layers=2, decoder_layers=1, encoder_ffn_dim=32, decoder_ffn_dim=24)
SIZES |= dict(encoder_attention_heads=2, decoder_attention_heads=4, max_position_embeddings=64)
SIZES |= dict(init_std=0.4, dropout=0.0, attention_dropout=0.0)
T5 = dict(d_model=16, d_kv=6, d_ff=24, num_layers=2, num_decoder_layers=1, num_heads=2)
T5 |= dict(relative_attention_num_buckets=8, relative_attention_max_distance=12)
LINES = [
    "Das Haus steht in Flammen!",
    "Ich habe heute Abend eine Menge zu tun.",
    "a",
    "ﬁne  ligature, 100 % ½ – und 你好 😀",
    "Wann passt es euch?",
]
MAX = 14
CASES = [
    dict(num_beams=4),
    dict(num_beams=4, length_penalty=0.0),
    dict(num_beams=3, length_penalty=2.0, early_stopping="never"),
    dict(num_beams=4, early_stopping=True),
    dict(num_beams=4, max_length=6),
    dict(num_beams=4, min_length=9, no_repeat_ngram_size=2),
    dict(num_beams=3, no_repeat_ngram_size=1),
    dict(num_beams=4, repetition_penalty=1.5),
    dict(num_beams=1, repetition_penalty=1.5),
]
GROUPS = [dict(num_beams=4, num_beam_groups=2, diversity_penalty=0.7)]


def train_sentencepiece(corpus, path, vocab_size, model_type, **options):
    """Train a sentencepiece model.

    Args:
        corpus: TSV file with text in the first column.
        path: where to write the model.
        vocab_size: size of its vocabulary.
        model_type: `unigram` or `bpe`.
        options: further options of the trainer.
    """
    lines = iter([row[0] for row in islice(csv.reader(open(corpus), delimiter="\t"), 2000)])
    with open(path, "wb") as out:
        spm.SentencePieceTrainer.train(
            sentence_iterator=lines, model_writer=out, vocab_size=vocab_size, model_type=model_type,
            character_coverage=0.985, hard_vocab_limit=False, minloglevel=2, num_threads=1,
            **options,
        )  # fmt: skip


def make_model(name, corpus):
    """Make the directory of a model."""
    path = ROOT / name
    path.mkdir(parents=True, exist_ok=True)
    plain = dict(normalization_rule_name="identity")
    torch.manual_seed(len(name))
    if name == "m2m":
        train_sentencepiece(corpus, path / "sentencepiece.bpe.model", 90, "unigram")
        processor = spm.SentencePieceProcessor(model_file=str(path / "sentencepiece.bpe.model"))
        words = [processor.id_to_piece(i) for i in range(3, processor.vocab_size() - 3)][::-1]
        vocab = {w: i for i, w in enumerate(["<s>", "<pad>", "</s>", "<unk>", *words])}
        (path / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False))
        files = [str(path / n) for n in ("vocab.json", "sentencepiece.bpe.model")]
        tokenizer = hf.M2M100Tokenizer(*files, src_lang="de")
        config = hf.M2M100Config(vocab_size=len(vocab) + 108, **SIZES)
        model = hf.M2M100ForConditionalGeneration(config)
    elif name == "nllb":
        train_sentencepiece(corpus, path / "x.model", 90, "bpe", **plain)
        tokenizer = hf.NllbTokenizer(str(path / "x.model"), src_lang="deu_Latn")
        config = hf.M2M100Config(vocab_size=len(tokenizer), **SIZES)
        model = hf.M2M100ForConditionalGeneration(config)
    elif name in ("mbart50", "mbart25"):
        train_sentencepiece(corpus, path / "x.model", 90, "unigram", **plain)
        cls = hf.MBart50Tokenizer if name == "mbart50" else hf.MBartTokenizer
        tokenizer = cls(str(path / "x.model"), src_lang="de_DE")
        config = hf.MBartConfig(vocab_size=len(tokenizer), activation_function="gelu", **SIZES)
        config.scale_embedding, config.decoder_start_token_id = True, 2
        model = hf.MBartForConditionalGeneration(config)
        model.final_logits_bias.normal_(std=0.5)
        if name == "mbart25":
            target = tokenizer.convert_tokens_to_ids("en_XX")
            model.generation_config.decoder_start_token_id = target
    else:
        ids = dict(unk_id=2, pad_id=0, eos_id=1, bos_id=-1)
        if name == "madlad":
            ids = dict(unk_id=0, bos_id=1, eos_id=2, byte_fallback=True)
            ids |= dict(user_defined_symbols=["<2de>", "<2en>"])
        size = 90 if name == "t5" else 350
        train_sentencepiece(corpus, path / "x.model", size, "unigram", **ids, **plain)
        extra = dict(pad_token="<s>") if name == "madlad" else {}
        n = 100 if name == "t5" else 0
        tokenizer = hf.T5Tokenizer(str(path / "x.model"), extra_ids=n, legacy=True, **extra)
        special = dict(decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)
        if name == "madlad":
            special = dict(decoder_start_token_id=0, pad_token_id=1, eos_token_id=2)
            special |= dict(tie_word_embeddings=False, feed_forward_proj="gated-gelu")
        config = hf.T5Config(vocab_size=len(tokenizer) + 3, initializer_factor=1.0, **T5, **special)
        model = hf.T5ForConditionalGeneration(config)
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.data.normal_(std=0.5)
    for key, weight in model.named_parameters():
        if weight.dim() == 1:
            weight.data += torch.randn_like(weight) * 0.3
        if key.endswith(("dec_norm.weight", "decoder.layer_norm.weight")):
            weight.data *= 1.5
    model.eval().save_pretrained(path)
    tokenizer.save_pretrained(path)
    (path / "x.model").unlink(missing_ok=True)
    if name != "m2m":
        fast = hf.AutoTokenizer.from_pretrained(path)
        fast.backend_tokenizer.save(str(path / "tokenizer.json"), pretty=False)


PREFIXES = {"t5": "translate German to English: ", "madlad": "<2en> "}
TARGETS = {"m2m": "en", "nllb": "eng_Latn", "mbart50": "en_XX", "mbart25": "en_XX"}


def record_output(name):
    """Record source IDs, n-best lists and teacher-forced scores."""
    path = ROOT / name
    model = hf.AutoModelForSeq2SeqLM.from_pretrained(path).double().eval()
    target = TARGETS.get(name)
    options = dict(tgt_lang=target) if target else {}
    options |= dict(use_fast=False) if OLD else {}
    tokenizer = hf.AutoTokenizer.from_pretrained(path, **options)
    old_file = ROOT / "references" / f"{name}.transformers.json"
    sources = [PREFIXES.get(name, "") + line for line in LINES]
    if OLD:
        ids = [tokenizer(line)["input_ids"] for line in sources]
    else:
        ids = json.loads(old_file.read_text())["source_ids"]
    forced = None
    if name in ("m2m", "nllb", "mbart50"):
        forced = tokenizer.convert_tokens_to_ids(f"__{target}__" if name == "m2m" else target)
    pad, width = model.config.pad_token_id, max(map(len, ids))
    batch = torch.tensor([i + [pad] * (width - len(i)) for i in ids])
    mask = torch.tensor([[1] * len(i) + [0] * (width - len(i)) for i in ids])
    cases = []
    for settings in CASES + GROUPS * OLD:
        model.to(torch.float32 if settings in GROUPS else torch.float64)  # beam groups need float32
        settings = dict(max_length=MAX, early_stopping=False) | settings
        k = settings["num_beams"]
        output = model.generate(
            batch, attention_mask=mask, num_return_sequences=k, forced_bos_token_id=forced,
            do_sample=False, output_scores=True, return_dict_in_generate=True, **settings,
        )  # fmt: skip
        # Greedy search returns no scores
        scores = output.sequences_scores.tolist() if k > 1 else [None] * len(ids)
        hyps = [
            {"ids": row.tolist(), "score": score and round(score, 6)}
            for row, score in zip(output.sequences, scores)
        ]
        rows = [hyps[i : i + k] for i in range(0, len(hyps), k)]
        cases.append({"settings": settings, "rows": rows})
    model.double()
    targets = LINES[::-1]
    start = model.generation_config.decoder_start_token_id
    gold = []
    for i, line in zip(ids, targets):
        if target:
            tokenizer.tgt_lang = target
        labels = tokenizer(text_target=line)["input_ids"] if OLD else []
        special = {*tokenizer.all_special_ids, forced, start} - {tokenizer.unk_token_id}
        labels = [x for x in labels if x not in special] + [model.config.eos_token_id]
        forced_ids = [start] if forced is None else [start, forced]
        decoder_ids = torch.tensor([[*forced_ids, *labels[:-1]]])
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([i]), decoder_input_ids=decoder_ids).logits
        logp = logits.log_softmax(2)[0, len(forced_ids) - 1 :]
        gold.append(sum(float(logp[t, y]) for t, y in enumerate(labels)))
    table = dict(peer=f"transformers {hf.__version__}", model=name, target=target)
    table |= dict(sources=sources, source_ids=ids, start=start, forced=forced, cases=cases)
    table |= dict(targets=targets, gold=gold) if OLD else {}
    out = old_file if OLD else ROOT / "references" / f"{name}.transformers-5.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(table, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    for name in ["m2m", "nllb", "mbart50", "mbart25", "t5", "madlad"]:
        if OLD:
            make_model(name, sys.argv[1])
        record_output(name)
