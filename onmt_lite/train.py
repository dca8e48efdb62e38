"""Train a Transformer on pairs of lines: `python -m onmt_lite.train -config FILE`.

The output directory becomes a model that `-model` reads: every validation that lowers the
loss writes it anew.  `train_state.pt` beside it lets `-resume` go on after a stop.
"""

import contextlib
import itertools
import math
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from onmt_lite.environment import check_environment

if __name__ == "__main__":
    check_environment()

import sentencepiece as spm
import torch
from torch import Tensor, nn
from tqdm import tqdm

from onmt_lite.checkpoints import load_checkpoint, native
from onmt_lite.cli import run_program
from onmt_lite.errors import DataError, OptionError
from onmt_lite.models.base import EncoderDecoder
from onmt_lite.models.transformer import Transformer, TransformerConfig
from onmt_lite.options import SpeedOptions
from onmt_lite.runtime import choose_device
from onmt_lite.training.augment import Augment
from onmt_lite.training.data import (
    PAD,
    TrainBatch,
    make_batches,
    pad_batch,
    read_pairs,
    read_same,
    tokenize,
    train_sentencepiece,
    with_all_characters,
)
from onmt_lite.training.epochs import Epochs, one_ahead
from onmt_lite.training.growth import init_weights, with_layers, with_pieces
from onmt_lite.training.loss import smoothed_nll
from onmt_lite.training.muon import Muon
from onmt_lite.training.options import OPTIONS, USAGE, TrainOptions, load_train_options

# What Marian's models have otherwise than ours
LIKE_MARIAN: dict[str, Any] = {
    "pre_norm": False,
    "final_norm": False,
    "positions": "concat",
    "norm_eps": 1e-5,
}

# Where a run stands, beside weights and optimizers
COUNTERS = ("epoch", "batch", "n_steps", "n_tokens", "seconds", "best")


def build_optimizers(
    model: Transformer, matrix_lr: float, vector_lr: float
) -> list[torch.optim.Optimizer]:
    """Muon for the hidden matrices, Adam for embeddings, norms and biases."""
    stacked = {"qkv.weight": 3, "kv.weight": 2}  # orthogonalised one by one
    matrices, others = [], []
    for name, p in model.named_parameters():
        if p.dim() == 2 and not name.endswith("token.weight"):
            matrices.append((p, stacked.get(name.rsplit("_attn.", 1)[-1], 1)))
        else:
            others.append(p)
    return [Muon(matrices, matrix_lr), torch.optim.Adam(others, vector_lr, betas=(0.9, 0.98))]


