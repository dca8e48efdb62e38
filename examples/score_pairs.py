"""Find pairs that do not belong together in a parallel file, `source<TAB>target` a line:
python examples/score_pairs.py [FILE]"""

# %% The translator, with the model that comes with it
import math
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for a checkout that is not installed

from onmt_lite import Translator

translator = Translator.from_pretrained("de-en")

# %% The file: eight pairs, two of them wrong
path = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "pairs.tsv"
with open(path, encoding="utf-8") as file:
    pairs = [line.rstrip("\n").split("\t") for line in file]
sources, targets = zip(*pairs)

# %% How probable the model finds each target, in nats, per token and EOS
log_probs = translator.score(sources, targets)
lengths = [len(translator.tokenizer.encode(target)) + 1 for target in targets]
scores = [-math.inf if x is None else x / n for x, n in zip(log_probs, lengths)]

# %% What the model would say itself is the yardstick: hard lines have low scores whatever is said
own = [t.hyps[0].log_prob / max(1, len(t.hyps[0].tokens)) for t in translator.translate(sources)]

# %% The pairs whose target is much less probable than the model's own, worst first
order = sorted(range(len(pairs)), key=lambda i: scores[i] - own[i])
for i in order:
    gap = scores[i] - own[i]
    print(f"{'suspect' if gap < -2 else 'fine':8} {gap:7.2f}  {sources[i]}  |  {targets[i]}")
