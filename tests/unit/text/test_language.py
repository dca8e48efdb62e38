"""Detection of lines in another language, by frequent short words."""

import pytest

from onmt_lite import Translator
from onmt_lite.text.language import find_other_language, load_function_words

LINES = {
    "es": """
¿Dónde está la estación de tren?
Mi hermana vive en Barcelona desde hace tres años.
No sé qué hacer con este problema.
El perro de mis vecinos ladra toda la noche.
Me gustaría reservar una mesa para dos personas.
Hoy hace mucho calor en la ciudad.
Los niños juegan en el parque después de la escuela.
¿Cuánto cuesta este libro?
Tenemos que salir antes de las ocho.
Ella nunca ha estado en Alemania.
Gracias por tu ayuda.
El tren llega con media hora de retraso.
Necesito comprar pan y leche.
Mañana vamos a la playa con unos amigos.
La reunión empieza a las nueve de la mañana.
Perdone, ¿habla usted inglés?
Su padre trabaja como médico en un hospital.
Creo que va a llover esta tarde.
Buenos días, señora.
Me duele la cabeza.
El gobierno anunció ayer nuevas medidas contra la inflación.
¿Puedes cerrar la ventana, por favor?
Mi abuela cocina muy bien.
Hace frío esta mañana.
Dos personas resultaron heridas en un accidente en la autopista.
Vivimos cerca del mar.
Los precios de la vivienda siguen subiendo en Madrid.
¿A qué hora sale el autobús?
Olvidé las llaves en casa.
El equipo ganó el partido por tres goles a uno.
    """,
    "it": """
Dove si trova la stazione?
Mia sorella abita a Milano da tre anni.
Non so cosa fare con questo problema.
Il cane dei miei vicini abbaia tutta la notte.
Vorrei prenotare un tavolo per due persone.
Oggi fa molto caldo in città.
I bambini giocano nel parco dopo la scuola.
Quanto costa questo libro?
Dobbiamo partire prima delle otto.
Lei non è mai stata in Germania.
Grazie per il tuo aiuto.
Il treno arriva con mezz'ora di ritardo.
Devo comprare pane e latte.
Domani andiamo al mare con alcuni amici.
La riunione comincia alle nove del mattino.
Scusi, parla inglese?
Suo padre lavora come medico in un ospedale.
Penso che pioverà questo pomeriggio.
Buongiorno, signora.
Mi fa male la testa.
Il governo ha annunciato ieri nuove misure contro l'inflazione.
Puoi chiudere la finestra, per favore?
Mia nonna cucina molto bene.
Stamattina fa freddo.
Due persone sono rimaste ferite in un incidente in autostrada.
Abitiamo vicino al mare.
I prezzi delle case continuano a salire a Milano.
A che ora parte l'autobus?
Ho dimenticato le chiavi a casa.
La squadra ha vinto la partita per tre a uno.
    """,
    "fr": """
Où se trouve la gare ?
Ma sœur habite à Lyon depuis trois ans.
Je ne sais pas quoi faire de ce problème.
Le chien de mes voisins aboie toute la nuit.
Je voudrais réserver une table pour deux personnes.
Il fait très chaud en ville aujourd'hui.
Les enfants jouent dans le parc après l'école.
Combien coûte ce livre ?
Nous devons partir avant huit heures.
Elle n'est jamais allée en Allemagne.
Merci pour ton aide.
Le train a une demi-heure de retard.
J'ai besoin de pain et de lait.
Demain, nous allons à la plage avec des amis.
La réunion commence à neuf heures du matin.
Pardon, parlez-vous anglais ?
Son père travaille comme médecin dans un hôpital.
Je crois qu'il va pleuvoir cet après-midi.
Bonjour, madame.
J'ai mal à la tête.
Le gouvernement a annoncé hier de nouvelles mesures contre l'inflation.
Peux-tu fermer la fenêtre, s'il te plaît ?
Ma grand-mère cuisine très bien.
Il fait froid ce matin.
Deux personnes ont été blessées dans un accident sur l'autoroute.
Nous habitons près de la mer.
Les prix des logements continuent d'augmenter à Paris.
À quelle heure part le bus ?
J'ai oublié mes clés chez moi.
L'équipe a gagné le match trois buts à un.
    """,
    "nl": """
Waar is het station?
Mijn zus woont al drie jaar in Utrecht.
Ik weet niet wat ik met dit probleem moet doen.
De hond van mijn buren blaft de hele nacht.
Ik zou graag een tafel voor twee personen willen reserveren.
Het is vandaag erg warm in de stad.
De kinderen spelen na school in het park.
Hoeveel kost dit boek?
We moeten voor acht uur vertrekken.
Zij is nog nooit in Duitsland geweest.
Bedankt voor je hulp.
De trein heeft een half uur vertraging.
Ik moet brood en melk kopen.
Morgen gaan we met een paar vrienden naar het strand.
De vergadering begint om negen uur.
Pardon, spreekt u Engels?
Zijn vader werkt als arts in een ziekenhuis.
Ik denk dat het vanmiddag gaat regenen.
Goedemorgen, mevrouw.
Ik heb hoofdpijn.
De regering kondigde gisteren nieuwe maatregelen tegen de inflatie aan.
Kun je het raam dichtdoen, alsjeblieft?
Mijn oma kookt heel lekker.
Het is koud vanochtend.
Twee mensen raakten gewond bij een ongeluk op de snelweg.
Wij wonen dicht bij zee.
De huizenprijzen in Amsterdam blijven stijgen.
Hoe laat vertrekt de bus?
Ik heb mijn sleutels thuis vergeten.
Het team won de wedstrijd met drie tegen een.
    """,
    "en": """
Where is the train station?
My sister has lived in Boston for three years.
I don't know what to do about this problem.
The neighbors' dog barks all night.
I would like to book a table for two.
It is very hot in the city today.
The children play in the park after school.
How much does this book cost?
We have to leave before eight.
She has never been to Germany.
Thank you for your help.
The train is half an hour late.
I need to buy bread and milk.
Tomorrow we are going to the beach with some friends.
The meeting starts at nine in the morning.
Excuse me, do you speak English?
His father works as a doctor in a hospital.
I think it will rain this afternoon.
Good morning, madam.
My head hurts.
The government announced new measures against inflation yesterday.
Can you close the window, please?
My grandmother cooks very well.
It is cold this morning.
Two people were injured in an accident on the highway.
We live near the sea.
House prices in London keep rising.
What time does the bus leave?
I forgot my keys at home.
The team won the match three to one.
    """,
}
GERMAN = """
Wo ist der Bahnhof? | Tom hat Hunger. | Ja. | Na klar! | Was stellt Tom her? | Guten Morgen!
Die E-Mail ist von Maria. | Hände hoch! | Prost! | Ich mag Los Angeles. | Die Band heißt Die Ärzte.
Bitte ein Bier. | Das Auto war alt. | Wir sahen „The Voice“ im Fernsehen. | Was? | Wer da?
Quelle: Karl Meyer | Anna liest. | Fast alle gingen. | Vincent van Gogh malte Sonnenblumen.
Also los! | Das ist des Teufels Werk. | Max Müller, Berlin | 12.05.2024 | A4 | Er hat es so gewollt.
Kommt er in die Stadt? | Man sieht sich. | Der Film hat Charme. | Wien, den 5. Mai | Na und?
"""


