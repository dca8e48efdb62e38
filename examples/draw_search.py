"""Print the beam search of one sentence: python examples/draw_search.py [SENTENCE]"""

# %% Load the included model
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for a checkout that is not installed

from onmt_lite import Translator
from onmt_lite.inference.search_setup import make_search_config, to_sentence
from onmt_lite.search.beam_search import decode
from onmt_lite.text.lines import Line

translator = Translator.from_pretrained("de-en", beam_size=3)
sentence = sys.argv[1] if len(sys.argv) > 1 else "Guten Morgen!"

# %% Run the search like translate(); the Beam records it
example = translator.pipeline.preprocessor.make_example(Line(0, sentence))
config = make_search_config(translator.options, translator.checkpoint)
[(_, beam)] = decode(translator.model, [to_sentence(config, example)], config.spec)

# %% Print each step: each row extends row `from` of the previous step; EOS (■) finishes a row
vocab, eos = translator.checkpoint.tgt_vocab, translator.checkpoint.eos_id
totals = [0.0] * beam.spec.beam_size
print(f"{sentence}\n\nstep  row  from  log_prob  tokens")
for step, parents in enumerate(beam.prev_ks, 1):
    totals = [totals[p] + x for p, x in zip(parents, beam.log_probs[step - 1])]
    for row, parent in enumerate(parents):
        ids, _ = beam.get_hyp(step, row)
        tokens = " ".join("■" if i == eos else vocab.tokens[i] for i in ids)
        print(f"{step:4}  {row:3}  {parent:4}  {totals[row]:8.3f}  {tokens}")

# %% Print the finished hypotheses, ranked by log-probability per token
print("\nscore   step  hypothesis")
for hyp in beam.rank_finished():
    ids, _ = beam.backtrack(hyp)
    text = translator.tokenizer.decode(vocab.decode(ids[:-1] if hyp.ended else ids))
    print(f"{hyp.score:6.3f}  {hyp.step:4}  {text}")
