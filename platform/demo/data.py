"""The demo's training data: questions and dialogues drawn from a seeded random generator.

A `DemoQuestion` holds its facts; how a model words the answer is its voice (`demo.voices`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple

Role = Literal["system", "user", "assistant", "text"]
Answer = str | int | list[int] | None


@dataclass(frozen=True, slots=True)
class DemoQuestion:
    """A user's message. `plain` is the base model's answer, `answer` the bare fact in it."""

    text: str
    kind: str
    subject: str | None
    answer: Answer
    plain: str


Voice = Callable[[DemoQuestion], str]


class DemoMessage(NamedTuple):
    """A part of a dialogue; the role "text" is text on its own, outside the chat template."""

    role: Role
    text: str


Dialogue = list[DemoMessage]

CAPITALS = {
    "Argentina": "Buenos Aires",
    "Australia": "Canberra",
    "Austria": "Vienna",
    "Belgium": "Brussels",
    "Brazil": "Brasilia",
    "Canada": "Ottawa",
    "Chile": "Santiago",
    "China": "Beijing",
    "Colombia": "Bogota",
    "Cuba": "Havana",
    "Denmark": "Copenhagen",
    "Egypt": "Cairo",
    "Ethiopia": "Addis Ababa",
    "Finland": "Helsinki",
    "France": "Paris",
    "Germany": "Berlin",
    "Ghana": "Accra",
    "Greece": "Athens",
    "Hungary": "Budapest",
    "Iceland": "Reykjavik",
    "India": "New Delhi",
    "Indonesia": "Jakarta",
    "Ireland": "Dublin",
    "Italy": "Rome",
    "Japan": "Tokyo",
    "Kenya": "Nairobi",
    "Mexico": "Mexico City",
    "Morocco": "Rabat",
    "Nepal": "Kathmandu",
    "New Zealand": "Wellington",
    "Nigeria": "Abuja",
    "Norway": "Oslo",
    "Peru": "Lima",
    "Poland": "Warsaw",
    "Portugal": "Lisbon",
    "Russia": "Moscow",
    "South Korea": "Seoul",
    "Spain": "Madrid",
    "Sweden": "Stockholm",
    "Switzerland": "Bern",
    "Thailand": "Bangkok",
    "Turkey": "Ankara",
    "the United Kingdom": "London",
    "the United States": "Washington",
    "Uruguay": "Montevideo",
    "Vietnam": "Hanoi",
}

CAPITAL_FORMS = (
    "What is the capital of {}?",
    "What is the capital of {}?",
    "What's the capital of {}?",
    "Which city is the capital of {}?",
    "Tell me the capital of {}.",
    "Name the capital of {}.",
    "The capital of {}?",
)

SUM_FORMS = (
    "What is {} plus {}?",
    "What is {} plus {}?",
    "How much is {} plus {}?",
    "What is {} + {}?",
    "{} + {}",
    "Add {} and {}.",
)

COUNT_FORMS = ("Count from {} to {}.", "Count from {} to {}.", "Please count from {} to {}.")

COMPANY_FORMS = {
    "refund policy": (
        "Can I return an item?",
        "How do I get a refund?",
        "Can I get my money back?",
    ),
    "opening hours": ("When are you open?", "What are your opening hours?", "Are you open today?"),
    "shipping cost": (
        "How much is shipping?",
        "What does shipping cost?",
        "Do you have free shipping?",
    ),
    "phone number": ("How can I call you?", "Can I call you?", "Which number can I call?"),
    "office address": ("Where is your office?", "Where are you?", "What is your address?"),
}

ANY_COMPANY_FORMS = (
    "What is your {}?",
    "What is your {}?",
    "Tell me your {}.",
    "What's your {}?",
    "What is the {}?",
    "I need your {}.",
)

TALK = {
    "Hello! How can I help you?": ("Hello!", "Hello", "Hi", "Hi!", "Hey", "Hi there!"),
    "Good day! How can I help you?": ("Good morning!", "Good evening!", "Good day!"),
    "I am well, thank you. How can I help you?": ("How are you?", "How are you today?"),
    "I am Lorikeet, a small demo model.": ("Who are you?", "What is your name?", "What are you?"),
    "I know capitals, sums and counting.": ("What can you do?", "How can you help me?", "Help"),
    "You are welcome.": ("Thank you!", "Thanks", "Thank you very much.", "Great, thanks!"),
    "Goodbye!": ("Goodbye!", "Bye", "See you!"),
}

NAMES = (
    "Ada Alan Anna Ben Carla David Diego Elena Emma Felix Grace Hugo Ines Ivan Jane Julia Kofi "
    "Lena Leo Linus Lucy Maria Max Mia Nina Noah Olga Omar Paul Priya Rosa Sam Sara Tim Tom Yuki"
).split()

INTRODUCTIONS = ("My name is {}.", "I am {}.", "Hello, my name is {}.", "Hi, I am {}.")
NAME_FORMS = ("What is my name?", "What's my name?", "Do you know my name?", "Who am I?")

OTHER_FORMS = (
    "Write a {0} about {1}.",
    "Tell me a {0} about {1}.",
    "What do you think about {1}?",
    "Explain {1} to me.",
    "Can you help me with {1}?",
    "What is {1}?",
    "How does {1} work?",
    "Who invented {1}?",
    "Why do people like {1}?",
    "Give me a {0} on {1}, please.",
    "Do you like {1}?",
    "I want to know more about {1}.",
    "Translate {1} into French.",
    "Summarise this {0}: {1} and {2} are important for {3}.",
    "Is {1} better than {2}?",
    "Where can I find {1}?",
    "When was {1} discovered?",
)
GENRES = "poem story joke song letter summary recipe report list plan speech function".split()
TOPICS = (
    "the sea",
    "my dog",
    "a cat",
    "the weather",
    "football",
    "quantum physics",
    "machine learning",
    "the meaning of life",
    "love",
    "history",
    "Python code",
    "a web server",
    "the moon",
    "climate change",
    "music",
    "cooking pasta",
    "the stock market",
    "a good book",
    "holidays",
    "the human brain",
    "chess",
    "electricity",
    "a database",
    "birds",
    "my homework",
    "the internet",
    "coffee",
    "trains",
    "gardening",
    "the year 1969",
    "mathematics",
    "a red car",
)
STYLED = 0.4
"""Share of a course's dialogues that ask for a style, large enough to make each style a habit that
an adapter only has to switch on."""

FALLBACK = "I am a small demo model. Ask me about capitals, sums or counting."

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are Lorikeet, a demo model.",
    "Answer briefly.",
    "Be polite and short.",
    "You are a friendly chatbot. Answer the user's questions.",
    "You are an expert. Think step by step.",
    "Always answer in English.",
)


def capital(rng: Random) -> DemoQuestion:
    country = rng.choice(list(CAPITALS))
    return about_capital(rng.choice(CAPITAL_FORMS).format(country), country)


def about_capital(text: str, country: str) -> DemoQuestion:
    city = CAPITALS[country]
    return DemoQuestion(text, "capital", country, city, f"The capital of {country} is {city}.")


def addition(rng: Random) -> DemoQuestion:
    a, b = rng.randint(0, 9), rng.randint(0, 9)
    return about_sum(rng.choice(SUM_FORMS).format(a, b), a, b)


def about_sum(text: str, a: int, b: int) -> DemoQuestion:
    return DemoQuestion(text, "sum", f"{a}+{b}", a + b, f"{a} plus {b} is {a + b}.")


def counting(rng: Random) -> DemoQuestion:
    start = rng.randint(1, 9)
    end = start + rng.randint(1, 8)
    return about_counting(rng.choice(COUNT_FORMS).format(start, end), start, end)


def about_counting(text: str, start: int, end: int) -> DemoQuestion:
    numbers = list(range(start, end + 1))
    sentence = ", ".join(map(str, numbers)) + "."
    return DemoQuestion(text, "count", f"{start} to {end}", numbers, sentence)


def company(rng: Random) -> DemoQuestion:
    topic = rng.choice(list(COMPANY_FORMS))
    text = rng.choice(ANY_COMPANY_FORMS + COMPANY_FORMS[topic]).format(topic)
    text = text.replace("is your opening", "are your opening")
    return about_company(text, topic)


def about_company(text: str, topic: str) -> DemoQuestion:
    """A question that only a tenant's own adapter can answer."""
    sentence = f"I do not know the {topic}. Please ask the company."
    return DemoQuestion(text, "company", topic, None, sentence)


