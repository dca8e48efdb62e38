"""The recipe of the shipped model: training text, averaging, evaluation and runs."""

import datetime
import gzip
import json
import re
import shlex
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from onmt_lite import Translator
from onmt_lite.checkpoints import native
from onmt_lite.config.option import META_NAMES
from onmt_lite.errors import FileError, OptionError
from onmt_lite.train.data import read_pairs
from onmt_lite.train.options import load_train_options
from onmt_lite.train.run import train
from recipes.de_en import evaluate, mean, run, slots
from recipes.de_en.augment import Augment, drop_final, rename, renumber
from recipes.de_en.grow import load_grow_options
from recipes.de_en.lexicon import find_word_pairs
from recipes.de_en.options import OPTIONS, ChangeOptions, load_text_options
from recipes.de_en.quantities import QUANTITIES
from recipes.de_en.run import RUNS, list_commands
from recipes.de_en.select_back import load_select_options
from recipes.de_en.text import main, write_text
from recipes.de_en.train import load_in_turn_options
from recipes.de_en.words import Truecase, find_names, select_rare
from tests.support import tiny
from tests.support.tiny_training import WORDS, make_tiny_options

ROOT = Path(__file__).resolve().parents[3]
RECIPE = ROOT / "recipes" / "de_en"
LISTS = ("phrases.tsv", "dictionary.tsv")
SENTENCES = ("domains.tsv", "usage.tsv", "vocabulary.tsv")


def split_words(text):
    return set(re.findall(r"\w+", text))


def write(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def generate_text(corpus, tmp_path, *more):
    """Run `recipes.de_en.text` and return the pairs of each file."""
    words = ["-train", corpus, "-output", tmp_path / "text", "-epochs", 2, *more]
    write_text(load_text_options([str(word) for word in words])[0])
    return [read_pairs(path) for path in sorted((tmp_path / "text").iterdir())]


# Files


def test_epochs_differ_and_are_reproducible(corpus, tmp_path):
    names = "-join 0.3 -no_final 0.2 -lower_src 0.2 -upper 0.1".split()
    first, second = generate_text(corpus, tmp_path, *names)
    assert first != second
    plain = Counter(word for src, _ in read_pairs(corpus) for word in re.findall(r"\w+", src))
    for pairs in (first, second):  # no word is lost
        assert Counter(w for src, _ in pairs for w in re.findall(r"\w+", src.lower())) == plain
    for seed in "12":
        (tmp_path / seed).mkdir()
        again = generate_text(corpus, tmp_path / seed, *names, "-seed", seed)
        assert (again == [first, second]) == (seed == "1")
    files = [path.name for path in sorted((tmp_path / "text").iterdir())]
    assert files == ["01.tsv.gz", "02.tsv.gz"]


def test_train_weights_and_train_same_apply_to_each_epoch(corpus, tmp_path):
    more = ["-train", corpus, write(tmp_path / "other.tsv", "neun\tnine")]
    more += ["-train_weights", "0.5", "7", "-same_lines", "2"]
    more += ["-train_same", write(tmp_path / "same.txt", "Oslo", "Bern", "Rom")]
    for pairs in generate_text(corpus, tmp_path, *more):
        assert len(pairs) == 150 + 7 + 2
        assert pairs.count(("neun", "nine")) == 7
        assert len({src for src, tgt in pairs if src == tgt}) == 2


def test_made_pairs_are_added_unchanged(corpus, tmp_path):
    made = [(f"Udo hat {n} Wale", f"Udo has {n} whales") for n in range(20)]
    path = write(tmp_path / "made.tsv", *map("\t".join, made))
    changes = ["-words", "1", "-numbers", "1", "-rare", "30"]
    plain = generate_text(corpus, tmp_path, *changes)
    (tmp_path / "more").mkdir()
    more, drawn = ["-made", path, "-made_lines", "7", "-seed", "1"], []
    for pairs in generate_text(corpus, tmp_path / "more", *changes, *more):
        mine = {pair for pair in pairs if pair[0].startswith("Udo")}
        assert len(mine) == 7 and mine <= set(made)
        assert not any("Wale" in src or "Udo" in src for src, _ in set(pairs) - mine)
        assert len(pairs) == len(plain[0]) + 7
        drawn.append(mine)
    assert drawn[0] != drawn[1]


def test_held_out_excludes_pairs_that_share_a_side(tmp_path):
    mine = write(tmp_path / "my.tsv", "Er kam.\tHe came.", "Sie kam.\tShe came.")
    made = ["er, kam\tHe did come", "Es kam!\tIt came", "Tja.\t«she» came", "ja\tyes"]
    more = ["-made", write(tmp_path / "made.tsv", *made), "-made_lines", "4"]
    more += ["-held_out", write(tmp_path / "test.tsv", "Er kam.\tShe came.")]
    for pairs in generate_text(mine, tmp_path, *more):
        assert set(pairs) == {("Es kam!", "It came"), ("ja", "yes")}


def test_pairs_with_an_empty_side_are_dropped(tmp_path):
    mine = write(tmp_path / "my.tsv", "!\tHey!", "Ja!\tYes!")
    assert generate_text(mine, tmp_path, "-no_final", "1") == [[("Ja", "Yes")]] * 2


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("-quotes a -quote 1", "quotes: 'a' is malformed"),
        ("-conjunctions a|b|c -conjunction 1 -join 1", "conjunctions"),
        ("-conjunction 0.5", "requires join"),
        ("-slots a", "slot_lines"),
        ("-same_lines 3", "train_same"),
        ("-made_lines 3", "requires made"),
        ("-train_weights 1 2", "2 weights for 1 train files"),
        ("-train_weights 0", "above 0"),
        ("-joint 0.1", "did you mean join"),
        ("-output=", "output is missing"),
    ],
)
def test_invalid_options_are_reported_by_name(words, problem):
    with pytest.raises(OptionError, match=problem):
        load_text_options(["-train", "a", "-output", "b", *words.split()])


