"""The search: one loop, one `Beam` per sentence.

Words that all modules here use:

    row         a hypothesis that the decoder extends; K rows per sentence, K = beam_size
    slot        a running sentence's place in the batch: K rows, and limits of its own
    score       a row's sum of log-probabilities, less penalties that steer
    candidate   a row and a token that may follow, ranked by the row's score with the token's
    total       the score of a candidate
    parent      the row of the step before that a new row continues
    event       a step that a sentence's `Beam` must see: something ended, a limit or a stop rule
    finished    a complete hypothesis: ended with EOS, or cut off by a limit
    done        the search of a sentence is over
    limit       most tokens that a sentence's hypotheses may have
    plan        every decision of the job, the same for all sentences
    frontier    the device's side: all running rows and what they need for the next step
"""
