"""Every search and every model family, small enough to run them all."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from onmt_lite import Translator
from onmt_lite.checkpoints.checkpoint import Checkpoint
from onmt_lite.config.options import TranslateOptions
from onmt_lite.models.table_model import TableModel
from onmt_lite.search.presets import PRESETS
from onmt_lite.text.tokenizers import SpaceTokenizer
from tests.support import table_models, tiny
from tests.support.model_variants import MODELS, TRANSFORMERS
from tests.support.random_models import SRC_VOCAB, TGT_VOCAB

BEAM, BATCH = 4, 4
# More sentences than a batch has slots, of many lengths, so that they finish at different steps
LENGTHS = (3, 1, 6, 4, 5, 2)
LINES = [" ".join(f"w{(7 * i + 3 * j) % 28}" for j in range(n)) for i, n in enumerate(LENGTHS)]


def make_varied_transformer(**config: Any) -> Any:
    """Return a model with varied outputs: some end early, some reach the limit."""
    model = tiny.make_model(seed=10, **{"tie_output": False, **config})
    model.output.weight.mul_(2)
    if model.output.bias is not None:
        model.output.bias[tiny.EOS] += 1.5
    return model


def make_endless_transformer(**config: Any) -> Any:
    """Return a model that never predicts EOS, so that each sentence reaches its limit."""
    model = tiny.make_model(seed=3, **config)
    model.output.bias[tiny.EOS] -= 1000
    return model


def make_translator(model: Any, device: str = "cpu", precision: str = "fp32") -> Translator:
    """Return a translator with space-separated tokens.

    Args:
        model: the model
        device: the device of the model
        precision: its dtype
    """
    if isinstance(model, TableModel):
        checkpoint = table_models.make_checkpoint(model.sources)
        return Translator(checkpoint, TranslateOptions.of(device=device))
    tokenizers = {"space": SpaceTokenizer()}
    checkpoint = Checkpoint(model, SRC_VOCAB, TGT_VOCAB, tokenizers, start_id=tiny.BOS)
    return Translator(checkpoint, TranslateOptions.of(device=device, precision=precision))


def translate(translator: Translator, lines: Sequence[str] = LINES, **options: Any) -> list:
    """Translate lines in small batches.

    Args:
        translator: from `make_translator`
        lines: source lines; a table model uses its own
        options: options of the search
    """
    all_options = dict(beam_size=BEAM, batch_size=BATCH, batch_type="sents", max_length=8) | options
    if isinstance(translator.model, TableModel):
        n = len(translator.model.sources)
        lines = [" ".join([f"s{i % n}"] * (1 + i % 3)) + " " * i for i in range(len(lines))]
    return translator.translate(lines, **all_options)


def list_cases() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return each search with defaults, and with each group of options that it supports."""
    groups: dict[str, dict[str, Any]] = {
        "n_best": dict(n_best=BEAM),
        "long": dict(min_length=4, n_best=2),
        "ngrams": dict(block_ngram_repeat=2, n_best=2),
        "exempt": dict(block_ngram_repeat=1, ignore_when_blocking=("w20", "w21")),
        "coverage": dict(coverage_penalty="wu", beta=0.2, n_best=2),
        "stepwise": dict(coverage_penalty="wu", beta=0.2, stepwise_penalty=True),
        "repetition": dict(repetition_penalty=1.5),
        "samples": dict(do_sample=True, random_sampling_temp=0.7, n_best=2),
        "top_k": dict(do_sample=True, random_sampling_topk=5),
        "top_p": dict(do_sample=True, random_sampling_topp=0.8),
        "groups": dict(beam_groups=2, diversity_rate=0.5, n_best=2),
        "early": dict(early_stopping="true"),
        "never": dict(early_stopping="never"),
        "patience": dict(patience=2.0),
        "ratio": dict(ratio=1.2),
        "no_unk": dict(ban_unk_token=True),
        "prefixes": dict(prefixes=[" ".join(line.split()[:2]) for line in LINES]),
    }
    needs = {"n_best": set(), "prefixes": {"tgt_file_prefix"}}
    cases = {}
    for search, preset in PRESETS.items():
        cases[search] = (search, {})
        for name, options in groups.items():
            has_rule = name != "never" or any(
                "never" in condition for condition in preset.stop_rules
            )
            if has_rule and needs.get(name, options.keys() - {"n_best"}) <= preset.options:
                cases[f"{search}-{name}"] = (search, options)
    return cases


CASES = list_cases()
GROUPS = {name.removeprefix(search): name for name, (search, _) in reversed(CASES.items())}
# Each search with defaults, and each group of options with the first search that supports it
DAILY_CASES = {*PRESETS, *GROUPS.values()}

FAMILIES: dict[str, Callable[[], Any]] = {
    **{f"transformer_{n}": partial(make_varied_transformer, **o) for n, o in TRANSFORMERS.items()},
    **{name: make for name, make in MODELS.items() if name != "transformer"},
}
# Each type of attention, position encoding and state once
DAILY_FAMILIES = {
    *("transformer_default", "transformer_shaw_values", "transformer_buckets", "transformer_alibi"),
    *("transformer_rotary_part", "transformer_average_ffn", "transformer_parallel"),
    *("transformer_aligned", "table", "rnn_brnn_gru", "rnn_gate_both", "rnn_no_attention"),
    *("fconv_uneven", "cnn_positions", "copy_mlp", "copy_transformer", "ensemble_of_probs"),
}
