"""Stores the output of OpenNMT-py 3.5.1 for complete, realistic configurations.

    python -m tests.exactness.peers.make_configurations      (OpenNMT-py 3.5.1)

Writes `tests/data/opennmt/configurations.json` and its models for
`tests/unit/config/test_opennmt_yaml.py`. The batch size is 1, because in 3.5.1 the longest line of
a batch limits the output of all lines. A recent torch needs TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1.
"""

import json
import os
import shlex
import shutil
import tempfile
from pathlib import Path

import sentencepiece
import torch
from onmt import model_builder, opts
from onmt.bin.translate import _get_parser, translate
from onmt.inputters.inputter import dict_to_vocabs
from onmt.transforms.misc import SuffixTransform
from onmt.utils.parse import ArgumentParser

ROOT = Path(__file__).resolve().parents[2] / "data"
HERE = ROOT / "opennmt"
SPECIAL = ["<unk>", "<blank>", "<s>", "</s>"]
BANNED = -50.0  # logit offset of tokens that must not be predicted
SIZE = "-hidden_size 8 -word_vec_size 8 -transformer_ff 12 -dropout 0"
DEEP = "-heads 4 -enc_layers 1 -dec_layers 5 -max_relative_positions 4"
LINES = {
    "w": ["w37 w3 w90 w24", "w53 w6", "w17 w0 w64 w4 w99 w1 w22 w7", "w1 w41 w24"],
    "s": ["s1 s2 s3 s5 s1", "s9", "s4 s0 s7", "s9 s8 s7 s6 s5 s4 s3 s2 s1", "s3 s3"],
    "text": ["der hund", "die alten katzen", "der alte hund und die katze", "Hunde !"],
}
PREFIXES = {"s": ["t1", "t2 t3", "t0", "t4", "t5 t5"], "w": ["w10 w20", "w10", "w5", "w6 w7"]}
PREFIXES["text"] = ["the", "a", "the old", "dogs"]
# Options that 3.5.1 removed, or that make it start processes or fail
REMOVED = "fast dynamic_dict shard_size report_bleu world_size gpu_ranks with_score".split()
NLLB = """
transforms: [sentencepiece, prefix, suffix]
src_subword_model: "src.model"
tgt_subword_model: "tgt.model"
src_prefix: "{src}"
tgt_prefix: "{tgt}"
tgt_file_prefix: true
src_suffix: "</s>"
tgt_suffix: ""
gpu: -1
batch_size: 2048
batch_type: tokens
beam_size: 5
max_length: 40
max_length_ratio: 0
"""
ENDS = "max_length_ratio: 0\nmax_length: 40\n"
SUMMARY = (
    "-batch_size 20 -beam_size 5 -min_length 3 -verbose -stepwise_penalty "
    "-coverage_penalty summary -beta 5 -length_penalty wu -alpha 0.9 -block_ngram_repeat 3 "
)
# model, command line, YAML, options that warnings name
CASES = [
    ("trained", "-replace_unk -verbose", "", ""),
    ("trained", "--beam_size 10 --n_best 10 --batch_size 64", "", "batch_size"),
    ("trained", "-beam_size=4 -n_best=4 -gpu=-1 -length_penalty wu -alpha 0.6", "", ""),
    ("trained", "", "beam_size: 10\nn_best: 10\nbatch_size: 8192\nbatch_type: tokens\n"
     "max_length: 500\ngpu: -1\n", ""),
    ("trained", "", "beam_size: '4'\nn_best: \"2\"\nreplace_unk: 'true'\nverbose: \"false\"\n"
     "length_penalty: 'wu'\nalpha: '0.9'\ngpu: '-1'\nban_unk_token: yes\nwith_score: 0\n",
     "replace_unk"),
    ("trained", SUMMARY + "-ignore_when_blocking '.' w1 -fast -dynamic_dict", "",
     "batch_size fast dynamic_dict ignore_when_blocking"),
    ("trained", "-n_best 3", "length_penalty: none\nmin_length: 5\nmax_length: 9\n"
     "ignore_when_blocking: w1\nblock_ngram_repeat: 2\n", ""),
    ("trained", "-tgt begin.txt -tgt_file_prefix -n_best 2", ENDS, ""),
    ("trained", "-random_sampling_topk 1 -beam_size 1", "random_sampling_temp: 0.8\n", ""),
    ("trained", "-shard_size 32 -report_bleu", "coverage_penalty: wu\nbeta: 0.2\nratio: 0.5\n",
     "report_bleu"),
    ("deep", "-report_align -n_best 2", "", ""),
    ("deep", "-report_align -replace_unk -min_length 3", "phrase_table: phrases.txt\n", ""),
    ("deep", "-replace_unk -min_length 2", "", ""),
    ("deep", "", "replace_unk: True\nphrase_table: phrases.txt\nn_best: 3\nbeam_size: 3\n", ""),
    ("deep", "-ban_unk_token -min_length 4 -block_ngram_repeat 2", "", ""),
    ("deep", "-tgt begin.txt -gold_align -report_align -min_length 2", "", ""),
    ("align", "-report_align -min_length 3 -block_ngram_repeat 4", "", ""),
    # The start token is part of n-grams
    ("starts", "-block_ngram_repeat 2 -n_best 3 -min_length 4", "", ""),
    ("starts", "-block_ngram_repeat 3 -min_length 5", "", ""),
    ("deep align", "-n_best 2 -max_length 6", "", ""),
    ("deep align", "-replace_unk -beam_size 3 -min_length 3", "", ""),
    ("deep align", "-tgt begin.txt -tgt_file_prefix", ENDS, ""),
    ("langs", "", NLLB.format(src="deu_Latn", tgt="eng_Latn"), ""),
    ("langs", "-n_best 2", NLLB.format(src="fra_Latn", tgt="eng_Latn"), ""),
    ("langs", "", NLLB.format(src="deu_Latn", tgt="fra_Latn") + "report_time: 'true'\n", ""),
    ("langs", "-beam_size 2", NLLB.format(src="deu_Latn", tgt="eng_Latn")
     + "block_ngram_repeat: 2\nworld_size: 2\ngpu_ranks: [0, 1]\n", "world_size gpu_ranks"),
    ("langs", "--transforms sentencepiece --src_subword_model src.model -min_length 2",
     "src_subword_nbest: 1\nsrc_subword_alpha: 0.0\ntgt_subword_model: src.model\n", ""),
    ("langs", "-min_length 3", "transforms: [onmt_tokenize]\nsrc_subword_type: sentencepiece\n"
     "tgt_subword_type: sentencepiece\nsrc_subword_model: src.model\n"
     "tgt_subword_model: tgt.model\nsrc_onmttok_kwargs: \"{'mode': 'none'}\"\n"
     "tgt_onmttok_kwargs: \"{'mode': 'none'}\"\n", ""),
    ("langs", "-tgt begin.txt", "transforms: [sentencepiece, suffix]\nsrc_suffix: '</s>'\n"
     "src_subword_model: src.model\ntgt_subword_model: tgt.model\ntgt_file_prefix: 'true'\n"
     + ENDS, ""),
]  # fmt: skip
MODELS = {"trained": "w", "deep": "s", "align": "s", "starts": "s", "langs": "text"}


