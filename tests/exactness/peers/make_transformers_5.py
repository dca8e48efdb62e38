"""Records the output of transformers 5 for directories with conflicting or unusual files.

    python -m tests.exactness.peers.make_transformers_5      (transformers 5.24.0)

Writes `tests/data/families/transformers_5.json`.  Here and in the tests, `write_layout` and
`write_conflict` change a copy of a directory of tests/data.
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
SUBWORD_MODELS = ("sentencepiece.bpe.model", "spiece.model")
BASIC_SETTINGS = ("tokenizer_class", "src_lang", "extra_ids", "eos_token", "pad_token", "unk_token")
WORDS = "Das Haus ist da und wir gehen ein aus es".split()
SPECIAL = "</s> <s> <pad> <unk> <mask> <extra_id_0> <extra_id_12> eng_Latn deu_Latn en_XX de_DE"
SPECIAL += " __de__ __en__ >>fra<< >>xyz<< <2en> > < _ ａ＜mask＞"
# Layouts of the tokenizer files; not all families support all of them
LAYOUTS = ("saved", "listed", "fast", "saved5", "legacy", "normalized", "words", "extra")
UNSUPPORTED = {  # layouts that transformers 5 cannot load, or loads as another model
    "m2m": ("fast", "saved5", "normalized"),
    "marian": ("fast", "saved5", "normalized", "legacy"),
    "madlad": ("fast", "saved5", "normalized", "legacy", "extra"),
    "mbart25": ("normalized",),
    "nllb": ("extra",),
}
RENAMED_TOKENS = {  # of a Marian vocabulary
    "▁w100": ">>fra<<", "▁w101": ">>deu_Latn<<", "▁w102": "▁nicht", "▁w103": "Haus▁x",
    "▁w104": "▁.", "▁w105": "▁n't", "▁w106": "▁?", "▁w107": "▁'", "▁w108": "▁", "▁w109": "<s>",
}  # fmt: skip
# Values in config.json and generation_config.json, by family
CONFLICTS = [
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


def get_directory(model):
    return ROOT / ("checkpoints/hf/marian" if model == "marian" else f"families/{model}")


def read_json(path):
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def write_json(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False), "utf-8")


def write_layout(model, layout, path, charsmap=""):
    """Copy a model directory, with its added tokens in other files.

    Args:
        model: name of the model.
        layout: one of LAYOUTS.
        path: the copy.
        charsmap: a normalizer in base64.
    """
    shutil.copytree(get_directory(model), path, dirs_exist_ok=True)
    settings, fast = (
        read_json(path / name) for name in ("tokenizer_config.json", "tokenizer.json")
    )
    removed = {
        "listed": ("tokenizer.json", "added_tokens.json", "special_tokens_map.json"),
        "fast": (*SUBWORD_MODELS, "added_tokens.json", "special_tokens_map.json"),
        "legacy": ("tokenizer.json",),
        "extra": ("tokenizer.json", "added_tokens.json"),
    }
    removed["saved5"] = removed["normalized"] = removed["fast"]
    for name in removed.get(layout, ()):
        (path / name).unlink(missing_ok=True)
    if layout in ("fast", "legacy", "extra"):
        settings = {name: settings[name] for name in BASIC_SETTINGS if name in settings}
    if layout in ("saved5", "normalized"):
        charsmap = charsmap if layout == "normalized" else ""
        fast["normalizer"], settings = convert_to_version_5(fast, settings, charsmap)
        write_json(path / "tokenizer.json", fast)
    if layout == "words":  # subwords as user-defined tokens, one per flag
        ids, all_flags = read_token_ids(path), ("lstrip", "rstrip", "normalized", "single_word")
        if model in ("m2m", "marian"):
            all_flags = all_flags[:3]  # this tokenizer also matches inside words
        for flags, text in zip(all_flags, pick_user_words(ids)):
            token = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            token |= dict(content=text, special=False) | {flags: True}
            settings.setdefault("added_tokens_decoder", {})[str(ids[text])] = token
    if layout == "extra":
        special = read_json(path / "special_tokens_map.json")
        if model == "m2m":
            codes = read_json(path / "vocab.json")
            special["additional_special_tokens"] = ["__af__", "__am__", "__ar__"]
            assert not {*special["additional_special_tokens"]} & {*codes}
        write_json(path / "special_tokens_map.json", special)
    write_json(path / "tokenizer_config.json", settings)
    if model == "marian":
        ids = read_json(path / "vocab.json")
        write_json(
            path / "vocab.json", {RENAMED_TOKENS.get(token, token): i for token, i in ids.items()}
        )
    return path


def convert_to_version_5(fast, settings, charsmap):
    """Return the normalizer and tokenizer_config.json as saved by transformers 5.

    Args:
        fast: tokenizer.json, whose pre_tokenizer is replaced.
        settings: tokenizer_config.json.
        charsmap: a normalizer in base64.
    """
    settings_5 = {n: v for n, v in settings.items() if n != "added_tokens_decoder"}
    settings_5["extra_special_tokens"] = settings_5.pop("additional_special_tokens", [])
    steps = [{"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]
    if charsmap:
        steps.insert(0, {"type": "Precompiled", "precompiled_charsmap": charsmap})
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    split = {"type": "WhitespaceSplit"}
    if settings["tokenizer_class"].startswith(("T5", "MBartT")):
        fast["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, metaspace]}
    else:
        fast["pre_tokenizer"] = metaspace
    return {"type": "Sequence", "normalizers": steps}, settings_5


def read_token_ids(path):
    """Read the token IDs of a directory."""
    if ids := read_json(path / "vocab.json"):
        return ids
    first = 1 if (path / "sentencepiece.bpe.model").exists() else 0  # as in fairseq
    name = next(name for name in SUBWORD_MODELS if (path / name).exists())
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path / name))
    return {processor.id_to_piece(i): i + first for i in range(4, len(processor))}


def pick_user_words(ids):
    """Pick four tokens that occur in the lines."""
    return [token for token in ids if "▁" not in token and token in "".join(WORDS)][-4:]


def generate_lines(model, seed, words=()):
    """Generate lines of words and special tokens.

    Args:
        model: name of the model.
        seed: random seed.
        words: user-defined tokens.
    """
    rng, tokens = random.Random(f"{model} {seed}"), [*SPECIAL.split(), *words]
    regular = {"marian": ["w37", "w3", "w90", "w100"]}.get(model, WORDS)
    if model == "madlad":  # no byte fallback in transformers 5
        tokens = ["</s>", "<s>", "<unk>", "<2en>", *words]
    lines = []
    for _ in range(40):
        parts = [
            rng.choice(regular if rng.random() < 0.5 else tokens) for _ in range(rng.randint(1, 6))
        ]
        lines.append("".join(part + rng.choice(["", " ", " "]) for part in parts).rstrip())
    extra = [" </s> a", "</s> </s>"]
    if model != "madlad":
        extra += ["<mask>", " <mask> a", "<extra_id_0> a <extra_id_1> b <pad>"]
    return [line for line in [*lines, *extra] if line != ">>fra<<"]  # a line without text


def generate_sequences(n_tokens, n=150):
    """Generate random token IDs."""
    rng = random.Random(n_tokens)
    return [[rng.randrange(n_tokens) for _ in range(rng.randint(1, 12))] for _ in range(n)]


def make_charsmap(path):
    """Make a normalizer for a few characters, in base64."""
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


def write_conflict(row, path):
    """Copy a model directory, with conflicting values in its two configuration files."""
    model, config, generation = row
    shutil.copytree(get_directory(model), path, dirs_exist_ok=True)
    base = dict(num_beams=3, max_length=12)
    for name, values in (("config.json", config), ("generation_config.json", base | generation)):
        table = read_json(path / name) | values | dict(_from_model_config=False)
        write_json(path / name, {key: value for key, value in table.items() if value is not None})
    return path


def write_tied_mt5(path, head=False):
    """Copy the T5 directory as a tied mT5 model, as saved by transformers 5.

    Args:
        path: the copy.
        head: whether the file contains the tied lm_head.
    """
    from onmt_lite.checkpoints import safetensors

    shutil.copytree(get_directory("t5"), path, dirs_exist_ok=True)
    config = read_json(path / "config.json") | dict(model_type="mt5", tie_word_embeddings=True)
    write_json(path / "config.json", config | dict(architectures=["MT5ForConditionalGeneration"]))
    weights = safetensors.read(path / "model.safetensors")
    weights.pop("lm_head.weight", None)
    if head:
        weights["lm_head.weight"] = weights["shared.weight"].clone()
    (path / "model.safetensors").write_bytes(safetensors.dump(weights))
    return path


def get_target(row):
    """Return the target language code, or "" if the files define the target language."""
    model, _, generation = row
    is_defined = model == "mbart25" or "forced_bos_token_id" in generation
    return "" if is_defined else FAMILIES[model]


def generate(path, row, sources):
    """Return the source IDs and the output of `generate` for each line.

    Args:
        path: the model.
        row: its row in CONFLICTS.
        sources: the lines.
    """
    import torch
    import transformers as hf

    tokenizer = hf.AutoTokenizer.from_pretrained(path)
    loaded = hf.AutoModelForSeq2SeqLM.from_pretrained(path).double().eval()
    forced = {}
    if code := get_target(row):
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
    reference = {"peer": f"transformers {hf.__version__}"}
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        reference["charsmap"] = charsmap = make_charsmap(work)
        reference["ids"] = []
        for model in FAMILIES:
            for layout in LAYOUTS:
                if layout in UNSUPPORTED.get(model, ()):
                    continue
                path = write_layout(model, layout, work / f"{model}-{layout}", charsmap)
                tokenizer = hf.AutoTokenizer.from_pretrained(path)
                words = (
                    pick_user_words(read_token_ids(get_directory(model)))
                    if layout == "words"
                    else ()
                )
                lines = generate_lines(model, layout, words)
                if layout == "normalized":
                    lines += ["Das  ＜mask＞ Haus", "ein </s>\u3000 da\t<mask>", "＜mask＞＜mask＞"]
                ids = [tokenizer(line)["input_ids"] for line in lines]
                reference["ids"].append(dict(model=model, layout=layout, lines=lines, ids=ids))
        reference["texts"] = []
        for settings in ({}, dict(clean_up_tokenization_spaces=True), dict(separate_vocabs=True)):
            path = write_layout("marian", "saved", work / "texts")
            write_json(path / "target_vocab.json", read_json(path / "vocab.json"))
            write_json(
                path / "tokenizer_config.json", read_json(path / "tokenizer_config.json") | settings
            )
            tokenizer = hf.AutoTokenizer.from_pretrained(path)
            texts = [tokenizer.decode(x, skip_special_tokens=True) for x in generate_sequences(120)]
            reference["texts"].append(dict(settings=settings, texts=texts))
        reference["conflicts"] = []
        for i, row in enumerate(CONFLICTS):
            path = write_conflict(row, work / f"conflict{i}")
            model = row[0]
            sources = ["w37 w3 w90", "w17 w0"] if model == "marian" else ["Das Haus", "Wir gehen"]
            rows = generate(path, row, sources)
            reference["conflicts"].append(dict(row=row, sources=sources, rows=rows))
        reference["mt5"] = []
        for head in (False, True):
            path = write_tied_mt5(work / f"mt5{head}", head)
            loaded = hf.AutoModelForSeq2SeqLM.from_pretrained(path).double().eval()
            ids = hf.AutoTokenizer.from_pretrained(path)("Das Haus")["input_ids"]
            decoder_ids = torch.tensor([[0, 5, 6, 7]])
            logits = loaded(input_ids=torch.tensor([ids]), decoder_input_ids=decoder_ids).logits[0]
            reference["mt5"].append(dict(head=head, src=ids, logits=logits[:, :20].tolist()))
    FILE.write_text(
        json.dumps(reference, ensure_ascii=False, separators=(",", ":")) + "\n", "utf-8"
    )


if __name__ == "__main__":
    main()
