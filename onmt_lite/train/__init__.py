"""The trainer, `python -m onmt_lite.train`, and calibration, `python -m onmt_lite.train.calibrate`.

Files in the order in which text passes them:

    __main__.py   the program
    options.py    all options of a run
    folder.py     the directory that a run writes: file names, checks, its lock
    data.py       files of pairs to the text of an epoch, held-out pairs and pieces
    batches.py    an epoch to padded batches, in another process if asked
    network.py    the Transformer that a run begins with
    loss.py       cross-entropy without logits of a whole batch
    muon.py       the optimizers
    run.py        the run itself: steps, validations, signals
    state.py      what -resume reads
    journal.py    the table of steps and the plot
    samples.py    translations of held-out lines, and their BLEU
    calibrate.py  from a trained model to one that says how sure it is
"""
