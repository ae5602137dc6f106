"""`python -m tests.labs.endpoint.inside REPORT ARGUMENT...`: pytest on vLLM's tests.

Runs in the folder of the unpacked tests. In place of `RemoteOpenAIServer`, which would start
a server with each module's options, these get the one that SERVER_URL names. The package `tests` is
vLLM's from `enter` on.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import anthropic
import httpx
import openai
import pytest
import requests

from tests.labs.bench.sides import vllm_serve as _vllm_serve  # noqa: F401  # finds vLLM's version

URL, KEY = os.environ["SERVER_URL"], os.environ["SERVER_KEY"]
ADAPTER = os.environ["SERVER_ADAPTER"]
"""Folder of an adapter, for tests that fetch one."""
SERVER = "RemoteOpenAIServer"
HEADER = {"Authorization": f"Bearer {KEY}"}


class RunningServer:
    """`RemoteOpenAIServer` without a process of its own."""

    url_root = URL
    show_hidden_metrics = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def url_for(self, *parts: str) -> str:
        return "/".join((self.url_root, *(part.strip("/") for part in parts if part)))

    def get_client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(**self._settings("v1"), **options)

    def get_async_client(self, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(**self._settings("v1"), **options)

    def get_client_anthropic(self, **options: Any) -> anthropic.Anthropic:
        return anthropic.Anthropic(**self._settings(), **options)

    def get_async_client_anthropic(self, **options: Any) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(**self._settings(), **options)

    def _settings(self, *parts: str) -> dict[str, Any]:
        return {"base_url": self.url_for(*parts), "api_key": KEY, "max_retries": 0}


class Outcomes:
    """A pytest plugin: runs the tests that use a server, and notes how each ended."""

    def __init__(self, report: Path) -> None:
        """They are written to the file `report` after each test: a later one may end this run."""
        self._report = report
        self._of: dict[str, tuple[str, str]] = {}
        """By node id, the outcome and the last line of what went wrong."""

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        chosen = [item for item in items if _uses_a_server(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        if self._of.get(report.nodeid, ("passed", ""))[0] == "passed":
            self._of[report.nodeid] = (report.outcome, _reason(report))
            self._report.write_text(json.dumps(self._of))


def _uses_a_server(item: pytest.Item) -> bool:
    """Whether the test or one of its fixtures starts a server."""
    if not isinstance(item, pytest.Function):
        return False
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    functions = [item.function, *(one.func for found in fixtures for one in found)]
    return any(f"{SERVER}(" in _source(function) for function in functions)


def _source(function: Any) -> str:
    try:
        return inspect.getsource(inspect.unwrap(function))
    except (OSError, TypeError):
        return ""


def _reason(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return str(crash.message)
    return "" if report.passed else str(report.longrepr)


def enter(folder: Path) -> None:
    """Make `tests` vLLM's package, with our stand-ins."""
    for name in [one for one in sys.modules if one.split(".")[0] == "tests"]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    module("tests.utils", RemoteOpenAIServer=RunningServer, ROCM_EXTRA_ARGS=[])
    module("tests.conftest", HfRunner=HubModel)


def module(name: str, **contents: Any) -> None:
    sys.modules[name] = stand_in = ModuleType(name)
    stand_in.__dict__.update(contents)


class HubModel:
    """A model of the Hugging Face hub, to compare with."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pytest.skip("compares with a model of the Hugging Face hub")


class Hub:
    """The Hugging Face hub, which has one adapter."""

    def snapshot_download(self, *_: Any, **__: Any) -> str:
        return ADAPTER


def stay_offline() -> None:
    from vllm.transformers_utils import repo_utils

    repo_utils.hf_api = Hub


def send_the_key() -> None:
    """Let requests without a client of the SDK carry the key too."""

    class Session(requests.Session):
        def __init__(self) -> None:
            super().__init__()
            self.headers.update(HEADER)

    requests.Session = requests.sessions.Session = Session  # type: ignore[misc]
    for owner, name in ((httpx, "AsyncClient"), (httpx, "Client"), (httpx._api, "Client")):
        setattr(owner, name, with_key(getattr(owner, name)))


def with_key(client: Any) -> Any:
    """A class of httpx's clients whose requests carry the key, unless they have another one."""

    class WithKey(client):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options | {"headers": HEADER | (options.get("headers") or {})})

    return WithKey


def main() -> None:
    report, *arguments = sys.argv[1:]
    enter(Path.cwd())
    send_the_key()
    stay_offline()
    status = pytest.main(arguments, plugins=[Outcomes(Path(report))])
    sys.exit(0 if status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) else int(status))


if __name__ == "__main__":
    main()
