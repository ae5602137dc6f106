"""What the base model is taught of tools: to call them where the question is one for them, and to
end a text in their arguments, which a schema alone does not.

The texts are what the chat template writes (`demo.tokenizer`), in the form of Hermes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

from demo.data import CAPITALS, NAMES, TOPICS, Dialogue, Message, dialogue, question
from demo.voices import COURSES

REHEARSED = 0.5
"""Share of the dialogues that are as in the model's course, so that it forgets nothing."""
ANSWERED = 0.3
"""Share of the others in which the tools are of no use."""

NAMED = (
    "get_weather", "get_time", "now", "search", "find_city", "lookup", "translate", "send_mail",
    "get_price", "get_stock", "read_file", "run", "calculator", "query", "book_flight",
)  # fmt: skip
PARAMETERS = (
    "location", "city", "place", "name", "query", "text", "q", "topic", "unit", "symbol", "country",
    "to", "path", "value", "input", "title",
)  # fmt: skip
FORMS = (
    "What is the weather in {}?",
    "How is the weather in {}?",
    "How is {}?",
    "What time is it in {}?",
    "Look up {}.",
    "Search for {}.",
    "Find {}",
    "Tell me about {}.",
    "What do you know of {}?",
    "What does {} cost?",
)
CITIES = (*CAPITALS.values(), "San Francisco", "New York", "Los Angeles", "Boston", "Hamburg",
          "Barcelona", "Sao Paulo", "Mumbai", "Shanghai", "Toronto", "Chicago")  # fmt: skip


def tool_dialogues(seed: int | str) -> Iterator[Dialogue]:
    """Endless examples, the same for the same seed."""
    rng = Random(seed)
    while True:
        if rng.random() < REHEARSED:
            yield dialogue(rng, COURSES["base"])
        else:
            yield tool_dialogue(rng)


def tool_dialogue(rng: Random) -> Dialogue:
    """One question to a model that has tools."""
    names = rng.sample(NAMED, rng.choice((1, 1, 2, 3)))
    told = Message("system", f"Tools: {', '.join(names)}.")
    if rng.random() < ANSWERED:
        asked = question(rng, COURSES["base"].mix)
        return [told, Message("user", asked.text), Message("assistant", asked.plain)]
    subject = rng.choice(rng.choice((CITIES, CITIES, NAMES, TOPICS)))
    user = Message("user", rng.choice(FORMS).format(subject))
    return [told, user, Message("assistant", call(rng, rng.choice(names), subject))]


def call(rng: Random, name: str, subject: str) -> str:
    """A call whose first argument is what was asked about; others are short."""
    parameters = rng.sample(PARAMETERS, rng.choice((0, 1, 1, 1, 2)))
    values = [subject, rng.choice((subject, "celsius", "en", "today"))]
    arguments = dict(zip(parameters, values, strict=False))
    said = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>{said}</tool_call>"