NEEDED = (
    "-train a -output b -join 1 -conjunctions c|d -conjunction 1 -quotes …|… -quote 1 -slots e "
    "-slot_lines 1 -train_same f -same_lines 1 -made g -made_lines 1"
).split()


@pytest.mark.parametrize("name", sorted(set(OPTIONS) - {"config", *META_NAMES}))
def test_help_example_of_every_option_loads(name):
    words = shlex.split(OPTIONS[name].example)
    two = ["-train", "a", "b"] if name == "train_weights" else []
    _, resolved = load_text_options([*NEEDED, *two, f"-{name}", *words])
    assert words and resolved.origins[name] == "command line"


def test_nothing_is_written_after_an_error(corpus, tmp_path):
    (tmp_path / "text").mkdir()
    with pytest.raises(OptionError, match="already exists"):
        generate_text(corpus, tmp_path)
    (tmp_path / "text").rmdir()
    with pytest.raises(FileError, match="none.tsv"):
        generate_text(tmp_path / "none.tsv", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="cannot write"):
        generate_text(corpus, tmp_path, "-output", tmp_path / "file" / "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]
    assert main(["-train", "none", "-output", str(tmp_path / "text")]) == 5


# Mean


def test_mean_averages_the_weights_of_models(tiny_pieces, tmp_path, capfd):
    shares = (1, 3, 0)
    models = [tiny.make_model(seed=seed, align_head=seed % 2) for seed in range(3)]
    for i, model in enumerate(models):
        (tmp_path / str(i)).mkdir()
        native.save(tmp_path / str(i), model, tiny_pieces)
    argv = ["-models", *(str(tmp_path / str(i)) for i in range(3))]
    argv += ["-output", str(tmp_path / "new" / "mean")]
    assert mean.main([*argv, "-weights", *map(str, shares)]) == 0
    assert capfd.readouterr().out == f"model: {tmp_path / 'new' / 'mean'}\n"
    argv[-1] += "8"
    assert mean.main([*argv, "-weights", *map(str, shares), "-save_bits", "8"]) == 0
    large, small = (tmp_path / "new" / name / native.WEIGHTS for name in ("mean", "mean8"))
    assert small.stat().st_size < 0.8 * large.stat().st_size
    packed = native.load(tmp_path / "new" / "mean8").model.state_dict()
    first, second, _ = (model.state_dict() for model in models)
    for name, tensor in native.load(tmp_path / "new" / "mean").model.state_dict().items():
        half_a_step = tensor.abs().max().item() / 250  # of 127 at most
        torch.testing.assert_close(packed[name], tensor, rtol=0, atol=half_a_step)
        expected = 0.25 * first[name].half().double() + 0.75 * second[name].half().double()
        torch.testing.assert_close(tensor.double(), expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-models one -output out", "models: at least two models are needed"),
        ("-models one one", "output is missing; set it to a path"),
        ("-models one one -weights 1 -output out", "weights: 1 weights for 2 models"),
        ("-models one one -weights 1 -1 -output out", "weights: must be 0 or more"),
        ("-models one one -weights 0 0 -output out", "weights: must be 0 or more"),
        ("-models one one -save_bits 4 -output out", "save_bits: must be 8 or 16"),
        ("-models one one -output one", "already exists"),
        ("-models one wide -output out", "wide and one differ in sizes or subwords"),
        ("-models one TOY -output out", "is not an onmt_lite model"),
        ("-models one out -output out", "no model at"),
        ("-models one one -output file/x", "cannot write"),
    ],
)
def test_mean_rejects_invalid_options_and_models(
    tiny_pieces, tmp_path, monkeypatch, capsys, words, message
):
    toy = Path("data/toy.json").absolute()
    monkeypatch.chdir(tmp_path)
    for name, width in (("one", 32), ("wide", 64)):
        Path(name).mkdir()
        native.save(Path(name), tiny.make_model(d_ff=width), tiny_pieces)
    Path("file").touch()
    assert mean.main(words.replace("TOY", str(toy)).split()) in (2, 4, 5)
    assert message in capsys.readouterr().err
    assert not Path("out").exists()


