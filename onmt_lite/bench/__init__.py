"""Speed beside other systems: `python -m onmt_lite.bench -help`.

The same lines, weights and beam in each system that is installed, in turns: A B C, A B C.  Files in
the order of a run:

    options.py    what is compared, and how often
    __main__.py   the program: one workload after the other
    workloads.py  models and lines; the models in the formats of the other systems
    compare.py    one workload: the systems take turns, round after round
    child.py      a process per system, which loads its model once and waits to be told to go
    systems.py    how each system translates
    m2m100.py     our Transformers in transformers, where those are no Marian models
    phases.py     where the time of ours goes, and the floor under it: the matrix products alone
    report.py     tables and a chart from what was measured
"""
