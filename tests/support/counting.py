"""A counting language: every German word has one English word, order kept."""

from random import Random

WORDS = [("eins", "one"), ("zwei", "two"), ("drei", "three"), ("vier", "four"), ("acht", "eight")]


def write_pairs(path):
    """300 sentences of one to four words, as `source<TAB>target` lines."""
    rng = Random(3)
    lines = []
    for _ in range(300):
        picked = [rng.choice(WORDS) for _ in range(rng.randrange(1, 5))]
        lines.append("\t".join(" ".join(side) + "." for side in zip(*picked)))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
