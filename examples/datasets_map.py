"""Translate a data set with `map`: python examples/datasets_map.py (needs datasets)."""

# %% The translator, with the model that comes with it
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for a checkout that is not installed

from onmt_lite import Translator

translator = Translator.from_pretrained("de-en")


# %% What `map` calls: columns of many rows in, new columns out
def add_english(rows: dict[str, list[str]]) -> dict[str, list]:
    translations = translator.translate(rows["de"], n_best=2)
    return {
        "en": [t.text for t in translations],
        "second": [t.hyps[1].text if len(t.hyps) > 1 else "" for t in translations],
        "notes": [list(t.notes) for t in translations],
    }


# %% With batched=True and many rows a call, the translator makes its own batches by length
if __name__ == "__main__":
    from datasets import Dataset

    german = ["Guten Morgen!", "Wo ist der Bahnhof?", "", "Ich lerne seit zwei Jahren Deutsch."]
    dataset = Dataset.from_dict({"de": german})
    dataset = dataset.map(add_english, batched=True, batch_size=1000)
    for row in dataset:
        print(row)
