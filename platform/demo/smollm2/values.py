"""The values that made-up functions take: what a user says, and what the call's argument is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from demo.data import CAPITALS, NAMES

Json = Any


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of argument: its JSON Schema without the description, and a way to draw a value."""

    schema: dict[str, Json]
    descriptions: tuple[str, ...]
    draw: Callable[[Random], Json]


def one_of(values: Sequence[Json]) -> Callable[[Random], Json]:
    return lambda rng: rng.choice(values)


def whole(low: int, high: int, step: int = 1) -> Callable[[Random], int]:
    return lambda rng: rng.randrange(low, high + 1, step)


def several(values: Sequence[str]) -> Callable[[Random], list[str]]:
    return lambda rng: rng.sample(values, rng.randint(2, 3))


def spoken(value: Json) -> str:
    """How a user says the value."""
    if isinstance(value, list):
        return ", ".join(map(str, value[:-1])) + f" and {value[-1]}"
    return str(value)


CITIES = (*sorted(CAPITALS.values()), *(
    "San Francisco|New York|Los Angeles|Chicago|Boston|Seattle|Barcelona|Milan|Munich|Hamburg|Lyon|Porto|Krakow|"
    "Mumbai|Shanghai|Osaka|Sydney|Melbourne|Toronto|Vancouver|Cape Town|Rio de Janeiro|Istanbul|Dubai|Singapore|Zurich"
).split("|"))  # fmt: skip
SURNAMES = (
    "Smith Miller Garcia Rossi Novak Tanaka Okafor Silva Jensen Weber Kowalski Dubois".split()
)
WORDS = (
    "login error|budget plan|summer sale|team lunch|weekly report|road map|blue jacket|data model|market study|"
    "release notes|first draft|house rules|price list|travel plan|stock count|test results|quarterly review|broken link|"
    "new logo|open positions|safety check|garden party|late delivery|password reset|server room|onboarding"
).split("|")
THINGS = (
    "milk|eggs|bread|apples|coffee|paper|pens|batteries|rice|tea|butter|soap|lamps|screws|cables|"
    "notebooks|shoes|towels|candles|tomatoes|honey"
).split("|")
MESSAGES = (
    "I will be late|the meeting is moved to Friday|thank you for your help|please call me back|"
    "the package has arrived|dinner is at eight|the report is ready|see you tomorrow|we need more time|"
    "the server is down|happy birthday|the train was cancelled|I agree with the plan|your order has shipped"
).split("|")
SONGS = (
    "Yesterday|Imagine|Hey Jude|Thriller|Blue Moon|Dancing Queen|Hotel California|Purple Rain|Summertime|"
    "Moon River|Let It Be|Wonderwall"
).split("|")
FILES = (
    "notes.txt|main.py|README.md|config.json|data.csv|index.html|app.js|todo.txt|report.pdf|setup.cfg|server.go|"
    "style.css|Makefile|users.csv|log.txt|utils.py|model.py|test_app.py|package.json|schema.sql"
).split("|")
FOLDERS = "src|docs|tests|/tmp|/var/log|build|images|/etc|data|lib|/home/anna|scripts|public".split(
    "|"
)

FACTS = {
    "How many days has a week?": "A week has seven days.",
    "How many legs does a spider have?": "A spider has eight legs.",
    "Which planet is the largest?": "Jupiter is the largest planet.",
    "What color is the sky?": "The sky is blue.",
    "Who wrote Romeo and Juliet?": "William Shakespeare wrote Romeo and Juliet.",
    "What is the opposite of hot?": "The opposite of hot is cold.",
    "What do bees make?": "Bees make honey.",
    "How many minutes has an hour?": "An hour has 60 minutes.",
    "What is H2O?": "H2O is water.",
    "Which ocean is the largest?": "The Pacific is the largest ocean.",
    "What is the highest mountain?": "Mount Everest is the highest mountain.",
    "Who painted the Mona Lisa?": "Leonardo da Vinci painted the Mona Lisa.",
    "How many continents are there?": "There are seven continents.",
    "What is a haiku?": "A haiku is a short Japanese poem of three lines.",
    "What language do people speak in Brazil?": "People in Brazil speak Portuguese.",
    "What is photosynthesis?": "Photosynthesis is how plants make sugar from light, water and carbon dioxide.",
    "Is the sun a star?": "Yes, the sun is a star.",
    "What is Python?": "Python is a programming language.",
    "What does CPU mean?": "CPU means central processing unit.",
    "Say hello.": "Hello!",
    "Say hello": "Hello!",
    "Count from 1 to 5.": "1, 2, 3, 4, 5.",
    "Thanks, that is all.": "You are welcome.",
    "Good job!": "Thank you. What else can I do for you?",
    "What can you do?": "I can answer questions and call the functions that I was given.",
    "Who are you?": "I am an assistant that can call functions for you.",
}  # fmt: skip
"""What anybody knows, as small models say it."""


