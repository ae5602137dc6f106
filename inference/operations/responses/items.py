"""The input of `/v1/responses`, a text or items, as the messages of a chat.

The assistant's thoughts, texts and calls are separate items; a chat has one message for all of
them. vLLM has such a converter, but it reads only the first part of a content, validates each item
against some thirty models, and takes seconds to reject wrong ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from inference.errors import InvalidRequest
from inference.operations.bodies.constraints import flat_name
from inference.operations.bodies.reading import InnerJson, convert

REFERENCE = "item_reference"
"""Type of an item that names one of a stored response by its id; gateways replace it by that."""

SERVED: Mapping[str, tuple[str, ...]] = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "reasoning": (),
    REFERENCE: ("id",),
}
"""Types of items that are supported, with the fields that each must have."""

ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
"""Roles of this API, with their names in chat templates."""

TEXTS = ("input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text")
"""Types of content parts that are supported."""

LISTING = ("limit", "order", "after", "include[]")
"""Query parameters of lists of items. Nothing that `include` names is left out without it."""

ID_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
"""Prefixes of the ids made for items that came without one, by type; `fco` for outputs."""

MAX_PAGE, PAGE = 100, 20
"""Items of a stored input in one page: at most, and by default; OpenAI's figures."""


class ItemPart(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    refusal: str | None = None

    @property
    def text_or_refusal(self) -> str:
        return self.text or self.refusal or ""


Content = str | list[ItemPart] | None


class ResponseItem(msgspec.Struct):
    """An item of any supported type."""

    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: Content = None
    summary: list[ItemPart] | None = None
    encrypted_content: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    output: Content = None

    @property
    def kind(self) -> str:
        """Its type, which messages may omit."""
        return self.type or "message"

    def texts(self) -> Iterator[str]:
        """The texts of it that a template may use."""
        about = (self.kind, self.role, self.call_id, flat_name(self.namespace, self.name or ""))
        yield "\0".join([part or "" for part in about])
        if self.arguments:
            yield self.arguments
        for content in (self.content, self.summary, self.output):
            yield from [content] if isinstance(content, str) else content_texts(content)


Input = str | list[ResponseItem]


def read_input(given: Any) -> Input:
    """The input in a body that is decoded already.

    Raises:
        InvalidRequest: it is not a valid input.
    """
    found: Input = convert(given, Input, "input")
    check_input(found)
    return found


def check_input(given: Input, *, references: bool = False) -> None:
    """Check that it is supported; references to items only with `references`, before they are
    resolved.

    Raises:
        InvalidRequest: it isn't.
    """
    if isinstance(given, str):
        return
    if not given:
        raise InvalidRequest("`input` must have at least one item.", param="input")
    inner = InnerJson()
    for i, item in enumerate(given):
        at = f"input[{i}]"
        _check_item(item, at)
        if item.kind == REFERENCE and not references:
            raise unknown_reference(at)
        if item.arguments is not None:
            inner.check(item.arguments, f"{at}.arguments")


def refers(given: Input) -> bool:
    """Whether it has references to items of stored responses."""
    return not isinstance(given, str) and any(item.kind == REFERENCE for item in given)


def unknown_reference(at: str) -> InvalidRequest:
    """The error for a reference to an item that is not stored."""
    return InvalidRequest(
        f"`{at}` refers to an item that is not stored: send the item itself (SDKs do if "
        "`store` is `false`).",
        param=at,
    )


def _check_item(item: ResponseItem, at: str) -> None:
    if (required := SERVED.get(item.kind)) is None:
        served = ", ".join(f"`{kind}`" for kind in SERVED)
        raise InvalidRequest(
            f"`{at}` has the type `{item.kind}`: supported are {served}.", param=at
        )
    for name in required:
        if getattr(item, name) is None:
            raise InvalidRequest(f"`{at}.{name}` is missing.", param=f"{at}.{name}")
    if item.kind == "message" and item.role not in ROLES:
        roles = ", ".join(f"`{role}`" for role in ROLES)
        raise InvalidRequest(f"`{at}.role` must be one of {roles}.", param=f"{at}.role")
    for name in ("content", "summary", "output"):
        _check_parts(getattr(item, name), f"{at}.{name}")
    if item.encrypted_content and not (item.content or item.summary):
        raise InvalidRequest(
            f"`{at}.encrypted_content` cannot be decrypted by this server, and the item "
            "has no other content: leave it out.",
            param=f"{at}.encrypted_content",
        )


def _check_parts(content: Content, at: str) -> None:
    """Check that there is only text: an engine must not fetch the URL of an image."""
    if content is None or isinstance(content, str):
        return
    for i, part in enumerate(content):
        if part.type not in TEXTS:
            raise InvalidRequest(
                f"`{at}[{i}]` has the type `{part.type}`: only text is supported, not "
                "images, files or audio.",
                param=f"{at}[{i}]",
            )
        field = "refusal" if part.type == "refusal" else "text"
        if getattr(part, field) is None:
            param = f"{at}[{i}].{field}"
            raise InvalidRequest(f"`{param}` is missing.", param=param)


# --- messages ------------------------------------------------------------------------------------


def as_messages(instructions: str | None, given: Input) -> list[dict[str, Any]]:
    """The input as the messages of a chat, the instructions first.

    Raises:
        InvalidRequest: there are no messages.
    """
    items = [ResponseItem(role="user", content=given)] if isinstance(given, str) else given
    messages: list[dict[str, Any]] = []
    if instructions:
        _instruct(messages, instructions)
    for item in items:
        if item.kind == "function_call_output":
            tool = {"role": "tool", "content": _content(item.output), "tool_call_id": item.call_id}
            messages.append(tool)
        elif item.kind == "message" and item.role != "assistant":
            role = ROLES[item.role or ""]
            if role == "system":
                _instruct(messages, "\n".join(content_texts(item.content)))
            else:
                messages.append({"role": role, "content": _content(item.content)})
        else:
            _add_of_assistant(messages, item)
    if not messages:
        raise InvalidRequest("`input` must have at least one message.", param="input")
    return messages


def _instruct(messages: list[dict[str, Any]], text: str) -> None:
    """Add system text. Templates accept one system message, at the beginning, so it is appended to
    that; later ones are passed on, and the template may reject them."""
    if len(messages) == 1 and messages[0]["role"] == "system":
        messages[0]["content"] += f"\n\n{text}"
    else:
        messages.append({"role": "system", "content": text})


def _add_of_assistant(messages: list[dict[str, Any]], item: ResponseItem) -> None:
    """Add the item to the assistant's last message, or to a new one if the last is not the
    assistant's. Thoughts always begin a new message, as does text if the last one has text."""
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    if item.kind == "reasoning":
        if thoughts := "\n".join(content_texts(item.content)) or "\n".join(
            content_texts(item.summary)
        ):
            messages.append({"role": "assistant", "content": None, "reasoning": thoughts})
    elif item.kind == "message":
        text = "".join(content_texts(item.content))
        if last is None or last["content"] is not None:
            messages.append({"role": "assistant", "content": text})
        else:
            last["content"] = text
    else:
        if last is None:
            messages.append(last := {"role": "assistant", "content": None})
        name = flat_name(item.namespace, item.name or "")
        called = {"name": name, "arguments": item.arguments}
        call = {"id": item.call_id, "type": "function", "function": called}
        last.setdefault("tool_calls", []).append(call)


def content_texts(content: str | Sequence[ItemPart] | None) -> list[str]:
    """The texts of an item's content."""
    return (
        [content] if isinstance(content, str) else [part.text_or_refusal for part in content or ()]
    )


def _content(content: Content) -> str | list[dict[str, str]]:
    """One text, or several parts, which vLLM joins as the template requires."""
    texts = content_texts(content)
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]