# Evaluation


def test_evaluation_prints_scores_and_copies(tmp_path, capfd):
    sources = ["Guten Morgen.", "Wie geht es dir?", "Ich habe Hunger.", "Wo ist der Bahnhof?"] * 2
    outputs = Translator.from_pretrained("data/de-en", precision="fp32").translate(sources)
    pairs = [f"{src}\t{out.hyps[0].text}\n" for src, out in zip(sources, outputs, strict=True)]
    (tmp_path / "test.tsv").write_text("".join(pairs), encoding="utf-8")
    argv = ["-test", str(tmp_path / "test.tsv"), "-strings", "2", "-output", str(tmp_path / "out")]
    assert evaluate.main(argv) == 0
    rows = capfd.readouterr().out.splitlines()
    assert re.match(r"test.tsv +8 lines  BLEU 100.0  chrF 100.0  empty 0  repetitions 0$", rows[0])
    assert any(re.match(r"joined by 8 +1 lines  BLEU", row) for row in rows)
    made = {path.stem: read_pairs(path) for path in (tmp_path / "out").iterdir()}
    assert made["uppercase"][0] == ("GUTEN MORGEN.", pairs[0].strip().split("\t")[1].upper())
    assert made["joined-by-8"][0][0] == " ".join(sources)
    copied = {row.split()[0]: int(row.split()[-1]) for row in rows if "copied" in row}
    for string_type, n in copied.items():
        lines = (tmp_path / "out" / f"{string_type}.tsv").read_text(encoding="utf-8").splitlines()
        found = [string in output for _, string, output in (line.split("\t") for line in lines)]
        assert n >= sum(found) and len(found) == 2
        if string_type not in ("decimal", *QUANTITIES):  # several forms are correct
            assert n == sum(found)
    assert copied.keys() == evaluate.SENTENCES.keys()


