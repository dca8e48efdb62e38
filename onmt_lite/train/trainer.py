"""The training loop: from options and text files to a model directory.

Each validation that lowers the loss saves the model to the output directory, and every validation
saves the training state for `-resume`.  The run also writes a log, a CSV table, a plot and its
options.
"""

import copy
import io
import itertools
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sentencepiece as spm
import torch
import yaml
from torch import Tensor, nn
from tqdm import tqdm

from onmt_lite.checkpoints import native
from onmt_lite.config.job_options import SpeedOptions
from onmt_lite.errors import OptionError, wrap_os_errors
from onmt_lite.inference.runtime import DTYPES, resolve_device
from onmt_lite.jobs.progress import add_log_file, get_bar_width, log_start
from onmt_lite.jobs.reports import has_sacrebleu
from onmt_lite.models.transformer import Transformer
from onmt_lite.system.atomic_files import replace_files
from onmt_lite.system.log import LOG
from onmt_lite.system.terminal import CONSOLE
from onmt_lite.train import data, network, run_directory
from onmt_lite.train.chart import HAS_MATPLOTLIB, draw_training_chart
from onmt_lite.train.forecast import RunSpeed, forecast, measure_speed
from onmt_lite.train.options import TrainOptions, to_config
from onmt_lite.train.validation import compute_bleu, log_samples, translate_greedily

# Trainer attributes saved in the state, in addition to weights and optimizers
COUNTERS = ("epoch", "batch", "n_steps", "n_tokens", "seconds", "processor_seconds", "best")

METRICS_ROWS = 100  # table rows per run, in addition to one row per validation
PROGRESS_SECONDS = 60  # time between progress lines in the log
BLEU_LINES, SAMPLE_LINES = 200, 2  # held-out lines translated and logged at each validation
BAR = "{l_bar}{bar}| {elapsed}<{remaining}{postfix}"


def read_clocks() -> tuple[float, float]:
    """Return wall-clock and CPU time in seconds."""
    return time.monotonic(), time.process_time()