# --- items as bytes ------------------------------------------------------------------------------


def listed(given: bytes) -> bytes:
    """An input or output as items, without the brackets of the list. Empty if it is neither text
    nor a list: it is rejected when the whole is read."""
    text = given.strip()
    if text.startswith(b'"'):
        return b"".join((b'{"role":"user","content":', text, b"}"))
    return text[1:-1].strip() if text.startswith(b"[") else b""


def joined(*items: bytes) -> bytes:
    """The items of several lists as one list, all without brackets."""
    return b",".join(filter(None, items))


def split(items: bytes) -> list[msgspec.Raw]:
    """The items of a list without brackets, each copied."""
    return [msgspec.Raw(bytes(one)) for one in _raws.decode(b"[" + items + b"]")]


# --- as they are shown ---------------------------------------------------------------------------


_items = msgspec.json.Decoder(list[ResponseItem])
_raws = msgspec.json.Decoder(list[msgspec.Raw])


def listing(items: list[dict[str, Any]], query: Mapping[str, str], what: str) -> dict[str, Any]:
    """A page of `items`, which are oldest first, as the query asks: `limit`, `order`, `after` an
    item's id. `what` names, in errors, what the items belong to.

    Raises:
        InvalidRequest: the query is wrong.
    """
    limit, order = _limit(query), query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest("`order` must be `asc` or `desc`.", param="order")
    if order == "desc":
        items = items[::-1]
    if after := query.get("after"):
        ids = [item["id"] for item in items]
        if after not in ids:
            raise InvalidRequest(f"`after` is not the id of an item of this {what}.", param="after")
        items = items[ids.index(after) + 1 :]
    return listed_page(items[:limit], has_more=len(items) > limit)


