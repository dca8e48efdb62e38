"""Jobs: translate files or streams in one process, in several, or on a cluster.

A job is a list of line ranges.  Each range becomes a partial file, and the output appears when all
partial files are concatenated.  Modules in the order of the data flow:

    job.py          one attempt at a job
    inputs.py       one pass over the inputs: count, hash and split into ranges
    tasks.py        read, translate and store a bucket of lines, in any process
    engine.py       choose the engine that runs the tasks; the engine of a Translator
    dispatcher.py   assign tasks to workers, repeat the tasks of dead workers
    workers.py      worker processes on this machine, seen from the parent
    worker.py       the worker processes themselves
    reports.py      output formats, warnings and statistics, BLEU
    output.py       the output files of a job
    store.py        partial files, locks, publishing
    fingerprint.py  everything that the output depends on
    progress.py     progress bar and log
"""