class Trainer:
    """A training run: the model, its optimizers, and counters of steps, tokens and seconds."""

    def __init__(self, options: TrainOptions, text: type[data.Text] = data.Text):
        """Check options, read files, build the model, and only then write to the directory.

        Args:
            options: all options of the run
            text: class of the training text, which samples the pairs of each epoch

        Raises:
            OnmtLiteError: an option or a file is wrong; nothing has been written
        """
        self.options, self.out = options, Path(options.data.output)
        files, learning = options.data, options.learning
        run_directory.check_files(options)
        speed = SpeedOptions(device=learning.device, precision=learning.precision)
        self.device, precision = resolve_device(speed, exact=True)
        self.dtype = DTYPES[precision]
        if learning.threads is not None:
            torch.set_num_threads(learning.threads)
        torch.manual_seed(learning.seed)
        pretrained = None
        if files.init_from is not None:
            pretrained = network.load_trained_model(files.init_from, options.model.dropout)
        self.text, held_out = data.read_corpora(files, text)
        self.fixed_values = run_directory.collect_fixed_values(options, self.text, held_out)
        state = run_directory.read_state(self.out, self.fixed_values) if learning.resume else None

        self.sp_model = self._make_sentencepiece()
        self.sp = spm.SentencePieceProcessor(model_proto=self.sp_model)
        model = pretrained or network.build_model(options.model, self.sp.vocab_size())
        self.model = network.cast_embeddings(model).to(self.device)
        # The model that is validated and saved: the model itself, or a running mean of its weights
        self.mean_model = copy.deepcopy(self.model) if learning.mean_steps else self.model
        self.optimizers = self._build_optimizers()
        self.peak_rates = [[g["lr"] for g in o.param_groups] for o in self.optimizers]

        sampling = files.src_sampling, files.tgt_sampling
        limits = self.model.max_positions, learning.batch_tokens
        self.epochs = data.Epochs(self.text, self.sp, *sampling, *limits, learning.seed)
        self.valid = [data.make_held_out_batches(self.sp, pairs, *limits) for pairs in held_out]
        all_held_out = [pair for pairs in held_out for pair in pairs]
        self.bleu_pairs = data.pick_evenly(all_held_out, BLEU_LINES)

        self.epoch = self.batch = self.n_steps = self.n_tokens = 0
        self.seconds = self.processor_seconds = 0.0  # spent on updates: wall-clock and CPU
        self.clocks = read_clocks()  # at the end of the last update
        self.best, self.total_loss = math.inf, 0.0
        self.stop_signal = 0  # number of the signal that requested a stop
        if state is not None:
            self.load_state(state)
        self.last_row = self.n_tokens, self.seconds, 0.0
        self._start_files(all_held_out)
        self._log_start()

    def _build_optimizers(self) -> list[torch.optim.Optimizer]:
        """Build the optimizers for the current model."""
        learning = self.options.learning
        rates = learning.matrix_lr, learning.vector_lr
        return network.build_optimizers(self.model, *rates, self.dtype)

    def _make_sentencepiece(self) -> bytes:
        """Read the SentencePiece model of the resumed run or of init_from, or train a new one."""
        files = self.options.data
        model = self.out if self.options.learning.resume else files.init_from
        if model is not None:
            path = Path(model) / native.SENTENCEPIECE
            with wrap_os_errors(f"read {path}"):
                return path.read_bytes()
        LOG.info("training a SentencePiece model on %s pairs", f"{len(self.text.pairs):,}")
        size, all_characters = files.vocab_size, files.all_characters
        return data.train_sentencepiece(self.text.select_subword_pairs(), size, all_characters)

    def _start_files(self, held_out: list[data.Pair]) -> None:
        """Create the output directory with the log, options, tokenizer and held-out pairs."""
        with wrap_os_errors(f"write {self.out}"):
            self.out.mkdir(parents=True, exist_ok=True)
        add_log_file(str(self.out / run_directory.LOG_FILE))
        if self.options.learning.log_file is not None:
            add_log_file(self.options.learning.log_file)
        log_start()
        config = yaml.safe_dump(to_config(self.options), allow_unicode=True, sort_keys=False)
        files = {run_directory.CONFIG: config.encode("utf-8"), native.SENTENCEPIECE: self.sp_model}
        files[run_directory.HELD_OUT] = run_directory.format_pairs(held_out)
        replace_files(self.out, files)
        self.metrics = run_directory.MetricsTable(self.out, self.n_steps)

    def _log_start(self) -> None:
        """Log sizes, device and notices."""
        pairs = self.text.pairs
        LOG.info(
            "%s training pairs, %s held out; %s subwords, %.1f million parameters; %s, %s",
            f"{len(pairs):,}",
            f"{sum(len(batch.src) for batches in self.valid for batch in batches):,}",
            f"{self.sp.vocab_size():,}",
            sum(p.numel() for p in self.model.parameters()) / 1e6,
            self.device,
            "bf16" if self.dtype == torch.bfloat16 else "fp32",
        )
        notices = data.check_held_out(self.options.data, pairs, self.bleu_pairs)
        for notice in (*self.options.notices, *notices):
            LOG.info("NOTE: %s", notice)
        checkpoint = native.make_checkpoint(self.model, self.sp)
        for line in network.describe_export_limits(checkpoint, self.model.cfg):
            LOG.info("%s", line)
        if not has_sacrebleu():
            LOG.info("no validation BLEU: sacrebleu is not installed (pip install sacrebleu)")
        if not HAS_MATPLOTLIB:
            LOG.info(
                "no plot: matplotlib, the extra `plots`, is not installed (pip install "
                "matplotlib); see %s for the numbers",
                run_directory.TABLE,
            )
        if self.n_steps:
            LOG.info("continuing after step %d", self.n_steps)

    # -- steps ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Train until a limit is reached or a signal arrives."""
        valid_seconds = 60 * self.options.learning.minutes_between_validations
        self.model.train()
        self.clocks = read_clocks()
        last_valid = self.clocks[0]
        quiet = not CONSOLE.isatty()
        with tqdm(
            total=100, bar_format=BAR, file=CONSOLE, disable=quiet, ncols=get_bar_width()
        ) as bar:
            for batch in self.iterate_batches():
                progress, seconds = self.progress, self.seconds
                loss = self.step(batch)
                self.count_time()
                status = f"{self.format_status()}  loss {loss:.3f}"
                bar.set_postfix_str(status, refresh=False)
                bar.update(min(100.0, 100 * self.progress) - bar.n)
                finished = self.progress >= 1 or bool(self.stop_signal)
                if finished or self.clocks[0] - last_valid > valid_seconds:
                    self.validate()
                    self.clocks = read_clocks()
                    last_valid = self.clocks[0]
                    finished = finished or bool(self.stop_signal)  # a signal during the validation
                elif int(METRICS_ROWS * self.progress) > int(METRICS_ROWS * progress):
                    self.metrics.add(self.make_row())
                if finished:  # the state is saved
                    break
                if self.seconds // PROGRESS_SECONDS > seconds // PROGRESS_SECONDS:
                    line = f"{100 * self.progress:3.0f} %  {self.format_time()}  {status}"
                    LOG.info("%s", line, extra={"on_stderr": quiet})

    def count_time(self) -> None:
        """Add the time since the last update or validation to the training time."""
        before, self.clocks = self.clocks, read_clocks()
        self.seconds += self.clocks[0] - before[0]
        self.processor_seconds += self.clocks[1] - before[1]

    def stop(self, signum: int) -> None:
        """End the run after the current step."""
        self.stop_signal = signum

    @property
    def progress(self) -> float:
        """Finished fraction of the run, by whichever limit is closer; 1 or more: complete."""
        learning = self.options.learning
        by_steps = self.n_steps / learning.train_steps if learning.train_steps else 0.0
        by_time = self.seconds / 60 / learning.train_minutes if learning.train_minutes else 0.0
        return max(by_steps, by_time)

    def iterate_batches(self) -> Iterator[data.TrainBatch]:
        """Yield the remaining batches, epoch after epoch, without end."""
        first = self.epoch
        for epoch in map(self.epochs, itertools.count(first)):
            if self.epoch == first and epoch.n_skipped:
                LOG.info(
                    "NOTE: %d pairs per epoch are skipped: a line has more than %d tokens, or the "
                    "target has a character outside the vocabulary (-all_characters adds them)",
                    *(epoch.n_skipped, self.model.max_positions),
                )
            if self.epoch == first:
                self.log_forecast(epoch)
            for batch in epoch.batches[self.batch :]:
                self.batch += 1
                yield data.pad_batch(batch)
            self.epoch, self.batch = self.epoch + 1, 0

    def log_forecast(self, epoch: data.Epoch) -> None:
        """Log how long the run will take.  The measurement does not count as training time."""
        self.count_time()
        learning, n_steps = self.options.learning, len(epoch.batches)
        speed = RunSpeed(
            n_pairs=len(self.text.pairs),
            n_parameters=sum(p.numel() for p in self.model.parameters()),
            epoch_steps=n_steps,
            step_tokens=sum(len(tgt) + 1 for b in epoch.batches for _, tgt in b) / n_steps,
            tokens_per_second=self.measure_speed(epoch),
        )
        is_pretrained = self.options.data.init_from is not None
        for line in forecast(speed, learning, self.n_steps, self.seconds, is_pretrained):
            LOG.info("%s", line)
        self.clocks = read_clocks()

    def measure_speed(self, epoch: data.Epoch) -> float:
        """Return target tokens per second, measured by updates of a copy of the model."""
        original = self.model, self.optimizers
        try:
            self.model = copy.deepcopy(self.model)
            self.optimizers = self._build_optimizers()
            with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
                return measure_speed(epoch.batches, self.update, lambda: bool(self.stop_signal))
        finally:
            self.model, self.optimizers = original

    def step(self, batch: data.TrainBatch) -> float:
        """Train on one batch and count it.  Returns the loss per target token in nats."""
        loss = self.update(batch)
        self.n_steps += 1
        self.n_tokens += batch.n_tokens
        self.update_mean()
        self.total_loss += self.check_finite(loss) * batch.n_tokens
        return loss

    def update(self, batch: data.TrainBatch) -> float:
        """Update the weights with one batch.  Returns the loss per target token in nats."""
        # Linear warm-up, a plateau, then linear decay to zero
        warm = min(1.0, (self.n_steps + 1) / self.options.learning.warmup_steps)
        cool = min(1.0, (1.0 - self.progress) / self.options.learning.cooldown)
        for optimizer, peaks in zip(self.optimizers, self.peak_rates):
            optimizer.zero_grad()
            for group, peak in zip(optimizer.param_groups, peaks):
                group["lr"] = peak * warm * cool
        smoothing = self.options.learning.label_smoothing
        loss = self.compute_loss(self.model, batch, smoothing) / batch.n_tokens
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.options.learning.clip_norm)
        for optimizer in self.optimizers:
            optimizer.step()
        return loss.item()

    @torch.no_grad()
    def update_mean(self) -> None:
        """Add the weights to the running mean (in the first mean_steps steps: the plain mean)."""
        if self.mean_model is not self.model:
            share = 1 / min(self.options.learning.mean_steps, self.n_steps)
            for mean, weights in zip(self.mean_model.parameters(), self.model.parameters()):
                mean.lerp_(weights, share)

    def compute_loss(
        self, model: Transformer, batch: data.TrainBatch, label_smoothing: float
    ) -> Tensor:
        """Return the summed loss of a batch's target tokens.

        Args:
            model: the model to evaluate
            batch: the padded batch, on the CPU
            label_smoothing: probability spread over the whole vocabulary

        Returns:
            The loss (), float32, in nats.
        """
        b = data.TrainBatch(*(t.to(self.device) for t in vars(batch).values()))
        uses_bf16, output = self.dtype == torch.bfloat16, model.output
        with torch.autocast(self.device.type, torch.bfloat16, enabled=uses_bf16):
            memory = model.encode(b.src, b.src_lengths)
            hidden, _ = model.decode_all(b.tgt_in, memory)  # (B, T, D)
            tokens = b.tgt_out != data.PAD  # (B, T)
            return network.compute_smoothed_nll(
                hidden[tokens], output.weight, output.bias, b.tgt_out[tokens], label_smoothing
            )

    def check_finite(self, loss: float) -> float:
        """Return the loss.  Raises OptionError if it is not finite, before weights are saved."""
        if math.isfinite(loss):
            return loss
        state = self.out / run_directory.STATE
        start = f"resume from {state}" if state.exists() else "start again"
        raise OptionError(
            f"the loss is not finite at step {self.n_steps}; {start} with lower matrix_lr and "
            "vector_lr, or with precision fp32"
        )

    # -- validation -------------------------------------------------------------------------------

    def validate(self) -> None:
        """Validate, save the model if its loss is the lowest so far, and save the state."""
        if self.stop_signal:  # the process may be killed during the validation
            self.save_state()
        losses = self.compute_held_out_losses()
        nll = self.check_finite(sum(losses) / len(losses))
        if nll < self.best:
            self.best = nll
            bits = self.options.data.save_bits
            native.save(self.out, self.mean_model, self.sp_model, bits)
        pairs = self.bleu_pairs[: SAMPLE_LINES if self.stop_signal else BLEU_LINES]
        sources, references = ([pair[side] for pair in pairs] for side in (0, 1))
        outputs = translate_greedily(self.mean_model, self.sp, sources)
        bleu = None if self.stop_signal else compute_bleu(outputs, references)
        row = self.make_row(nll, bleu)
        by_file = f" ({' '.join(f'{loss:.4f}' for loss in losses)})" if len(losses) > 1 else ""
        score = "" if bleu is None else f"  BLEU {bleu:.1f}"
        results = f"train {row.train_loss:.3f}  valid {nll:.4f}{by_file}{score}"
        LOG.info("%s  %s  %s", self.format_time(), self.format_status(), results)
        log_samples(sources[:SAMPLE_LINES], references, outputs)
        self.metrics.add(row)
        self.save_state()
        if HAS_MATPLOTLIB:
            replace_files(self.out, {run_directory.PLOT: draw_training_chart(self.metrics.rows)})

    @torch.no_grad()
    def compute_held_out_losses(self) -> list[float]:
        """Return the negative log-likelihood per target token of each held-out file, in nats."""
        self.mean_model.eval()
        losses = []
        for batches in self.valid:
            total = sum(self.compute_loss(self.mean_model, batch, 0.0).item() for batch in batches)
            losses.append(total / sum(batch.n_tokens for batch in batches))
        self.mean_model.train()
        return losses

    def format_time(self) -> str:
        """Format wall-clock and CPU minutes for the log."""
        return f"{self.seconds / 60:.1f} min (CPU {self.processor_seconds / 60:.1f})"

    def format_status(self) -> str:
        """Format epoch, step and speed for the log."""
        speed = self.n_tokens / max(self.seconds, 1e-9)
        return f"epoch {self.epoch}  step {self.n_steps}  {speed:.0f} tokens/s"

    def make_row(
        self, valid_loss: float | None = None, bleu: float | None = None
    ) -> run_directory.Row:
        """Build a table row, with means over the steps since the last row."""
        tokens, seconds, loss = self.last_row
        self.last_row = self.n_tokens, self.seconds, self.total_loss
        return run_directory.Row(
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

    # -- state ------------------------------------------------------------------------------------

    def save_state(self) -> None:
        """Replace the saved state for -resume."""
        state = {
            "model": self.model.state_dict(),
            "mean": self.mean_model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "counters": {name: getattr(self, name) for name in COUNTERS},
            "random": torch.get_rng_state(),
            "settled": self.fixed_values,
        }
        buffer = io.BytesIO()
        torch.save(state, buffer)
        replace_files(self.out, {run_directory.STATE: buffer.getvalue()})

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a saved state.  Raises DataError if it does not match the run."""
        try:
            self.model.load_state_dict(state["model"])
            if self.mean_model is not self.model:  # a new mean starts at the current weights
                self.mean_model.load_state_dict(state.get("mean", state["model"]))
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            torch.set_rng_state(state["random"].cpu())
            state["counters"].setdefault("processor_seconds", 0.0)  # missing in older versions
            for name in COUNTERS:
                setattr(self, name, state["counters"][name])
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise run_directory.make_resume_error(self.out, error) from None