def listed_page(page: list[dict[str, Any]], *, has_more: bool = False) -> dict[str, Any]:
    """A page of items in OpenAI's format of lists."""
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": has_more,
    }


def _limit(query: Mapping[str, str]) -> int:
    given = query.get("limit", str(PAGE))
    if not (given.isascii() and given.isdigit() and len(given) < 4 and 1 <= int(given) <= MAX_PAGE):
        raise InvalidRequest(f"`limit` must be from 1 to {MAX_PAGE}.", param="limit")
    return int(given)


def made_id(kind: str, request_id: str, index: int) -> str:
    """The id for an item that came without one, at this index of this request's input."""
    return f"{ID_PREFIXES.get(kind, 'fco')}_{request_id}_in_{index}"


def shown(items: bytes, id_of: Callable[[str, int], str]) -> list[dict[str, Any]]:
    """The items of an input, given without the brackets of the list, in OpenAI's format. An item
    without an id gets `id_of` its kind and index."""
    return [
        {"id": item.id or id_of(item.kind, i), "type": item.kind, "status": "completed"}
        | _content_shown(item)
        for i, item in enumerate(_items.decode(b"[" + items + b"]"))
    ]


def _content_shown(item: ResponseItem) -> dict[str, Any]:
    if item.kind == "function_call":
        called = {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
        return called | ({"namespace": item.namespace} if item.namespace else {})
    if item.kind == "function_call_output":
        output = item.output if isinstance(item.output, str) else _parts(item.output, _of_input)
        return {"call_id": item.call_id, "output": output}
    if item.kind == "reasoning":
        return {
            "summary": [
                {"type": "summary_text", "text": text} for text in content_texts(item.summary)
            ],
            "content": [
                {"type": "reasoning_text", "text": text} for text in content_texts(item.content)
            ],
        }
    form = _of_answer if item.role == "assistant" else _of_input
    return {"role": item.role, "content": _parts(item.content, form)}


def _parts(content: Content, form: Callable[[ItemPart], dict[str, Any]]) -> list[dict[str, Any]]:
    parts = [ItemPart(text=content)] if isinstance(content, str) else content or []
    return [form(part) for part in parts]


def _of_input(part: ItemPart) -> dict[str, Any]:
    return {"type": "input_text", "text": part.text_or_refusal}


def _of_answer(part: ItemPart) -> dict[str, Any]:
    if part.type == "refusal":
        return {"type": "refusal", "refusal": part.refusal}
    return {"type": "output_text", "text": part.text_or_refusal, "annotations": [], "logprobs": []}