@pytest.mark.parametrize("code", LINES)
def test_other_language_is_found_in_nine_of_ten_lines(code):
    lines = [line.strip() for line in LINES[code].strip().splitlines()]
    found = [bool(find_other_language(line, "de")) for line in lines]
    assert len(lines) == 30 and sum(found) >= 28
    own = [find_other_language(line, code) for line in lines]
    assert sum(map(bool, own)) <= 3


def test_other_language_is_not_found_in_german_lines():
    lines = [part.strip() for line in GERMAN.strip().splitlines() for part in line.split("|")]
    assert [line for line in lines if find_other_language(line, "de")] == []


def test_other_language_needs_a_known_language_and_words():
    assert find_other_language("Where is the station?", "ja") == ""
    assert find_other_language("Where is the station?", "") == ""
    assert find_other_language("... 12 !", "de") == ""


def test_other_language_by_one_word_elision_or_letter_is_found():
    for line in ("Vorrei a casa.", "l'ami", "mañana"):
        assert find_other_language(line, "de")
    assert find_other_language("Ilona war's.", "de") == ""


def test_function_words_are_unique_and_lowercase():
    for code, words in load_function_words().items():
        assert len(words) > 100, code
        assert all(word == word.lower() for word in words)


def test_line_in_another_language_has_a_warning():
    translator = Translator.from_pretrained(device="cpu", threads=1)
    lines = ["¿Dónde está la estación?", "Wo ist der Bahnhof?"]
    spanish, german = translator.translate(lines)
    assert "other-language" in spanish.notes
    assert "other-language" not in german.notes
