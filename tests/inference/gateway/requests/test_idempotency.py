"""The rules of idempotency keys alone: which request generates, which ones wait, and what is kept
when something fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import structlog

from inference.errors import (
    ClientDisconnected,
    EngineLost,
    GenerationTimeout,
    IdempotencyKeyReused,
    InferenceError,
    InvalidRequest,
    Unavailable,
)
from inference.gateway.idempotency import MAX_ANSWER_BYTES, Idempotency, Send, digest_of, name_of
from inference.interfaces.answers import Claim, KeptAnswer
from tests.inference.answers import CLAIM_S, MemoryAnswers
from tests.inference.rig import until

Make = Callable[[Send], Awaitable[None]]
DEAD = Claim(1, "order 17", b"d", "dead")
"""The claim of a dead gateway, which is never renewed."""


def head(status: int = 200) -> dict[str, Any]:
    headers = [(b"content-type", b"text/event-stream"), (b"x-other", b"1")]
    return {"type": "http.response.start", "status": status, "headers": headers}


def part(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def hello(send: Send) -> None:
    await send(head())
    await send(part(b"hel"))
    await send(part(b"lo", more=False))


class Gate:
    """Like `hello`, but stops half way until `opened` is set; then finishes or raises `error`."""

    def __init__(self, error: InferenceError | None = None) -> None:
        self.reached, self.opened = asyncio.Event(), asyncio.Event()
        self._error = error

    async def __call__(self, send: Send) -> None:
        await send(head())
        await send(part(b"hel"))
        self.reached.set()
        await self.opened.wait()
        if self._error is not None:
            raise self._error
        await send(part(b"lo", more=False))


class Client:
    """Receives the answer; disconnects when `gone` is set."""

    def __init__(self) -> None:
        self.body = b""
        self.gone = asyncio.Event()

    async def send(self, message: dict[str, Any]) -> None:
        if self.gone.is_set():
            raise OSError("closed")
        self.body += message.get("body", b"")

    async def disconnected(self) -> None:
        await self.gone.wait()


@dataclass
class Process:
    """One gateway, which receives requests with the same idempotency key."""

    answers: MemoryAnswers
    idempotency: Idempotency
    made: int = 0
    """How many answers were generated here."""

    async def ask(
        self,
        request: str,
        make: Make = hello,
        client: Client | None = None,
        *,
        digest: bytes = b"d",
        name: str = "order 17",
    ) -> bytes:
        """Returns the body that the client gets in the end. `make` generates it if this request is
        the first."""
        client = client or Client()
        claim = Claim(1, name, digest, request)
        async with self.idempotency.turn(claim, client.disconnected()) as turn:
            if isinstance(turn, KeptAnswer):
                return turn.body
            self.made += 1
            await make(turn.tee(client.send))
        return client.body


def process(answers: MemoryAnswers | None = None, **options: Any) -> Process:
    answers = answers or MemoryAnswers()
    return Process(answers, Idempotency(answers, **({"wait_s": 30.0} | options)))


async def renewed(one: Process, names: set[str]) -> None:
    """Wait for the next renewal of exactly these claims."""
    one.answers.renewals.clear()
    await until(lambda: names in one.answers.renewals)


@pytest.mark.parametrize("header", [b"x", b"7" * 255, b"a key, with ~ and spaces!"])
def test_valid_idempotency_keys(header: bytes) -> None:
    assert name_of(header) == header.decode()


@pytest.mark.parametrize("header", [b"", b"7" * 256, b"caf\xc3\xa9", b"a\tb", b"a\x7f", b"a\n"])
def test_invalid_idempotency_keys(header: bytes) -> None:
    with pytest.raises(InvalidRequest, match="Idempotency-Key"):
        name_of(header)


async def test_the_digest_is_of_path_and_body() -> None:
    one = await digest_of("/v1/completions", b"{}")
    assert await digest_of("/v1/completions", b"{}") == one
    assert await digest_of("/v1/completions", b"{ }") != one
    assert await digest_of("/v1/chat/completions", b"{}") != one


async def test_the_answer_is_kept_as_it_was_sent_and_before_its_end() -> None:
    one = process()
    kept_at_the_end: list[KeptAnswer | None] = []

    class Watching(Client):
        async def send(self, message: dict[str, Any]) -> None:
            await super().send(message)
            (row,) = one.answers.rows.values()
            kept_at_the_end.append(row.answer)

    assert await one.ask("first", client=Watching()) == b"hello"
    kept = KeptAnswer("first", "text/event-stream", b"hello")
    assert kept_at_the_end == [None, None, kept]
    assert await one.ask("second") == b"hello"
    assert one.made == 1


async def test_waiting_retries_do_not_query_the_database() -> None:
    one, gate = process(), Gate()
    first = asyncio.create_task(one.ask("first", gate))
    await gate.reached.wait()
    others = [asyncio.create_task(one.ask(f"{i}")) for i in range(50)]
    await asyncio.wait(others, timeout=0)
    gate.opened.set()
    assert await asyncio.gather(first, *others) == [b"hello"] * 51
    assert (one.made, one.answers.asked) == (1, 2)  # one `claim`, one `keep`


async def test_those_that_wait_here_do_not_wait_for_a_slow_reader() -> None:
    one = process()

    class Slow(Client):
        async def send(self, message: dict[str, Any]) -> None:
            if not message.get("more_body", True):
                await self.gone.wait()

    slow = Slow()
    first = asyncio.create_task(one.ask("first", client=slow))
    assert await one.ask("second") == b"hello"
    assert not first.done()
    slow.gone.set()
    await first


async def test_two_gateways_make_one_answer() -> None:
    answers = MemoryAnswers()
    one, other, gate = process(answers), process(answers), Gate()
    first = asyncio.create_task(one.ask("first", gate))
    await gate.reached.wait()
    waiting = [asyncio.create_task(other.ask(f"{i}")) for i in range(20)]
    await until(lambda: answers.asked >= 3)  # the other gateway found no answer and polls
    gate.opened.set()
    assert await asyncio.gather(first, *waiting) == [b"hello"] * 21
    assert (one.made, other.made) == (1, 0)


async def test_another_body_is_refused_by_the_database_alone() -> None:
    one, gate = process(), Gate()
    first = asyncio.create_task(one.ask("first", gate))
    await gate.reached.wait()
    with pytest.raises(IdempotencyKeyReused):
        await one.ask("other", digest=b"another body")
    gate.opened.set()
    await first
    with pytest.raises(IdempotencyKeyReused):
        await one.ask("other", digest=b"another body")
    assert one.made == 1


async def test_a_refusal_reaches_all_waiting_retries() -> None:
    one = process()
    await one.ask("first")
    asked = one.answers.asked
    refused = await asyncio.gather(
        *(one.ask(f"{i}", digest=b"another body") for i in range(10)), return_exceptions=True
    )
    assert {type(error) for error in refused} == {IdempotencyKeyReused}
    assert one.answers.asked == asked + 1


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_an_error_releases_the_key_and_one_that_waits_is_next(elsewhere: bool) -> None:
    answers = MemoryAnswers()
    one, gate = process(answers), Gate(EngineLost())
    other = process(answers) if elsewhere else one
    first = asyncio.create_task(one.ask("first", gate))
    await gate.reached.wait()
    waiting = [asyncio.create_task(other.ask(f"{i}")) for i in range(5)]
    await asyncio.wait(waiting, timeout=0)
    gate.opened.set()
    with pytest.raises(EngineLost):
        await first
    assert await asyncio.gather(*waiting) == [b"hello"] * 5
    assert one.made + (other.made if elsewhere else 0) == 2


async def test_only_successful_answers_are_kept() -> None:
    one = process()
    tees: list[Send] = []

    async def breaks(send: Send) -> None:
        tees.append(send)
        await send(head())
        raise EngineLost

    async def fails(send: Send) -> None:
        await send(head(503))
        await send(part(b"error", more=False))

    client = Client()
    with pytest.raises(EngineLost):
        await one.ask("first", breaks, client)
    await tees[0](part(b"error", more=False))
    assert client.body == b"error"
    assert await one.ask("second", fails) == b"error"
    assert one.answers.rows == {}


async def test_an_answer_over_the_bound_is_sent_but_not_kept() -> None:
    one = process()

    async def make(send: Send, size: int = MAX_ANSWER_BYTES + 1) -> None:
        await send(head())
        await send(part(b"x" * (size - 1)))
        await send(part(b"x", more=False))

    assert len(await one.ask("first", make)) == MAX_ANSWER_BYTES + 1
    assert one.answers.rows == {}
    assert len(await one.ask("second", lambda send: make(send, MAX_ANSWER_BYTES)))
    assert len(await one.ask("third")) == MAX_ANSWER_BYTES
    assert one.made == 2


async def test_the_first_request_continues_when_its_client_left() -> None:
    one, gate, client = process(), Gate(), Client()
    first = asyncio.create_task(one.ask("first", gate, client))
    await gate.reached.wait()
    client.gone.set()
    retry = asyncio.create_task(one.ask("retry"))
    gate.opened.set()
    assert await retry == b"hello"
    assert await first == b"hel"
    assert one.made == 1


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_one_that_waits_stops_when_its_client_goes_away(elsewhere: bool) -> None:
    answers = MemoryAnswers()
    one, gate, client = process(answers), Gate(), Client()
    other = process(answers) if elsewhere else one
    first = asyncio.create_task(one.ask("first", gate))
    await gate.reached.wait()
    waits = asyncio.create_task(other.ask("waits", client=client))
    after = asyncio.create_task(other.ask("after"))
    await asyncio.wait([waits, after], timeout=0)
    client.gone.set()
    with pytest.raises(ClientDisconnected):
        await waits
    gate.opened.set()
    assert await first == await after == b"hello"
    assert one.made + (other.made if elsewhere else 0) == 1


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_the_wait_has_an_end(elsewhere: bool) -> None:
    answers = MemoryAnswers()
    one, gate = process(answers, wait_s=0.01), Gate()
    other = process(answers, wait_s=0.01) if elsewhere else one
    first = asyncio.create_task(one.ask("first", gate))
    await gate.reached.wait()
    with pytest.raises(GenerationTimeout):
        await other.ask("waits")
    gate.opened.set()
    await first


async def test_a_dead_gateways_claim_is_taken_over_by_one_that_waits() -> None:
    one = process()
    await one.answers.claim(DEAD)
    waiting = [asyncio.create_task(one.ask(f"{i}")) for i in range(5)]
    await until(lambda: one.answers.asked >= 3)
    assert one.made == 0
    one.answers.now = CLAIM_S
    assert await asyncio.gather(*waiting) == [b"hello"] * 5
    assert one.made == 1


async def test_claims_are_renewed_while_their_requests_run_and_no_longer() -> None:
    one, gate = process(renew_s=0.0), Gate()
    first = asyncio.create_task(one.ask("first", gate))
    await gate.reached.wait()
    for _ in range(3):
        one.answers.now += CLAIM_S - 1
        await renewed(one, {"order 17"})
    gate.opened.set()
    assert await first == b"hello"
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_claims_of_several_requests_are_renewed_together() -> None:
    one, gates = process(renew_s=0.0), {name: Gate() for name in "abc"}
    running = [asyncio.create_task(one.ask(name, gates[name], name=name)) for name in gates]
    await asyncio.gather(*(gate.reached.wait() for gate in gates.values()))
    await renewed(one, {"a", "b", "c"})
    gates["a"].opened.set()
    await running[0]
    await renewed(one, {"b", "c"})
    for gate in gates.values():
        gate.opened.set()
    assert await asyncio.gather(*running) == [b"hello"] * 3


async def test_renewing_survives_an_absence_of_the_database() -> None:
    one, gate = process(renew_s=0.0), Gate()
    first = asyncio.create_task(one.ask("first", gate))
    await gate.reached.wait()
    one.answers.away = True
    asked = one.answers.asked
    await until(lambda: one.answers.asked > asked + 1)
    one.answers.away = False
    await renewed(one, {"order 17"})
    gate.opened.set()
    await first


async def test_claims_are_renewed_after_a_renewal_that_raised() -> None:
    one, gate = process(renew_s=0.0), Gate()
    one.answers.broken = 3
    with structlog.testing.capture_logs() as logs:
        first = asyncio.create_task(one.ask("first", gate))
        await gate.reached.wait()
        await renewed(one, {"order 17"})
    assert [log["event"] for log in logs] == ["task_ended"] * 3
    gate.opened.set()
    await first


async def test_without_the_database_nobody_starts() -> None:
    one = process()
    one.answers.away = True
    refused = await asyncio.gather(*(one.ask(f"{i}") for i in range(10)), return_exceptions=True)
    assert {type(error) for error in refused} == {Unavailable}
    assert (one.made, one.answers.asked) == (0, 1)
    one.answers.away = False
    assert await one.ask("again") == b"hello"


async def test_an_answer_is_sent_without_the_database_and_kept_when_it_is_back() -> None:
    one, gate, client = process(keep_again_s=[0.0] * 1000), Gate(), Client()
    first = asyncio.create_task(one.ask("first", gate, client))
    await gate.reached.wait()
    one.answers.away = True
    gate.opened.set()
    await until(lambda: client.body == b"hello")
    assert not first.done()
    assert await one.ask("meanwhile, here") == b"hello"
    one.answers.away = False
    await first
    assert await process(one.answers).ask("later, elsewhere") == b"hello"
    assert one.made == 1


async def test_keeping_is_given_up_at_last_and_the_claim_left_to_run_out() -> None:
    one, gate = process(keep_again_s=[0.0, 0.0]), Gate()
    first = asyncio.create_task(one.ask("first", gate))
    await gate.reached.wait()
    one.answers.away = True
    gate.opened.set()
    assert await first == b"hello"
    assert one.answers.asked == 4  # one `claim`, three `keep`s
    one.answers.away, one.answers.now = False, CLAIM_S
    assert await one.ask("again") == b"hello"
    assert one.made == 2


async def test_a_key_that_could_not_be_released_runs_out() -> None:
    one, gate = process(), Gate(EngineLost())
    first = asyncio.create_task(one.ask("first", gate))
    await gate.reached.wait()
    one.answers.away = True
    gate.opened.set()
    with pytest.raises(EngineLost):
        await first
    one.answers.away, one.answers.now = False, CLAIM_S
    assert await one.ask("again") == b"hello"


async def test_a_request_that_was_taken_over_keeps_nothing() -> None:
    answers = MemoryAnswers()
    hung, other, gate = process(answers), process(answers), Gate()
    first = asyncio.create_task(hung.ask("first", gate))
    await gate.reached.wait()
    answers.now = CLAIM_S

    async def bye(send: Send) -> None:
        await send(head())
        await send(part(b"bye", more=False))

    assert await other.ask("second", bye) == b"bye"
    gate.opened.set()
    assert await first == b"hello"
    assert await hung.ask("third") == b"bye"


async def test_a_cancelled_request_releases_its_key() -> None:
    one, gate = process(), Gate()
    first = asyncio.create_task(one.ask("first", gate))
    await gate.reached.wait()
    first.cancel()
    await asyncio.wait([first])
    assert one.answers.rows == {}
    assert await one.ask("second") == b"hello"


# --- gateways that are gone ----------------------------------------------------------------------


def knows(*orphans: tuple[str, int]) -> Callable[[int], dict[str, int]]:
    """`running` of an Idempotency: what engines report of orphans of API key 1."""
    return lambda key_id: dict(orphans) if key_id == 1 else {}


async def test_an_orphan_is_adopted_before_its_claim_expires() -> None:
    one = process(running=knows(("dead", 1), ("another", 1)))
    await one.answers.claim(DEAD)
    async with one.idempotency.turn(
        Claim(1, "order 17", b"d", "repeat"), Client().disconnected()
    ) as turn:
        assert not isinstance(turn, KeptAnswer)
        assert (turn.claim.request_id, turn.claim.turn) == ("dead", 2)
        await hello(turn.tee(Client().send))
    assert await one.ask("late") == b"hello"
    (row,) = one.answers.rows.values()
    assert row.answer == KeptAnswer("dead", "text/event-stream", b"hello")


async def test_an_orphan_of_another_key_or_body_is_not_adopted() -> None:
    one = process(running=knows(("dead", 1)))
    await one.answers.claim(DEAD)
    with pytest.raises(IdempotencyKeyReused):
        await one.ask("other", digest=b"another")
    assert await one.ask("other", name="order 18") == b"hello"
    (row, _) = one.answers.rows.values()
    assert row.claim == DEAD


async def test_a_retry_waits_for_an_adopted_answer() -> None:
    one, gate = process(running=knows(("dead", 1))), Gate()
    await one.answers.claim(DEAD)
    both = [asyncio.create_task(one.ask("second", gate)), asyncio.create_task(one.ask("third"))]
    await gate.reached.wait()
    gate.opened.set()
    assert await asyncio.gather(*both) == [b"hello", b"hello"]
    assert one.made == 1


async def heir(answers: MemoryAnswers) -> Claim:
    taken = await answers.take_over(Claim(1, "order 17", b"d", "heir"), {"first": 1})
    assert taken is not None
    return taken


async def test_a_gateway_hears_at_its_renewal_that_its_claim_is_anothers() -> None:
    one, gate, heard = process(renew_s=0.0), Gate(Unavailable("elsewhere")), asyncio.Event()
    claim = Claim(1, "order 17", b"d", "first")

    async def first() -> None:
        async with one.idempotency.turn(claim, Client().disconnected()) as turn:
            assert not isinstance(turn, KeptAnswer)
            turn.on_taken_over = heard.set
            await gate(turn.tee(Client().send))

    running = asyncio.create_task(first())
    await gate.reached.wait()
    taken = await heir(one.answers)
    await heard.wait()
    gate.opened.set()
    with pytest.raises(Unavailable):
        await running
    (row,) = one.answers.rows.values()
    assert row.claim == taken, "it is not released"


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
async def test_the_end_of_a_taken_over_answer_is_not_sent(kind: str) -> None:
    one, client = process(), Client()

    async def make(send: Send) -> None:
        begins = head()
        begins["headers"] = [(b"content-type", kind.encode())]
        await send(begins)
        if kind != "application/json":
            await send(part(b"hel"))
        await heir(one.answers)
        await send(part(b"lo", more=False))

    with pytest.raises(Unavailable, match="Another gateway"):
        await one.ask("first", make, client)
    assert client.body == (b"" if kind == "application/json" else b"hel")
    (row,) = one.answers.rows.values()
    assert row.answer is None and row.claim.turn == 2


async def test_leaving_an_answer_keeps_its_claim_for_another_gateway() -> None:
    one = process()

    async def make(send: Send) -> None:
        await send(head())

    claim = Claim(1, "order 17", b"d", "first")
    async with one.idempotency.turn(claim, Client().disconnected()) as turn:
        assert not isinstance(turn, KeptAnswer)
        await make(turn.tee(Client().send))
        turn.leave()
    (row,) = one.answers.rows.values()
    assert row.claim == claim


async def test_a_failed_takeover_gives_the_claim_back() -> None:
    one = process(running=knows(("dead", 1)))
    await one.answers.claim(DEAD)
    claim = Claim(1, "order 17", b"d", "repeat")
    async with one.idempotency.turn(claim, Client().disconnected()) as turn:
        assert not isinstance(turn, KeptAnswer)
        turn.give_back()
    (row,) = one.answers.rows.values()
    assert row.claim == DEAD
