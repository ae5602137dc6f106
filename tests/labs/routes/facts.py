"""Generated questions for two real models: easy ones are what the demo's tiny model was trained on
(46 capitals, sums, counting), hard ones are general knowledge and other capitals.

A question's text occurs once, so the rows of an eval and the questions that are asked later differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from random import Random

from demo.data import CAPITAL_FORMS, CAPITALS, COUNT_FORMS, SUM_FORMS


@dataclass(frozen=True, slots=True)
class FactQuestion:
    """A question; an answer is right if it contains `answer`, in capitals or not."""

    text: str
    answer: str
    hard: bool

    def is_answered_by(self, said: str) -> bool:
        return self.answer.casefold() in said.casefold()


FACTS: Mapping[tuple[str, ...], Mapping[str, str]] = {
    (
        "Which continent is {} in?",
        "On which continent is {}?",
        "Name the continent of {}.",
        "{} belongs to which continent?",
    ): {
        "France": "Europe", "Germany": "Europe", "Poland": "Europe", "Spain": "Europe",
        "Italy": "Europe", "Sweden": "Europe", "Kenya": "Africa", "Egypt": "Africa",
        "Ghana": "Africa", "Nigeria": "Africa", "Morocco": "Africa", "Ethiopia": "Africa",
        "Japan": "Asia", "India": "Asia", "China": "Asia", "Thailand": "Asia", "Nepal": "Asia",
        "Vietnam": "Asia", "Brazil": "South America", "Peru": "South America",
        "Chile": "South America", "Argentina": "South America", "Canada": "North America",
        "Mexico": "North America",
    },
    (
        "Which language do people speak in {}?",
        "What is the main language of {}?",
        "What language is spoken in {}?",
        "Name the official language of {}.",
    ): {
        "France": "French", "Germany": "German", "Spain": "Spanish", "Italy": "Italian",
        "Japan": "Japanese", "Brazil": "Portuguese", "Russia": "Russian", "Poland": "Polish",
        "Mexico": "Spanish", "Egypt": "Arabic", "Portugal": "Portuguese", "Sweden": "Swedish",
        "Greece": "Greek", "Turkey": "Turkish", "Argentina": "Spanish", "Norway": "Norwegian",
    },
    (
        "What is the opposite of {}?",
        "Give the opposite of the word {}.",
        "Which word means the opposite of {}?",
        "What is an antonym of {}?",
    ): {
        "hot": "cold", "big": "small", "fast": "slow", "light": "dark", "happy": "sad",
        "up": "down", "rich": "poor", "open": "close", "old": "young", "hard": "soft",
        "dry": "wet", "long": "short", "good": "bad", "early": "late", "full": "empty",
        "strong": "weak",
    },
    (
        "What colour is {}?",
        "Which colour does {} have?",
        "Name the colour of {}.",
        "What is the usual colour of {}?",
    ): {
        "the sky": "blue", "grass": "green", "snow": "white", "blood": "red", "coal": "black",
        "a banana": "yellow", "a tomato": "red", "milk": "white", "a lemon": "yellow",
    },
    (
        "Who wrote {}?",
        "Which author wrote {}?",
        "Who is the author of {}?",
        "Name the writer of {}.",
    ): {
        "Hamlet": "Shakespeare", "Romeo and Juliet": "Shakespeare", "Macbeth": "Shakespeare",
        "Pride and Prejudice": "Austen", "the Odyssey": "Homer", "War and Peace": "Tolstoy",
        "Don Quixote": "Cervantes", "Oliver Twist": "Dickens", "Animal Farm": "Orwell",
    },
    (
        "Which day comes after {}?",
        "What day is it the day after {}?",
        "Name the day that follows {}.",
        "If today is {}, which day is tomorrow?",
    ): {
        "Monday": "Tuesday", "Tuesday": "Wednesday", "Wednesday": "Thursday",
        "Thursday": "Friday", "Friday": "Saturday", "Saturday": "Sunday", "Sunday": "Monday",
    },
    (
        "Which animal is a {}'s parent?",
        "A {} is the young of which animal?",
        "What does a {} grow up to be?",
        "A {} is a baby what?",
    ): {
        "puppy": "dog", "kitten": "cat", "calf": "cow", "lamb": "sheep", "foal": "horse",
        "duckling": "duck", "tadpole": "frog", "piglet": "pig",
    },
}  # fmt: skip


MORE_CAPITALS: Mapping[str, str] = {
    "Bulgaria": "Sofia", "Croatia": "Zagreb", "Romania": "Bucharest", "Serbia": "Belgrade",
    "Ukraine": "Kiev", "Slovakia": "Bratislava", "Slovenia": "Ljubljana", "Estonia": "Tallinn",
    "Latvia": "Riga", "Lithuania": "Vilnius", "Albania": "Tirana", "Malta": "Valletta",
    "Cyprus": "Nicosia", "Israel": "Jerusalem", "Iran": "Tehran", "Iraq": "Baghdad",
    "Syria": "Damascus", "Lebanon": "Beirut", "Jordan": "Amman", "Saudi Arabia": "Riyadh",
    "Pakistan": "Islamabad", "Bangladesh": "Dhaka", "Sri Lanka": "Colombo",
    "Malaysia": "Kuala Lumpur", "the Philippines": "Manila", "Cambodia": "Phnom Penh",
    "Laos": "Vientiane", "Mongolia": "Ulaanbaatar", "Afghanistan": "Kabul", "Tunisia": "Tunis",
    "Algeria": "Algiers", "Libya": "Tripoli", "Sudan": "Khartoum", "Uganda": "Kampala",
    "Tanzania": "Dodoma", "Zambia": "Lusaka", "Zimbabwe": "Harare", "Senegal": "Dakar",
    "Mali": "Bamako", "Angola": "Luanda", "Somalia": "Mogadishu", "Rwanda": "Kigali",
    "Ecuador": "Quito", "Bolivia": "La Paz", "Paraguay": "Asuncion", "Venezuela": "Caracas",
    "Jamaica": "Kingston", "Haiti": "Port-au-Prince", "Honduras": "Tegucigalpa",
    "Nicaragua": "Managua", "Costa Rica": "San Jose", "Panama": "Panama City",
    "Guatemala": "Guatemala City", "the Czech Republic": "Prague", "Qatar": "Doha",
    "Yemen": "Sanaa",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FactSet:
    """The rows of an eval, and questions that are asked later."""

    name: str
    rows: list[FactQuestion]
    fresh: list[FactQuestion]


def facts(random: Random, rows: int, fresh: int) -> FactSet:
    """The wording tells what is hard."""
    drawn = _drawn(random, list(_easy()), list(_hard()), rows + fresh)
    return FactSet("facts", drawn[:rows], drawn[rows:])


def capitals(random: Random, rows: int, fresh: int) -> FactSet:
    """Only the country tells what is hard, and the fresh questions are about other countries."""
    parts = [(list[FactQuestion](), list[FactQuestion]()) for _ in range(2)]
    for hard, known in enumerate((CAPITALS, MORE_CAPITALS)):  # two of three countries for the eval
        for at, country in enumerate(random.sample(sorted(known), len(known))):
            for form in sorted(set(CAPITAL_FORMS)):
                asked = FactQuestion(form.format(country), known[country], bool(hard))
                parts[at % 3 // 2][hard].append(asked)
    drawn = [_drawn(random, *part, count) for part, count in zip(parts, (rows, fresh), strict=True)]
    return FactSet("capitals", *drawn)


def _drawn(
    random: Random, easy: list[FactQuestion], hard: list[FactQuestion], most: int
) -> list[FactQuestion]:
    """So many, or as many as there are, in random order; half of them are hard."""
    each = min(most // 2, len(easy), len(hard))
    drawn = random.sample(easy, each) + random.sample(hard, each)
    random.shuffle(drawn)
    return drawn


def _hard() -> Iterator[FactQuestion]:
    for forms, facts in FACTS.items():
        for form, (subject, answer) in product(forms, facts.items()):
            yield FactQuestion(form.format(subject), answer, True)


def _easy() -> Iterator[FactQuestion]:
    for form, (country, city) in product(sorted(set(CAPITAL_FORMS)), CAPITALS.items()):
        yield FactQuestion(form.format(country), city, False)
    for form, a, b in product(sorted(set(SUM_FORMS)), range(1, 10), range(1, 10)):
        if a + b > 9:  # then neither number contains the sum
            yield FactQuestion(form.format(a, b), str(a + b), False)
    for form, start, more in product(sorted(set(COUNT_FORMS)), range(1, 10), range(2, 9)):
        counted = ", ".join(map(str, range(start, start + more + 1)))
        yield FactQuestion(form.format(start, start + more), counted, False)
