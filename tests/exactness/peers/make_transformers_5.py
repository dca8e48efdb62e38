"""Records what transformers 5 makes of directories whose files disagree or are laid out otherwise.

    python -m tests.exactness.peers.make_transformers_5      (transformers 5.24.0)

Writes `tests/data/families/transformers_5.json`. `lay_out` changes a copy of a directory of
tests/data, here and in the tests.
"""

import json
import random
import shutil
import tempfile
from pathlib import Path

import sentencepiece

ROOT = Path(__file__).resolve().parents[2] / "data"
FILE = ROOT / "families" / "transformers_5.json"
FAMILIES = {"m2m": "en", "nllb": "eng_Latn", "mbart50": "en_XX", "mbart25": "en_XX"}
FAMILIES |= {"t5": "", "madlad": "", "marian": ""}
PIECES = ("sentencepiece.bpe.model", "spiece.model")
FEW = ("tokenizer_class", "src_lang", "extra_ids", "eos_token", "pad_token", "unk_token")
WORDS = "Das Haus ist da und wir gehen ein aus es".split()
SPECIAL = "</s> <s> <pad> <unk> <mask> <extra_id_0> <extra_id_12> eng_Latn deu_Latn en_XX de_DE"
SPECIAL += " __de__ __en__ >>fra<< >>xyz<< <2en> > < _ ａ＜mask＞"
# Layouts of files about tokens; not all families have all of them
LAYOUTS = ("saved", "listed", "fast", "saved5", "legacy", "normalized", "words", "extra")
TOO_FEW = {  # what transformers 5 itself does not read, or not as the model was made
    "m2m": ("fast", "saved5", "normalized"),
    "marian": ("fast", "saved5", "normalized", "legacy"),
    "madlad": ("fast", "saved5", "normalized", "legacy", "extra"),
    "mbart25": ("normalized",),
    "nllb": ("extra",),
}
MORE_TOKENS = {  # in place of pieces of a Marian vocabulary
    "▁w100": ">>fra<<", "▁w101": ">>deu_Latn<<", "▁w102": "▁nicht", "▁w103": "Haus▁x",
    "▁w104": "▁.", "▁w105": "▁n't", "▁w106": "▁?", "▁w107": "▁'", "▁w108": "▁", "▁w109": "<s>",
}  # fmt: skip
# Values in config.json and generation_config.json, by family
DISAGREEING = [
    ("mbart50", dict(decoder_start_token_id=2), dict(decoder_start_token_id=0)),
    ("mbart50", dict(decoder_start_token_id=0), dict(decoder_start_token_id=2)),
    ("mbart50", dict(decoder_start_token_id=5), dict(decoder_start_token_id=None, bos_token_id=0)),
    ("mbart50", dict(forced_bos_token_id=94), dict(forced_bos_token_id=92)),
    ("mbart50", dict(pad_token_id=1), dict(pad_token_id=0)),
    ("mbart50", dict(eos_token_id=2), dict(eos_token_id=30, forced_eos_token_id=30)),
    ("mbart50", dict(forced_eos_token_id=None), dict(forced_eos_token_id=2)),
    ("mbart50", dict(bad_words_ids=[[7]]), dict(bad_words_ids=[[8], [20], [33, 4]])),
    ("t5", dict(decoder_start_token_id=0), dict(decoder_start_token_id=5)),
    ("t5", dict(eos_token_id=1), dict(eos_token_id=20)),
    ("t5", dict(eos_token_id=1, pad_token_id=0), dict(eos_token_id=[33], pad_token_id=1)),
    ("t5", dict(max_length=5, num_beams=4), dict(max_length=9, num_beams=2)),
    ("m2m", dict(decoder_start_token_id=2), dict(decoder_start_token_id=0)),
    ("m2m", dict(eos_token_id=2), dict(eos_token_id=40)),
    ("m2m", dict(length_penalty=0.0), dict(length_penalty=2.0, suppress_tokens=[9])),
    ("nllb", dict(decoder_start_token_id=2), dict(decoder_start_token_id=7)),
    ("mbart25", dict(decoder_start_token_id=2), dict(decoder_start_token_id=95)),
    ("marian", dict(decoder_start_token_id=119), dict(decoder_start_token_id=7)),
    ("marian", dict(eos_token_id=0, forced_eos_token_id=0), dict(eos_token_id=30)
     | dict(forced_eos_token_id=30)),
    ("marian", dict(no_repeat_ngram_size=1), dict(no_repeat_ngram_size=2)),
]  # fmt: skip


def folder(model):
    return ROOT / ("checkpoints/hf/marian" if model == "marian" else f"families/{model}")


def read(path):
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def write(path, table):
    path.write_text(json.dumps(table, ensure_ascii=False), "utf-8")


