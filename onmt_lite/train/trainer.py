"""One run of the trainer, from its options to the model.

Each validation that lowers the loss writes the model to the output directory, and the state from
which `-resume` continues.  For people there are a log, a table, a plot and the options of the run.
"""

import copy
import io
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import sentencepiece as spm
import torch
import yaml
from torch import Tensor, nn
from tqdm import tqdm

from onmt_lite.checkpoints import native
from onmt_lite.config.job_options import JobOptions, SpeedOptions
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import FileError, MemoryExhausted, OptionError, wrap_os_errors
from onmt_lite.inference.pipeline import Pipeline
from onmt_lite.inference.runtime import DTYPES, is_out_of_memory, resolve_device
from onmt_lite.jobs.progress import add_log_file, console_width, log_start, logging_to
from onmt_lite.jobs.reports import has_sacrebleu
from onmt_lite.models.transformer import Transformer
from onmt_lite.system.atomic_files import replace_files
from onmt_lite.system.log import LOG
from onmt_lite.system.terminal import CONSOLE, Interrupted, noted_signals
from onmt_lite.text.lines import lines_from_texts
from onmt_lite.train import data, network, run_directory
from onmt_lite.train.chart import HAS_MATPLOTLIB, draw_training_chart
from onmt_lite.train.forecast import RunSpeed, forecast, measure_speed
from onmt_lite.train.options import TrainOptions, to_config

# Attributes of a Trainer that the state holds, beside weights and optimizers
COUNTERS = ("epoch", "batch", "n_steps", "n_tokens", "seconds", "processor_seconds", "best")

ROWS = 100  # rows of the table, besides those of validations
LINE_SECONDS = 60  # time between lines of progress if there is no bar
BLEU_LINES, SHOWN_LINES = 200, 2  # held-out lines that a validation translates, and that it logs
BAR = "{l_bar}{bar}| {elapsed}<{remaining}{postfix}"


@logging_to(JobOptions())
def train(options: TrainOptions, text: type[data.Text] = data.Text) -> None:
    """Run a training to its end.

    A first signal ends the run after the current step and saves the state, a second one ends it at
    once.  Raises an OnmtLiteError or, after a first signal, Interrupted.
    """
    trainer = Trainer(options, text)
    out = trainer.out
    if trainer.progress() >= 1:
        LOG.info("this run is complete; earlier runs count: raise train_minutes or train_steps")
    else:
        try:
            with noted_signals(trainer.stop), run_directory.lock_directory(out):
                trainer.run()
        except FileError as error:
            advice = run_directory.format_resume_hint(out, "to go on, make room and run")
            raise FileError(f"{error}{advice}") from None
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            said = f"out of memory at step {trainer.n_steps}; give a lower batch_tokens"
            raise MemoryExhausted(f"{said}{run_directory.format_resume_hint(out)}") from None
    LOG.info(
        "%d steps took %.1f minutes by the clock, without validations, and %.1f processor minutes",
        *(trainer.n_steps, trainer.seconds / 60, trainer.processor_seconds / 60),
    )
    files = ", ".join(name for name in run_directory.USER_FILES if (out / name).exists())
    LOG.info("model: %s  valid %.4f; beside it %s", out, trainer.best, files)
    LOG.info("translate with it: %s", run_directory.format_translate_command(out))
    LOG.info(
        "calibrate it to get a confidence for each line, and `unsure` for doubtful ones: %s",
        run_directory.format_calibrate_command(out),
    )
    if trainer.stopping and trainer.progress() < 1:
        interrupted = Interrupted(trainer.stopping)
        advice = run_directory.format_resume_hint(out)
        interrupted.status = f"at step {trainer.n_steps}, state saved{advice}"
        LOG.info("stopped %s", interrupted.status, extra={"on_stderr": False})
        raise interrupted


def clocks() -> tuple[float, float]:
    """Return seconds by the clock, and of processor time."""
    return time.monotonic(), time.process_time()


