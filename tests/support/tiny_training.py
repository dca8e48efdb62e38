"""Training data in a toy language: each German word has one English word, in the same order."""

from random import Random

from onmt_lite.train.options import TrainOptions, load_train_options

WORDS = [("eins", "one"), ("zwei", "two"), ("drei", "three"), ("vier", "four"), ("acht", "eight")]


def write_pairs(path):
    """Write 300 sentences of one to four words as `source<TAB>target` lines."""
    rng = Random(3)
    lines = []
    for _ in range(300):
        pairs = [rng.choice(WORDS) for _ in range(rng.randrange(1, 5))]
        lines.append("\t".join(" ".join(side) + "." for side in zip(*pairs)))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def make_tiny_options(corpus, output, *more) -> TrainOptions:
    """Return the options of a run of eight steps, trained and validated on the same pairs.

    Args:
        corpus: file of sentence pairs
        output: output directory
        more: additional options; these take precedence
    """
    words = "-vocab_size 30 -d_model 32 -heads 2 -d_ff 32 -enc_layers 1 -dec_layers 1"
    words += " -batch_tokens 200 -train_steps 8 -warmup_steps 2 -threads 1 -device cpu"
    argv = ["-train", corpus, "-valid", corpus, "-output", output, *words.split(), *more]
    return load_train_options(list(map(str, argv)))[0]


def compute_valid_loss(trainer) -> float:
    """Return the validation loss, by which the saved model is selected."""
    losses = trainer.compute_held_out_losses()
    return sum(losses) / len(losses)
