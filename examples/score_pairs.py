"""Find misaligned pairs in a parallel file with one `source<TAB>target` pair per line:
python examples/score_pairs.py [FILE]"""

# %% Load the included model
import math
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for a checkout that is not installed

from onmt_lite import Translator

translator = Translator.from_pretrained("de-en")

# %% Read the file; the default has eight pairs, two of which are misaligned
path = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "pairs.tsv"
with open(path, encoding="utf-8") as file:
    pairs = [line.rstrip("\n").split("\t") for line in file]
sources, targets = zip(*pairs)

# %% Score each target: log-probability per token, including EOS
log_probs = translator.score(sources, targets)
lengths = [len(translator.tokenizer.encode(target)) + 1 for target in targets]
scores = [-math.inf if x is None else x / n for x, n in zip(log_probs, lengths)]

# %% Compare with the model's best translation, because difficult sources have low scores anyway
baseline = [
    t.hyps[0].log_prob / max(1, len(t.hyps[0].tokens)) for t in translator.translate(sources)
]

# %% Print the pairs by decreasing difference
order = sorted(range(len(pairs)), key=lambda i: scores[i] - baseline[i])
for i in order:
    gap = scores[i] - baseline[i]
    print(f"{'suspect' if gap < -2 else 'fine':8} {gap:7.2f}  {sources[i]}  |  {targets[i]}")
