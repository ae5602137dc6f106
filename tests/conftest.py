"""Fixtures and settings that every test may use."""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings as django_settings
from django.test import TransactionTestCase
from hypothesis import HealthCheck, settings
from pytest_django import DjangoDbBlocker
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from inference.gateway.routing import choice, engine_state
from tests import databases
from tests.fleet.fake import FakeGateways

# Nothing is timed: on a busy machine an example may take as long as it likes.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def django_db_setup(
    django_test_environment: None, django_db_blocker: DjangoDbBlocker, worker_id: str
) -> Iterator[None]:
    """Instead of pytest-django's, which migrates a database for each process; and a test that
    committed empties the tables without Django's `flush`."""
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
    """What this process asks of the gateways is answered by the test."""
    fake = FakeGateways()
    monkeypatch.setattr(apps.get_app_config("tenants"), "gateways", fake, raising=False)
    return fake


@pytest.fixture
def plain_files(settings: Any) -> None:
    """For pages: nothing is collected here, so there is no manifest of static files."""
    plain = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
    settings.STORAGES = {**settings.STORAGES, "staticfiles": plain}


TOGETHER = ("stack", "browser/work", "browser", "engine")
"""Folders whose tests share a whole stack or an engine, the longest first."""
ALONE = (
    "browser/appearance/test_sweep.py",
    "stack/answers/test_embeddings.py",
    "stack/answers/test_batches.py",
    "stack/test_rollouts.py",
    "stack/test_planes.py",
    "stack/test_up.py",
)
"""Files in these folders that start stacks of their own, or are worth another one, the longest
first."""
LONGEST = ("stack", ALONE[0], "browser/work", "browser", "engine", *ALONE[1:])


def scope_of(nodeid: str) -> str:
    """What runs in one process of `-n 4`: a file, or what a folder of TOGETHER shares."""
    path = PurePosixPath(nodeid.partition("::")[0]).relative_to("tests")
    if str(path) in ALONE:
        return str(path)
    shared = (folder for folder in TOGETHER if path.is_relative_to(folder))
    return next(shared, str(path))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays until the end: the collector of garbage need not look at it again and
    again, which was a quarter of this, and a part of each test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that no core is idle at the end: what starts stacks and engines, then
    the files with most tests."""
    sizes = Counter(scope_of(item.nodeid) for item in items)

    def rank(item: pytest.Item) -> tuple[int, int, str]:
        scope = scope_of(item.nodeid)
        place = LONGEST.index(scope) if scope in LONGEST else len(LONGEST)
        return place, -sizes[scope], scope

    items.sort(key=rank)


class ByCost(LoadScopeScheduling):
    """Each scope in one process, in the order of the collection.

    A process begins the last test of a scope when it knows the test after that. Behind a long scope
    this is one of the shortest: else long ones would wait for a process that has another to end.
    """

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def _reschedule(self, node: WorkerController) -> None:
        if self.workqueue:
            if self._pending_of(assigned := self.assigned_work[node]) > 1:
                return
            shortest = next(reversed(self.workqueue))
            if next(reversed(assigned)) in LONGEST and shortest not in LONGEST:
                self.workqueue.move_to_end(shortest, last=False)
        super()._reschedule(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByCost | None:
    """None where another one than the default is asked for with --dist."""
    return ByCost(config, log) if config.getoption("dist") == "load" else None


class First(random.Random):
    """Chance that takes what comes first."""

    def random(self) -> float:
        return 0.0

    def sample(self, population: Sequence[Any], k: int, *, counts: object = None) -> list[Any]:
        return list(population[:k])


@pytest.fixture
def first_of_equals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test knows which of two equal engines gets its request: the one that connected first, for
    nobody has a home."""
    monkeypatch.setattr(choice, "_random", First())
    monkeypatch.setattr(engine_state.Needs, "home", None)


@pytest.fixture(autouse=True, scope="session")
def conforming() -> None:
    """Every answer of the management API that any test gets is held against its document."""
    middleware = "tests.document.conforming.Conforming"
    django_settings.MIDDLEWARE = [middleware, *django_settings.MIDDLEWARE]


@pytest.fixture(autouse=True, scope="session")
def cheap_passwords() -> None:
    """Hashing that is slow on purpose would be a good part of all the time here."""
    django_settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