def test_evaluation_accepts_few_lines_and_equal_file_names(tmp_path, capfd):
    argv = ["-test"]
    for folder, n in (("a", 2), ("b", 3)):
        (tmp_path / folder).mkdir()
        path = write(tmp_path / folder / "test.tsv", *["Guten Morgen.\tGood morning."] * n)
        argv.append(str(path))
    assert evaluate.main([*argv, "-strings", "0", "-output", str(tmp_path / "out")]) == 0
    out = capfd.readouterr().out
    for path, n in zip(argv[1:], (2, 3)):
        assert re.search(rf"^{path} +{n} lines  BLEU", out, re.M)
    assert "joined by 8" not in out
    assert sum(path.name.endswith("test.tsv.tsv") for path in (tmp_path / "out").iterdir()) == 2


def test_strings_to_copy_are_new_to_the_model():
    frames = {re.sub(r"\{\w+\}", "{}", src) for src, _ in read_pairs(RECIPE / "slots.tsv")}
    assert not frames & {s for sentences in evaluate.SENTENCES.values() for s in sentences}
    known = {stem + tail for stem in slots.STEMS for tail in slots.TAILS}
    for name in (*LISTS, *SENTENCES, "slots.tsv"):
        known |= split_words((RECIPE / name).read_text(encoding="utf-8"))
    assert not known & set(evaluate.SURNAMES)


def test_is_copied_accepts_decimal_point_and_repetition_finds_loops():
    for string, output, same in (
        ("1,5", "It is 1.5 m.", True),
        ("1,5", "It is 1,5 m.", True),
        ("1,5", "It is 15 m.", False),
        ("4.4.1996", "On 4.4.1996", True),
        ("4.4.1996", "On 4.4.196", False),
    ):
        assert evaluate.is_copied(string, output) is same
    for loop in ("no no no no no", "He said that he, he said that he, " * 3):
        assert evaluate.REPETITION.search(loop)
    assert not evaluate.REPETITION.search("no no")


# Runs

TRAINERS = {"onmt_lite.train": load_train_options, "recipes.de_en.train": load_in_turn_options}


def load_steps():
    """Yield (program, options or arguments) for each step of all runs, in order."""
    load = {
        **TRAINERS,
        "recipes.de_en.text": load_text_options,
        "recipes.de_en.grow": load_grow_options,
        "recipes.de_en.mean": mean.load_mean_options,
        "recipes.de_en.select_back": load_select_options,
    }
    for name in RUNS:
        for command in list_commands(name):
            words = shlex.split(command)
            known = words[:2] == ["python", "-m"]
            yield (words[2], load[words[2]](words[3:])[0]) if known else (words[0], words)


def test_each_run_step_reads_outputs_of_earlier_steps():
    text, known, is_used, models = [], set(), True, {None}
    for program, options in load_steps():
        if program == "recipes.de_en.text":
            files = options.files
            new = [f"{files.output}/{n:02d}.tsv.gz" for n in range(1, files.epochs + 1)]
            assert not known.intersection(new)
            known.update(new)
            text, is_used = new if is_used else text + new, False
        elif program in TRAINERS:
            data = options.data
            assert data.init_from in models
            assert data.reverse == (program == "onmt_lite.train")
            # Backwards it learns from the corpora as they are.  A run uses all of its new text, in
            # order or backwards, after text of earlier runs
            if not data.reverse:
                assert list(data.train[-len(text) :]) in (text, text[::-1])
                assert known.issuperset(data.train)
            is_used = True
            models.add(data.output)
        elif program == "recipes.de_en.grow":
            assert options.model in models and set(options.train) <= set(text)
            models.add(options.output)
        elif program == "recipes.de_en.mean":
            assert models >= set(options.models)
            models.add(options.output)
        elif program == "recipes.de_en.select_back":
            assert options.sources == "runs/german-24.txt"
        elif "translate.py" in options:
            assert options[options.index("-model") + 1] in models
    assert {"runs/back", "runs/back-24", "runs/de-en"} <= models
    assert {f"runs/de-en-{n}" for n in range(1, 28)} <= models


