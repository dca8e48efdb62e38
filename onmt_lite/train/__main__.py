"""Train a Transformer on pairs of lines: `python -m onmt_lite.train -config FILE`.

The output directory becomes a model that `-model` reads, written anew at every validation that
lowers the loss.  The directory also holds `train_state.pt`, from which `-resume` continues, and for
people a log, a table, a plot and the options of the run.
"""

import contextlib
import dataclasses
import hashlib
import io
import itertools
import math
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from onmt_lite.config.environment import prepare_environment

if __name__ == "__main__":
    prepare_environment()

import sentencepiece as spm
import torch
import yaml
from torch import Tensor, nn
from tqdm import tqdm

from onmt_lite.checkpoints import native
from onmt_lite.checkpoints.loading import load_checkpoint
from onmt_lite.config.cli import run_program
from onmt_lite.config.console import CONSOLE
from onmt_lite.config.interrupt import Interrupted, noted_signals
from onmt_lite.config.options import JobOptions, SpeedOptions
from onmt_lite.errors import DataError, FileError, MemoryExhausted, OptionError
from onmt_lite.inference.budget import is_out_of_memory
from onmt_lite.inference.runtime import DTYPES, choose
from onmt_lite.models.transformer import Transformer, TransformerConfig
from onmt_lite.progress import add_log_file, console_width, logging_to
from onmt_lite.reports import LOG
from onmt_lite.train import samples
from onmt_lite.train.checks import CONFIG, LOG_FILE, STATE, alone_in, check_files
from onmt_lite.train.data import (
    PAD,
    Pair,
    TrainBatch,
    fitting,
    hold_out,
    make_batches,
    pad_batch,
    read_pairs,
    read_same,
    spread,
    tokenize,
    train_sentencepiece,
    with_all_characters,
)
from onmt_lite.train.epochs import Epochs, one_ahead
from onmt_lite.train.growth import init_weights, rounding, with_layers, with_pieces
from onmt_lite.train.journal import PLOT, TABLE, Journal, Row
from onmt_lite.train.loss import smoothed_nll
from onmt_lite.train.muon import Muon
from onmt_lite.train.options import (
    PROGRAM,
    ModelOptions,
    TrainOptions,
    as_table,
    load_train_options,
)

SCRIPT = Path("translate.py")  # where the program is run from a checkout

# Fields in which a Transformer of Marian differs from the default
LIKE_MARIAN: dict[str, Any] = {
    "pre_norm": False,
    "final_norm": False,
    "positions": "concat",
    "norm_eps": 1e-5,
}

# Attributes of a Trainer that the state holds, beside weights and optimizers
COUNTERS = ("epoch", "batch", "n_steps", "n_tokens", "seconds", "best")

# Options that -resume may not change
SETTLED = (
    *(f.name for f in dataclasses.fields(ModelOptions) if f.name != "dropout"),
    *("reverse", "train_in_turn", "vocab_size", "all_characters", "init_from", "new_pieces"),
)

ROWS = 100  # of the table, besides those of validations
LINE_SECONDS = 60  # between lines of progress where there is no bar
BLEU_LINES, SHOWN_LINES = 200, 2  # held-out lines translated at a validation, and of these shown


def build_optimizers(
    model: Transformer, matrix_lr: float, vector_lr: float, dtype: torch.dtype = torch.float32
) -> list[torch.optim.Optimizer]:
    """Make Muon, with products in `dtype`, for hidden matrices, and Adam for all other weights."""
    stacked = {"qkv.weight": 3, "kv.weight": 2}  # matrices in one, orthogonalised one by one
    matrices, others = [], []
    for name, p in model.named_parameters():
        if p.dim() == 2 and not name.endswith("token.weight"):
            matrices.append((p, stacked.get(name.rsplit("_attn.", 1)[-1], 1)))
        else:
            others.append(p)
    adam = torch.optim.Adam(others, vector_lr, betas=(0.9, 0.98))
    return [Muon(matrices, matrix_lr, dtype=dtype), adam]


