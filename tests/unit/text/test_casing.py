"""Casing: uppercase words inside a line are translated, and acronyms are not changed."""

import pytest

from onmt_lite import Translator
from onmt_lite.text.casing import lower_uppercase_words, restore_uppercase
from onmt_lite.text.tag_projection import AlignedText

LOWERED = """
ACHTUNG: Der Boden ist nass. | ACHTUNG
ICH LIEBE DICH, Maria! | ICH LIEBE DICH
BITTE NICHT STÖREN (danke) | BITTE NICHT STÖREN
Das ist SEHR wichtig, und zwar NUR heute. | SEHR NUR
DIE NATO HAT RECHT, sagte er. | DIE HAT RECHT
Wir sind UM 14 UHR IM HAUS, sagt er. | UM UHR IM HAUS
DIE STRAßE IST GROß, oder? | DIE STRAßE IST GROß
KOMM MIT MIR, Tom! | KOMM MIT MIR
Der KFZ-MEISTER kommt. | MEISTER
"""
KEPT = """
Die NATO, die USA, die EU und die UNESCO haben einen Vertrag.
Der ADAC, die SPD und der TÜV prüfen die DIN.
Die XML- und die PDF-Datei der Muster GmbH.
Mein Kennzeichen ist HH-KU 123, meine IBAN DE89 3704 0044 0532 0130 00.
Die WHO warnt vor AIDS und COVID.
Ludwig XIV fuhr mit dem LKW, dem ICE und dem UFO.
Das FBI sucht die CD und den PC im WLAN mit GPS.
Ich esse A, B und C.
Sie forscht am MIT Media Lab in Boston.
"""
# Shipped model: uppercase words, and words that keep their case
SHIPPED = {
    "ACHTUNG: Der Boden ist nass.": ("ATTENTION", "floor"),
    "ICH KOMME MORGEN NACH HAUSE. Bis dann!": ("HOME TOMORROW", "See you then."),
    "ICH LIEBE DICH, Maria!": ("I LOVE YOU", ""),
    "Guten Morgen. WO BIST DU? Ich warte.": ("WHERE ARE YOU", "waiting"),
    "ICH LIEBE {name} SEHR, Maria.": ("I LOVE {name}", ""),
}


@pytest.fixture(scope="module")
def translator():
    return Translator.from_pretrained(device="cpu", threads=1)


@pytest.fixture(scope="module")
def encode(translator):
    return translator.pipeline.postprocessor.tokenizer.encode


@pytest.mark.parametrize("case", LOWERED.strip().split("\n"))
def test_uppercase_words_are_lowercased(encode, case):
    line, words = case.split(" | ")
    found, spans = lower_uppercase_words(line, encode)
    assert [line[start:end] for start, end in spans] == words.split(" ")
    assert found.lower() == line.lower()
    outside = [i for i in range(len(line)) if not any(a <= i < b for a, b in spans)]
    assert all(found[i] == line[i] for i in outside)
    assert not any(found[start:end].replace("ß", "").isupper() for start, end in spans)


@pytest.mark.parametrize("line", KEPT.strip().split("\n"))
def test_acronyms_and_codes_are_unchanged(encode, line):
    assert lower_uppercase_words(line, encode) == (line, ())


def test_restore_uppercase_changes_aligned_words():
    """Each target token is aligned to the source token at its index; spaces do not count."""
    source, target = ["▁achtung", ":", "▁der", "▁boden"], ["▁at", "tention", ":", "▁the", "▁floor"]
    aligned = AlignedText(source, target, [0, 0, 1, 2, 3])
    found = restore_uppercase("attention: the floor", aligned, ((0, 7),))
    assert found == "ATTENTION: the floor"
    found = restore_uppercase("attention: the floor", aligned, ((11, 16),))
    assert found == "attention: the FLOOR"


def test_restore_uppercase_ignores_alignment_across_sentences():
    source, target = ["▁komm", ".", "▁geh", "."], ["▁come", ".", "▁go", "."]
    for sources in ([0, 1, 2, 1], [0, 1, 0, 1]):
        found = restore_uppercase("come. go.", AlignedText(source, target, sources), ((0, 4),))
        assert found == "COME. go."


@pytest.mark.parametrize("line", SHIPPED)
def test_shipped_model_restores_uppercase_words(translator, line):
    (found,) = translator.translate([line])
    uppercase, quiet = SHIPPED[line]
    assert uppercase in found.text and quiet in found.text and "capitals" in found.notes


def test_force_words_keep_their_case(translator):
    (found,) = translator.translate(["ACHTUNG: Der Boden ist nass."], force_words=["floor"])
    assert "floor" in found.text and found.unmet == () and "capitals" in found.notes
    assert "ATTENTION" not in found.text


def test_capitals_warning_is_absent_without_uppercase_words(translator):
    found = translator.translate(["Der Hund schläft.", "Die NATO hat recht."])
    assert all("capitals" not in t.notes for t in found)


def test_score_reference_with_uppercase_words_equals_lowercase(translator):
    line, lower = "ACHTUNG: Der Boden ist nass.", "achtung: Der Boden ist nass."
    uppercase, quiet = "ATTENTION: the floor is wet.", "attention: the floor is wet."
    scores = translator.score([line, lower], [uppercase, quiet])
    assert scores[0] == pytest.approx(scores[1], abs=1e-3)
