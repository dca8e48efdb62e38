"""For people who edit a translation from left to right, show which words may come next, and how the
translation goes on with each: python examples/alternatives.py [SENTENCE [BEGINNING]]"""

# %% The translator, with the model that comes with it; long lines stay whole
import re
import sys
from collections import Counter
from math import exp
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for a checkout that is not installed

from onmt_lite import Translator

translator = Translator.from_pretrained("de-en", split_longer=0)
sentence, beginning = "Ich gehe heute ins Kino, weil es regnet.", "I'm going to the"
if len(sys.argv) > 1:
    sentence, beginning = sys.argv[1], " ".join(sys.argv[2:])


def with_next_word(text: str) -> str:
    """The beginning and the word after it; "" if no word follows."""
    found = re.match(rf"{re.escape(beginning)}\W*\w+(?:['-]\w+)*", text)
    return found.group() if found else ""


# %% The 100 best ways to go on by six tokens, which are a word and what follows it
max_length = len(translator.tokenizer.encode(beginning)) + 6
options = dict(beam_size=100, n_best=100, max_length=max_length)
(short,) = translator.translate([sentence], [beginning], **options)

# %% A word is as probable as all of them that have it; at a cut it may be part of a longer one
probability = Counter()
for hyp in short.hyps:
    begin = with_next_word(hyp.text)
    if begin and (hyp.ended or begin != hyp.text):
        probability[begin] += exp(hyp.log_prob)

# %% The best translation with each of the five best words, and not with a longer word
begins = [begin for begin, _ in probability.most_common(5)]
translations = translator.translate([sentence] * len(begins), begins, n_best=5)
hyps = [
    next((hyp for hyp in t.hyps if with_next_word(hyp.text) == begin), None)
    for begin, t in zip(begins, translations)
]
for hyp in sorted(filter(None, hyps), key=lambda hyp: -hyp.score):
    print(f"{hyp.score:7.3f}  {hyp.text}")
