"""Beam search: one decode loop for the whole batch, one `Beam` per sentence.

Start with `BeamBatch.run` in `beam_search`, then read `logits`, `topk` and `beam`.  `slots` maps
sentences to rows of the batch.  `presets` defines the search of each system as data.

Letters in shapes: B sentences, K rows per sentence (the beam size), R = B*K rows, N candidates,
V tokens of the vocabulary, S source tokens, T steps.

    row         a hypothesis in the batch, extended by one token per step
    slot        index of a running sentence in the batch; slot b has the rows b*K to b*K + K-1
    score       sum of a row's log-probabilities; with -stepwise_penalty less the coverage penalty
    candidate   a row and its next token, ranked by the row's score plus the token's log-probability
    parent      back-pointer: the row of the previous step that a new row continues; on the device a
                row of the batch, in a `Beam` a row of the sentence
    forced      token that a row takes whatever the model predicts: a start token or a prefix token
    event       a step that the sentence's `Beam` must process: a candidate took EOS, no row is
                left, the limit was reached, or the stop rule is checked at every step
    finished    hypothesis: it ended with EOS or reached the limit; sentence: its search is over
    step        of the batch: calls of `model.step`; of a sentence: 1 is its first target token
                that is not a start token
    limit       maximum number of tokens per hypothesis
    spec        the decisions of a search that all sentences share (`SearchSpec`)
"""