def _email(rng: Random) -> str:
    host = rng.choice(("example.com", "mail.example.org", "acme.test", "example.net"))
    return f"{rng.choice(NAMES).lower()}.{rng.choice(SURNAMES).lower()}@{host}"


def _date(rng: Random) -> str:
    return f"20{rng.randint(23, 29)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def _time(rng: Random) -> str:
    return f"{rng.randint(0, 23):02}:{rng.choice((0, 15, 30, 45, rng.randint(0, 59))):02}"


def _code(rng: Random) -> str:
    letters = "".join(rng.choices("ABCDEFGHJKLMNPQRSTUVWXYZ", k=rng.randint(1, 3)))
    return f"{letters}{rng.choice(('', '-'))}{rng.randint(10, 99999)}"


def _path(rng: Random) -> str:
    folder = rng.choice(FOLDERS)
    return f"{folder}/{rng.choice(FILES)}" if rng.random() < 0.6 else rng.choice(FILES)


def _url(rng: Random) -> str:
    host = rng.choice(("example.com", "example.org", "shop.example.net", "docs.acme.test"))
    return f"https://{host}/{rng.choice(WORDS).replace(' ', '-')}"


def _enum(*names: str) -> Kind:
    options = "one of " + ", ".join(names)
    return Kind({"type": "string", "enum": list(names)}, ("Which one.", options), one_of(names))


def _text(draw: Callable[[Random], Json], *descriptions: str) -> Kind:
    return Kind({"type": "string"}, descriptions, draw)


def _integer(draw: Callable[[Random], Json], *descriptions: str) -> Kind:
    return Kind({"type": "integer"}, descriptions, draw)


