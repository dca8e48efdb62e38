"""Jobs: lines of files or streams to an output, by one process, by several, or on a cluster.

A job is a list of ranges.  Each becomes a part; the output appears when they are joined.  Files in
the order in which data passes:

    job.py          a run of a job
    fingerprint.py  what the output depends on
    inputs.py       one pass over the inputs: counted, hashed, cut
    ranges.py       where the lines of a bucket stand
    reading.py      a bucket: lines of a range, or of a stream as they come
    tasks.py        what is done with a bucket, in whichever process
    engine.py       who does the tasks: this process (inprocess.py) or others
    crew.py         several who do tasks: handing out, and the tasks of those who die
    workers.py      processes of this machine as a crew; forkserver.py: how they are started
    worker.py       what they do
    pool.py         a Translator whose calls they do
    reports.py      translations to text, JSONL, log; bleu.py: scores of a job
    store.py        the parts of a job, and the file in the making
    output.py       where results go: to a store, or to a stream
    dump.py         the file of -dump_beam
    progress.py     the bar, lines about progress, the log
"""
