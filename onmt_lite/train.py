"""Train a Transformer on pairs of lines: `python -m onmt_lite.train -config FILE`.

The output directory becomes a model that `-model` reads: every validation that lowers the
loss writes it anew.  `train_state.pt` beside it lets `-resume` go on after a stop.
"""

import math
import sys
import time
from pathlib import Path
from random import Random

import sentencepiece as spm
import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

from onmt_lite.models.transformer import Transformer, TransformerConfig
from onmt_lite.training.augment import Augment
from onmt_lite.training.data import (
    PAD,
    TrainBatch,
    make_batches,
    read_pairs,
    tokenize,
    train_sentencepiece,
)
from onmt_lite.training.muon import Muon
from onmt_lite.training.options import TrainOptions


def init_weights(model: Transformer) -> None:
    """Xavier for matrices; sublayers start as the identity: their last weight is zero."""
    for name, p in model.named_parameters():
        if name.endswith("token.weight"):
            nn.init.normal_(p, std=model.cfg.d_model**-0.5)
        elif name.endswith(("out.weight", "down.weight")):
            nn.init.zeros_(p)
        elif p.dim() == 2:
            nn.init.xavier_uniform_(p)


def build_optimizers(model: Transformer, options: TrainOptions) -> list[torch.optim.Optimizer]:
    """Muon for the hidden matrices, Adam for embeddings, norms and biases."""
    splits = {"qkv.weight": 3, "kv.weight": 2}  # stacked matrices are orthogonalised one by one
    matrices, others = [], []
    for name, p in model.named_parameters():
        if p.dim() == 2 and not name.endswith("token.weight"):
            matrices.append((p, splits.get(name.rsplit("_attn.", 1)[-1], 1)))
        else:
            others.append(p)
    return [
        Muon(matrices, options.matrix_lr),
        torch.optim.Adam(others, options.vector_lr, betas=(0.9, 0.98)),
    ]


