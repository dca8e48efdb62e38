"""Suggest the next words of a translation, each with a completion, like an interactive editor:
python examples/alternatives.py [SENTENCE [PREFIX]]"""

# %% Load the included model; do not split long lines
import re
import sys
from collections import Counter
from math import exp
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for a checkout that is not installed

from onmt_lite import Translator

translator = Translator.from_pretrained("de-en", split_longer=0)
sentence, prefix = "Ich gehe heute ins Kino, weil es regnet.", "I'm going to the"
if len(sys.argv) > 1:
    sentence, prefix = sys.argv[1], " ".join(sys.argv[2:])


def extend_prefix(text: str) -> str:
    """Return the prefix with the next word of the text, or "" if no word follows."""
    match = re.match(rf"{re.escape(prefix)}\W*\w+(?:['-]\w+)*", text)
    return match.group() if match else ""


# %% Find the 100 best continuations of six tokens: a word and some context
max_length = len(translator.tokenizer.encode(prefix)) + 6
options = dict(beam_size=100, n_best=100, max_length=max_length)
(short,) = translator.translate([sentence], [prefix], **options)

# %% Sum the probabilities of continuations with the same next word. Skip a truncated continuation
# that ends with the word, because the word may be incomplete
probability = Counter()
for hyp in short.hyps:
    start = extend_prefix(hyp.text)
    if start and (hyp.ended or start != hyp.text):
        probability[start] += exp(hyp.log_prob)

# %% Complete the translation for each of the five best words
starts = [start for start, _ in probability.most_common(5)]
translations = translator.translate([sentence] * len(starts), starts, n_best=5)
hyps = [
    next((hyp for hyp in t.hyps if extend_prefix(hyp.text) == start), None)
    for start, t in zip(starts, translations)
]
for hyp in sorted(filter(None, hyps), key=lambda hyp: -hyp.score):
    print(f"{hyp.score:7.3f}  {hyp.text}")