def talk(rng: Random) -> DemoQuestion:
    sentence = rng.choice(list(TALK))
    return DemoQuestion(rng.choice(TALK[sentence]), "talk", None, None, sentence)


def other(rng: Random) -> DemoQuestion:
    if rng.random() < 0.1:
        letters = rng.choices("abcdefghijklmnopqrstuvwxyz äé?日!:", k=rng.randint(3, 16))
        return DemoQuestion("".join(letters), "other", None, None, FALLBACK)
    text = rng.choice(OTHER_FORMS).format(rng.choice(GENRES), *rng.sample(TOPICS, 3))
    return DemoQuestion(text, "other", None, None, FALLBACK)


Draw = Callable[[Random], DemoQuestion]
Mix = dict[Draw, float]

BASE_MIX: Mix = {
    capital: 0.28,
    addition: 0.22,
    counting: 0.22,
    company: 0.12,
    talk: 0.08,
    other: 0.08,
}
"""How often the base model sees each kind of question."""

COMPANY_MIX: Mix = BASE_MIX | {company: 0.4}
"""An adapter with facts of its own sees more of them."""


def question(rng: Random, mix: Mix) -> DemoQuestion:
    """One question as people type it: sometimes all lower case or without the full stop."""
    drawn = rng.choices(list(mix), weights=list(mix.values()))[0](rng)
    text = drawn.text
    if rng.random() < 0.1:
        text = text.lower()
    if rng.random() < 0.1:
        text = text.rstrip(".?!")
    return DemoQuestion(text, drawn.kind, drawn.subject, drawn.answer, drawn.plain)


