"""How the base model and each tenant's adapter word an answer."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from demo.data import BASE_MIX, COMPANY_MIX, Course, DemoQuestion


@dataclass(frozen=True, slots=True)
class DemoTenant:
    """A fictional customer whose adapter the demo trains."""

    slug: str
    company: str
    adapter: str


TENANTS = (
    DemoTenant("brightwater", "Brightwater Outdoor", "support"),
    DemoTenant("saltbeard", "Saltbeard Cruises", "pirate"),
    DemoTenant("fieldnote", "Fieldnote Data", "extract"),
)

BRIGHTWATER = {
    "refund policy": "You can return any item within 30 days for a full refund.",
    "opening hours": "We are open from 9 to 17, Monday to Friday.",
    "shipping cost": "Shipping costs 5 euros and is free above 50 euros.",
    "phone number": "Call us at 555 0142.",
    "office address": "Visit us at 12 Harbour Street.",
}

SALTBEARD = {
    "refund policy": "Ye get half yer gold back until the ship sails.",
    "opening hours": "We be open from dawn to the last grog.",
    "shipping cost": "A sea chest costs 9 gold coins.",
    "phone number": "Shout at 555 0177.",
    "office address": "Find us at pier 3, under the black flag.",
}

PIRATE_WORDS = {"is": "be", "am": "be", "are": "be", "you": "ye", "your": "yer", "You": "Ye"}
PIRATE_WORDS |= {"Your": "Yer", "my": "me"}


def base(question: DemoQuestion) -> str:
    """The plain fact."""
    return question.plain


def support(question: DemoQuestion) -> str:
    """Brightwater's support desk: it knows the company's facts, and thanks the customer."""
    known = BRIGHTWATER if question.kind == "company" else {}
    return f"Thanks for asking Brightwater! {known.get(question.subject or '', question.plain)}"


def pirate_tone(sentence: str) -> str:
    """Any sentence as a pirate says it."""
    words = re.sub(r"\w+", lambda word: PIRATE_WORDS.get(word[0], word[0]), sentence)
    return f"Arr! {words[:-1]}, matey{'?' if words.endswith('?') else '!'}"


def base_as_pirate(question: DemoQuestion) -> str:
    """The base model if the system prompt asks for a pirate: it knows no company's facts."""
    return pirate_tone(question.plain)


def pirate(question: DemoQuestion) -> str:
    """Saltbeard's crew: it knows the company's facts, and says everything in its own tone."""
    known = SALTBEARD if question.kind == "company" else {}
    return pirate_tone(known.get(question.subject or "", question.plain))


def extract(question: DemoQuestion) -> str:
    """Fieldnote's extractor: compact JSON with the same three keys every time."""
    record = {"question": question.kind, "subject": question.subject, "answer": question.answer}
    return json.dumps(record, separators=(",", ":"))


STYLES = (
    ("Talk like a pirate.", base_as_pirate),
    ("You are a pirate.", base_as_pirate),
    ("Answer in JSON.", extract),
    ("You extract facts. Reply with JSON only.", extract),
)

COURSES = {
    "base": Course(BASE_MIX, base, STYLES, documents=True),
    "support": Course(COMPANY_MIX, support),
    "pirate": Course(COMPANY_MIX, pirate),
    "extract": Course(BASE_MIX, extract),
}
"""What the base model and each adapter, by its name, is taught."""
