"""Options of other trainers: refused with ours, wherever they stand."""

import re
from collections import Counter

import pytest

from onmt_lite.config.foreign import NOTHING, option_of, table
from onmt_lite.train.options import OPTIONS, load_train_options
from tests.support.peers import problem_of, problems_of, spellings

# What each name must lead to, from the documentation of the tools
EXPECTED = {
    "OpenNMT-py and Eole": """
        learning_rate matrix_lr; batch_size batch_tokens; batch_type batch_tokens;
        accum_count batch_tokens; max_grad_norm clip_norm; layers enc_layers; rnn_size d_model;
        hidden_size d_model; word_vec_size d_model; transformer_ff d_ff; save_model output;
        model_path output; train_from init_from; valid_steps valid_minutes;
        save_checkpoint_steps valid_minutes; decay_method cooldown; attention_dropout dropout;
        src_seq_length max_positions; world_size device; gpu_ranks device; epochs train_steps;
        compute_dtype precision; src_vocab_size vocab_size""",
    "fairseq-train": """
        lr matrix_lr; max-epoch train_steps; max-update train_steps; max-tokens batch_tokens;
        batch-size batch_tokens; update-freq batch_tokens; clip-norm clip_norm;
        warmup-updates warmup_steps; label-smoothing label_smoothing; encoder-layers enc_layers;
        decoder-layers dec_layers; encoder-embed-dim d_model; encoder-ffn-embed-dim d_ff;
        encoder-attention-heads heads; save-dir output; restore-file init_from; fp16 precision;
        save-interval-updates valid_minutes; lr-scheduler cooldown; cpu device""",
    "Marian": """
        train-sets train; valid-sets valid; model output; after train_steps;
        after-epochs train_steps; after-batches train_steps; mini-batch batch_tokens;
        mini-batch-words batch_tokens; learn-rate matrix_lr; lr-warmup warmup_steps;
        valid-freq valid_minutes; save-freq valid_minutes; dim-emb d_model; enc-depth enc_layers;
        dec-depth dec_layers; transformer-heads heads; transformer-dim-ffn d_ff; log log_file;
        transformer-dropout dropout; max-length max_positions; devices device;
        pretrained-model init_from; cpu-threads threads; dim-vocabs vocab_size""",
    "transformers": """
        num_train_epochs train_steps; max_steps train_steps; output_dir output;
        per_device_train_batch_size batch_tokens; gradient_accumulation_steps batch_tokens;
        learning_rate matrix_lr; warmup_ratio warmup_steps; lr_scheduler_type cooldown;
        save_steps valid_minutes; eval_steps valid_minutes; eval_strategy valid_minutes;
        label_smoothing_factor label_smoothing; max_grad_norm clip_norm; bf16 precision;
        train_file train; validation_file valid; model_name_or_path init_from;
        resume_from_checkpoint resume; max_source_length max_positions; use_cpu device""",
}
PAIRS = [pair.split() for names in EXPECTED.values() for pair in names.split(";")]
NEEDED = "-train a.tsv -output run -train_steps 9".split()


def load(words):
    return load_train_options([*NEEDED, *words])


@pytest.mark.parametrize(("theirs", "ours"), PAIRS)
def test_a_name_is_refused_with_ours_wherever_it_stands(theirs, ours, tmp_path):
    for name in spellings(theirs, OPTIONS):
        for problem in problems_of(name, load, tmp_path / "a.yaml"):
            assert re.match(rf"unknown option {name}; here it is {ours}\b", problem), problem


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("src_vocab", "pieces are made of the words of train, vocab_size of them"),
        ("joined-dictionary", "pieces are made of the words of train, vocab_size of them"),
        ("share_decoder_embeddings", "it is always so here; leave it out"),
        ("arch", "give the sizes with enc_layers, dec_layers, d_model, d_ff and heads"),
        ("weight_decay", NOTHING),
        ("early-stopping", NOTHING),
        ("patience", NOTHING),
        ("optim", NOTHING),
        ("logging_steps", NOTHING),
        ("warmup_stps", "did you mean warmup_steps?"),
    ],
)
def test_a_name_without_a_counterpart_gets_none_of_another_meaning(name, said):
    problem = problem_of(lambda: load([f"-{name}", "1"]))
    assert problem == f"unknown option {name}; {said} (command line)"


def test_every_answer_names_an_option_and_every_name_has_one_answer():
    peers = table()
    assert {option_of(answer) for answer in peers["trainer"]} <= set(OPTIONS)
    answers = [*peers["trainer"].values(), *peers["trainer_says"].values()]
    found = Counter(" ".join([*answers, peers["trainer_nothing"]]).split())
    assert [name for name, n in found.items() if n > 1] == []
    assert not set(found) & set(OPTIONS) and not any("-" in name for name in found)
