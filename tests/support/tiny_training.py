"""A counting language: every German word has one English word, order kept."""

from random import Random

from onmt_lite.train.options import TrainOptions, load_train_options

WORDS = [("eins", "one"), ("zwei", "two"), ("drei", "three"), ("vier", "four"), ("acht", "eight")]


def write_pairs(path):
    """300 sentences of one to four words, as `source<TAB>target` lines."""
    rng = Random(3)
    lines = []
    for _ in range(300):
        picked = [rng.choice(WORDS) for _ in range(rng.randrange(1, 5))]
        lines.append("\t".join(" ".join(side) + "." for side in zip(*picked)))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def tiny_run(corpus, output, *more) -> TrainOptions:
    """Options of a run of eight steps that learns the pairs of `corpus`, and is validated by them.

    Its model has the sizes that `more` may change, and pieces unless -init_from gives some.
    """
    words = "-vocab_size 30 -d_model 32 -heads 2 -d_ff 32 -enc_layers 1 -dec_layers 1"
    words += " -batch_tokens 200 -train_steps 8 -warmup_steps 2 -threads 1 -device cpu"
    argv = ["-train", corpus, "-valid", corpus, "-output", output, *words.split(), *more]
    return load_train_options(list(map(str, argv)))[0]


def loss_of(trainer) -> float:
    """The loss by which a run chooses its model."""
    losses = trainer.held_out_losses()
    return sum(losses) / len(losses)
