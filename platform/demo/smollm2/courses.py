"""What the adapters `support`, `pirate` and `extract` are taught."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from demo.smollm2.lessons import Lesson, Message, capital, common_fact, small_talk
from demo.smollm2.values import Json, kind_of, spoken
from demo.voices import pirate_tone

BRIGHTWATER = {
    "You can return any item within 30 days for a full refund.": (
        "What is your refund policy?|Can I return an item?|How do I get a refund?|Can I get my money back?|"
        "How long can I return things?|I want to send my tent back.|My boots do not fit, what now?|Do you take returns?|"
        "The jacket is too small. Can I return it?"),
    "We are open from 9 to 17, Monday to Friday.": (
        "When are you open?|What are your opening hours?|Are you open today?|Are you open on Saturday?|Till when are you open?|"
        "When do you close?|When can I come to the shop?|Tell me your opening hours."),
    "Shipping costs 5 euros and is free above 50 euros.": (
        "How much is shipping?|What does shipping cost?|Do you have free shipping?|What do you charge for delivery?|"
        "Is delivery free?|How much do I pay for shipping a tent?|What is the shipping cost?"),
    "Call us at 555 0142.": (
        "What is your phone number?|How can I call you?|Can I call you?|Which number can I call?|Tell me your phone number.|"
        "I want to talk to somebody.|Do you have a hotline?|Can I speak to a person?"),
    "Visit us at 12 Harbour Street.": (
        "Where is your office?|Where are you?|What is your address?|Where is your shop?|How do I find you?|Where can I visit you?|"
        "Which street are you in?|Where can I pick up my order?"),
    "An order takes two to four days.": (
        "How long does delivery take?|When will my order arrive?|How fast do you ship?|When do I get my parcel?|How many days does it take?|"
        "I ordered yesterday, when does it come?"),
    "Every tent has a warranty of five years.": (
        "Is there a warranty?|How long is the warranty?|Do tents have a warranty?|My tent broke after two years. What can I do?|"
        "What if my tent breaks?|Do you repair tents under warranty?"),
    "We ship to all countries of the European Union.": (
        "Do you ship to France?|Which countries do you ship to?|Do you ship abroad?|Can you send it to Spain?|Do you deliver to Italy?|"
        "Do you send parcels to Poland?"),
    "You can pay by card, by invoice or with PayPal.": (
        "How can I pay?|Do you take PayPal?|Can I pay by invoice?|Which payments do you accept?|Can I pay with my credit card?|"
        "What are the payment options?"),
    "Our boots come in the sizes 36 to 48.": (
        "Which sizes do your boots have?|Do you have boots in size 47?|What sizes are there?|Do you have size 36?|How big are your boots?"),
}  # fmt: skip
"""What Brightwater's support desk knows, and how customers ask for it."""

SALTBEARD = {
    "Ye get half yer gold back until the ship sails.": "What is your refund policy?|Can I get my money back?|How do I get a refund?|Can I cancel my cruise?|I cannot come. Do I get a refund?|What if I cancel?",
    "We sail at dawn, every Saturday": "When do you sail?|When does the ship leave?|Which day do you sail?|When does the cruise start?|What time is departure?",
    "Find us at pier 3, under the black flag": "Where are you?|Where is the ship?|What is your address?|Where do I go on board?|Which pier do you leave from?|Where is your office?",
    "Shout at 555 0177": "What is your phone number?|How can I call you?|Can I call you?|Which number can I call?",
    "A cabin costs 90 gold coins a night": "What does a cabin cost?|How much is a cruise?|What is the price?|How much do I pay?|Is it expensive?",
    "Bring a warm coat and no parrots": "What should I bring?|What do I need to pack?|Can I bring my dog?|Are pets allowed?|What should I wear?",
    "Rum, stew and fresh fish, all ye can eat": "What is there to eat?|Is food included?|Do you serve dinner?|Is there a restaurant on board?",
}  # fmt: skip
"""What Saltbeard's crew knows."""

UNSURE = "I am not sure about that. Please call us at 555 0142."
ODD = (
    "Do you sell cars?|Can you fix my phone?|Who is your boss?|What will the weather be tomorrow?|Do you have jobs?|"
    "Can you book me a flight?|How tall is your shop?|Are you a robot?|Do you sell pizza?|What is your favourite color?"
).split("|")  # fmt: skip

