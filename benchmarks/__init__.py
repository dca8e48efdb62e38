"""Speed comparison with other systems, run from a checkout: `python -m benchmarks -help`.

All installed systems translate the same lines with the same weights and beam size, in alternating
rounds: A B C, A B C.

    __main__.py   options; runs one workload after another
    workloads.py  models, lines, and the models in the formats of the other systems
    compare.py    alternating rounds; time and memory of each system's process
    systems.py    how each system translates, in a separate process
    m2m100.py     converts pre-norm onmt_lite models to M2M100 models for transformers
    report.py     tables and chart; `python -m benchmarks.report` writes them into the docs
"""