class Trainer:
    """One run: the model, its optimizers and where it stands."""

    def __init__(self, options: TrainOptions):
        self.options = options
        self.out = Path(options.output)
        self.out.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(options.seed)
        self.device = torch.device(options.device)
        self.pairs = read_pairs(options.train, options.reverse)
        self.sp = self._sentencepiece()
        self.model = Transformer(self._config(), options.dropout).to(self.device)
        init_weights(self.model)
        self.optimizers = build_optimizers(self.model, options)
        self.peaks = [[g["lr"] for g in o.param_groups] for o in self.optimizers]
        dev = tokenize(self.sp, read_pairs(options.valid, options.reverse), 0, 0, Random(0))
        self.valid = list(make_batches(dev, options.batch_tokens, Random(0)))
        self.epoch = self.batch = self.n_steps = self.n_tokens = 0
        self.seconds, self.best = 0.0, math.inf

    def _sentencepiece(self) -> spm.SentencePieceProcessor:
        path = self.out / "sentencepiece.model"
        if not path.exists():
            train_sentencepiece(self.pairs, path, self.options.vocab_size)
        return spm.SentencePieceProcessor(model_file=str(path))

    def _config(self) -> TransformerConfig:
        o, n = self.options, self.sp.vocab_size()
        return TransformerConfig(
            n, n, o.d_model, o.heads, o.d_ff, o.enc_layers, o.dec_layers, max_positions=o.max_positions
        )

    def progress(self) -> float:
        """Share of the run that is over, by whichever of its two limits is nearer."""
        o = self.options
        by_steps = self.n_steps / o.train_steps if o.train_steps else 0.0
        by_time = self.seconds / 60 / o.train_minutes if o.train_minutes else 0.0
        return max(by_steps, by_time)

    def set_lr(self) -> None:
        """Linear warm-up, a plateau, then linear to zero."""
        warm = min(1.0, (self.n_steps + 1) / self.options.warmup_steps)
        cool = min(1.0, (1.0 - self.progress()) / self.options.cooldown)
        for optimizer, peaks in zip(self.optimizers, self.peaks):
            for group, peak in zip(optimizer.param_groups, peaks):
                group["lr"] = peak * warm * cool

    def loss(self, batch: TrainBatch, label_smoothing: float, reduction: str) -> torch.Tensor:
        b = TrainBatch(*(t.to(self.device) for t in vars(batch).values()))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.bf16):
            logits = self.model(self.model.encode(b.src, b.src_lengths), b.tgt_in)
        return F.cross_entropy(
            logits.float().flatten(0, 1),
            b.tgt_out.flatten(),
            ignore_index=PAD,
            label_smoothing=label_smoothing,
            reduction=reduction,
        )

    def step(self, batch: TrainBatch) -> float:
        self.set_lr()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss = self.loss(batch, self.options.label_smoothing, "mean")
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.options.clip_norm)
        for optimizer in self.optimizers:
            optimizer.step()
        self.n_steps += 1
        self.n_tokens += int((batch.tgt_out != PAD).sum())
        return loss.item()

    @torch.no_grad()
    def validate(self) -> float:
        """Mean negative log-likelihood per target token, in nats."""
        self.model.eval()
        total = sum(self.loss(batch, 0.0, "sum").item() for batch in self.valid)
        self.model.train()
        return total / sum(int((batch.tgt_out != PAD).sum()) for batch in self.valid)

    def batches(self, augment: Augment):
        """All batches that are left, epoch after epoch; each epoch is decided by its seed alone."""
        o = self.options
        while True:
            rng = Random(f"{o.seed} {self.epoch}")
            texts = augment(self.pairs, rng)
            examples = tokenize(self.sp, texts, o.src_sampling, o.tgt_sampling, rng)
            examples = [e for e in examples if max(map(len, e)) < o.max_positions]
            for i, batch in enumerate(make_batches(examples, o.batch_tokens, rng)):
                if i >= self.batch:
                    self.batch = i + 1
                    yield batch
            self.epoch, self.batch = self.epoch + 1, 0

    def run(self) -> None:
        o = self.options
        augment = Augment(self.pairs, o.rates(), o.conjunction_pairs(), o.quote_pairs())
        self.model.train()
        bar = tqdm(total=100, unit="%", bar_format="{l_bar}{bar}| {elapsed}<{remaining}{postfix}")
        last_valid = clock = time.monotonic()
        for batch in self.batches(augment):
            loss = self.step(batch)
            now = time.monotonic()
            self.seconds, clock = self.seconds + now - clock, now
            bar.n = min(100, round(100 * self.progress(), 2))
            if self.n_steps % 20 == 0:
                bar.set_postfix(epoch=self.epoch, step=self.n_steps, loss=f"{loss:.3f}",
                                tokens=f"{self.n_tokens / self.seconds:.0f}/s")
            finished = self.progress() >= 1
            if finished or now - last_valid > 60 * o.valid_minutes:
                self.report(loss)
                last_valid = clock = time.monotonic()
            if finished:
                break
        bar.close()

    def report(self, train_loss: float) -> None:
        nll = self.validate()
        tqdm.write(
            f"{self.seconds / 60:6.1f} min  epoch {self.epoch}  step {self.n_steps}  "
            f"{self.n_tokens / 1e6:.2f} M tokens  train {train_loss:.3f}  valid {nll:.4f}",
            file=sys.stderr,
        )
        if nll < self.best:
            self.best = nll
            self.save_model()
        self.save_state()

    def save_model(self) -> None:
        torch.save({k: v.half() for k, v in self.model.state_dict().items()}, self.out / "weights.pt")

    def save_state(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "counters": {k: getattr(self, k) for k in COUNTERS},
            "random": torch.get_rng_state(),
        }
        torch.save(state, self.out / "train_state.new")
        (self.out / "train_state.new").replace(self.out / "train_state.pt")

    def load_state(self) -> None:
        state = torch.load(self.out / "train_state.pt", weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"]):
            optimizer.load_state_dict(saved)
        for name, value in state["counters"].items():
            setattr(self, name, value)
        torch.set_rng_state(state["random"])


COUNTERS = ("epoch", "batch", "n_steps", "n_tokens", "seconds", "best")


def main() -> None:
    import yaml

    options = TrainOptions(**yaml.safe_load(open(sys.argv[2], encoding="utf-8")))
    torch.set_num_threads(options.threads)
    trainer = Trainer(options)
    if "-resume" in sys.argv:
        trainer.load_state()
    trainer.run()


if __name__ == "__main__":
    main()