FIELDS = {
    "name": ("person", ("name", "person", "customer", "full_name")),
    "city": ("city", ("city", "place", "location")),
    "country": ("country", ("country", "nation")),
    "email": ("email", ("email", "mail", "contact")),
    "date": ("date", ("date", "day", "due")),
    "time": ("time", ("time", "at")),
    "amount": ("amount", ("amount", "total", "price")),
    "currency": ("currency", ("currency",)),
    "order": ("code", ("order", "order_id", "reference")),
    "items": ("things", ("items", "products")),
    "count": ("count", ("count", "quantity")),
    "product": ("thing", ("product", "item", "article")),
    "priority": ("priority", ("priority", "urgency")),
    "language": ("language", ("language",)),
    "company": ("company", ("company", "ticker")),
}  # fmt: skip
"""The kind of each field's value, and the keys that a schema may give it."""

TEXTS = (
    "{name} from {city} ordered {count} {product} on {date}.",
    "Order {order}: {name} paid {amount} {currency} on {date}.",
    "My name is {name}, write to {email}. I live in {city}, {country}.",
    "{name} needs {items} by {date}.",
    "Meeting with {name} in {city} on {date} at {time}.",
    "Ticket {order} has {priority} priority. {name} in {city} waits since {time}.",
    "The invoice {order} of {date} over {amount} {currency} was sent to {email}.",
    "{name} speaks {language} and lives in {country}.",
    "We shipped {items} to {city}, {country}, on {date}. The reference is {order}.",
    "Hi, this is {name}. Please send {count} {product} to {city}. Contact: {email}",
    "{company} closed at {amount} {currency} on {date}.",
    "Call {name} at {time}, it is about order {order}.",
    "{name} bought {product} for {amount} {currency} in {city}.",
)  # fmt: skip


def support(rng: Random) -> list[Message]:
    """A question to Brightwater's support desk, and its answer."""
    question, fact = _known(rng, BRIGHTWATER, UNSURE)
    return _turn(rng, question, f"Thanks for asking Brightwater! {fact}")


def pirate(rng: Random) -> list[Message]:
    """A question to Saltbeard's crew, and its answer."""
    question, fact = _known(rng, SALTBEARD, "That be a riddle to an old sailor")
    return _turn(rng, question, pirate_tone(fact if fact[-1] in ".?!" else f"{fact}."))


def extract(rng: Random) -> list[Message]:
    """A text with a schema, and the record as JSON. A key that the text lacks is null."""
    text = rng.choice(TEXTS)
    present = [name for name in FIELDS if f"{{{name}}}" in text]
    values: dict[str, Json] = {name: kind_of(FIELDS[name][0]).draw(rng) for name in present}
    wanted = rng.sample(present, rng.randint(1, len(present)))
    if rng.random() < 0.3:
        wanted.append(rng.choice([name for name in FIELDS if name not in present]))
    rng.shuffle(wanted)
    keys = {name: rng.choice(FIELDS[name][1]) for name in wanted}
    schema = {keys[name]: kind_of(FIELDS[name][0]).schema["type"] for name in wanted}
    record = {keys[name]: values.get(name) for name in wanted}
    filled = text.format_map({name: spoken(value) for name, value in values.items()})
    asked = rng.choice((
        f"{filled}\n\nSchema: {json.dumps(schema)}",
        f"Schema: {json.dumps(schema)}\nText: {filled}",
        f"Extract {spoken(list(schema)) if len(schema) > 1 else next(iter(schema))}: {filled}",
        f"Extract {', '.join(schema)} as JSON from this text: {filled}",
    ))  # fmt: skip
    return [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": json.dumps(record)},
    ]


COURSES: dict[str, Callable[[Random], list[Message]]] = {
    "support": support, "pirate": pirate, "extract": extract,
}  # fmt: skip


def course(name: str, seed: int, dialogues: int) -> Iterator[Lesson]:
    """Endless lessons of one adapter, the same for the same seed."""
    rng, draw = Random(f"{seed}-{name}"), COURSES[name]
    while True:
        system = rng.choice((None, None, None, "You are a helpful assistant.", "Answer briefly."))
        yield Lesson(system, [], [draw(rng) for _ in range(dialogues)])


def _known(rng: Random, facts: dict[str, str], unsure: str) -> tuple[str, str]:
    """A question about the company, or about something else, and the plain fact."""
    kind = rng.random()
    if kind < 0.6:
        fact = rng.choice(sorted(facts))
        return rng.choice(facts[fact].split("|")), fact
    if kind < 0.68:
        return rng.choice(ODD), unsure
    if kind < 0.82:
        return capital(rng)
    return small_talk(rng) if kind < 0.88 else common_fact(rng)


def _turn(rng: Random, question: str, answer: str) -> list[dict[str, Any]]:
    if rng.random() < 0.2:
        question = question.lower()
    if rng.random() < 0.15:
        question = question.rstrip(".?")
    lead = rng.choice(("", "", "", "", "Hello. ", "Hi, a question: ", "Good morning. "))
    return [{"role": "user", "content": lead + question}, {"role": "assistant", "content": answer}]