def lay_out(model, layout, path, charsmap=""):
    """Copy a directory with its added tokens in other files. charsmap: a normalizer in base64."""
    shutil.copytree(folder(model), path, dirs_exist_ok=True)
    settings, fast = (read(path / name) for name in ("tokenizer_config.json", "tokenizer.json"))
    gone = {
        "listed": ("tokenizer.json", "added_tokens.json", "special_tokens_map.json"),
        "fast": (*PIECES, "added_tokens.json", "special_tokens_map.json"),
        "legacy": ("tokenizer.json",),
        "extra": ("tokenizer.json", "added_tokens.json"),
    }
    gone["saved5"] = gone["normalized"] = gone["fast"]
    for name in gone.get(layout, ()):
        (path / name).unlink(missing_ok=True)
    if layout in ("fast", "legacy", "extra"):
        settings = {name: settings[name] for name in FEW if name in settings}
    if layout in ("saved5", "normalized"):
        charsmap = charsmap if layout == "normalized" else ""
        fast["normalizer"], settings = as_saved_by_5(fast, settings, charsmap)
        write(path / "tokenizer.json", fast)
    if layout == "words":  # pieces that are words of the user, with all flags
        ids, all_flags = token_ids(path), ("lstrip", "rstrip", "normalized", "single_word")
        if model in ("m2m", "marian"):
            all_flags = all_flags[:3]  # its tokenizer cuts single words out of others
        for flags, text in zip(all_flags, user_words(ids)):
            token = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            token |= dict(content=text, special=False) | {flags: True}
            settings.setdefault("added_tokens_decoder", {})[str(ids[text])] = token
    if layout == "extra":
        special = read(path / "special_tokens_map.json")
        if model == "m2m":
            codes = read(path / "vocab.json")
            special["additional_special_tokens"] = ["__af__", "__am__", "__ar__"]
            assert not {*special["additional_special_tokens"]} & {*codes}
        write(path / "special_tokens_map.json", special)
    write(path / "tokenizer_config.json", settings)
    if model == "marian":
        ids = read(path / "vocab.json")
        write(path / "vocab.json", {MORE_TOKENS.get(token, token): i for token, i in ids.items()})
    return path