KINDS: dict[str, Kind] = {
    "city": _text(one_of(CITIES), "The city.", "Name of a city", "City name, e.g. Paris"),
    "country": _text(one_of(sorted(CAPITALS)), "The country.", "Name of a country"),
    "person": _text(one_of(NAMES), "Name of the person.", "Who", "A person's first name"),
    "email": _text(_email, "E-mail address.", "Address of the recipient"),
    "date": _text(_date, "The date.", "Date as YYYY-MM-DD"),
    "time": _text(_time, "The time.", "Time of day as HH:MM"),
    "code": _text(_code, "The identifier.", "Its number", "Unique id"),
    "title": _text(one_of(WORDS), "The title.", "A short name", "Title of it"),
    "message": _text(one_of(MESSAGES), "The text.", "What to say", "Content of the message"),
    "song": _text(one_of(SONGS), "The song.", "Title of the song"),
    "path": _text(_path, "Path of the file.", "The file", "Absolute or relative path"),
    "folder": _text(one_of(FOLDERS), "The folder.", "Path of the directory"),
    "command": _text(one_of(("ls",)), "The command.", "Shell command to execute", "Command line"),
    "url": _text(_url, "The address.", "URL of the page"),
    "thing": _text(one_of(THINGS), "The item.", "Name of the item"),
    "things": Kind({"type": "array", "items": {"type": "string"}}, ("The items.", "List of items"), several(THINGS)),
    "people": Kind({"type": "array", "items": {"type": "string"}}, ("Who.", "Names"), several(NAMES)),
    "id": _integer(whole(100, 99999), "The id.", "Numeric id", "Its number"),
    "count": _integer(whole(2, 12), "How many.", "The number of them"),
    "percent": _integer(whole(0, 100, 5), "Per cent, 0 to 100.", "Percentage"),
    "minutes": _integer(whole(1, 90), "Duration in minutes.", "Minutes"),
    "degrees": _integer(whole(10, 30), "Temperature in degrees.", "Degrees Celsius"),
    "amount": Kind({"type": "number"}, ("The amount.", "Amount of money"), lambda rng: rng.choice((rng.randint(5, 900), rng.randint(100, 9999) / 10))),
    "a": Kind({"type": "number"}, ("First number.", "A number"), lambda rng: rng.randint(1, 999)),
    "b": Kind({"type": "number"}, ("Second number.", "Another number"), lambda rng: rng.randint(1, 999)),
    "currency": _text(one_of("USD EUR GBP JPY CHF INR BRL CAD".split()), "Currency code.", "ISO code of the currency"),
    "target": _text(one_of("SEK NOK PLN CZK AUD ZAR MXN KRW".split()), "Currency to convert to.", "Target currency code"),
    "language": _text(one_of("French German Spanish Italian Japanese Polish Dutch Greek".split()), "The language.", "Target language"),
    "room": _text(one_of("kitchen|bedroom|living room|office|hall|garage|bathroom".split("|")), "The room.", "Which room"),
    "company": _text(one_of("AAPL MSFT TSLA SAP SONY NVDA IBM ORCL".split()), "Ticker symbol.", "Stock symbol"),
    "topic": _text(one_of("climate change|electric cars|chess|space travel|football|jazz|volcanoes|solar power|bees".split("|")), "The topic.", "What to look for"),
    "word": _text(one_of("whimsical|gratitude|horizon|melancholy|brittle|lantern|curious|eloquent|harbour|ambiguous|nostalgia|resilient|holiday_2025|project_x|old_letters|tax_2024".split("|")), "The word.", "Its name"),
    "letter": _text(one_of("A B C D E F G H K".split()), "A letter.", "Which one"),
    "digits": _text(lambda rng: str(rng.randint(1000, 99999)), "The digits.", "Code as text"),
    "year": _integer(whole(2024, 2035), "The year.", "Four digits"),
    "kilos": Kind({"type": "number"}, ("In kilograms.", "Weight"), lambda rng: rng.choice((rng.randint(40, 120), rng.randint(400, 1200) / 10))),
    "numbers": Kind({"type": "array", "items": {"type": "integer"}}, ("The numbers.", "List of numbers"), lambda rng: rng.sample(range(1, 99), rng.randint(2, 5))),
    "place": _text(one_of("Main Station|Union Square|Hyde Park|Airport North|Church Street|12 Mill Lane|Old Town|Market Hall|77 Lake Avenue|Harbour Bridge".split("|")), "The place.", "Where"),
    "museum": _text(one_of("British Museum|Louvre|Museum of Modern Art|Prado|City Gallery|Science Museum|Museum of Toys".split("|")), "The museum.", "Name of the museum"),
    "holiday": _text(one_of("Easter|Thanksgiving|Midsummer|Labour Day|Carnival|Diwali|Hanukkah".split("|")), "The holiday.", "Name of the day"),
    "profession": _text(one_of("plumber|lawyer|electrician|painter|tax adviser|piano teacher|photographer|carpenter".split("|")), "The profession.", "What kind of expert"),
    "film": _text(one_of("Casablanca|The Third Man|Modern Times|Metropolis|Jane Eyre|The Old Man and the Sea|War and Peace|Dracula|Emma|Don Quixote".split("|")), "The title.", "Its title"),
    "subject": _text(one_of("maths physics history biology music chemistry".split()), "The subject.", "School subject"),
    "image": _text(lambda rng: f"{rng.choice('cat beach logo scan portrait map sunset'.split())}{rng.choice(('', '_1', '2'))}.{rng.choice('png jpg gif'.split())}", "The image.", "File of the image"),
    "wash": _enum("eco", "quick", "wool"),
    "priority": _enum("low", "medium", "high"),
    "status": _enum("open", "closed", "pending"),
    "unit": _enum("celsius", "fahrenheit"),
    "size": _enum("small", "medium", "large"),
    "color": _enum("red", "green", "blue", "white", "yellow"),
    "state": _enum("on", "off"),
    "format": _enum("pdf", "csv", "json", "html"),
}  # fmt: skip
"""Each kind by its name; a slot `city2` is of the kind `city`."""


def kind_of(slot: str) -> Kind:
    return KINDS[slot.rstrip("0123456789")]
