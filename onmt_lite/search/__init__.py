"""The search: one loop, one `Beam` per sentence.

Modules in the order of data: `spec`, `beam_search`, `slots`, `logits`, `topk`, `beam`.

Words that all of them use:

    row         a hypothesis that the decoder extends; K rows per sentence, K = beam_size
    slot        a running sentence's place in the batch: K rows, and limits of its own
    batch       all running sentences: their rows and all they need for the next step
    score       a row's sum of log-probabilities, less penalties that steer
    candidate   a row and a token that may follow, ranked by the row's score with the token's
    total       the score of a candidate
    parent      the row of the step before that a new row continues
    given       tokens that a row takes whatever the model says: start tokens and a prefix
    event       a step that a sentence's `Beam` must see: something ended, a limit or a stop rule
    finished    a complete hypothesis: ended with EOS, or cut off by a limit
    done        the search of a sentence is over
    limit       maximum number of tokens of a sentence's hypotheses
    plan        every decision of the job, the same for all sentences
"""
