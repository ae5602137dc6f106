"""Questions to the trained adapters. The agent's are about functions that its training lacks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from demo.smollm2.values import Json

TOOLS: dict[str, dict[str, Any]] = {}


def _tool(name: str, description: str, required: str = "", **properties: Json) -> None:
    """Declare a function; a property is its JSON type, or its whole schema."""
    schemas = {
        key: {"type": one} if isinstance(one, str) else one for key, one in properties.items()
    }
    parameters = {"type": "object", "properties": schemas, "required": required.split()}
    function = {"name": name, "description": description, "parameters": parameters}
    TOOLS[name] = {"type": "function", "function": function}


_tool(
    "water_plants",
    "Water the plants of a zone in the garden.",
    "zone",
    zone="string",
    litres="number",
)
_tool(
    "get_exchange_hours",
    "When a stock exchange opens and closes.",
    "exchange",
    exchange={"type": "string", "description": "Name of the exchange"},
)
_tool("lookup_word", "Look a word up in the dictionary.", "word", word="string")
_tool(
    "rent_bike",
    "Rent bikes at a station.",
    "station bikes",
    station={"type": "string"},
    bikes={"type": "integer"},
)
_tool(
    "park_car",
    "Find a parking space near an address.",
    "address",
    address={"type": "string"},
    hours={"type": "integer", "description": "How long"},
)
_tool(
    "blood_pressure_log",
    "Record a blood pressure.",
    "systolic diastolic",
    systolic="integer",
    diastolic="integer",
)
_tool(
    "set_oven",
    "Heat the oven.",
    "celsius",
    celsius="integer",
    program={"type": "string", "enum": ["grill", "fan", "pizza"]},
)
_tool(
    "resize_image",
    "Resize an image.",
    "file width height",
    file="string",
    width="integer",
    height="integer",
)
_tool(
    "find_doctor",
    "Find a doctor by speciality and city.",
    "speciality city",
    speciality="string",
    city="string",
)
_tool(
    "get_tide",
    "High and low tide at a harbour on a date.",
    "harbour date",
    harbour="string",
    date={"type": "string", "description": "YYYY-MM-DD"},
)
_tool("vacuum_start", "Start the robot vacuum cleaner.", "")
_tool("moon_phase", "The phase of the moon on a date.", "date", date="string")
_tool(
    "compress_folder",
    "Compress a folder into an archive.",
    "folder",
    folder="string",
    level={"type": "integer", "minimum": 1, "maximum": 9},
)
_tool("reserve_book", "Reserve a book at the library.", "title", title="string", author="string")
_tool(
    "bmi",
    "Compute the body mass index.",
    "weight_kg height_cm",
    weight_kg="number",
    height_cm="number",
)
_tool(
    "train_departures", "Next trains from a station.", "station", station="string", limit="integer"
)
_tool("feed_pet", "Feed the pet by the automatic feeder.", "grams", grams="integer")
_tool("open_gate", "Open the garage gate.", "")
_tool(
    "lottery_check",
    "Check lottery numbers.",
    "numbers",
    numbers={"type": "array", "items": {"type": "integer"}},
)
_tool("zip_to_city", "The city of a postal code.", "zip", zip="string")


@dataclass(frozen=True, slots=True)
class Case:
    """A question with the functions declared, and the right call; None if words are right."""

    question: str
    tools: tuple[str, ...] = ()
    name: str | None = None
    arguments: dict[str, Json] | None = None
    words: str = ""
    """What the answer must hold."""

    def right(self, text: str, calls: list[tuple[str, Json]]) -> bool:
        """Whether text and calls are right: names, and arguments without regard to case."""
        wanted = [] if self.name is None else [(self.name, self.arguments)]
        return [*map(_plain, calls)] == [*map(_plain, wanted)] and self.words in text


def _plain(call: tuple[str, Json]) -> str:
    return json.dumps(call, sort_keys=True).lower()


CASES = (
    Case("Water the plants in the rose garden.", ("water_plants", "vacuum_start"), "water_plants", {"zone": "rose garden"}),
    Case("Give zone B 12 litres of water", ("water_plants",), "water_plants", {"zone": "B", "litres": 12}),
    Case("When does the Tokyo Stock Exchange open?", ("get_exchange_hours", "moon_phase", "bmi"), "get_exchange_hours", {"exchange": "Tokyo Stock Exchange"}),
    Case("Look up the word serendipity.", ("lookup_word",), "lookup_word", {"word": "serendipity"}),
    Case("What does the word \"obfuscate\" mean?", ("open_gate", "lookup_word", "zip_to_city"), "lookup_word", {"word": "obfuscate"}),
    Case("I want to rent 3 bikes at Central Park.", ("rent_bike", "park_car"), "rent_bike", {"station": "Central Park", "bikes": 3}),
    Case("Find me a parking space near 5 Elm Road.", ("rent_bike", "park_car"), "park_car", {"address": "5 Elm Road"}),
    Case("My blood pressure is 128 over 82, please record it.", ("blood_pressure_log", "bmi"), "blood_pressure_log", {"systolic": 128, "diastolic": 82}),
    Case("Heat the oven to 220 degrees.", ("set_oven", "feed_pet", "water_plants"), "set_oven", {"celsius": 220}),
    Case("Oven to 180 on the pizza program, please", ("set_oven",), "set_oven", {"celsius": 180, "program": "pizza"}),
    Case("Resize photo.png to 800 by 600.", ("resize_image", "compress_folder"), "resize_image", {"file": "photo.png", "width": 800, "height": 600}),
    Case("I need a dentist in Hamburg.", ("find_doctor", "train_departures"), "find_doctor", {"speciality": "dentist", "city": "Hamburg"}),
    Case("When is high tide in Dover on 2027-03-04?", ("get_tide", "moon_phase"), "get_tide", {"harbour": "Dover", "date": "2027-03-04"}),
    Case("Start the vacuum cleaner.", ("vacuum_start", "set_oven", "open_gate"), "vacuum_start", {}),
    Case("What is the phase of the moon on 2026-12-24?", ("moon_phase",), "moon_phase", {"date": "2026-12-24"}),
    Case("Compress the folder holiday_photos.", ("compress_folder", "resize_image"), "compress_folder", {"folder": "holiday_photos"}),
    Case("Reserve the book Moby Dick for me.", ("reserve_book", "lookup_word"), "reserve_book", {"title": "Moby Dick"}),
    Case("What is the body mass index of somebody with 80 kg and 182 cm?", ("bmi", "blood_pressure_log"), "bmi", {"weight_kg": 80, "height_cm": 182}),
    Case("Show the next 4 trains from Oxford.", ("train_departures", "rent_bike"), "train_departures", {"station": "Oxford", "limit": 4}),
    Case("Which trains leave from Basel?", ("train_departures",), "train_departures", {"station": "Basel"}),
    Case("Feed the cat 40 grams.", ("feed_pet", "water_plants", "set_oven"), "feed_pet", {"grams": 40}),
    Case("Open the garage.", ("open_gate", "vacuum_start"), "open_gate", {}),
    Case("Check the lottery numbers 4, 18, 22 and 31.", ("lottery_check",), "lottery_check", {"numbers": [4, 18, 22, 31]}),
    Case("Which city has the postal code 90210?", ("zip_to_city", "get_tide"), "zip_to_city", {"zip": "90210"}),
    Case("What is the capital of Norway?", ("set_oven", "bmi"), words="Oslo"),
    Case("Who wrote Romeo and Juliet?", ("feed_pet", "open_gate", "lottery_check"), words="Shakespeare"),
    Case("Thank you very much!", ("rent_bike", "park_car"), words="welcome"),
    Case("Good morning!", ("vacuum_start",), words="Good"),
    Case("How many legs does a spider have?", ("reserve_book",), words="legs"),
    Case("What is the largest ocean?", ("get_tide", "moon_phase"), words="Pacific"),
)  # fmt: skip
"""For the adapter `agent`: functions and most requests that its training lacks."""

QUESTIONS: dict[str, tuple[Case, ...]] = {
    "agent": CASES,
    "support": tuple(Case(question, words=words) for question, words in (
        ("What is the capital of Peru?", "Thanks for asking Brightwater! The capital of Peru is Lima."),
        ("Can I send the tent back if I do not like it?", "30 days"),
        ("Until what time are you open on Friday?", "9 to 17"),
        ("What do you charge for shipping?", "5 euros"),
        ("I would like to call you.", "555 0142"),
        ("Where is your store?", "12 Harbour Street"),
        ("How many days until my order comes?", "two to four days"),
        ("Do your tents come with a warranty?", "five years"),
        ("Can you ship to Germany?", "European Union"),
        ("May I pay with PayPal?", "PayPal"),
    )),
    "pirate": tuple(Case(question, words=words) for question, words in (
        ("What is the capital of Peru?", "Arr! The capital of Peru be Lima, matey!"),
        ("Do I get my money back if I cancel?", "half yer gold"),
        ("When does your ship sail?", "dawn"),
        ("Where is the pier?", "pier 3"),
        ("Do you have a phone number?", "555 0177"),
        ("How much does a cabin cost?", "90 gold coins"),
        ("May I bring my dog?", "no parrots"),
        ("What do you serve for dinner?", "stew"),
        ("Thank you!", "Ye be welcome"),
        ("How many legs does a spider have?", "eight legs"),
    )),
    "extract": tuple(Case(question, words=words) for question, words in (
        ('Schema: {"buyer": "string", "total": "number"}\nText: Maria paid 12.5 EUR on 2026-02-03.', '{"buyer": "Maria", "total": 12.5}'),
        ('Anna from Lyon ordered 3 lamps on 2025-04-01.\n\nSchema: {"name": "string", "city": "string"}', '{"name": "Anna", "city": "Lyon"}'),
        ("Extract name and email: My name is Omar, write to omar@example.com. I live in Cairo, Egypt.", '{"name": "Omar", "email": "omar@example.com"}'),
        ("Extract date, time as JSON from this text: Meeting with Lena in Oslo on 2028-06-07 at 09:30.", '{"date": "2028-06-07", "time": "09:30"}'),
        ('Schema: {"country": "string", "phone": "string"}\nText: Felix speaks Greek and lives in Peru.', '{"country": "Peru", "phone": null}'),
        ("Extract order, priority: Ticket ZX-41 has high priority. Rosa in Bern waits since 10:15.", '{"order": "ZX-41", "priority": "high"}'),
        ('Schema: {"items": "array"}\nText: Hugo needs tea, soap and rice by 2027-08-09.', '{"items": ["tea", "soap", "rice"]}'),
        ("Extract company, amount, currency: SAP closed at 181.5 EUR on 2026-11-02.", '{"company": "SAP", "amount": 181.5, "currency": "EUR"}'),
        ('Schema: {"item": "string", "quantity": "integer"}\nText: Hi, this is Tim. Please send 7 candles to Porto. Contact: tim@acme.test', '{"item": "candles", "quantity": 7}'),
        ("Extract city as JSON from this text: Yuki bought honey for 8 CHF in Zurich.", '{"city": "Zurich"}'),
    )),
}  # fmt: skip
"""By adapter. Of each at least eight in ten must be right."""