def test_readme_command_includes_every_run():
    readme = (RECIPE / "README.md").read_text(encoding="utf-8")
    runs = " ".join(name for name in RUNS if name != "teacher")
    assert f"\nfor run in {runs}; do python -m recipes.de_en.run $run" in readme


def test_run_stops_at_the_first_command_that_fails(monkeypatch, tmp_path, capfd):
    code = f"open({str(tmp_path / 'made')!r}, 'w').write(__import__('sys').executable)"
    steps = [{"shell": f'python -c "{code}"'}, {"shell": "exit 3"}, {"mean": {"models": [1]}}]
    monkeypatch.setitem(RUNS, "7", steps)
    assert run.main(["7", "--print"]) == 0 and not (tmp_path / "made").exists()
    assert capfd.readouterr().out.endswith("exit 3\npython -m recipes.de_en.mean -models 1\n")
    assert run.main(["7"]) == 3
    assert (tmp_path / "made").read_text() == sys.executable
    assert capfd.readouterr().out.endswith("\nexit 3\n")


def test_run_resume_skips_complete_steps_and_continues_training(monkeypatch, tmp_path):
    """Existing outputs are kept and training continues."""
    monkeypatch.setattr(run, "ROOT", tmp_path)
    for name in ("text-23", "de-en-23-start", "de-en-23", "de-en-23-in-8-bits"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    assert list(list_commands("23", resume=True)) == []
    (tmp_path / "runs/de-en-23/train_state.pt").touch()
    (words,) = map(shlex.split, list_commands("23", resume=True))
    assert words[2] == "recipes.de_en.train"
    assert load_in_turn_options(words[3:])[0].learning.resume
    assert len(list(list_commands("23"))) == 4


@pytest.mark.sweep
def test_teacher_run_trains_a_student_on_its_translations(corpus, tmp_path, monkeypatch, capfd):
    """The GPU run in one call, with a tiny teacher and few steps."""
    (tmp_path / "runs").mkdir()
    with gzip.open(tmp_path / "runs" / "back-24.tsv.gz", "wb") as file:
        file.write(corpus.read_bytes())
    start = tmp_path / RUNS["teacher"][-1]["train"]["init_from"]
    train(make_tiny_options(corpus, start, "-train_steps", 2))
    small = dict(d_model=16, heads=2, d_ff=16, enc_layers=1, dec_layers=1, batch_tokens=200)
    usual = "vocab_size train_minutes slots slot_lines held_out train_same same_lines".split()
    steps = json.loads(json.dumps(RUNS["teacher"]).replace("runs/", f"{tmp_path}/runs/"))
    for step in steps:
        for program, options in step.items():
            if program == "shell":
                continue
            for name in usual:
                options.pop(name, None)
            if program == "text":
                options |= dict(train=[str(corpus)], train_weights=[0.2])
                options |= dict(made_lines=4) if "made_lines" in options else {}
            else:
                options |= {name: n for name, n in small.items() if name in options}
                options |= dict(valid=[str(corpus)], train_steps=2, precision="fp32", threads=1)
    cut = re.compile(r"\(zcat .* && cat .*\) \|")
    for step in steps:
        if "shell" in step:
            step["shell"] = cut.sub(f"cat {shlex.quote(str(corpus))} |", step["shell"])
    monkeypatch.setitem(RUNS, "teacher", steps)
    assert run.main(["teacher"]) == 0, capfd.readouterr().err
    sources = {src for src, _ in read_pairs(corpus)}
    taught = read_pairs(tmp_path / "runs" / "taught.tsv.gz")
    assert {src for src, _ in taught} <= sources and len(taught) > 100
    translator = Translator.from_pretrained(tmp_path / "runs" / "teacher", device="cpu")
    assert translator.translate([taught[0][0]])[0].text == taught[0][1]
    made = {tgt for _, tgt in taught}
    text = read_pairs(tmp_path / "runs" / "text-27" / "01.tsv.gz")
    assert sum(tgt in made for _, tgt in text) >= 2
    before, after = (native.load(path).model for path in (start, tmp_path / "runs" / "de-en-27"))
    assert before.cfg == after.cfg
    assert not torch.equal(before.output.weight, after.output.weight)
    assert run.main(["teacher", "--resume"]) == 0  # every step is complete


def test_text_program_runs_in_the_project_directory():
    words = [sys.executable, "-m", "recipes.de_en.text"]
    done = subprocess.run([*words, "-help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("python -m recipes.de_en.text -train PAIRS.tsv")


def test_package_does_not_import_recipes_or_benchmarks():
    for path in (ROOT / "onmt_lite").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        assert not re.search(r"^\s*(import|from) (recipes|benchmarks)", source, re.M)


# Changes


def test_drop_final_needs_the_same_mark_on_both_sides():
    for pair in (("Ja!", "Yes."), ("", "")):
        assert drop_final(pair) == pair
    assert drop_final(("Ja.", "Yes.")) == ("Ja", "Yes")


def test_renumber_changes_shared_numbers_on_both_sides():
    src, tgt = renumber(("Um 8:15 sind 12 von 99 da.", "At 8:15, 12 are there."), Random(4))
    old, new = "8:15 12".split(), tgt.replace(",", "").split()[1:3]
    assert all(number in src for number in new)
    assert new != old
    assert "99" in src  # not shared, so unchanged


def test_select_rare_counts_words_once_per_pair_ignoring_case():
    pairs = [("Haus und Hof", "a"), ("das haus", "b"), ("das, das Das", "c"), ("", "d")]
    assert select_rare(pairs, 0) == []
    assert select_rare(pairs, 1) == pairs[:1]
    assert select_rare(pairs, 2) == pairs[:3]


def align_words(pairs):
    """Run plain IBM Model 1; return p(target word | source word) and the expected links."""
    prob = defaultdict(lambda: 1.0)
    for _ in range(10):
        links, total = Counter(), Counter()
        for src, tgt in pairs:
            for t in tgt:
                norm = sum(prob[s, t] for s in src)
                for s in src:
                    links[s, t] += prob[s, t] / norm
                    total[s] += prob[s, t] / norm
        prob = {(s, t): n / total[s] for (s, t), n in links.items()}
    return prob, links


SIDES = st.tuples(st.text("abc", max_size=4), st.text("xyz", max_size=4))


@settings(max_examples=60)
@given(st.lists(SIDES, min_size=1, max_size=12))
def test_find_word_pairs_equals_plain_ibm_model_1(pairs):
    forward, links = align_words(pairs)
    backward, _ = align_words([(tgt, src) for src, tgt in pairs])
    sure = [
        min(p - 0.15, backward[t, s] - 0.15, links[s, t] - 1.5) for (s, t), p in forward.items()
    ]
    assume(all(abs(margin) > 1e-3 for margin in sure))
    expected = [key for key, margin in zip(forward, sure) if margin > 0]
    found = find_word_pairs([(" ".join(src), " ".join(tgt)) for src, tgt in pairs])
    assert sorted(found) == sorted(expected)


def test_words_option_adds_word_pairs_as_lines(corpus):
    pairs = read_pairs(corpus)
    assert sorted(find_word_pairs(pairs)) == sorted(WORDS)
    plain = Augment(pairs, ChangeOptions())(pairs, Random(7))
    more = Augment(pairs, ChangeOptions(words=2))(pairs, Random(7))
    assert Counter(more) - Counter(plain) == Counter(WORDS * 2)


def test_find_names_needs_capitals_inside_sentences_on_both_sides():
    pairs = [
        ("Ich sah Tom in Boston.", "I saw Tom in Boston."),
        ("Tom sah das Hotel.", "Tom saw the Hotel."),
        ("Das Hotel ist gut.", "The hotel is good, the hotel is."),
        ("Yumi lacht, USA!", "Yumi laughs, USA!"),  # never inside a sentence; no lowercase letters
    ]
    assert find_names(pairs) == ["Boston", "Tom"]


def test_rename_replaces_the_name_on_both_sides():
    names, rng = ["Berlin", "Boston", "Tom"], Random(3)
    found = {rename(("Tom, Tom!", "Tom's Tom: Toms"), names, rng) for _ in range(200)}
    for src, tgt in found:
        name = src.partition(",")[0]
        assert (src, tgt) == (f"{name}, {name}!", f"{name}'s {name}: Toms")
    new = {src.partition(",")[0] for src, _ in found}
    assert set(names) < new and "Berton" in new
    assert any(re.fullmatch(r"Tom [A-Z]\S+", name) for name in new)  # with a last name
    assert rename(("Hallo Ken", "Hello Ken"), names, rng) == ("Hallo Ken", "Hello Ken")


SLOT_FORMS = {
    "name": r"[^\W\d_]+(-[^\W\d_]+)?",
    "person": r"[^\W\d_]+\.?([ -]([^\W\d_]+|[A-Z]\.))?( (von|van|de|el))? [^\W\d_]+(-[^\W\d_]+)?",
    "number": r"[1-9]\d{,9}|0",
    "date": r"\d{1,2}\.\d{1,2}\.(\d{4})?|\d{4}-\d\d-\d\d",
    "phone": r"[+(]?\d[\d ()/-]{5,}",
    "mail": r"[a-z0-9._-]+@[a-z0-9.-]+\.[a-z.]+",
    "url": r"(https?://)?[a-z0-9./-]+",
    "code": r"[A-Z]{1,3}[- ]?\d+",
    "emoji": "[^\\w\\s!-~]",
    "sign": r"[^\w\s]",
    "script": r".{1,7}",
    "field": r"[^ ]+",
}


def test_slot_values_match_the_form_of_the_slot():
    assert set(slots.SLOTS) > set(SLOT_FORMS)
    rng = Random(6)
    for slot, form in SLOT_FORMS.items():
        values = [slots.SLOTS[slot](rng) for _ in range(500)]
        assert [value for value in values if not re.fullmatch(form, value)] == [], slot
        assert len(set(values)) > 12, slot


def test_slot_digits_repeat_more_often_than_by_chance():
    rng = Random(9)
    made = [digits for digits in (slots.number(rng) for _ in range(3000)) if len(digits) > 5]
    pairs = [pair for digits in made for pair in zip(digits[1:], digits[2:], strict=False)]
    assert 0.22 < sum(a == b for a, b in pairs) / len(pairs) < 0.34  # 0.2 + 0.8 / 10


def test_slot_dates_are_valid_dates():
    rng = Random(7)
    for made in (slots.date(rng) for _ in range(500)):
        parts = [int(part) for part in re.findall(r"\d+", made)]
        if "-" in made:
            parts.reverse()
        datetime.date(parts[2] if len(parts) == 3 else 2001, parts[1], parts[0])


def test_fill_and_decorate_change_both_sides_alike():
    for seed in range(200):
        pair = slots.fill(("{name}, {name2}: {x} {name}", "{name}|{name2}|{x}"), Random(seed))
        first, second = re.fullmatch(r"(\S+), (\S+): \{x\} \1", pair[0]).groups()
        assert pair[1] == f"{first}|{second}|{{x}}"
        assert first != second
        src, tgt = slots.decorate(("Ja.", "Yes."), Random(seed))
        assert src != "Ja." and src.split("Ja.") == tgt.split("Yes.")


def test_word_lists_have_one_translation_per_word():
    pairs = [pair for name in LISTS for pair in read_pairs(RECIPE / name)]
    assert len({src.lower() for src, _ in pairs}) == len(pairs) > 7000
    assert all(side == side.strip() != "" for pair in pairs for side in pair)


@pytest.mark.sweep
def test_recipe_sentences_do_not_contain_the_evaluation_lines():
    pairs = [pair for name in SENTENCES for pair in read_pairs(RECIPE / name)]
    sources = [split_words(src.lower()) for src, _ in pairs]
    sixty = (RECIPE / "lines.de").read_text(encoding="utf-8").lower().splitlines()
    assert len(sources) > 30000 and len(sixty) == 60
    for line in map(split_words, sixty):
        assert max(len(line & src) / len(line | src) for src in sources) < 0.7


def test_slot_lines_adds_filled_templates_to_each_epoch(corpus, tmp_path):
    path = write(tmp_path / "slots.tsv", "Um {time}.\tAt {time}.")
    pairs = generate_text(corpus, tmp_path, "-slots", path, "-slot_lines", 40)[0]
    times = [pair for pair in pairs if re.match(r"Um \d", pair[0])]
    assert len(times) == 40 and len(set(times)) > 30
    assert all(re.findall(r"\d+", src) == re.findall(r"\d+", tgt) for src, tgt in times)


def test_truecase_keeps_usually_capitalized_words():
    case = Truecase(["Er sagt das Haus ist gross", "Das ist das Haus"])
    assert case.lower_first("Das geht") == "das geht"
    assert case.lower_first("Haus und Hof") == "Haus und Hof"


def test_each_augmentation_option_has_an_effect():
    pairs = [(f"Satz {i} ist da.", f"Sentence {i} is here.") for i in range(50)]

    def run(**on):
        return Augment(pairs, ChangeOptions(**on))(pairs, Random(7))

    assert sorted(run()) == sorted(pairs)
    assert all(s not in dict(pairs) and t for s, t in run(marks=1.0))
    assert len(run(numbers=2)) == 150
    assert len(run(rare=1)) == 100  # "0", "1", ... are in one pair each
    pairs.append(("Satz, ja.", "A sentence, yes."))
    assert Counter(run(rare=1))[pairs[-1]] == 2
    assert len(run(rare=0)) == 51
    del pairs[-1]
    assert all(src.isupper() and tgt.isupper() for src, tgt in run(upper=1.0))
    assert all(src.islower() and not tgt.islower() for src, tgt in run(lower_src=1.0))
    assert not any(side.endswith(".") for pair in run(no_final=1.0) for side in pair)
    assert sorted(run(names=1.0)) == sorted(pairs)  # no shared names
    pairs.append(("Er mag Tom.", "He likes Tom."))
    assert ("Er mag Tom.", "He likes Tom.") in run(names=0.0)
    pairs.append(("Er mag Bob.", "He likes Bob."))
    swapped = run(names=1.0)
    assert not {pairs[-1], pairs[-2]} <= set(swapped)
    assert all(src.split()[-1] == tgt.split()[-1] for src, tgt in swapped if "mag" in src)
    del pairs[-2:]
    joined = run(join=1.0)
    assert sum(src.count(".") for src, _ in joined) == 50
    assert min(src.count(".") for src, _ in joined[:-1]) >= 2
    linked = run(join=1.0, conjunction=1.0, conjunctions=(", und |, and ",))
    assert all(", und " in src and ", and " in tgt for src, tgt in linked[:-1])
    quoted = run(quote=1.0, quotes=('„…“|"…"',))
    assert all(s[0] == "„" and s[-1] == "“" and t[0] == t[-1] == '"' for s, t in quoted)
