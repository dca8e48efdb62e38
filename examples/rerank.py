"""Choose among the n best translations by a rule of one's own: python examples/rerank.py"""

# %% The translator, with the model that comes with it
import re
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for a checkout that is not installed

from onmt_lite import Hypothesis, Translator

translator = Translator.from_pretrained("de-en")

# %% Ten translations of each line, best first
lines = ["Ruf mich an!", "Wo ist der Bahnhof?", "Der Film beginnt um 20:15 Uhr."]
translations = translator.translate(lines, beam_size=10, n_best=10)


# %% The rule: end as the source ends, have its numbers, use the words of a glossary
GLOSSARY = {"Bahnhof": "train station", "Film": "film"}


def penalty(source: str, hyp: Hypothesis) -> float:
    numbers = re.findall(r"\d+", source)
    wanted = [english for german, english in GLOSSARY.items() if german in source]
    faults = [
        source[-1] != hyp.text[-1:],
        sorted(numbers) != sorted(re.findall(r"\d+", hyp.text)),
        *(word not in hyp.text for word in wanted),
    ]
    return float(sum(faults))


# %% Scores are log-probabilities per token: a fault costs as much as half of one
for t in translations:
    best = max(t.hyps, key=lambda hyp: hyp.score - 0.5 * penalty(t.src, hyp))
    print(t.src)
    print(f"    by the model   {t.hyps[0].score:7.3f}  {t.text}")
    print(f"    by the rule    {best.score:7.3f}  {best.text}   (place {t.hyps.index(best) + 1})")
