"""Fixtures and settings that every test may use."""

from __future__ import annotations

import gc
import random
import sys
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from functools import cache
from pathlib import PurePosixPath
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings as django_settings
from django.test import TransactionTestCase
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from pytest_django import DjangoDbBlocker
from xdist.scheduler import LoadScopeScheduling

from inference.gateway.routing import choice, engine_state
from tests import databases
from tests.fleet.fake import FakeGateways
from tests.stack.running import Stack

# No deadline: on a busy machine an example may take arbitrarily long. Each run has the same
# examples, so that a new failure means that the code has changed; `make properties` draws others.
# Hypothesis also draws constants of the modules imported so far, which depend on what ran before.
providers._get_local_constants = lambda: providers._local_constants
untimed: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=40, derandomize=True, **untimed)
settings.register_profile("thorough", max_examples=1000, **untimed)
settings.load_profile("quick")


@pytest.fixture(scope="session")
def django_db_setup(
    django_test_environment: None, django_db_blocker: DjangoDbBlocker, worker_id: str
) -> Iterator[None]:
    """Replaces pytest-django's fixture, which migrates a database for each process, and Django's
    `flush` after a test that commits."""
    with django_db_blocker.unblock():
        own = databases.make_own(worker_id)
        empty = databases.emptying()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", lambda case: empty())
        yield
    with django_db_blocker.unblock():
        databases.drop_own(own)


@pytest.fixture
def gateways(monkeypatch: pytest.MonkeyPatch) -> FakeGateways:
    """The fake gateways that this process queries; the test sets their answers."""
    fake = FakeGateways()
    monkeypatch.setattr(apps.get_app_config("tenants"), "gateways", fake, raising=False)
    return fake


@pytest.fixture
def plain_files(settings: Any) -> None:
    """Serves static files without a manifest, for tests of pages: `collectstatic` has not run."""
    plain = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
    settings.STORAGES = {**settings.STORAGES, "staticfiles": plain}


TOGETHER = ("stack/vllm", "stack", "browser/work", "browser", "engine")
"""Folders whose tests share a whole stack or an engine; one inside another comes before that."""
ALONE = ("stack/test_up.py",)
"""Files in these folders that start stacks of their own."""
WITH_ENGINE = ("labs/models", "adapters/test_parity.py")
"""They use PyTorch, vLLM and PEFT too, whose import takes seconds in each process."""
LONGEST = (
    "stack", "browser/work", "browser", "stack/vllm", "labs/test_rounds.py", "engine",
    "stack/test_up.py",
)  # fmt: skip
FIRST = "tests/stack/test_rollouts.py"
"""Compares with the requests of the minutes before; the other tests on its stack kill processes."""


def scope_of(nodeid: str) -> str:
    """The unit that runs in one worker of `-n 4`: a file, or the tests of a TOGETHER folder."""
    return _scope_of_file(nodeid.partition("::")[0])


@cache
def _scope_of_file(name: str) -> str:
    path = PurePosixPath(name).relative_to("tests")
    if str(path) in ALONE:
        return str(path)
    if any(map(path.is_relative_to, WITH_ENGINE)):
        return "engine"
    shared = (folder for folder in TOGETHER if path.is_relative_to(folder))
    return next(shared, str(path))


SLOW_IMPORTS = {"torch", "transformers", "vllm", "xgrammar"}
"""They take as long as the rest of the collection, which each process of a run makes."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests without the garbage collector, then freeze them: they live until the end, and
    scanning them repeatedly took a quarter of the collection's time and part of each test's.

    Raises:
        pytest.UsageError: a module imports one of SLOW_IMPORTS outside its functions.
    """
    gc.disable()
    try:
        result = yield
    finally:
        gc.freeze()
        gc.enable()
    if slow := SLOW_IMPORTS & sys.modules.keys():
        raise pytest.UsageError(f"tests import {', '.join(sorted(slow))} outside of functions")
    return result


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the slowest first, so that no core is idle at the end: scopes that start stacks and
    engines, then the files with the most tests."""
    sizes = Counter(scope_of(item.nodeid) for item in items)

    def rank(item: pytest.Item) -> tuple[int, int, str, bool]:
        scope = scope_of(item.nodeid)
        place = LONGEST.index(scope) if scope in LONGEST else len(LONGEST)
        return place, -sizes[scope], scope, not item.nodeid.startswith(FIRST)

    items.sort(key=rank)


class ByScope(LoadScopeScheduling):
    """Runs each scope in one worker, in the order of the collection. Unlike xdist's `loadgroup` it
    leaves the tests' names as they are, so that `--last-failed` finds them."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByScope | None:
    """None if --dist selects a scheduler other than the default."""
    return ByScope(config, log) if config.getoption("dist") == "load" else None


class First(random.Random):
    """A random generator that always picks the first item."""

    def random(self) -> float:
        return 0.0

    def sample(self, population: Sequence[Any], k: int, *, counts: object = None) -> list[Any]:
        return list(population[:k])


@pytest.fixture
def first_of_equals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two equal engines, the one that connected first gets a request, because no request has a
    home engine."""
    monkeypatch.setattr(choice, "_random", First())
    monkeypatch.setattr(engine_state.Needs, "home", None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Add what a running stack reported to the failures of its tests."""
    report = yield
    stack = getattr(item, "funcargs", {}).get("stack")
    if report.failed and isinstance(stack, Stack):
        report.sections.append(("the stack", stack.reported()))
    return report


@pytest.fixture(autouse=True, scope="session")
def conforming() -> None:
    """Checks every response of the management API in any test against its OpenAPI document."""
    middleware = "tests.document.conforming.Conforming"
    django_settings.MIDDLEWARE = [middleware, *django_settings.MIDDLEWARE]


@pytest.fixture(autouse=True, scope="session")
def cheap_passwords() -> None:
    """Uses a fast hasher: hashing that is slow on purpose would take a good part of the run."""
    django_settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
