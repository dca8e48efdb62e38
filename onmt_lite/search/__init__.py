"""The search: one loop, one `Beam` per sentence.

Start with `BeamBatch.run` in `beam_search`, then `logits`, `topk`, `beam`; `slots` has the rows.

Words that all of them use:

    row         a hypothesis that the decoder extends; K rows per sentence, K = beam_size
    slot        a running sentence's place in the batch: K rows, and its limits
    batch       all running sentences: their rows and all they need for the next step
    score       a row's sum of log-probabilities, less penalties that steer
    candidate   a row and a token that may follow, ranked by the row's score with the token's
    parent      the row of the step before that a new row continues
    forced      tokens that a row takes whatever the model predicts: start tokens and a prefix
    event       a step that a sentence's `Beam` must see: something ended, a limit or a stop rule
    finished    a complete hypothesis: ended with EOS, or cut off by a limit
    done        the search of a sentence is over
    limit       maximum number of tokens of a sentence's hypotheses
    spec        every decision of a search, the same for all sentences
"""