def translate_greedily(
    model: Transformer, sp: spm.SentencePieceProcessor, lines: Sequence[str]
) -> list[str]:
    """Translate in single precision."""
    options = TranslateOptions.of(beam_size=1, device=str(model.device), precision="fp32")
    model.eval()
    pipeline = Pipeline(native.make_checkpoint(model, sp), options)
    translations = pipeline.translate_lines(list(lines_from_texts(lines, "lines")))
    model.train()
    return [translation.hyps[0].text for translation in translations]


class Trainer:
    """The model of a run, its optimizers, and counters of steps, tokens and seconds."""

    def __init__(self, options: TrainOptions, text: type[data.Text] = data.Text):
        """Check options, read files, make the model, and only then write to the directory.

        Raises an OnmtLiteError before anything is written.
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
        dropout = options.model.dropout
        start = files.init_from
        trained = None if start is None else network.load_trained_model(start, dropout)
        self.text, held_out = data.read_corpora(files, text)
        self.settled = run_directory.collect_fixed_values(options, self.text, held_out)
        state = run_directory.read_state(self.out, self.settled) if learning.resume else None

        self.pieces = self._pieces()
        self.sp = spm.SentencePieceProcessor(model_proto=self.pieces)
        model = trained or network.build_model(options.model, self.sp.vocab_size())
        self.model = network.cast_embeddings(model).to(self.device)
        # What is validated and saved: the model, or another with the mean of its weights
        self.kept = copy.deepcopy(self.model) if learning.mean_steps else self.model
        self.optimizers = self._optimizers()
        self.peaks = [[g["lr"] for g in o.param_groups] for o in self.optimizers]

        sampling = files.src_sampling, files.tgt_sampling
        limits = self.model.max_positions, learning.batch_tokens
        self.epochs = data.Epochs(self.text, self.sp, *sampling, *limits, learning.seed)
        self.valid = [data.make_held_out_batches(self.sp, pairs, *limits) for pairs in held_out]
        self.shown = data.pick_evenly([pair for pairs in held_out for pair in pairs], BLEU_LINES)

        self.epoch = self.batch = self.n_steps = self.n_tokens = 0
        self.seconds = self.processor_seconds = 0.0  # of updates: by the clock, and of all threads
        self.clocks = clocks()  # at the end of the last update
        self.best, self.total_loss = math.inf, 0.0
        self.stopping = 0  # the signal that asks for a stop
        if state is not None:
            self.load_state(state)
        self.last_row = self.n_tokens, self.seconds, 0.0
        self._begin([pair for pairs in held_out for pair in pairs])

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        learning = self.options.learning
        rates = learning.matrix_lr, learning.vector_lr
        return network.build_optimizers(self.model, *rates, self.dtype)

    def _pieces(self) -> bytes:
        """Return a sentencepiece model: that of the resumed run or of init_from, or a new one."""
        files = self.options.data
        model = self.out if self.options.learning.resume else files.init_from
        if model is not None:
            path = Path(model) / native.SENTENCEPIECE
            with wrap_os_errors(f"read {path}"):
                return path.read_bytes()
        LOG.info("making pieces of the words of %s pairs", f"{len(self.text.pairs):,}")
        size, all_characters = files.vocab_size, files.all_characters
        return data.train_sentencepiece(self.text.select_subword_pairs(), size, all_characters)

    def _begin(self, held_out: list[data.Pair]) -> None:
        """Make the directory and begin its files; log sizes, device and notes."""
        with wrap_os_errors(f"write {self.out}"):
            self.out.mkdir(parents=True, exist_ok=True)
        add_log_file(str(self.out / run_directory.LOG_FILE))
        if self.options.learning.log_file is not None:
            add_log_file(self.options.learning.log_file)
        log_start()
        config = yaml.safe_dump(to_config(self.options), allow_unicode=True, sort_keys=False)
        files = {run_directory.CONFIG: config.encode("utf-8"), native.SENTENCEPIECE: self.pieces}
        files[run_directory.HELD_OUT] = run_directory.format_pairs(held_out)
        replace_files(self.out, files)
        self.metrics = run_directory.MetricsTable(self.out, self.n_steps)
        pairs = self.text.pairs
        LOG.info(
            "%s pairs to learn from, %s held out; %s pieces, %.1f million parameters; %s, %s",
            f"{len(pairs):,}",
            f"{sum(len(batch.src) for batches in self.valid for batch in batches):,}",
            f"{self.sp.vocab_size():,}",
            sum(p.numel() for p in self.model.parameters()) / 1e6,
            self.device,
            "bf16" if self.dtype == torch.bfloat16 else "fp32",
        )
        notes = data.check_held_out(self.options.data, pairs, self.shown)
        for note in (*self.options.notes, *notes):
            LOG.info("NOTE: %s", note)
        checkpoint = native.make_checkpoint(self.model, self.sp)
        for line in network.describe_export_limits(checkpoint, self.model.cfg):
            LOG.info("%s", line)
        if not has_sacrebleu():
            LOG.info("no BLEU at validations: sacrebleu is missing (pip install sacrebleu)")
        if not HAS_MATPLOTLIB:
            LOG.info(
                "no plot: matplotlib, the extra `plots`, is missing (pip install matplotlib); %s "
                "has the numbers",
                run_directory.TABLE,
            )
        if self.n_steps:
            LOG.info("continuing after step %d", self.n_steps)

    # -- steps ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Train until a limit is reached or a signal arrives."""
        valid_seconds = 60 * self.options.learning.minutes_between_validations
        self.model.train()
        self.clocks = clocks()
        last_valid = self.clocks[0]
        quiet = not CONSOLE.isatty()
        with tqdm(
            total=100, bar_format=BAR, file=CONSOLE, disable=quiet, ncols=console_width()
        ) as bar:
            for batch in self.batches():
                share, seconds = self.progress(), self.seconds
                loss = self.step(batch)
                self.count_time()
                standing = f"{self.standing()}  loss {loss:.3f}"
                bar.set_postfix_str(standing, refresh=False)
                bar.update(min(100.0, 100 * self.progress()) - bar.n)
                over = self.progress() >= 1 or bool(self.stopping)
                if over or self.clocks[0] - last_valid > valid_seconds:
                    self.report()
                    self.clocks = clocks()
                    last_valid = self.clocks[0]
                    over = over or bool(self.stopping)  # a signal during the validation
                elif int(ROWS * self.progress()) > int(ROWS * share):
                    self.metrics.add(self.row())
                if over:  # the state is saved
                    break
                if self.seconds // LINE_SECONDS > seconds // LINE_SECONDS:
                    line = f"{100 * self.progress():3.0f} %  {self.minutes()}  {standing}"
                    LOG.info("%s", line, extra={"on_stderr": quiet})

    def count_time(self) -> None:
        """Add the time since the last update, or validation, to that of the run."""
        before, self.clocks = self.clocks, clocks()
        self.seconds += self.clocks[0] - before[0]
        self.processor_seconds += self.clocks[1] - before[1]

    def stop(self, signum: int) -> None:
        """End the run after the current step."""
        self.stopping = signum

    def progress(self) -> float:
        """Return the finished fraction of the run, 0 to 1, by the nearer of its two limits."""
        learning = self.options.learning
        by_steps = self.n_steps / learning.train_steps if learning.train_steps else 0.0
        by_time = self.seconds / 60 / learning.train_minutes if learning.train_minutes else 0.0
        return max(by_steps, by_time)

    def batches(self) -> Iterator[data.TrainBatch]:
        """Yield the remaining batches, epoch after epoch, without end."""
        first = self.epoch
        for epoch in map(self.epochs, itertools.count(first)):
            if self.epoch == first and epoch.n_left_out:
                LOG.info(
                    "NOTE: %d pairs of an epoch are left out: a line has more than %d tokens, or a "
                    "target has a character without a piece (-all_characters makes them)",
                    *(epoch.n_left_out, self.model.max_positions),
                )
            if self.epoch == first:
                self.tell_length(epoch)
            for batch in epoch.batches[self.batch :]:
                self.batch += 1
                yield data.pad_batch(batch)
            self.epoch, self.batch = self.epoch + 1, 0

    def tell_length(self, epoch: data.Epoch) -> None:
        """Log what the run will come to; the time that this takes is none of its minutes."""
        self.count_time()
        learning, n_steps = self.options.learning, len(epoch.batches)
        pace = RunSpeed(
            n_pairs=len(self.text.pairs),
            n_parameters=sum(p.numel() for p in self.model.parameters()),
            epoch_steps=n_steps,
            step_tokens=sum(len(tgt) + 1 for b in epoch.batches for _, tgt in b) / n_steps,
            tokens_per_second=self.speed(epoch),
        )
        is_trained = self.options.data.init_from is not None
        for line in forecast(pace, learning, self.n_steps, self.seconds, is_trained):
            LOG.info("%s", line)
        self.clocks = clocks()

    def speed(self, epoch: data.Epoch) -> float:
        """Measure target tokens a second, by updates of a copy of the model."""
        kept = self.model, self.optimizers
        try:
            self.model = copy.deepcopy(self.model)
            self.optimizers = self._optimizers()
            with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
                return measure_speed(epoch.batches, self.update, lambda: bool(self.stopping))
        finally:
            self.model, self.optimizers = kept

    def step(self, batch: data.TrainBatch) -> float:
        """Learn from one batch.  Returns its loss per target token."""
        loss = self.update(batch)
        self.n_steps += 1
        self.n_tokens += batch.n_tokens
        self.average()
        self.total_loss += self.finite(loss) * batch.n_tokens
        return loss

    def update(self, batch: data.TrainBatch) -> float:
        """Change the weights by one batch.  Returns its loss per target token."""
        # Linear warm-up, a plateau, then a linear fall to zero
        warm = min(1.0, (self.n_steps + 1) / self.options.learning.warmup_steps)
        cool = min(1.0, (1.0 - self.progress()) / self.options.learning.cooldown)
        for optimizer, peaks in zip(self.optimizers, self.peaks):
            optimizer.zero_grad()
            for group, peak in zip(optimizer.param_groups, peaks):
                group["lr"] = peak * warm * cool
        loss = self.loss(self.model, batch, self.options.learning.label_smoothing) / batch.n_tokens
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.options.learning.clip_norm)
        for optimizer in self.optimizers:
            optimizer.step()
        return loss.item()

    @torch.no_grad()
    def average(self) -> None:
        """Take the weights into the running mean, the plain mean of a run's first mean_steps."""
        if self.kept is not self.model:
            share = 1 / min(self.options.learning.mean_steps, self.n_steps)
            for mean, now in zip(self.kept.parameters(), self.model.parameters()):
                mean.lerp_(now, share)

    def loss(self, model: Transformer, batch: data.TrainBatch, label_smoothing: float) -> Tensor:
        """Return the summed loss of the target tokens of a batch, in nats."""
        b = data.TrainBatch(*(t.to(self.device) for t in vars(batch).values()))
        low, output = self.dtype == torch.bfloat16, model.output
        with torch.autocast(self.device.type, torch.bfloat16, enabled=low):
            memory = model.encode(b.src, b.src_lengths)
            hidden, _ = model.decode_all(b.tgt_in, memory)  # (B, T, D)
            tokens = b.tgt_out != data.PAD  # (B, T)
            return network.smoothed_nll(
                hidden[tokens], output.weight, output.bias, b.tgt_out[tokens], label_smoothing
            )

    def finite(self, loss: float) -> float:
        """Return the loss.  Raises OptionError if it is not finite: no weights are saved then."""
        if math.isfinite(loss):
            return loss
        state = self.out / run_directory.STATE
        from_state = f"resume from {state}" if state.exists() else "start again"
        raise OptionError(
            f"the loss is not finite at step {self.n_steps}; {from_state} with lower matrix_lr and "
            "vector_lr, or with precision fp32"
        )

    # -- validations ------------------------------------------------------------------------------

    def report(self) -> None:
        """Validate, save the model if its loss is the lowest so far, and save the state."""
        if self.stopping:  # there may be no time for a validation
            self.save_state()
        losses = self.held_out_losses()
        nll = self.finite(sum(losses) / len(losses))
        if nll < self.best:
            self.best = nll
            native.save(self.out, self.kept, self.pieces, self.options.data.save_bits)
        shown = self.shown[: SHOWN_LINES if self.stopping else BLEU_LINES]
        sources, references = ([pair[side] for pair in shown] for side in (0, 1))
        outputs = translate_greedily(self.kept, self.sp, sources)
        bleu = None
        if has_sacrebleu() and not self.stopping:
            import sacrebleu  # optional

            bleu = sacrebleu.corpus_bleu(outputs, [references], force=True).score
        row = self.row(nll, bleu)
        each = f" ({' '.join(f'{loss:.4f}' for loss in losses)})" if len(losses) > 1 else ""
        scored = "" if bleu is None else f"  BLEU {bleu:.1f}"
        told = f"train {row.train_loss:.3f}  valid {nll:.4f}{each}{scored}"
        LOG.info("%s  %s  %s", self.minutes(), self.standing(), told)
        for source, reference, output in list(zip(sources, references, outputs))[:SHOWN_LINES]:
            LOG.info("    source     %s", source)
            LOG.info("    reference  %s", reference)
            LOG.info("    output     %s", output)
        self.metrics.add(row)
        self.save_state()
        if HAS_MATPLOTLIB:
            replace_files(self.out, {run_directory.PLOT: draw_training_chart(self.metrics.rows)})

    @torch.no_grad()
    def held_out_losses(self) -> list[float]:
        """Return the negative log-likelihood per target token of each held-out file, in nats."""
        self.kept.eval()
        losses = []
        for batches in self.valid:
            total = sum(self.loss(self.kept, batch, 0.0).item() for batch in batches)
            losses.append(total / sum(batch.n_tokens for batch in batches))
        self.kept.train()
        return losses

    def minutes(self) -> str:
        return f"{self.seconds / 60:.1f} min (processor {self.processor_seconds / 60:.1f})"

    def standing(self) -> str:
        speed = self.n_tokens / max(self.seconds, 1e-9)
        return f"epoch {self.epoch}  step {self.n_steps}  {speed:.0f} tokens/s"

    def row(self, valid_loss: float | None = None, bleu: float | None = None) -> run_directory.Row:
        """Make a row of the table, with means since the row before."""
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

    # -- the state --------------------------------------------------------------------------------

    def save_state(self) -> None:
        """Replace the state for -resume."""
        state = {
            "model": self.model.state_dict(),
            "mean": self.kept.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "counters": {name: getattr(self, name) for name in COUNTERS},
            "random": torch.get_rng_state(),
            "settled": self.settled,
        }
        buffer = io.BytesIO()
        torch.save(state, buffer)
        replace_files(self.out, {run_directory.STATE: buffer.getvalue()})

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state.  Raises DataError if it does not fit the run."""
        try:
            self.model.load_state_dict(state["model"])
            if self.kept is not self.model:  # one that begins now begins at the weights
                self.kept.load_state_dict(state.get("mean", state["model"]))
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            torch.set_rng_state(state["random"].cpu())
            state["counters"].setdefault("processor_seconds", 0.0)  # older versions have none
            for name in COUNTERS:
                setattr(self, name, state["counters"][name])
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise run_directory.cannot_resume(self.out, error) from None
