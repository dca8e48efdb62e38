"""Speed beside other systems: `python -m onmt_lite.bench -help`.

The same lines, weights and beam in each system that is installed, in turns: A B C, A B C.  Files in
the order of a run:

    options.py    what is compared, and how often
    __main__.py   the program: one workload after the other, round after round
    workloads.py  models and lines; the models in the formats of the other systems
    child.py      a process per system, which loads its model once and waits to be told to go
    systems.py    how each system translates
    phases.py     where the time of ours goes, and the floor under it: the matrix products alone
    report.py     tables and a chart from what was measured
"""
