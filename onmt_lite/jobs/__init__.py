"""Jobs: lines of files or streams to an output, by one process, by several, or on a cluster.

A job is a list of ranges.  Each becomes a part; the output appears when they are joined.  Files in
the order in which data passes:

    job.py          a run of a job, and its output
    inputs.py       one pass over the inputs: counted, hashed, cut into ranges
    tasks.py        read, translate and keep a bucket of lines, in whichever process
    engine.py       who does the tasks: this process, or others; also those of a Translator
    dispatcher.py   the dispatcher of several: hands out tasks, repeats those of the dead
    workers.py      processes of this machine, and how they are started
    worker.py       the processes themselves
    reports.py      translations to text, JSONL, log; BLEU of a job
    store.py        the parts of a job, the file in the making, and what it depends on
    progress.py     the bar, lines about progress, the log
"""
