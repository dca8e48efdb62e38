"""What a Translator is made of, as its options name it."""

import torch

from onmt_lite.checkpoints.loading import load_checkpoints
from onmt_lite.checkpoints.record import Checkpoint, Direction, of_text
from onmt_lite.checkpoints.shipped import model_paths
from onmt_lite.config.options import TranslateOptions
from onmt_lite.inference.languages import choose_languages
from onmt_lite.inference.runtime import placed
from onmt_lite.inference.tokenization import Named, phrases_of, read_own

Parts = tuple[Checkpoint, Named | None, dict[str, str]]  # with the tokenizer and phrases of options


def read_parts(options: TranslateOptions, device: torch.device, precision: str) -> Parts:
    """What the options name, read from files, with the weights on the device in that precision.
    Raises OptionError or CheckpointError."""
    own, phrases = read_own(options), phrases_of(options)  # found damaged before a model is read
    given = Direction(options.model.src_lang, options.model.tgt_lang)
    of_tokens = options.text.tokenizer == "space"
    with torch.random.fork_rng(devices=[]):  # modules draw their first weights at random
        checkpoint = load_checkpoints(
            model_paths(options.model.model),
            options.model.model_weights,
            options.model.avg_raw_probs,
            lambda known: choose_languages(known if of_tokens else of_text(known), given),
        )
    placed(checkpoint.model, device, precision, in_place=True)
    return checkpoint, own, phrases
