"""Test and benchmark a GPU: `python -m tests.gpu`.

Runs tests/gpu first.  If all tests pass, it measures decoding steps of models with random weights
in bfloat16, with and without CUDA graphs, and prints the bounds of `tests.gpu.counts`.
"""

import subprocess
import sys
import time

import torch

from onmt_lite.models.base import AnyModel
from onmt_lite.models.cuda_graphs import CudaGraphCapture, use_cuda_graphs
from onmt_lite.search.beam_search import decode
from tests.gpu.counts import BEAM, LENGTH, MODELS, SENTENCES, make_model, make_search
from tests.gpu.counts import main as print_bounds

ROUNDS = 3


def main() -> int:
    if not torch.cuda.is_available():
        print("no GPU available; python -m tests.gpu.counts works without one")
        return 2
    code = subprocess.call([sys.executable, "-m", "pytest", "tests/gpu", "--durations=10"])
    if code:
        print("tests failed; speed is not measured")
        return code
    device = torch.device("cuda", torch.cuda.current_device())
    print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, beam {BEAM}")
    print("| model | slots | batches in flight | steps | µs per step | sentences/s |")
    print("|---|---|---|---|---|---|")
    for name, sizes in MODELS.items():
        torch.manual_seed(0)
        model = make_model(sizes)
        with torch.no_grad():
            model.output.bias[3] = -1000.0  # never EOS
        model = model.to(device, torch.bfloat16)
        for n in SENTENCES:
            for n_batches in (1, 2):
                replayed = use_cuda_graphs(model, CudaGraphCapture(device))
                report(name, replayed, n, n_batches, "replayed")
            report(name, model, n, 2, "by Python")
    print_bounds()
    return 0


def report(name: str, model: AnyModel, n: int, n_batches: int, how: str) -> None:
    """Print the best time of several rounds; the first ones capture graphs.

    Args:
        name: the model's name.
        model: the model, on the GPU.
        n: number of sentences.
        n_batches: batches that take turns.
        how: how steps are launched, for the table.
    """
    spec, sentences = make_search(n)
    best = float("inf")
    for _ in range(2 + ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in decode(model, sentences, spec, n, n_batches=n_batches):
            pass
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    cells = [name, n, n_batches, how, f"{best / LENGTH * 1e6:.0f}", f"{n / best:.0f}"]
    print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    sys.exit(main())