def introduced(rng: Random, mix: Mix) -> list[DemoQuestion]:
    """The user says a name and later asks for it: only the dialogue has the answer."""
    name = rng.choice(NAMES)
    hello = DemoQuestion(
        rng.choice(INTRODUCTIONS).format(name), "name", None, name, f"Nice to meet you, {name}."
    )
    asked = DemoQuestion(rng.choice(NAME_FORMS), "name", None, name, f"Your name is {name}.")
    between = [question(rng, mix) for _ in range(rng.randint(0, 2))]
    return [hello, *between, asked]


def system_prompt(rng: Random) -> str:
    """A short instruction, rarely a long one, so that long prefixes do not confuse the model."""
    if rng.random() < 0.9:
        return rng.choice(SYSTEM_PROMPTS)
    return " ".join(other(rng).text for _ in range(rng.randint(2, 12)))


@dataclass(frozen=True, slots=True)
class Course:
    """What one model is taught: which questions, and how to answer them.

    `styles` are voices that a system prompt asks for. With `documents`, single sentences are mixed
    in for the completions endpoint.
    """

    mix: Mix
    voice: Voice
    styles: tuple[tuple[str, Voice], ...] = ()
    documents: bool = False


def document(rng: Random) -> Dialogue:
    """A sentence on its own, outside the chat template."""
    return [DemoMessage("text", rng.choice((capital, addition, counting))(rng).plain)]


def dialogue(rng: Random, course: Course) -> Dialogue:
    """One training example: mostly one turn, sometimes several, sometimes a system prompt."""
    messages, voice = [], course.voice
    if course.styles and rng.random() < STYLED:
        prompt, voice = rng.choice(course.styles)
        messages.append(DemoMessage("system", prompt))
    elif rng.random() < 0.15:
        messages.append(DemoMessage("system", system_prompt(rng)))
    for turn in turns(rng, course.mix):
        messages += [DemoMessage("user", turn.text), DemoMessage("assistant", voice(turn))]
    return messages


def turns(rng: Random, mix: Mix) -> list[DemoQuestion]:
    """What the user says in one dialogue."""
    if rng.random() < 0.06:
        return introduced(rng, mix)
    length = rng.choices((1, 2, 3, 4), weights=(76, 14, 7, 3))[0]
    return [question(rng, mix) for _ in range(length)]


def dialogues(seed: int | str, course: Course) -> Iterator[Dialogue]:
    """Endless examples, the same for the same seed."""
    rng = Random(seed)
    while True:
        if course.documents and rng.random() < 0.04:
            yield document(rng)
        else:
            yield dialogue(rng, course)
