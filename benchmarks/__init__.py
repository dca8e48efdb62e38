"""Speed beside other systems, from a checkout: `python -m benchmarks -help`.

The same lines, weights and beam in each installed system, in turns: A B C, A B C.

    __main__.py   options; one workload after the other
    workloads.py  models and lines, and the models in the formats of the other systems
    compare.py    rounds in turns; the processes of the systems, their time and memory
    systems.py    how each system translates, in a process of its own
    m2m100.py     our Transformers in transformers, if Marian's architecture does not fit
    report.py     tables and chart; `python -m benchmarks.report` writes them into the pages
"""