class Trainer:
    """One run: the model, its optimizers and where it stands."""

    def __init__(self, options: TrainOptions):
        self.options = options
        learning, data = options.learning, options.data
        self.out = Path(data.output)
        self.state_path = self.out / "train_state.pt"
        if self.state_path.exists() and not learning.resume:
            raise OptionError(f"output: {self.out} holds a run already; go on with -resume")
        self.out.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(learning.seed)
        if learning.threads is not None:
            torch.set_num_threads(learning.threads)
        self.device = choose_device(SpeedOptions(device=learning.device))
        corpora = [read_pairs(path, data.reverse) for path in data.train]
        self.pairs = [pair for corpus in corpora for pair in corpus]
        same = [pair for path in data.train_same for pair in read_same(path)]
        slots = read_pairs(data.slots, data.reverse) if data.slots else []
        # Loaded first, so that what is damaged is refused before its pieces are copied
        start = None if data.init_from is None else self._start(data.init_from)
        self.sp = self._sentencepiece()
        self.model = self._model(start).to(self.device)
        # Of a resumed run too, this is what it started from
        parts = self.model.named_parameters() if data.keep_start else ()
        self.start = {name: p.detach().clone() for name, p in parts}
        self.optimizers = build_optimizers(self.model, learning.matrix_lr, learning.vector_lr)
        self.peaks = [[g["lr"] for g in o.param_groups] for o in self.optimizers]
        self.valid = [self._held_out(path) for path in data.valid]
        self.epochs = Epochs(
            corpora,
            data.train_weights or [1.0] * len(corpora),
            same,
            data.same_lines,
            Augment(self.pairs, options.augment, slots),
            self.sp,
            data.src_sampling,
            data.tgt_sampling,
            self.model.max_positions,
            learning.batch_tokens,
            learning.seed,
        )
        self.epoch = self.batch = self.n_steps = self.n_tokens = 0
        self.seconds, self.best = 0.0, math.inf
        self.stopping = False
        if learning.resume:
            self.load_state()

    @staticmethod
    def _start(path: str) -> EncoderDecoder:
        checkpoint = load_checkpoint(path)
        if checkpoint.toolkit != "onmt_lite":
            raise OptionError(f"init_from: {path} is a model of {checkpoint.toolkit}, not of ours")
        return checkpoint.model

    def _sentencepiece(self) -> spm.SentencePieceProcessor:
        path, data = self.out / native.PIECES, self.options.data
        if data.init_from is not None and not data.new_pieces:
            pieces = (Path(data.init_from) / native.PIECES).read_bytes()
            path.write_bytes(with_all_characters(pieces) if data.all_characters else pieces)
        elif not path.exists():
            train_sentencepiece(self.pairs, path, data.vocab_size, data.all_characters)
        return spm.SentencePieceProcessor(model_file=str(path))

    def _model(self, start: EncoderDecoder | None) -> Transformer:
        """A new one, or the one to start from with this run's pieces, layers and dropout."""
        m, data = self.options.model, self.options.data
        if start is not None:
            if not isinstance(start, Transformer):
                raise OptionError(f"init_from: {data.init_from} is no Transformer")
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

    def progress(self) -> float:
        """Share of the run that is over, by whichever of its two limits is nearer."""
        learning = self.options.learning
        by_steps = self.n_steps / learning.train_steps if learning.train_steps else 0.0
        by_time = self.seconds / 60 / learning.train_minutes if learning.train_minutes else 0.0
        return max(by_steps, by_time)

    def set_lr(self) -> None:
        """Linear warm-up, a plateau, then linearly to zero."""
        warm = min(1.0, (self.n_steps + 1) / self.options.learning.warmup_steps)
        cool = min(1.0, (1.0 - self.progress()) / self.options.learning.cooldown)
        for optimizer, peaks in zip(self.optimizers, self.peaks):
            for group, peak in zip(optimizer.param_groups, peaks):
                group["lr"] = peak * warm * cool

    def loss(self, batch: TrainBatch, label_smoothing: float) -> Tensor:
        """Sum over the batch's target tokens, in nats."""
        b = TrainBatch(*(t.to(self.device) for t in vars(batch).values()))
        low, output = self.options.learning.precision == "bf16", self.model.output
        with torch.autocast(self.device.type, torch.bfloat16, enabled=low):
            memory = self.model.encode(b.src, b.src_lengths)
            hidden, _ = self.model.forward_hidden(memory, b.tgt_in)
            tokens = b.tgt_out != PAD
            return smoothed_nll(
                hidden[tokens], output.weight, output.bias, b.tgt_out[tokens], label_smoothing
            )

    def step(self, batch: TrainBatch) -> float:
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
        return loss.item()

    def _held_out(self, path: str) -> list[TrainBatch]:
        pairs = read_pairs(path, self.options.data.reverse)
        examples = tokenize(self.sp, pairs, 0, 0, Random(0))
        return list(make_batches(examples, self.options.learning.batch_tokens, Random(0)))

    def validate(self) -> float:
        """Mean over the held-out files of their losses."""
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
        """All batches that are left, epoch after epoch."""
        beside = self.options.learning.prepare
        make = self.epochs
        epochs = one_ahead(make, self.epoch) if beside else map(make, itertools.count(self.epoch))
        for batches in epochs:
            for batch in batches[self.batch :]:
                self.batch += 1
                yield pad_batch(batch)
            self.epoch, self.batch = self.epoch + 1, 0

    def run(self) -> None:
        self.model.train()
        last_valid = clock = time.monotonic()
        form = "{l_bar}{bar}| {elapsed}<{remaining}{postfix}"
        with tqdm(total=100, bar_format=form, disable=not sys.stderr.isatty()) as bar:
            for batch in self.batches():
                loss = self.step(batch)
                now = time.monotonic()
                self.seconds, clock = self.seconds + now - clock, now
                bar.set_postfix_str(
                    f"epoch {self.epoch}, step {self.n_steps}, loss {loss:.3f}, "
                    f"{self.n_tokens / self.seconds:.0f} tokens/s",
                    refresh=False,
                )
                bar.update(min(100.0, 100 * self.progress()) - bar.n)
                over = self.progress() >= 1 or self.stopping
                if over or now - last_valid > 60 * self.options.learning.valid_minutes:
                    self.report(loss)
                    last_valid = clock = time.monotonic()
                if over:
                    break

    def report(self, train_loss: float) -> None:
        """Validate; save the model if it is the best so far, and where the run stands always."""
        with self.averaged():
            losses = self.held_out_losses()
            nll = sum(losses) / len(losses)
            if nll < self.best:
                self.best = nll
                pieces = (self.out / native.PIECES).read_bytes()
                native.save(self.out, self.model, pieces, self.options.data.save_bits)
        tqdm.write(
            f"{self.seconds / 60:6.1f} min  epoch {self.epoch}  step {self.n_steps}  "
            f"{self.n_tokens / 1e6:.2f} M tokens  train {train_loss:.3f}  valid "
            + " ".join(f"{loss:.4f}" for loss in losses),
            file=sys.stderr,
        )
        self.save_state()

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """The model as it is written: partly what it started from, if the options say so."""
        parts = dict(self.model.named_parameters())
        learned = {name: parts[name].detach().clone() for name in self.start}
        for name, start in self.start.items():
            parts[name].data.lerp_(start, self.options.data.keep_start)
        yield
        for name, p in learned.items():
            parts[name].data.copy_(p)

    def save_state(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "counters": {name: getattr(self, name) for name in COUNTERS},
            "random": torch.get_rng_state(),
        }
        new = self.state_path.with_suffix(".new")
        torch.save(state, new)
        new.replace(self.state_path)

    def load_state(self) -> None:
        try:
            state = torch.load(self.state_path, map_location=self.device, weights_only=True)
            self.model.load_state_dict(state["model"])
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            torch.set_rng_state(state["random"].cpu())
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"cannot resume from {self.state_path}: {reason}") from None
        for name in COUNTERS:
            setattr(self, name, state["counters"][name])


def train(options: TrainOptions) -> None:
    """The whole run.  A first Ctrl-C ends it after the current step, with its state saved."""
    trainer = Trainer(options)

    def stop(signum: int, frame: object) -> None:
        trainer.stopping = True
        signal.signal(signum, signal.SIG_DFL)

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, stop)
    trainer.run()
    if trainer.stopping:
        print("stopped; -resume goes on from here", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    return run_program(argv, OPTIONS, USAGE, load_train_options, train)


if __name__ == "__main__":
    sys.exit(main())