class Trainer:
    """One run: the model, its optimizers, and counters of steps, tokens and seconds."""

    def __init__(self, options: TrainOptions):
        """Check the options, read the files, make the model, and last write to the directory.

        Raises an OnmtLiteError, before anything is written.
        """
        self.options = options
        learning, data = options.learning, options.data
        self.out = Path(data.output)
        check_files(options)
        speed = SpeedOptions(device=learning.device, precision=learning.precision)
        self.device, precision = choose(speed, exact=True)
        self.dtype = DTYPES[precision]
        torch.manual_seed(learning.seed)
        if learning.threads is not None:
            torch.set_num_threads(learning.threads)
        start = None if data.init_from is None else self._start(data.init_from)
        corpora = [read_pairs(path, data.reverse) for path in data.train]
        if data.valid:
            held_out = [read_pairs(path, data.reverse) for path in data.valid]
        else:
            corpora, pairs = hold_out(corpora)
            held_out = [pairs]
        self.pairs = [pair for corpus in corpora for pair in corpus]
        self.shown = spread([pair for pairs in held_out for pair in pairs], BLEU_LINES)
        same = [pair for path in data.train_same for pair in read_same(path)]
        values = as_table(options)
        self.settled = {name: values[name] for name in SETTLED}
        self.settled |= {"train": digest(self.pairs), "valid": " ".join(map(digest, held_out))}
        state = self._read_state() if learning.resume else None
        self.pieces = self._pieces(corpora[0] if data.train_in_turn else self.pairs)
        self.sp = spm.SentencePieceProcessor(model_proto=self.pieces)
        self.model = rounding(self._model(start)).to(self.device)
        # The weights of init_from, in a resumed run too
        parts = self.model.named_parameters() if data.keep_start else ()
        self.start = {name: p.detach().clone() for name, p in parts}
        rates = learning.matrix_lr, learning.vector_lr
        self.optimizers = build_optimizers(self.model, *rates, self.dtype)
        self.peaks = [[g["lr"] for g in o.param_groups] for o in self.optimizers]
        self.epochs = Epochs(
            corpora,
            data.train_weights or [1.0] * len(corpora),
            data.train_in_turn,
            same,
            data.same_lines,
            self.sp,
            data.src_sampling,
            data.tgt_sampling,
            self.model.max_positions,
            learning.batch_tokens,
            learning.seed,
        )
        self.epoch = self.batch = self.n_steps = self.n_tokens = 0
        self.seconds, self.best, self.total_loss = 0.0, math.inf, 0.0
        self.last_row, self.stopping = (0, 0.0, 0.0), 0  # the signal that asks for a stop
        self.valid = [self._held_out(pairs) for pairs in held_out]
        if state is not None:
            self.load_state(state)
            self.last_row = self.n_tokens, self.seconds, 0.0
        self._open()
        self._log_start()

    @staticmethod
    def _start(path: str) -> Transformer:
        checkpoint = load_checkpoint(path)
        if checkpoint.toolkit != "onmt_lite":
            raise OptionError(f"init_from: {path} is a model of {checkpoint.toolkit}, not of ours")
        if not isinstance(checkpoint.model, Transformer):
            raise OptionError(f"init_from: {path} is no Transformer")
        if checkpoint.confidence is not None:
            LOG.info(
                "NOTE: what onmt_lite.train.calibrate found is of %s alone; calibrate anew", path
            )
        return checkpoint.model

    def _pieces(self, pairs: list[Pair]) -> bytes:
        """Content of the sentencepiece model: of the resumed run, of init_from, or a new one."""
        data = self.options.data
        try:
            if self.options.learning.resume:
                return (self.out / native.PIECES).read_bytes()
            if data.init_from is not None and not data.new_pieces:
                pieces = (Path(data.init_from) / native.PIECES).read_bytes()
                return with_all_characters(pieces) if data.all_characters else pieces
        except OSError as error:
            raise FileError(f"cannot read {error.filename}: {error.strerror}") from None
        LOG.info("%s pairs read; making pieces of their words", f"{len(self.pairs):,}")
        return train_sentencepiece(pairs, data.vocab_size, data.all_characters)

    def _model(self, start: Transformer | None) -> Transformer:
        """Make a new model, or grow `start` to the pieces and layers of this run."""
        m, data = self.options.model, self.options.data
        if start is not None:
            if data.new_pieces or data.all_characters:
                old = spm.SentencePieceProcessor(model_file=f"{data.init_from}/{native.PIECES}")
                start = with_pieces(start, old, self.sp)
            try:
                return with_layers(start, m.enc_layers, m.dec_layers, m.dropout)
            except ValueError as error:
                raise OptionError(f"init_from: {error}") from None
        n = self.sp.vocab_size()
        sizes = (m.d_model, m.heads, m.d_ff, m.enc_layers, m.dec_layers)
        cfg = TransformerConfig(n, n, *sizes, max_positions=m.max_positions)
        if m.norm == "after":
            cfg = replace(cfg, **LIKE_MARIAN)
        model = Transformer(cfg, m.dropout)
        init_weights(model)
        return model

    def _held_out(self, pairs: list[Pair]) -> list[TrainBatch]:
        examples = fitting(tokenize(self.sp, pairs, 0, 0, Random(0)), self.model.max_positions)
        return list(make_batches(examples, self.options.learning.batch_tokens, Random(0)))

    def _open(self) -> None:
        """Make the directory where needed, and begin the files that are for people."""
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot write {self.out}: {error.strerror}") from None
        add_log_file(str(self.out / LOG_FILE))
        if self.options.learning.log_file is not None:
            add_log_file(self.options.learning.log_file)
        config = yaml.safe_dump(as_table(self.options), allow_unicode=True, sort_keys=False)
        files = {CONFIG: config.encode("utf-8"), native.PIECES: self.pieces}
        native.replace_files(self.out, files)
        self.journal = Journal(self.out, self.n_steps)

    def _log_start(self) -> None:
        """Log sizes, device and notes."""
        n_held_out = sum(len(batch.src) for batches in self.valid for batch in batches)
        n_parameters = sum(p.numel() for p in self.model.parameters())
        LOG.info(
            "%s pairs to learn from, %s held out; %s pieces, %.1f million parameters; %s, %s",
            f"{len(self.pairs):,}",
            f"{n_held_out:,}",
            f"{self.sp.vocab_size():,}",
            n_parameters / 1e6,
            self.device,
            "bf16" if self.dtype == torch.bfloat16 else "fp32",
        )
        for note in self.options.notes:
            LOG.info("NOTE: %s", note)
        if not self.options.data.valid:
            LOG.info(
                "NOTE: without -valid, every fiftieth pair of train is held out; pairs that share "
                "a side with one of them are left out"
            )
        elif n_known := sum(map(set(self.pairs).__contains__, self.shown)):
            LOG.info(
                "NOTE: %d of %d held-out pairs are in train too: their scores tell little",
                n_known,
                len(self.shown),
            )
        if not samples.HAS_SACREBLEU:
            LOG.info("no BLEU on the way: sacrebleu is missing (pip install sacrebleu)")
        if self.n_steps:
            LOG.info("going on after step %d", self.n_steps)

    def progress(self) -> float:
        """Share of the run that is over, from 0 to 1, by the nearer of its two limits."""
        learning = self.options.learning
        by_steps = self.n_steps / learning.train_steps if learning.train_steps else 0.0
        by_time = self.seconds / 60 / learning.train_minutes if learning.train_minutes else 0.0
        return max(by_steps, by_time)

    def set_lr(self) -> None:
        """Set learning rates: linear warm-up, a plateau, then a linear fall to zero."""
        warm = min(1.0, (self.n_steps + 1) / self.options.learning.warmup_steps)
        cool = min(1.0, (1.0 - self.progress()) / self.options.learning.cooldown)
        for optimizer, peaks in zip(self.optimizers, self.peaks):
            for group, peak in zip(optimizer.param_groups, peaks):
                group["lr"] = peak * warm * cool

    def loss(self, batch: TrainBatch, label_smoothing: float) -> Tensor:
        """Sum of the losses of the target tokens of a batch, in nats."""
        b = TrainBatch(*(t.to(self.device) for t in vars(batch).values()))
        low, output = self.dtype == torch.bfloat16, self.model.output
        with torch.autocast(self.device.type, torch.bfloat16, enabled=low):
            memory = self.model.encode(b.src, b.src_lengths)
            hidden, _ = self.model.decode_all(b.tgt_in, memory)
            tokens = b.tgt_out != PAD
            return smoothed_nll(
                hidden[tokens], output.weight, output.bias, b.tgt_out[tokens], label_smoothing
            )

    def step(self, batch: TrainBatch) -> float:
        """Learn from one batch.  Returns its loss per target token."""
        self.set_lr()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        n_tokens = int((batch.tgt_out != PAD).sum())
        loss = self.loss(batch, self.options.learning.label_smoothing) / n_tokens
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.options.learning.clip_norm)
        for optimizer in self.optimizers:
            optimizer.step()
        self.n_steps += 1
        self.n_tokens += n_tokens
        value = self.a_number(loss.item())
        self.total_loss += value * n_tokens
        return value

    def a_number(self, loss: float) -> float:
        """The loss.  OptionError where it is none: no state with such weights is to be saved."""
        if math.isfinite(loss):
            return loss
        from_state = f"go on from {self.out / STATE}" if (self.out / STATE).exists() else ""
        raise OptionError(
            f"the loss is no number any more at step {self.n_steps}; {from_state or 'start again'} "
            "with a lower matrix_lr and vector_lr, or with precision fp32"
        )

    def validate(self) -> float:
        """Mean of the losses of the held-out files, in nats per target token."""
        losses = self.held_out_losses()
        return sum(losses) / len(losses)

    @torch.no_grad()
    def held_out_losses(self) -> list[float]:
        """Mean negative log-likelihood per target token of each held-out file, in nats."""
        self.model.eval()
        losses = []
        for batches in self.valid:
            total = sum(self.loss(batch, 0.0).item() for batch in batches)
            losses.append(total / sum(int((batch.tgt_out != PAD).sum()) for batch in batches))
        self.model.train()
        return losses

    def batches(self) -> Iterator[TrainBatch]:
        """Yield the remaining batches, epoch after epoch, without end."""
        if self.options.learning.prepare:
            epochs = one_ahead(self.epochs, self.epoch)
        else:
            epochs = map(self.epochs, itertools.count(self.epoch))
        first = self.epoch
        for batches in epochs:
            n = self.epochs.n_left_out(first, batches) if self.epoch == first else 0
            if n:
                LOG.info(
                    "NOTE: %d pairs of an epoch are left out: a line is longer than %d tokens, or "
                    "a target has a character without a piece (-all_characters makes them)",
                    n,
                    self.model.max_positions,
                )
            for batch in batches[self.batch :]:
                self.batch += 1
                yield pad_batch(batch)
            self.epoch, self.batch = self.epoch + 1, 0

    def run(self) -> None:
        """Train until a limit is reached or a signal arrives."""
        valid_seconds = 60 * self.options.learning.minutes_between_validations
        self.model.train()
        last_valid = clock = time.monotonic()
        form = "{l_bar}{bar}| {elapsed}<{remaining}{postfix}"
        bars = CONSOLE.isatty()
        with tqdm(
            total=100, bar_format=form, file=CONSOLE, disable=not bars, ncols=console_width()
        ) as bar:
            for batch in self.batches():
                share, seconds = self.progress(), self.seconds
                loss = self.step(batch)
                now = time.monotonic()
                self.seconds, clock = self.seconds + now - clock, now
                standing = f"{self.standing()}  loss {loss:.3f}"
                bar.set_postfix_str(standing, refresh=False)
                bar.update(min(100.0, 100 * self.progress()) - bar.n)
                over = self.progress() >= 1 or bool(self.stopping)
                if over or now - last_valid > valid_seconds:
                    self.report()
                    last_valid = clock = time.monotonic()
                    over = over or bool(self.stopping)  # a signal during the validation
                elif int(ROWS * self.progress()) > int(ROWS * share):
                    self.journal.add(self.row())
                if over:  # the state is saved
                    break
                if self.seconds // LINE_SECONDS > seconds // LINE_SECONDS:
                    percent = 100 * self.progress()
                    LOG.info("%3.0f %%  %s", percent, standing, extra={"on_stderr": not bars})

    def standing(self) -> str:
        """Minutes, epoch, step and speed, for the log."""
        return (
            f"{self.seconds / 60:.1f} min  epoch {self.epoch}  step {self.n_steps}  "
            f"{self.n_tokens / max(self.seconds, 1e-9):.0f} tokens/s"
        )

    def row(self, valid_loss: float | None = None, bleu: float | None = None) -> Row:
        """Make a row of the table, with means since the row before."""
        tokens, seconds, loss = self.last_row
        self.last_row = self.n_tokens, self.seconds, self.total_loss
        return Row(
            self.n_steps,
            self.epoch,
            self.seconds / 60,
            self.n_tokens,
            (self.n_tokens - tokens) / max(self.seconds - seconds, 1e-9),
            self.optimizers[0].param_groups[0]["lr"],
            (self.total_loss - loss) / max(self.n_tokens - tokens, 1),
            valid_loss,
            None if valid_loss is None else math.exp(min(valid_loss, 700.0)),
            bleu,
        )

    def report(self) -> None:
        """Validate, save the model if its loss is the lowest so far, and save the state."""
        if self.stopping:  # there may be no time for a validation
            self.save_state()
        with self.averaged():
            losses = self.held_out_losses()
            nll = self.a_number(sum(losses) / len(losses))
            if nll < self.best:
                self.best = nll
                native.save(self.out, self.model, self.pieces, self.options.data.save_bits)
            shown = self.shown[: SHOWN_LINES if self.stopping else BLEU_LINES]
            sources, references = ([pair[side] for pair in shown] for side in (0, 1))
            outputs = samples.translate(self.model, self.sp, sources)
        bleu = None if self.stopping else samples.bleu(outputs, references)
        row = self.row(nll, bleu)
        each = f" ({' '.join(f'{loss:.4f}' for loss in losses)})" if len(losses) > 1 else ""
        LOG.info(
            "%s  train %.3f  valid %.4f%s%s",
            self.standing(),
            row.train_loss,
            nll,
            each,
            "" if bleu is None else f"  BLEU {bleu:.1f}",
        )
        for (source, reference), output in list(zip(shown, outputs))[:SHOWN_LINES]:
            LOG.info("    source     %s", source)
            LOG.info("    reference  %s", reference)
            LOG.info("    output     %s", output)
        self.journal.add(row)
        self.journal.draw(f"Training of {self.out}")
        self.save_state()

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Use, inside the block, the weights that are written: with -keep_start, the mean."""
        parts = dict(self.model.named_parameters())
        learned = {name: parts[name].detach().clone() for name in self.start}
        for name, start in self.start.items():
            parts[name].data.lerp_(start, self.options.data.keep_start)
        yield
        for name, p in learned.items():
            parts[name].data.copy_(p)

    def save_state(self) -> None:
        """Write the state for -resume in place of the older one."""
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "counters": {name: getattr(self, name) for name in COUNTERS},
            "random": torch.get_rng_state(),
            "settled": self.settled,
        }
        buffer = io.BytesIO()
        torch.save(state, buffer)
        native.replace_files(self.out, {STATE: buffer.getvalue()})

    def _read_state(self) -> dict[str, Any]:
        """Read the state.  Raises OptionError where its settings or pairs are not those given."""
        path = self.out / STATE
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            # States of older versions lack some settings
            settled = {**self.settled, **state.get("settled", {})}
        except Exception as error:  # pickled data fail in many ways
            raise DataError(f"cannot resume from {path}: {_reason(error)}") from None
        changed = [
            f"{name} (other pairs)"
            if name in ("train", "valid")
            else f"{name} ({settled[name]} before, {now} now)"
            for name, now in self.settled.items()
            if settled[name] != now
        ]
        if changed:
            raise OptionError(
                f"resume: not the settings of the run in {self.out}: {', '.join(changed)}; "
                f"-config {self.out / CONFIG} has them"
            )
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        try:
            self.model.load_state_dict(state["model"])
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            torch.set_rng_state(state["random"].cpu())
            for name in COUNTERS:
                setattr(self, name, state["counters"][name])
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"cannot resume from {self.out / STATE}: {_reason(error)}") from None


def digest(pairs: list[Pair]) -> str:
    """SHA-256 of the pairs in their order."""
    return hashlib.sha256("\n".join(map("\t".join, pairs)).encode("utf-8")).hexdigest()


def _reason(error: Exception) -> str:
    return (str(error) or repr(error)).split("\n")[0]


def command_line(console: str, module: str, *words: str) -> str:
    """Quote a command for pasting: `console` if this program is installed, else a script."""
    installed = Path(sys.argv[0]).name == "onmt_train"
    script = ["python", "translate.py"] if module == "onmt_lite" and SCRIPT.exists() else None
    start = [console] if installed else script or ["python", "-m", module]
    return shlex.join([*start, *words])


@logging_to(JobOptions())
def train(options: TrainOptions) -> None:
    """Run a training to its end.

    A first signal ends the run after the current step and saves the state; a second signal ends it
    at once.  Raises an OnmtLiteError or, after a first signal, Interrupted.
    """
    trainer = Trainer(options)
    out = trainer.out
    go_on = command_line("onmt_train", "onmt_lite.train", "-config", str(out / CONFIG), "-resume")

    def stop(signum: int) -> None:
        trainer.stopping = signum

    if trainer.progress() >= 1:
        LOG.info("this run is complete; for a longer one give more train_minutes or train_steps")
    else:
        try:
            with noted_signals(stop), alone_in(out):
                trainer.run()
        except FileError as error:
            kept = f"; to go on, make room and run: {go_on}" if (out / STATE).exists() else ""
            raise FileError(f"{error}{kept}") from None
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            kept = f"; go on: {go_on}" if (out / STATE).exists() else ""
            said = f"out of memory at step {trainer.n_steps}; give a lower batch_tokens{kept}"
            raise MemoryExhausted(said) from None
    files = ", ".join((LOG_FILE, TABLE, PLOT))
    LOG.info("model: %s  valid %.4f; beside it %s", out, trainer.best, files)
    translate = command_line("onmt_translate", "onmt_lite", "-model", str(out), "-src", "FILE")
    LOG.info("translate with it: %s", translate)
    if trainer.stopping and trainer.progress() < 1:
        interrupted = Interrupted(trainer.stopping)
        interrupted.kept = f"at step {trainer.n_steps}, state saved; go on: {go_on}"
        LOG.info("stopped %s", interrupted.kept, extra={"on_stderr": False})
        raise interrupted


def main(argv: Sequence[str] | None = None) -> int:
    return run_program(argv, PROGRAM, load_train_options, train)


if __name__ == "__main__":
    sys.exit(main())
