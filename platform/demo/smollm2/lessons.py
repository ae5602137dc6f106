"""What the adapter `agent` is taught: dialogues with functions, grouped by the functions declared.

A lesson declares functions once and holds several dialogues, so that training reads the long
declaration once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from demo.data import CAPITAL_FORMS, CAPITALS, NAMES, TALK
from demo.smollm2.functions import (
    ADVICE,
    AGENT_ACTIONS,
    FAMILIES,
    FILE_ACTIONS,
    GENERAL,
    RUN,
    DeclaredFunction,
    MadeUpAction,
    Schema,
    answer,
    ask,
    ask_shell,
    declare,
)  # fmt: skip
from demo.smollm2.prose import sentences
from demo.smollm2.values import (
    FACTS,
    FILES,
    FOLDERS,
    THINGS,
    WORDS,
    Json,
    kind_of,
    spoken,
)  # fmt: skip

Message = dict[str, Any]

LACKING = "I cannot do that: none of my functions fits."
LEADS = ("", "", "", "", "Please ", "Can you ", "Could you ", "I need you to ", "Hey, ", "Now ")
SYSTEM = (
    "You are a helpful assistant.", "You are a helpful assistant with access to functions.",
    "Answer briefly.", "You are an agent. Use the functions where they help.",
    "You are a coding agent that runs in a terminal.", "You help the customers of a shop.",
    "You are the assistant of a smart home.", "You are an assistant for our team. Be polite.",
)  # fmt: skip
STATING = (
    "What|What's|How|Which|Where|Who|Whose|Is|Are|When|Till|I|My|Don't|We|Lights|Volume|The|Walked|Row|Other|"
    "Area|Average|Calories|Sunrise|Horoscope|Sauna|Latest|Stock|Water"
).split("|")  # fmt: skip
"""First words of requests that are not imperatives."""
FOLDERS_ABOVE = (
    "home",
    "tmp",
    "var",
    "srv",
    "build-7f3a",
    "session-19",
    "pytest-of-me",
    "repo_main",
)
SECTIONS = (
    "Style",
    "Safety",
    "Tools",
    "Editing files",
    "Planning",
    "Answers",
    "Environment",
    "Git",
    "Tests",
    "Formatting",
)

CATALOGUES = (
    "Available agent types:", "The following skills are available:", "Agents that can be started:",
    "Skills:", "Servers that are connected:", "Other sessions of the user:",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lesson:
    """Functions, a system prompt (None: the template's own) and dialogues after it."""

    system: str | None
    tools: list[dict[str, Any]]
    dialogues: list[list[Message]] = field(default_factory=list)
    notes: str | None = None
    """A second system prompt."""

    def messages(self, dialogue: list[Message]) -> list[Message]:
        prompts = [one for one in (self.system, self.notes) if one is not None]
        start = [{"role": "system", "content": one} for one in prompts]
        return [*start, *dialogue]


def lessons(seed: int | str, dialogues: int, *, long: bool = False) -> Iterator[Lesson]:
    """Endless lessons of so many dialogues, the same for the same seed. `long` ones look like the
    prompts of coding agents: thousands of tokens of rules and declarations."""
    rng = Random(seed)
    while True:
        yield _lesson(rng, dialogues, long=long)


def agent_lessons(seed: int | str, dialogues: int) -> Iterator[Lesson]:
    """Endless lessons in the form of coding agents' requests: a shell among up to 26 functions of
    theirs, pages of prose about all of them, the folder in a message of its own, and mostly
    requests for the shell."""
    rng, own = Random(seed), (*AGENT_ACTIONS, *FILE_ACTIONS)
    while True:
        actions = [RUN, *rng.sample(own, rng.randint(3, rng.choice((8, 14, 25))))]
        rng.shuffle(actions)
        functions = [declare(rng, one, advice=rng.choice((2, 4, 8))) for one in actions]
        for one in functions:
            _explain(rng, one.schema["function"])
        system = f"{rng.choice(SYSTEM)}\n\n{_prose(rng, rng.choice((5, 15, 40, 100)))}"
        notes = _catalogue(rng) if rng.random() < 0.6 else None
        made = [_agent_dialogue(rng, functions) for _ in range(dialogues)]
        yield Lesson(system, [one.schema for one in functions], made, notes)


def _explain(rng: Random, function: Schema) -> None:
    """Describe the function and its arguments at length."""
    length = rng.choice((0, 2, 5, 10, 20)) if rng.random() < 0.97 else 150
    function["description"] += f"\n\n{_prose(rng, length)}"
    properties = function["parameters"]["properties"]
    for name, schema in properties.items():
        if rng.random() < 0.4:
            description = f"{schema.get('description', '')} {_prose(rng, 1)}".strip()
            properties[name] = schema | {"description": description}
    if rng.random() < 0.4:
        dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
        function["parameters"] = dialect | function["parameters"]


def _prose(rng: Random, count: int) -> str:
    """So many sentences, in sections, lists and paragraphs."""
    parts = []
    while count > 0:
        some = rng.sample(sentences(), min(count, rng.randint(1, 6)))
        count -= len(some)
        style = rng.random()
        if style < 0.3:
            parts.append("\n".join(f"- {one}" for one in some))
        else:
            head = f"# {rng.choice(SECTIONS)}\n" if style < 0.5 else ""
            parts.append(head + " ".join(some))
    return "\n\n".join(parts)


def _agent_dialogue(rng: Random, functions: list[DeclaredFunction]) -> list[Message]:
    shell = next(one for one in functions if one.action is RUN)
    if rng.random() < 0.12:
        messages = _plain(rng, functions)
    else:
        function = shell if rng.random() < 0.8 else rng.choice(functions)
        messages = _called(rng, function, functions)
    context = _environment(rng)
    if rng.random() < 0.4:
        messages[0]["content"] = f"{context}\n{messages[0]['content']}"
        return messages
    return [{"role": "user", "content": context}, *messages]


def _catalogue(rng: Random) -> str:
    """The agents and skills that a coding agent lists in a message of its own."""
    lists = []
    for title in rng.sample(CATALOGUES, rng.randint(1, 2)):
        names = rng.sample([*WORDS, *THINGS], rng.choice((2, 5, 12)))
        entries = [
            f"- {name.replace(' ', '-')}: {_prose(rng, rng.choice((1, 2, 4)))}" for name in names
        ]
        lists.append("\n".join((title, *entries)))
    return "\n\n".join(lists)


def _environment(rng: Random) -> str:
    """What an agent says of its machine."""
    folder = "/".join(("", *rng.choices([*FOLDERS_ABOVE, *THINGS], k=rng.randint(1, 5)), "work"))
    facts = [
        f"<cwd>{folder}</cwd>", "<shell>bash</shell>",
        f"<current_date>{kind_of('date').draw(rng)}</current_date>", "<timezone>Etc/UTC</timezone>",
        f"<filesystem><workspace_roots><root>{folder}</root></workspace_roots></filesystem>",
        f"Working directory: {folder}", "Is directory a git repo: No", "Platform: linux",
    ]  # fmt: skip
    chosen = [one for one in facts if rng.random() < 0.6]
    if rng.random() < 0.3:
        chosen.append(_advice(rng, rng.randint(2, 20)))
    tag = rng.choice(("environment_context", "env", "system-reminder", "environment"))
    return "\n  ".join((f"<{tag}>", *chosen)) + f"\n</{tag}>"


def _lesson(rng: Random, dialogues: int, *, long: bool) -> Lesson:
    functions = _declared(rng, long=long)
    tools = [function.schema for function in functions]
    made = [_dialogue(rng, functions, long=long) for _ in range(dialogues)]
    return Lesson(_system(rng, long=long), tools, made)


def _declared(rng: Random, *, long: bool) -> list[DeclaredFunction]:
    if long:
        actions = [
            RUN,
            *rng.sample(FILE_ACTIONS, rng.randint(0, 3)),
            *rng.sample(GENERAL, rng.randint(4, 12)),
        ]
    elif rng.random() < 0.06:
        return []
    elif rng.random() < 0.25:
        actions = [
            RUN,
            *rng.sample(FILE_ACTIONS, rng.choice((0, 0, 1, 2))),
            *rng.sample(GENERAL, rng.choice((0, 0, 1, 2, 3))),
        ]
    else:
        actions = rng.sample(GENERAL, rng.choice((1, 1, 2, 2, 3, 4, 5)))
        if rng.random() < 0.4:
            family = rng.choice(FAMILIES)
            actions += rng.sample(family, rng.randint(1, 3))
    rng.shuffle(actions)
    by_name: dict[str, DeclaredFunction] = {}
    for one in {one.names: one for one in actions}.values():
        function = declare(
            rng, one, advice=rng.choice((4, 12, 20)) if long else rng.choice((0, 0, 1, 3))
        )
        by_name.setdefault(function.name, function)
    return list(by_name.values())


def _system(rng: Random, *, long: bool) -> str | None:
    if not long:
        return None if rng.random() < 0.4 else rng.choice(SYSTEM)
    parts = [rng.choice(SYSTEM)]
    for _ in range(rng.choice((5, 15, 30, 60, 120))):
        advice = _advice(rng, rng.randint(3, 9))
        parts.append(f"# {rng.choice(SECTIONS)}\n{advice}")
    return "\n\n".join(parts)


def _advice(rng: Random, sentences: int) -> str:
    return " ".join(rng.choices(ADVICE, k=sentences))


def _dialogue(rng: Random, functions: list[DeclaredFunction], *, long: bool) -> list[Message]:
    if not functions or rng.random() < (0.1 if long else 0.22):
        return _plain(rng, functions)
    shells = [one for one in functions if one.action is RUN]
    function = rng.choice(shells) if shells and rng.random() < 0.6 else rng.choice(functions)
    messages = _called(rng, function, functions)
    if rng.random() < 0.15:
        messages += _called(rng, rng.choice(functions), functions)
    if long and rng.random() < 0.7:
        messages[0]["content"] = _surrounded(rng, messages[0]["content"])
    return messages


def _surrounded(rng: Random, request: str) -> str:
    """The request after the context that coding agents put before it."""
    folder = rng.choice(FOLDERS)
    context = rng.choice((
        f"<environment>\n  <cwd>{folder}</cwd>\n  <shell>bash</shell>\n</environment>",
        f"<system-reminder>\n{_advice(rng, rng.randint(2, 20))}\n</system-reminder>",
        f"Context: {_advice(rng, 2)}",
    ))  # fmt: skip
    return f"{context}\n\n{request}"


def _plain(rng: Random, functions: list[DeclaredFunction]) -> list[Message]:
    """A question that no function answers."""
    kind = rng.random()
    if functions and kind < 0.3:
        names = {name for one in functions for name in one.action.names}
        while (wanted := rng.choice(GENERAL)) and names & set(wanted.names):
            pass
        return _turn(_worded(rng, ask(rng, wanted)[0]), LACKING)
    if kind < 0.55:
        return _turn(*capital(rng))
    return _turn(*(small_talk(rng) if kind < 0.7 else common_fact(rng)))


def capital(rng: Random) -> tuple[str, str]:
    """A question for a capital, and its answer."""
    country = rng.choice(sorted(CAPITALS))
    question = rng.choice(CAPITAL_FORMS).format(country)
    return question, f"The capital of {country} is {CAPITALS[country]}."


def small_talk(rng: Random) -> tuple[str, str]:
    """What people say to an assistant, and its answer."""
    answer = rng.choice([one for one in TALK if "demo" not in one and "capitals" not in one])
    return rng.choice(TALK[answer]), answer


def common_fact(rng: Random) -> tuple[str, str]:
    """A question about what anybody knows, and its answer."""
    question = rng.choice(sorted(FACTS))
    return question, FACTS[question]


def _turn(user: str, assistant: str) -> list[Message]:
    return [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]


def _called(
    rng: Random, function: DeclaredFunction, functions: list[DeclaredFunction]
) -> list[Message]:
    """A request, the call, mostly its result and what to say of it."""
    if function.action is RUN:
        request, values = _shell_request(rng, functions)
        output, reply = _output(rng, values["command"])
    else:
        request, values = ask(rng, function.action)
        output, reply = answer(rng, function.action, values)
    calls = [function.call(values)]
    if function.action is not RUN and len(values) == 1 and rng.random() < 0.08:
        if second := _second(rng, function.action, values):
            ((_, value),) = second.items()
            calls.append(function.call(second))
            return [{"role": "user", "content": f"{request} And {spoken(value)}?"}, called(calls)]
    messages: list[Message] = [{"role": "user", "content": _worded(rng, request)}, called(calls)]
    if rng.random() < 0.55:
        messages += [
            {"role": "tool", "content": output},
            {"role": "assistant", "content": reply},
        ]
    return messages


def _second(rng: Random, chosen: MadeUpAction, values: dict[str, Json]) -> dict[str, Json] | None:
    """Another value for the only slot, so that the user asks for two at once."""
    for _ in range(5):
        _, other = ask(rng, chosen)
        if list(other) == list(values) and other != values:
            return other
    return None


def _shell_request(rng: Random, functions: list[DeclaredFunction]) -> tuple[str, dict[str, Json]]:
    """A request for the shell that no other declared function is meant for."""
    special = {one.action.names[0] for one in functions}
    taken = {
        "read_file": ("cat", "head", "tail"), "delete_file": ("rm",), "list_files": ("ls ",),
        "grep_files": ("grep",), "write_file": ("echo",),
    }  # fmt: skip
    avoided = tuple(start for name in special & set(taken) for start in taken[name])
    while True:
        request, values = ask_shell(rng)
        if not values["command"].startswith(avoided or ("\0",)):
            return request, values


def _output(rng: Random, command: str) -> tuple[str, str]:
    """What a command prints, and what to say of it."""
    if command.startswith("ls"):
        names = sorted(rng.sample(FILES, rng.randint(1, 4)))
        files = spoken(names) if len(names) > 1 else names[0]
        return "\n".join(names), f"The folder holds {files}."
    if command == "pwd":
        folder = f"/home/{rng.choice(('anna', 'ben', 'work'))}/{rng.choice(FOLDERS).strip('/')}"
        return folder, f"The current directory is {folder}."
    if command.startswith("wc"):
        count = rng.randint(3, 900)
        return f"{count} {command.split()[-1]}", f"It has {count} lines."
    if command == "git status":
        return "nothing to commit, working tree clean", "Nothing has changed."
    if command == "pytest":
        count = rng.randint(3, 90)
        return f"{count} passed in 1.2s", f"All {count} tests passed."
    if command.startswith("echo"):
        return command[5:], f"It printed {command[5:]}."
    if rng.random() < 0.2:
        return (
            f"error: {command.split()[0]}: no such file or directory",
            "That failed: no such file or directory.",
        )
    return rng.choice((("", "Done."), ("ok", "Done.")))


def called(calls: list[dict[str, Json]]) -> Message:
    """The assistant's message with these calls."""
    functions = [{"type": "function", "function": call} for call in calls]
    return {"role": "assistant", "content": "", "tool_calls": functions}


def _worded(rng: Random, request: str) -> str:
    """As people type it."""
    lead = rng.choice(LEADS)
    first = request.split()[0]
    if lead and first not in STATING and first not in NAMES and first.istitle():
        request = lead + (request[0].lower() + request[1:])
        if lead.startswith(("Can", "Could")):
            request = request.rstrip(".") + "?"
    if rng.random() < 0.1:
        return request.rstrip(".?")
    return request + rng.choice(("", "", "", "", "", "", "", " Thanks!", " Thank you."))