def append(self, example, suffix, append=SuffixTransform._append):
    """Skip empty suffixes, which OpenNMT-py would append as an unknown token."""
    return append(self, example, {side: words for side, words in suffix.items() if words})


SuffixTransform._append = append


def build(name, flags, src, tgt, seed, start="<s>", start_bias=BANNED):
    """Build a model with random weights and save it like the trainer.

    Args:
        name: stem of the file.
        flags: model options.
        src: source vocabulary.
        tgt: target vocabulary.
        seed: random seed.
        start: decoder start token.
        start_bias: logit offset of `<s>`.
    """
    parser = ArgumentParser()
    opts.model_opts(parser)
    opts._add_train_general_opts(parser)
    words = f"-encoder_type transformer -decoder_type transformer {SIZE} {flags}".split()
    opt, _ = parser.parse_known_args(words)
    opt.gpu, opt.gpu_ranks, opt.world_size, opt.parallel_mode = -1, [], 1, "data_parallel"
    opt.update_vocab, opt.optim, opt.param_init, opt.param_init_glorot = False, "sgd", 0, False
    for side in ("enc", "dec"):
        setattr(opt, f"freeze_word_vecs_{side}", False)
        setattr(opt, f"pre_word_vecs_{side}", None)
    ArgumentParser.update_model_opts(opt)
    ArgumentParser.validate_model_opts(opt)
    stored = {"src": src, "tgt": tgt, "data_task": "seq2seq", "decoder_start_token": start}
    torch.manual_seed(seed)
    model = model_builder.build_base_model(opt, dict_to_vocabs(stored))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    # Make unknown tokens and EOS frequent
    model.generator.bias.data[:4] += torch.tensor([3.0, BANNED, start_bias, 4.0])
    if start == "</s>":  # only word-initial subwords after a forced prefix
        odd = [i for i, token in enumerate(tgt) if i > 3 and not token.startswith("▁")]
        model.generator.bias.data[odd] += BANNED
    weights = {n: w for n, w in model.state_dict().items() if "generator" not in n}
    content = dict(model=weights, generator=model.generator.state_dict(), vocab=stored, opt=opt)
    torch.save(content, HERE / f"{name}.pt")


