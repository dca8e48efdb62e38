"""One training run: locking, signals, errors, and the messages at its end."""

from onmt_lite.config.job_options import JobOptions
from onmt_lite.errors import FileError, MemoryExhausted
from onmt_lite.inference.runtime import is_out_of_memory
from onmt_lite.jobs.progress import configure_logging
from onmt_lite.system.log import LOG
from onmt_lite.system.terminal import Interrupted, stop_after_signal
from onmt_lite.train import data, run_directory
from onmt_lite.train.options import TrainOptions
from onmt_lite.train.trainer import Trainer


@configure_logging(JobOptions())
def train(options: TrainOptions, text: type[data.Text] = data.Text) -> None:
    """Train a model, or continue an interrupted run.

    The first signal ends the run after the current step and saves the state; a second one ends it
    immediately.

    Args:
        options: all options of the run
        text: class of the training text, which samples the pairs of each epoch

    Raises:
        OnmtLiteError: an option or a file is wrong, a file cannot be written, or memory runs out
        Interrupted: a signal ended the run
    """
    trainer = Trainer(options, text)
    out = trainer.out
    if trainer.progress >= 1:
        LOG.info(
            "this run is complete; to continue it, raise train_minutes or train_steps, counting "
            "earlier runs"
        )
    else:
        try:
            with stop_after_signal(trainer.stop), run_directory.lock_directory(out):
                trainer.run()
        except FileError as error:
            advice = run_directory.format_resume_hint(out, "free disk space and continue with")
            raise FileError(f"{error}{advice}") from None
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            problem = f"out of memory at step {trainer.n_steps}; use a lower batch_tokens"
            raise MemoryExhausted(f"{problem}{run_directory.format_resume_hint(out)}") from None
    LOG.info(
        "%d steps took %.1f minutes wall-clock, without validations, and %.1f minutes of CPU time",
        *(trainer.n_steps, trainer.seconds / 60, trainer.processor_seconds / 60),
    )
    files = ", ".join(name for name in run_directory.USER_FILES if (out / name).exists())
    LOG.info("model: %s  valid %.4f; in the same directory: %s", out, trainer.best, files)
    LOG.info("translate with it: %s", run_directory.format_translate_command(out))
    LOG.info(
        "calibrate it to get line confidences and `unsure` warnings: %s",
        run_directory.format_calibrate_command(out),
    )
    if trainer.stop_signal and trainer.progress < 1:
        interrupted = Interrupted(trainer.stop_signal)
        advice = run_directory.format_resume_hint(out)
        interrupted.status = f"at step {trainer.n_steps}, state saved{advice}"
        LOG.info("stopped %s", interrupted.status, extra={"on_stderr": False})
        raise interrupted
