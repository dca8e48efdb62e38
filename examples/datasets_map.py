"""Translate a Hugging Face dataset with `map`: python examples/datasets_map.py (needs datasets)"""

# %% Load the included model
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for a checkout that is not installed

from onmt_lite import Translator

translator = Translator.from_pretrained("de-en")


# %% The function for `map`
def add_english(rows: dict[str, list[str]]) -> dict[str, list]:
    """Return new columns for a batch of rows."""
    translations = translator.translate(rows["de"], n_best=2)
    return {
        "en": [t.text for t in translations],
        "second": [t.hyps[1].text if len(t.hyps) > 1 else "" for t in translations],
        "notes": [list(t.notes) for t in translations],
    }


# %% Use batched=True and many rows per call: the translator builds its own batches by length
if __name__ == "__main__":
    from datasets import Dataset

    german = ["Guten Morgen!", "Wo ist der Bahnhof?", "", "Ich lerne seit zwei Jahren Deutsch."]
    dataset = Dataset.from_dict({"de": german})
    dataset = dataset.map(add_english, batched=True, batch_size=1000)
    for row in dataset:
        print(row)
