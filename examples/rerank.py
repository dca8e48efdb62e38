"""Rerank n-best lists with a custom rule: python examples/rerank.py"""

# %% Load the included model
import re
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for a checkout that is not installed

from onmt_lite import Hypothesis, Translator

translator = Translator.from_pretrained("de-en")

# %% Get the ten best translations of each line
lines = ["Ruf mich an!", "Wo ist der Bahnhof?", "Der Film beginnt um 20:15 Uhr."]
translations = translator.translate(lines, beam_size=10, n_best=10)


# %% The rule: keep final punctuation and numbers of the source, and use the terms of a glossary
GLOSSARY = {"Bahnhof": "train station", "Film": "film"}


def count_violations(source: str, hyp: Hypothesis) -> int:
    """Return the number of violations of the rule."""
    numbers = re.findall(r"\d+", source)
    terms = [english for german, english in GLOSSARY.items() if german in source]
    violations = [
        source[-1] != hyp.text[-1:],
        sorted(numbers) != sorted(re.findall(r"\d+", hyp.text)),
        *(term not in hyp.text for term in terms),
    ]
    return sum(violations)


# %% Scores are log-probabilities per token; each violation costs 0.5
for t in translations:
    best = max(t.hyps, key=lambda hyp: hyp.score - 0.5 * count_violations(t.src, hyp))
    print(t.src)
    print(f"    model      {t.hyps[0].score:7.3f}  {t.text}")
    print(f"    with rule  {best.score:7.3f}  {best.text}   (rank {t.hyps.index(best) + 1})")
