"""Records the alternatives that CTranslate2 finds (`return_alternatives`).

    python -m tests.peers.make_alternatives      (ctranslate2 4.8.5)

Writes `tests/data/ct2_alternatives.json`, which `tests/test_alternatives.py` reads.
Each line is translated alone.  Without a length penalty: with one, CTranslate2 adds the log_prob of
an alternative's first token to the mean of the others.
"""

import json

import ctranslate2

from tests.peers.make_prefixes import CT2_PREFIXES, CT2_SOURCES, ROOT

CASES = [
    ("-beam_size 1 -alpha 0", dict(beam_size=1)),
    ("-beam_size 4 -alpha 0", dict(beam_size=4)),
    ("-beam_size 3 -alpha 0 -max_length 6", dict(beam_size=3, max_decoding_length=6)),
    ("-beam_size 3 -alpha 0 -min_length 4", dict(beam_size=3, min_decoding_length=4)),
]
N = 4


def main():
    model = ctranslate2.Translator(str(ROOT / "ct2" / "opennmt_int16"), compute_type="float32")
    cases = []
    for options, theirs in CASES:
        theirs = {"max_decoding_length": 24, **theirs}
        lines = []
        for source, prefix in zip(CT2_SOURCES, CT2_PREFIXES, strict=True):
            (found,) = model.translate_batch(
                [source.split()],
                target_prefix=[prefix.split()],
                num_hypotheses=N,
                length_penalty=0,
                return_scores=True,
                return_alternatives=True,
                **theirs,
            )
            pairs = zip(found.hypotheses, found.scores, strict=True)
            hyps = [[" ".join(tokens), round(score, 6)] for tokens, score in pairs]
            lines.append({"source": source, "prefix": prefix, "hyps": hyps})
        cases.append({"options": f"{options} -alternatives {N}", "lines": lines})
    path = ROOT.parent / "ct2_alternatives.json"
    path.write_text(json.dumps(cases, ensure_ascii=False, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
