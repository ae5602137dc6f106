"""What Lorikeet relies on inside vLLM: the table holds, a gap in it degrades one part alone."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inference.agent.engines.engine import Engine, EngineOutput, EngineWork
from inference.agent.engines.profile import EngineProfile
from inference.agent.engines.vllm import (
    environment,  # noqa: F401
    reliances,
)
from inference.agent.engines.vllm.reliances import Part, ReleaseSource, Reliance, missing
from inference.agent.engines.vllm.selfcheck import PROMPTS, TOKENS, failing
from inference.errors import EngineFailed
from inference.link.accounts import Usage
from inference.link.wire import Resume
from tests.engine.driving import ask, run, work_of

PROVED = """
def free(a, b, *, c, d=1): ...

class Thing:
    field: int

    def __init__(self): self.set_later = 1

    async def method(self, a, b=2): ...
"""


def test_the_installed_release_has_everything() -> None:
    assert missing(ReleaseSource.installed()) == {}


@pytest.mark.parametrize(
    ("name", "parameters", "replaced", "has"),
    [
        ("free", "a b c d", True, True),
        ("free", "a b c", True, False),
        ("free", "a b c", False, True),
        ("free", "a b", False, False),
        ("free", "a b c e", False, False),
        ("Thing", None, False, True),
        ("Thing.field", None, False, True),
        ("Thing.set_later", None, False, True),
        ("Thing.gone", None, False, False),
        ("Thing.method", "a b", True, True),
        ("Thing.method", "b a", True, False),
        ("Thing.method", "a", False, True),
        ("Thing.field", "a", False, False),
        ("gone", None, False, False),
    ],
)
def test_a_name_is_found_with_its_parameters(
    name: str, parameters: str | None, replaced: bool, has: bool, tmp_path: Path
) -> None:
    tmp_path.joinpath("vllm").mkdir()
    tmp_path.joinpath("vllm", "proved.py").write_text(PROVED)
    wanted = None if parameters is None else tuple(parameters.split())
    reliance = Reliance(Part.RESUME, "vllm.proved", name, wanted, replaced)
    assert ReleaseSource(tmp_path).has(reliance) is has


def test_a_module_that_moved_is_missing(tmp_path: Path) -> None:
    assert set(missing(ReleaseSource(tmp_path))) == {wanted.part for wanted in reliances.RELIANCES}


async def _answer(work: EngineWork, given: int = 0) -> AsyncGenerator[EngineOutput, None]:
    """As an engine that works: whole answers, and of continued ones the rest."""
    for token in range(given, TOKENS):
        ids = {choice: [token] for choice in range(len(PROMPTS))}
        yield EngineOutput(chunks=(b"{}",), ids=ids)


async def _without_ids(work: EngineWork) -> AsyncGenerator[EngineOutput, None]:
    async for output in _answer(work):
        yield EngineOutput(chunks=output.chunks)


async def _refuses_to_continue(work: EngineWork) -> AsyncGenerator[EngineOutput, None]:
    if work.resume is not None:
        raise EngineFailed
    async for output in _answer(work):
        yield output


async def _right(work: EngineWork) -> AsyncGenerator[EngineOutput, None]:
    given = 0 if work.resume is None else len(work.resume.ids[0])
    async for output in _answer(work, given):
        yield output


@pytest.mark.parametrize(
    ("generate", "parts"),
    [
        (_right, set()),
        (_answer, {Part.RESUME}),  # sends again what the reader has
        (_without_ids, {Part.TOKEN_IDS, Part.RESUME}),
        (_refuses_to_continue, {Part.RESUME}),
    ],
)
async def test_the_self_check_finds_what_does_not_work(generate: Any, parts: set[Part]) -> None:
    assert await failing(generate) == parts


@pytest.mark.vllm
@pytest.mark.asyncio(loop_scope="session")
async def test_nothing_is_left_out_of_the_tested_release(vllm: Engine) -> None:
    assert (vllm.info.degraded, vllm.info.resumes) == ([], True)
    assert await failing(vllm.generate) == set()


@pytest.mark.vllm
@pytest.mark.asyncio(loop_scope="session")
async def test_an_engine_serves_without_the_parts_that_its_vllm_cannot_have(
    profile: EngineProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inference.agent.engines.vllm import patches
    from inference.agent.engines.vllm.engine import VLLMEngine

    lacking = (Part.RESUME, Part.TOKEN_IDS, Part.GRAMMARS, Part.CACHE_EVENTS)
    gap = {part: [Reliance(part, "vllm.moved", "name")] for part in lacking}
    monkeypatch.setattr(patches, "missing", lambda _: gap)
    engine = await VLLMEngine.start(profile)
    try:
        assert engine.info.degraded == sorted(part.value for part in lacking)
        assert not engine.info.resumes
        assert engine.cache_news() is None
        assert engine.stats().completion_tokens == 0
        several = await ask(engine, n=2, temperature=1.0, stream=True, wants_ids=True)
        assert {choice["index"] for chunk in several.chunks for choice in chunk["choices"]} == {
            0,
            1,
        }
        assert several.ids == {}
        held = await ask(engine, structured_outputs={"regex": "[ab]{3}"}, ignore_eos=False)
        assert set(held.text) <= {"a", "b"} and len(held.text) == 3
        resume = Resume({0: [20]}, {}, Usage(9, 0, 1))
        with pytest.raises(EngineFailed, match="cannot continue"):
            await run(engine, replace(work_of(), resume=resume))
    finally:
        await engine.close()


def test_an_engine_without_a_required_part_does_not_start(tmp_path: Path) -> None:
    from inference.agent.engines.vllm import patches

    with pytest.raises(RuntimeError, match=r"lacks vllm\..*init_app_state.*It cannot answer\."):
        patches.install(ReleaseSource(tmp_path))