def as_saved_by_5(fast, settings, charsmap):
    """The normalizer and tokenizer_config.json as transformers 5 saves them."""
    kept = {n: v for n, v in settings.items() if n != "added_tokens_decoder"}
    kept["extra_special_tokens"] = kept.pop("additional_special_tokens", [])
    steps = [{"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]
    if charsmap:
        steps.insert(0, {"type": "Precompiled", "precompiled_charsmap": charsmap})
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    split = {"type": "WhitespaceSplit"}
    if settings["tokenizer_class"].startswith(("T5", "MBartT")):
        fast["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, metaspace]}
    else:
        fast["pre_tokenizer"] = metaspace
    return {"type": "Sequence", "normalizers": steps}, kept


def token_ids(path):
    if ids := read(path / "vocab.json"):
        return ids
    first = 1 if (path / "sentencepiece.bpe.model").exists() else 0  # as in fairseq
    name = next(name for name in PIECES if (path / name).exists())
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(path / name))
    return {pieces.id_to_piece(i): i + first for i in range(4, len(pieces))}


def user_words(ids):
    """Four tokens that occur in the lines."""
    return [token for token in ids if "▁" not in token and token in "".join(WORDS)][-4:]


def lines_of(model, seed, words=()):
    rng, tokens = random.Random(f"{model} {seed}"), [*SPECIAL.split(), *words]
    own = {"marian": ["w37", "w3", "w90", "w100"]}.get(model, WORDS)
    if model == "madlad":  # transformers 5 reads no bytes
        tokens = ["</s>", "<s>", "<unk>", "<2en>", *words]
    lines = []
    for _ in range(40):
        parts = [
            rng.choice(own if rng.random() < 0.5 else tokens) for _ in range(rng.randint(1, 6))
        ]
        lines.append("".join(part + rng.choice(["", " ", " "]) for part in parts).rstrip())
    more = [" </s> a", "</s> </s>"]
    if model != "madlad":
        more += ["<mask>", " <mask> a", "<extra_id_0> a <extra_id_1> b <pad>"]
    return [line for line in [*lines, *more] if line != ">>fra<<"]  # a line without text


def sequences(n_tokens, n=150):
    rng = random.Random(n_tokens)
    return [[rng.randrange(n_tokens) for _ in range(rng.randint(1, 12))] for _ in range(n)]


def small_charsmap(path):
    """The table of a normalizer that knows a few characters, in base64."""
    import base64

    from sentencepiece import sentencepiece_model_pb2

    rules = {"ａ": "a", "＜": "<", "＞": ">", "\t": " ", "\u3000": " ", "ﬁ": "fi"}
    codes = ["\t".join(" ".join(f"{ord(c):X}" for c in x) for x in rule) for rule in rules.items()]
    (path / "rules.tsv").write_text("\n".join(codes) + "\n", "utf-8")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(WORDS), model_prefix=str(path / "x"), vocab_size=30,
        hard_vocab_limit=False, normalization_rule_tsv=str(path / "rules.tsv"), minloglevel=2,
    )  # fmt: skip
    model = sentencepiece_model_pb2.ModelProto.FromString((path / "x.model").read_bytes())
    return base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()


def disagree(row, path):
    """Copy a directory with other values in its two configurations."""
    model, own, said = row
    shutil.copytree(folder(model), path, dirs_exist_ok=True)
    base = dict(num_beams=3, max_length=12)
    for name, values in (("config.json", own), ("generation_config.json", base | said)):
        table = read(path / name) | values | dict(_from_model_config=False)
        write(path / name, {key: value for key, value in table.items() if value is not None})
    return path


def tied_mt5(path, head=False):
    """A T5 that says it is an mT5, as transformers 5 saves one: without a head of its own."""
    from onmt_lite.checkpoints import safetensors

    shutil.copytree(folder("t5"), path, dirs_exist_ok=True)
    config = read(path / "config.json") | dict(model_type="mt5", tie_word_embeddings=True)
    write(path / "config.json", config | dict(architectures=["MT5ForConditionalGeneration"]))
    weights = safetensors.read(path / "model.safetensors")
    weights.pop("lm_head.weight", None)
    if head:
        weights["lm_head.weight"] = weights["shared.weight"].clone()
    (path / "model.safetensors").write_bytes(safetensors.dump(weights))
    return path


def target_of(row):
    """The code of the target language, "" if the files say it."""
    model, _, said = row
    files_say = model == "mbart25" or "forced_bos_token_id" in said
    return "" if files_say else FAMILIES[model]


def generated(path, row, sources):
    """What `generate` returns for each line, by its defaults and the target language alone."""
    import torch
    import transformers as hf

    tokenizer = hf.AutoTokenizer.from_pretrained(path)
    loaded = hf.AutoModelForSeq2SeqLM.from_pretrained(path).double().eval()
    forced = {}
    if code := target_of(row):
        token = f"__{code}__" if row[0] == "m2m" else code
        forced = dict(forced_bos_token_id=tokenizer.convert_tokens_to_ids(token))
    rows = []
    for line in sources:
        ids = torch.tensor([tokenizer(line)["input_ids"]])
        rows.append([ids[0].tolist(), loaded.generate(ids, **forced)[0].tolist()])
    return rows


def main():
    import torch
    import transformers as hf

    hf.logging.set_verbosity_error()
    found = {"peer": f"transformers {hf.__version__}"}
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        found["charsmap"] = charsmap = small_charsmap(work)
        found["ids"] = []
        for model in FAMILIES:
            for layout in LAYOUTS:
                if layout in TOO_FEW.get(model, ()):
                    continue
                path = lay_out(model, layout, work / f"{model}-{layout}", charsmap)
                tokenizer = hf.AutoTokenizer.from_pretrained(path)
                words = user_words(token_ids(folder(model))) if layout == "words" else ()
                lines = lines_of(model, layout, words)
                if layout == "normalized":
                    lines += ["Das  ＜mask＞ Haus", "ein </s>\u3000 da\t<mask>", "＜mask＞＜mask＞"]
                ids = [tokenizer(line)["input_ids"] for line in lines]
                found["ids"].append(dict(model=model, layout=layout, lines=lines, ids=ids))
        found["texts"] = []
        for settings in ({}, dict(clean_up_tokenization_spaces=True), dict(separate_vocabs=True)):
            path = lay_out("marian", "saved", work / "texts")
            write(path / "target_vocab.json", read(path / "vocab.json"))
            write(path / "tokenizer_config.json", read(path / "tokenizer_config.json") | settings)
            tokenizer = hf.AutoTokenizer.from_pretrained(path)
            texts = [tokenizer.decode(x, skip_special_tokens=True) for x in sequences(120)]
            found["texts"].append(dict(settings=settings, texts=texts))
        found["disagreeing"] = []
        for i, row in enumerate(DISAGREEING):
            path = disagree(row, work / f"disagreeing{i}")
            model = row[0]
            sources = ["w37 w3 w90", "w17 w0"] if model == "marian" else ["Das Haus", "Wir gehen"]
            rows = generated(path, row, sources)
            found["disagreeing"].append(dict(row=row, sources=sources, rows=rows))
        found["mt5"] = []
        for head in (False, True):
            path = tied_mt5(work / f"mt5{head}", head)
            loaded = hf.AutoModelForSeq2SeqLM.from_pretrained(path).double().eval()
            ids = hf.AutoTokenizer.from_pretrained(path)("Das Haus")["input_ids"]
            fed = torch.tensor([[0, 5, 6, 7]])
            logits = loaded(input_ids=torch.tensor([ids]), decoder_input_ids=fed).logits[0]
            found["mt5"].append(dict(head=head, src=ids, logits=logits[:, :20].tolist()))
    FILE.write_text(json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n", "utf-8")


if __name__ == "__main__":
    main()
