"""-split_longer: the sentences of a long line are translated like separate lines."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onmt_lite import Translator
from onmt_lite.checkpoints import native
from onmt_lite.checkpoints.checkpoint import Confidence, describe
from onmt_lite.config.options import TranslateOptions
from onmt_lite.errors import CheckpointError
from onmt_lite.text.lines import Line
from onmt_lite.text.placeholders import UnknownPolicy
from onmt_lite.text.sentence_splitter import split_sentences
from onmt_lite.train.calibrate import calibrate, load_calibrate_options
from tests.support import tiny

LINE = "Ich gehe nach Hause. Wo ist der Bahnhof? Morgen komme ich wieder!"
PARTS = ["Ich gehe nach Hause.", "Wo ist der Bahnhof?", "Morgen komme ich wieder!"]


# Sentences are in brackets
ENDS = """
[Ich gehe nach Hause.] [Wo ist der Bahnhof?] [Morgen komme ich wieder!]
[Dr. Müller kam am 3. Mai, d. h. gestern, mit J. K. Lang bzw. Annegret.] [Sie blieben.]
[Er rief: „Komm her!“] [„Nein“, sagte sie.] [Dann schwieg er …] [Warum?!] [(Wer weiß.)]
[Wir gehen ins Kino.] [Prof. Dr. Lang kommt im Sept.] [Er fährt mit dem Auto.] [Gut so.]
[Das Wort ist alt... sehr alt.] [3 Leute wissen es.] [Ölöfen auch.]
[Es gibt kein Ende ohne Punkt und es geht weiter.]
[ich bin müde, sagt dr. meier vom inst. für chemie.] [kommst du mit?] [nein!]
[www.web.de ist kaputt.] [Version 1.2 auch.]
[Ich gehe nach Hause .] [Wo ist der Bahnhof ?] [Dort .]
[Ein Bild <img alt="Es steht leer. Niemand wohnt hier.">.] [Mehr nicht.]
[Ein Text <!-- Das ist <b>geheim. Nicht lesen. --> für uns.] [Ende <b>gut.] [Alles</b> gut.]
[Noch {n, plural, one {ein Tag bleibt. Los.} other {Tage. Warte.}} da.] [Wenn 1 < 2 ist.] [So.]
[Guten Tag.] [Ich gehe.]
[Das ist gut. aber nicht genug.]
[Besuchen Sie uns, z. B. im Netz (www.web.de).] [Die U.S. Army kommt.] [Prost usw.] [Wer weiß.]
"""
ABBREVIATIONS = """
[Die Firma beschäftigt 300 Leute, inkl. Praktikanten und freier Mitarbeiter.] [Sie sucht weitere.]
[Der Vortrag beginnt pünktl. um 19 Uhr.] [Bitte kommen Sie rechtzeitig.]
[Die Miete beträgt 650 Euro zzgl. Nebenkosten.] [Haustiere sind nicht erlaubt.]
[Laut Prof. Dr. h. c. Schneider ist das Verfahren sicher.] [Die Studie erscheint im Herbst.]
[Gem. § 5 Abs. 3 Nr. 2 der Satzung ist der Vorstand zuständig.] [Er tagt monatlich.]
[Das Kloster wurde im 12. Jh. Gegenstand eines Streits.] [Heute ist es ein Museum.]
[Die Anlage stammt aus dem 12. Jh.] [Sie wurde mehrmals umgebaut.]
[Wir haben Stühle, Tische, Lampen usw.] [Bitte fragen Sie uns!]
[Sie verkauft Äpfel, Birnen, Kirschen etc.] [Aber Pflaumen hat sie nicht.]
[Der Zug hält am Hbf. Köln und fährt dann weiter.] [Tom steigt dort aus.]
[Wir treffen uns am Hbf.] [Dann gehen wir essen.]
[Die Praxis liegt in der Schillerstr. 8, neben der Post.] [Parkplätze gibt es kaum.]
[Ich wohne seit Jahren in der Ludwigstr.] [Mein Bruder wohnt nebenan.]
[Cäsar wurde 44 v. Chr. Opfer eines Anschlags.] [Das weiß jeder.]
[Rom wurde 753 v. Chr. gegründet.] [Das sagt die Legende.]
[Die Stadt fiel 70 n. Chr.] [Danach wurde sie neu aufgebaut.]
[Das Buch hat ca. 400 Seiten, vgl. Abb. 7 und Tab. 3 auf S. 21 ff. des Anhangs.] [Es ist teuer.]
[Die Strecke ist ungef. 20 km lang.] [Man braucht etwa zwei Stunden.]
[Johann S. Bach und G. F. Händel wurden im selben Jahr geboren.] [Beide waren Musiker.]
[Frau Dr. rer. nat. Weber leitet das Labor.] [Ihr Team ist klein.]
[Bringt warme Kleidung mit, z. B. Pullover, Mützen u. Ä.] [Die Nächte sind kalt.]
[Es kostet rd. 5 Mio. Euro, d. h. Steuergelder.] [Niemand war begeistert.]
[Der Umsatz stieg auf 3 Mrd.] [Das ist ein Rekord.]
[Die Gesellschaft (vorm. Müller & Co.) hat ihren Sitz in Bremen.] [Sie handelt mit Kaffee.]
[Das ist m. E. Unsinn.] [Ich sage nichts mehr.]
[Er hat evtl. Fieber und ggf. Husten.] [Morgen geht er zum Arzt.]
[Die Kinder spielen im Hof.] [Der Hund bellt.] [Es ist ein schöner Tag.] [Wir sind zufrieden.]
[Komm doch zum See.] [Das Eis ist dick.] [Gib mir den Hut.] [Peter friert.]
[Ich trinke Tee.] [Maria mag Rum.] [Anna kauft ein Ei.] [Das war gut so.]
[Das Auto fährt max. Tempo 80 im Ort.] [Mein Freund heißt Max.] [Er ist nett.]
[Die Kirche St. Martin und der Ort Frankfurt a. M. Süd sind sehenswert.] [Viele kommen wieder.]
[Der sog. Experte kannte weder den lat. Namen noch die griech. Herkunft.] [Das war peinlich.]
[Die Tel.-Nr. 030 1234 ist besetzt.] [Rufen Sie später an.]
[Am 24. Dez. Abends kommt niemand.] [Am 2. Jan. wird gearbeitet.] [Im Feb.] [Das steht fest.]
[Der Artikel (Meier et al. 2010, Bd. 2, Kap. 4) ist bekannt.] [Er wird oft zitiert.]
[Mr. Smith and Mrs. Jones met at 5 p.m.] [They talked about Acme Inc.] [Then they left.]
[She works for approx. Ten companies, e.g. Siemens.] [He said no.] [John left.]
[M. Dupont et Mme. Martin habitent av. Foch.] [Ils sont mariés.]
[die wohnung hat ca. 80 qm und liegt in der goethestr. 5 in bonn.] [sie ist teuer.]
[DER EINTRITT KOSTET CA. 5 EURO PRO PERS. UND TAG.] [KINDER ZAHLEN NICHTS.]
"""
# Numbers, years, units and nouns that look like abbreviations
NUMBERS_AND_NOUNS = """
[Das Paket wiegt ca. 3 kg.] [Der Aufzug trägt max. Acht Personen.] [Bitte warten Sie.]
[Sie brauchen mind. Zwei Ausweise.] [Erika Mustermann, geb. Gabler, kam in Berlin zur Welt.]
[Frau Dr. med. dent. Fink hat Dienst.] [Das sog. Sommerloch ist vorbei.] [Alle arbeiten wieder.]
[Der ehem. Kanzler sprach in Bonn.] [Das Werk erschien in der 4. Aufl. Stuttgart 1987.] [Es fehlt.]
[Wir wohnen in der Bahnhofstr. 12 im dritten Stock.] [Kommt vorbei!]
[Das haben Schmidt et al. [7] gezeigt.] [Andere zweifeln.]
[Der Zug kommt um neun Uhr.] [Tom wartet.] [Es war ein langer Tag.] [Maria schläft schon.]
[Er nahm den letzten Zug.] [Anna nahm den Bus.] [Das ist mein Bruder Tom.] [Peter kennt ihn.]
[Siehe Abb. 3.] [Die Werte sind hoch.] [Das steht auf S. 14.] [Dort findest du alles.]
[Er wurde 45.] [Wir feierten im Garten.] [Am 3. Mai kommt sie.] [Am 5. Juni fährt sie.]
[1. Die Tür öffnen.] [2. Den Hebel ziehen.] [Max. Geschwindigkeit: 50 km/h.] [Danke.]
[Papst Johannes Paul II. besuchte Polen.] [Sie wohnt in der Schweiz.] [Maria besucht ein Internat.]
[Ich komme aus der DDR.] [Rund 20 Leute kamen.] [Er fuhr 160 km/h.] [Polizisten sahen es.]
[Ich trage Größe M.] [Die Jacke passt.] [J. S. Bach lebte in Leipzig.] [G. F. Händel nicht.]
[Diese Art.] [Leute mag ich.] [Bitte Rückmeldung bis spätest. Montag.] [Danke!]
"""
# 60 lines that were written before the program split them
ABBREVIATIONS_AND_NOUNS = """
[Die Fahrt dauert ca. Zwei Stunden.]
[Der Raum fasst max. Fünfzig Gäste.] [Mehr dürfen nicht hinein.]
[Man braucht mind. Drei Spieler.] [Sonst macht es keinen Spaß.]
[Helga Brandt, geb. Schulze, lebt heute in Kassel.] [Früher wohnte sie in Leipzig.]
[Dr. med. Anna Vogt leitet die Praxis.] [Termine gibt es nur am Vormittag.]
[Das ist der sog. Schmetterlingseffekt.] [Kleine Ursachen haben große Folgen.]
[Der ehem. Bürgermeister wurde gestern 80.] [Viele gratulierten ihm.]
[Das Buch ist in der 3. Aufl. Berlin 2001 erschienen.]
[Unser Büro ist in der Bahnhofstr. 12 in Köln.] [Klingeln Sie bitte zweimal.]
[Nach Weber et al. [12] steigt der Wert weiter.] [Das bestätigen neuere Studien.]
[Die Vorstellung beginnt um acht Uhr.] [Danach gehen wir essen.]
[Gestern war ein schöner Tag.] [Morgen soll es regnen.]
[Wir verpassten den Zug.] [Der nächste fuhr erst um zehn.]
[Das Geschenk ist für Tom.] [Seine Schwester bekommt auch eins.]
[Bitte melden Sie sich bei Prof. Dr. Krüger, Tel. 0551 1234.]
[Die Wohnung kostet 800 Euro inkl. Nebenkosten.] [Die Kaution beträgt zwei Monatsmieten.]
[Alle Preise verstehen sich zzgl. Versand.] [Lieferung nur innerhalb Deutschlands.]
[Der Laden ist Mo. bis Fr. von 9 bis 18 Uhr geöffnet.] [Samstags ist geschlossen.]
[Ludwig van Beethoven (geb. 1770 in Bonn, gest. 1827 in Wien) war Komponist.]
[Er spielte u. a. Klavier, Geige und Cello.] [Singen konnte er nicht.]
[Wir bieten Obst, Gemüse, Käse usw.] [Die Preise sind niedrig.] [Das gilt z. B. Für Kinder nicht.]
[Sie sprach mit Hrn. Schuster und Fr. Lang.] [Beide waren einverstanden.]
[Vgl. Kapitel 4, S. 77 ff.] [Dort wird das genauer erklärt.]
[Der Hund ist weg.] [Hast du ihn gesehen?]
[Er kam am 24. Dezember zurück.] [Seine Mutter weinte vor Freude.]
[Sie wurde 1999 geboren.] [Ihr Bruder kam 2003.] [Die Eltern zogen später um.]
[Ich nehme das Rad.] [Nimm du das Auto.]
[St. Gallen liegt in der Schweiz.] [Dort arbeitet mein Onkel.]
[Ich habe den Film schon dreimal gesehen, bzw. Teile davon.]
[Die Firma Müller & Co. KG sucht Fahrer.] [Bewerbungen bitte bis Ende Mai.]
[Er heißt Karl Friedrich jun. und wohnt in Ulm.]
[Die GmbH hat ihren Sitz am Marktplatz, Hausnr. 7, 3. Stock.]
[Am Abend gab es Fisch.] [Tim mag keinen Fisch.]
[Herr Ing. Bauer prüft die Anlage, insbes. Pumpen und Ventile.]
[Er lebt in den USA.] [Seine Frau ist noch hier.]
[Die Gemeinde hat rd. 4000 Einw. und zwei Schulen.]
[Kaiser Wilhelm I. wurde in Versailles ausgerufen.] [Das war 1871.] [Bismarck stand daneben.]
[Das Treffen findet voraussichtl. Anfang März statt.] [Näheres folgt.]
[Bitte zahlen Sie per Überweisung od. Lastschrift.] [Bargeld nehmen wir nicht an.]
[Laut Angaben des Herstellers hält der Akku mind. Zehn Stunden.] [Das stimmt nicht.]
[Das Kind schläft.] [Ruth liest noch.] [Das Museum liegt gegenüber dem Hbf. Kassel.]
[Wir treffen uns am Sa. um drei.] [Bring bitte Kuchen mit.]
[Der Vertrag gilt vorbehaltl. Zustimmung des Rates.] [Der Rat tagt am Montag.]
[Sie war die Frau des ehem. Direktors Dr. h. c. Hans Wolf.] [Er starb früh.]
[Das gilt lt. Gesetz auch für Mieter.] [Vermieter wissen das oft nicht.]
[So geht's.] [Mach weiter.] [Die Lösung wird auf max. 40 °C erwärmt.] [Rühren nicht vergessen.]
[Schicken Sie die Unterlagen an Fam. Kern, Gartenweg 3, 2. OG.] [Vielen Dank.]
[Er ist ein echter Wal.] [Wale leben im Meer.]
[Das Konzert war toll, insb. Teil zwei.] [Karten gab es für 20 Euro.]
[Der Patient wurde stat. aufgenommen.] [Prof. Lenz operierte ihn.]
[Die Arbeit wurde von Meier u. a. [4] zitiert.] [Eine zweite Quelle fehlt.]
[Anna trägt Größe 38.] [Ihre Schwester braucht 40.]
[Sie kamen aus Ungarn bzw. Polen.] [Einer blieb.]
[Ich habe Durst.] [Gib mir bitte Wasser.] [Es ist heiß hier drin.]
[Das Päckchen kam per Post.] [Marie hat es geöffnet.] [Dort wohnt Hr. Abt.] [Er ist Arzt.]
[Im 2. Weltkrieg wurde die Stadt zerstört.] [Nur der Dom blieb stehen.]
[Ich bin Ungar.] [Ilona war's.] [Sie ist Ungarin.]
"""
ENDS += ABBREVIATIONS + NUMBERS_AND_NOUNS + ABBREVIATIONS_AND_NOUNS
ENDS = ENDS.replace("\n\n", "\n").strip().split("\n")


@pytest.mark.parametrize("line", ENDS)
def test_split_sentences(line):
    sentences = re.split(r"(?<=[.!?:)…“])\] \[", line[1:-1])
    assert split_sentences(" ".join(sentences)) == sentences


@given(st.text(alphabet="aA.!? „“1\t…)", max_size=40))
def test_split_sentences_joined_equal_line(text):
    sentences = split_sentences(text)
    assert " ".join(sentences).split() == text.split()
    assert all(s == s.strip() and (s or not text.strip()) for s in sentences)


@pytest.fixture(scope="module")
def model():
    return Translator.from_pretrained(device="cpu", threads=1)


def make(model, **options):
    options = TranslateOptions.of(device="cpu", threads=1, **options)
    return Translator(model.checkpoint, options)


@pytest.mark.parametrize("options", [{}, {"n_best": 3}, {"search": "transformers"}])
def test_split_longer_equals_separate_sentences(model, options):
    (whole, short) = make(model, split_longer=40).translate([LINE, PARTS[0]], **options)
    parts = make(model, split_longer=0).translate(PARTS, **options)
    assert short.hyps == parts[0].hyps and whole.src == LINE
    assert whole.n_src_tokens == sum(part.n_src_tokens for part in parts)
    assert whole.confidence == pytest.approx(min(part.confidence for part in parts))
    for hyp, *own in zip(whole.hyps, *(part.hyps for part in parts), strict=True):
        assert hyp.text == " ".join(h.text for h in own)
        assert hyp.tokens == [token for h in own for token in h.tokens]
        assert hyp.token_log_probs == [x for h in own for x in h.token_log_probs]
        assert hyp.log_prob == pytest.approx(sum(h.log_prob for h in own))
        assert hyp.ended


def test_split_longer_confidence_is_that_of_least_sure_sentence(model):
    odd, plain = "Xylqu bnorft wrimsel.", "Ich habe heute keine Zeit."
    parts = make(model, split_longer=0).translate([odd, plain])
    low, high = (h.log_prob / len(h.token_log_probs) for h in (t.hyps[0] for t in parts))
    assert low < high
    curve = Confidence(-10 * (0.6 * low + 0.4 * high), 10)  # 0.5 is between the two
    checkpoint = replace(model.checkpoint, confidence=curve)
    options = TranslateOptions.of(device="cpu", threads=1, split_longer=20)
    mixed, copied = f"{plain} {odd}{6 * f' {plain}'}", f"مرحبا بالعالم. {plain}"
    found = Translator(checkpoint, options).translate([odd, mixed, plain, copied])
    assert [t.confidence < 0.5 for t in found] == [True, True, False, False]
    assert ["unsure" in t.notes for t in found] == [True, True, False, False]
    assert found[1].confidence == found[0].confidence
    assert found[3].confidence == found[2].confidence  # a copied sentence has none


def test_split_longer_confidence_with_unfinished_sentence_is_below_half(model):
    checkpoint = replace(model.checkpoint, confidence=Confidence(99, 10))  # always confident
    options = TranslateOptions.of(device="cpu", threads=1, split_longer=20, max_length=6)
    line = "Ja. Der Hund meiner Tante schläft heute lange in seinem Korb. Nein."
    (cut,) = Translator(checkpoint, options).translate([line])
    (whole,) = Translator(checkpoint, options).translate([line], max_length=99)
    assert "unfinished" in cut.notes and "unsure" in cut.notes and cut.confidence < 0.5
    assert "unsure" not in whole.notes and whole.confidence > 0.99


def test_split_longer_splits_only_above_length(model):
    """And only with the default search."""
    texts = {n: make(model, split_longer=n).translate([LINE])[0].hyps for n in (0, 1, 64, 65)}
    assert texts[1] == texts[64] and texts[0] == texts[65] and len(LINE) == 65
    assert texts[64] != texts[65]
    lines, given = [LINE * 4], dict(search="ctranslate2")
    split, whole = (make(model, **given, **o).translate(lines) for o in ({}, {"split_longer": 0}))
    assert split[0].hyps == whole[0].hyps


def test_split_longer_hypotheses_are_sorted_by_score(model):
    """The score of means is a mean, and the score of sums is a sum."""
    line = LINE + " Vielleicht kommt er morgen doch noch zu der Feier seines Bruders. Ja!"
    for penalty in ("avg", "wu", "none"):
        asked = dict(n_best=5, length_penalty=penalty)
        (found,) = make(model, split_longer=1).translate([line], **asked)
        scores = [hyp.score for hyp in found.hyps]
        assert len(scores) == 5 and scores == sorted(scores, reverse=True)
        if penalty == "avg":
            means = [hyp.log_prob / len(hyp.token_log_probs) for hyp in found.hyps]
            assert scores == pytest.approx(means)
    assert scores == pytest.approx([hyp.log_prob for hyp in found.hyps])
    parts = make(model, split_longer=0).translate(split_sentences(line), **asked)
    assert scores[0] == pytest.approx(sum(part.hyps[0].score for part in parts))


def test_split_longer_default_translates_all_sentences(model):
    """Without splitting, the model skips some of the sentences."""
    numbers = [str(n) for n in range(10, 34)]
    line = " ".join(f"Tom hat {n} Bücher." for n in numbers)
    default, whole = (make(model, **o).translate([line])[0].text for o in ({}, {"split_longer": 0}))
    assert default.split(". ")[-1] == "Tom has 33 books." and default.count("books") == 24
    assert re.findall(r"\d+", default) == numbers != re.findall(r"\d+", whole)


def test_split_longer_shifts_alignments(model):
    given = dict(report_align=True, attn_debug=True)
    (whole,) = make(model, split_longer=1, **given).translate([LINE])
    parts = make(model, split_longer=0, **given).translate(PARTS)

    def linked(found):
        hyp, src, tgt = found.hyps[0], found.src.split(), found.text.split()
        tokens = [(found.src_tokens[i], hyp.tokens[j]) for i, j in hyp.align]
        return tokens, [(src[i], tgt[j]) for i, j in hyp.word_align], list(found.attn_table)

    assert whole.src_tokens == [token for part in parts for token in part.src_tokens]
    for found, of_parts in zip(linked(whole), zip(*map(linked, parts))):
        assert found == [link for links in of_parts for link in links]


def test_split_longer_lines_that_are_not_split(model):
    split, whole = make(model, split_longer=1), make(model, split_longer=0)
    begun, forced = dict(prefixes=["I"]), dict(force_words=["station"])
    for asked in (begun, forced, dict(min_length=30), dict(do_sample=True, seed=3)):
        assert split.translate([LINE], **asked) == whole.translate([LINE], **asked)
    assert split.score([LINE], ["I go."]) == whole.score([LINE], ["I go."])


def test_split_longer_scores_references_of_whole_lines(model):
    """The translation is the same as without a reference."""
    translator = make(model, split_longer=1)
    lines = [Line(i, text) for i, text in enumerate([LINE, PARTS[0], LINE])]
    references = [Line(i, text) for i, text in enumerate(["I go home.", "Yes.", ""])]
    made = translator.pipeline.translate_lines(lines, references)
    plain = list(translator.pipeline.translate_lines(lines))
    assert [(t.hyps, t.notes) for t in made] == [(t.hyps, t.notes) for t in plain]
    scores = translator.score([LINE, PARTS[0], LINE], ["I go home.", "Yes.", ""])
    assert [t.gold_log_prob for t in made] == scores
    assert all(t.has_gold for t in made) and made[0].n_gold_tokens == 5
    assert all({*t.notes} <= {"unsure"} for t in made)


def test_split_longer_does_not_split_line_with_prefix(model):
    split, whole = make(model, split_longer=1), make(model, split_longer=0)
    found = split.translate([LINE, LINE], prefixes=["", "I am"])
    own = [t.translate([LINE])[0].hyps[0].score for t in (split, whole)]
    assert found[0].hyps[0].score == pytest.approx(own[0]) != pytest.approx(own[1])
    begun = whole.translate([LINE], prefixes=["I am"])[0].hyps[0]
    assert found[1].hyps[0].score == pytest.approx(begun.score)


def test_split_longer_ban_words_across_sentences(model):
    split = make(model, split_longer=1)
    first, second = split.translate(PARTS[:2])
    phrase = f"{first.text.split()[-1]} {second.text.split()[0]}"
    line = " ".join(PARTS[:2])
    assert phrase in split.translate([line])[0].text
    assert phrase not in split.translate([line], ban_words=phrase)[0].text
    # A different phrase does not prevent splitting
    assert split.translate([line], ban_words="Boston")[0].text == f"{first.text} {second.text}"


def test_split_longer_counts_warns_and_traces_original_lines(model):
    told, lines = [], [LINE, "Guten Tag.", LINE, "", LINE + " Ende gut, alles gut."]
    make(model, split_longer=20).translate(
        lines, progress=lambda n, _: told.append(n), batch_size=2, batch_type="sents"
    )
    assert len(told) > 2 and told[-1] == len(lines)
    loud = "ICH GEHE NACH HAUSE. Das ist gut. WARTE HIER!"
    assert make(model, split_longer=1).translate([loud])[0].notes == ("capitals",)
    translator, lines = make(model, split_longer=30), [LINE, PARTS[1]]
    watched = [Line(i, text, traced=True) for i, text in enumerate(lines)]
    found = translator.pipeline.translate_lines(watched)
    assert [t.hyps for t in found] == [t.hyps for t in translator.translate(lines)]
    assert found[0].trace is None and found[1].trace is not None


def test_split_longer_jsonl_keeps_fields(model, tmp_path):
    src, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    src.write_text(json.dumps({"text": LINE, "key": 7}) + "\n", encoding="utf-8")
    translator = make(model, split_longer=1)
    translator.translate_file(src, out, output_format="jsonl", input_format="jsonl")
    record = json.loads(out.read_text(encoding="utf-8"))
    assert record["fields"] == {"key": 7} and record["src"] == LINE and len(record["hyps"]) == 1


def test_split_longer_is_stored_in_model_config(tmp_path, tiny_pieces):
    assert native.load(Path("data/de-en")).split_longer == 100
    native.save(tmp_path, tiny.make_model(), tiny_pieces)
    assert native.load(tmp_path).split_longer == 0
    native.update_manifest(tmp_path, {}, UnknownPolicy(), None, 70)
    assert native.load(tmp_path).split_longer == 70
    said = describe(native.load(tmp_path), "model")
    assert "asks for           -split_longer 70\n" in said
    native.update_manifest(tmp_path, {}, UnknownPolicy(), None, -1)
    with pytest.raises(CheckpointError, match="split_longer must be an integer of at least 0"):
        native.load(tmp_path)


def test_split_longer_calibration_keeps_or_sets_it(tmp_path, tiny_pieces, monkeypatch, capfd):
    native.save(tmp_path, tiny.make_model(), tiny_pieces)
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("der hund\tthe dog\ndie katze\tthe cat\n", encoding="utf-8")
    monkeypatch.setattr(
        "onmt_lite.train.calibrate.fit_confidence", lambda points: Confidence(0.0, 1.0)
    )
    for words, expected in (["-split_longer", "4"], 4), ([], 4), (["-split_longer", "0"], 0):
        argv = ["-model", str(tmp_path), "-valid", str(pairs), *words]
        calibrate(load_calibrate_options(argv)[0])
        said = json.loads((tmp_path / "model.json").read_text(encoding="utf-8"))
        assert said["split_longer"] == expected
