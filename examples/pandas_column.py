"""Translate a column of a pandas table: python examples/pandas_column.py (needs pandas)."""

# %% The translator, with the model that comes with it
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for a checkout that is not installed

import pandas as pd

from onmt_lite import Translator

translator = Translator.from_pretrained("de-en")

# %% A table as tables are: one cell is empty
table = pd.DataFrame(
    {
        "guest": ["Anna", "Ben", "Carla", "David"],
        "german": [
            "Das Zimmer war sehr schön.",
            "Das Frühstück hat mir nicht gefallen.",
            None,
            "Wir kommen gerne wieder!",
        ],
    }
)

# %% An empty cell is None or NaN, not text: translate() would name its place and stop
try:
    translator.translate(table["german"])
except TypeError as error:
    print(error, "\n")

# %% A blank line stays blank, so fill the empty cells
translations = translator.translate(table["german"].fillna(""))
table["english"] = [t.text for t in translations]
table["score"] = [t.hyps[0].score for t in translations]
print(table[["guest", "english", "score"]])

# %% The two lines with the lowest scores, to be read by a person
print("\nTo be read:")
print(table[table["english"] != ""].nsmallest(2, "score")[["german", "english"]])