def build_all():
    src = [*SPECIAL, *(f"s{i}" for i in range(12))]
    tgt = [*SPECIAL, *(f"t{i}" for i in range(10)), "s1", "s3"]
    build("deep", DEEP, src, tgt, 3)
    flags = f"{DEEP} -alignment_layer 1 -alignment_heads 2 -lambda_align 0.05"
    build("align", flags, src, tgt, 4)
    flags = "-heads 2 -layers 1 -max_relative_positions 4"
    build("starts", flags, src, tgt, 6, start_bias=4.0)
    langs = ["deu_Latn", "eng_Latn", "fra_Latn"]
    sides = []
    for side in ("src", "tgt"):
        subwords = sentencepiece.SentencePieceProcessor(str(ROOT / "transforms" / f"{side}.model"))
        known = [subwords.id_to_piece(i) for i in range(len(subwords))]
        sides.append([*SPECIAL, *(p for p in known if p not in SPECIAL), *langs])
    build("langs", "-heads 2 -layers 2 -max_relative_positions 4", *sides, 5, "</s>")


def translate_lines(model, words, text):
    """Run OpenNMT-py in the current directory and return its output lines.

    Args:
        model: model names, separated by spaces.
        words: the command line.
        text: the YAML configuration.
    """
    lines = [line for line in text.split("\n") if line.partition(":")[0] not in REMOVED]
    text = "\n".join(["verbose: false", *lines])
    Path("a.yaml").write_text(text, encoding="utf-8")
    argv = [word for word in shlex.split(words) if word.lstrip("-") not in REMOVED and word != "32"]
    paths = [*("-model", *(f"{name}.pt" for name in model.split())), "-src", "src.txt"]
    batching = ["-batch_size", "1", "-batch_type", "sents", "-output", "out.txt"]
    translate(_get_parser().parse_args(["-config", "a.yaml", *paths, *argv, *batching]))
    return Path("out.txt").read_text(encoding="utf-8").split("\n")[:-1]


def main():
    build_all()
    cases = []
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        for path in [*(ROOT / "transforms").iterdir(), *HERE.glob("*.pt")]:
            shutil.copy(path, directory)
        shutil.copy(ROOT / "checkpoints" / "onmt351_transformer.pt", "trained.pt")
        Path("phrases.txt").write_text("s1|||eins\ns3|||drei\n", encoding="utf-8")
        for model, words, text, notes in CASES:
            data = MODELS[model.split()[0]]
            Path("src.txt").write_text("\n".join(LINES[data]) + "\n", encoding="utf-8")
            Path("begin.txt").write_text("\n".join(PREFIXES[data]) + "\n", encoding="utf-8")
            case = dict(model=model, words=words, yaml=text, notes=notes)
            files = dict(src=LINES[data], begin=PREFIXES[data])
            cases.append(case | files | {"lines": translate_lines(model, words, text)})
    text = json.dumps(cases, ensure_ascii=False, indent=1)
    (HERE / "configurations.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
