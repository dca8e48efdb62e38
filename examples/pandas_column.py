"""Translate a column of a pandas table: python examples/pandas_column.py (needs pandas)"""

# %% Load the included model
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for a checkout that is not installed

import pandas as pd

from onmt_lite import Translator

translator = Translator.from_pretrained("de-en")

# %% A table with an empty cell
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

# %% Empty cells are None or NaN: translate() raises an error with the position of the cell
try:
    translator.translate(table["german"])
except TypeError as error:
    print(error, "\n")

# %% Fill empty cells with "": the translation of an empty line is empty
translations = translator.translate(table["german"].fillna(""))
table["english"] = [t.text for t in translations]
table["score"] = [t.hyps[0].score for t in translations]
print(table[["guest", "english", "score"]])

# %% Print the two lines with the lowest scores for review
print("\nTo be reviewed:")
print(table[table["english"] != ""].nsmallest(2, "score")[["german", "english"]])
