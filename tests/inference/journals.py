"""A plain model of the journal, operations for both, and the state that a crash leaves."""

from __future__ import annotations

import copy
import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import strategies as st

from inference.agent.engines.engine import Meter
from inference.agent.journal.files import FILE
from inference.agent.journal.journal import Journal
from inference.link.accounts import Account, LedgerEntry, Totals, Usage
from inference.link.session import AttemptKey

TINY = 700
"""Bytes at which a journal file is full in tests: after a few requests."""

RAM = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""A file system in memory, where syncing costs nothing; these tests sync thousands of times."""

T = TypeVar("T")
Op = tuple[Any, ...]
"""("open", name), ("progress", tokens, names), ("close", name, tokens) or ("acknowledge", names).

A name is a request's id for its first attempt, and `id/2` for another attempt.
"""
View = tuple[list[LedgerEntry], Totals, Totals]


def used(tokens: int, *, total_s: float = 0.0) -> Usage:
    return Usage(3 * tokens, tokens, tokens, tokens // 2, total_s=total_s)


def attempt(name: str) -> AttemptKey:
    id, _, number = name.partition("/")
    return id, int(number or 1)


def inherited(name: str) -> Usage:
    """The usage that a higher attempt inherits."""
    return used(5) if attempt(name)[1] > 1 else Usage()


def account(id: str) -> Account:
    return Account(1, len(id), 1_760_000_000.5, "base", None, 7)


def entry(name: str, usage: Usage, finish_reason: str) -> LedgerEntry:
    id, number = attempt(name)
    tokens = inherited(name).completion_tokens
    return LedgerEntry(id, account(id), f"acme/{id}", usage, finish_reason, number, tokens)


def open_(journal: Journal, name: str) -> None:
    id, _ = attempt(name)
    journal.opened(attempt(name), account(id), f"acme/{id}", inherited(name))


def totals(usages: Iterable[Usage]) -> Totals:
    counted = [(1, u.prompt_tokens, u.cached_tokens, u.completion_tokens) for u in usages]
    return Totals(*map(sum, zip(*counted, strict=True))) if counted else Totals()


def act(journal: Journal, op: Op) -> None:
    """Apply the operation and write it at once."""
    tell(journal, op)
    journal.write()


def tell(journal: Journal, op: Op) -> None:
    match op:
        case ("open", name):
            open_(journal, name)
        case ("progress", tokens, names):
            meter = Meter(3 * tokens, tokens, tokens, tokens // 2)
            journal.progressed([(attempt(name), meter) for name in names])
        case ("close", name, tokens):
            journal.closed(attempt(name), used(tokens, total_s=1.5), "stop")
        case ("acknowledge", names):
            journal.acknowledged(map(attempt, names))


class Model:
    """What a journal must know, by name of the attempt."""

    def __init__(self) -> None:
        self.open: dict[str, Usage] = {}
        self.closed: dict[str, LedgerEntry] = {}
        self.ever: list[Usage] = []

    def apply(self, op: Op) -> None:
        match op:
            case ("open", id):
                self.open[id] = inherited(id)
            case ("progress", tokens, ids):
                self.open.update({id: used(tokens) for id in ids if id in self.open})
            case ("close", id, tokens) if id in self.open:
                self._close(id, entry(id, used(tokens, total_s=1.5), "stop"))
            case ("acknowledge", ids):
                for id in ids:
                    self.closed.pop(id, None)

    def _close(self, name: str, ended: LedgerEntry) -> None:
        del self.open[name]
        self.closed[name] = ended
        self.ever.append(ended.usage)

    def crashed(self) -> Model:
        """The state after the process died and the journal was opened again."""
        after = copy.deepcopy(self)
        for id, usage in self.open.items():
            after._close(id, entry(id, usage, "engine_lost"))
        return after

    def view(self) -> View:
        entries = list(self.closed.values())
        return entries, totals(self.ever), totals(one.usage for one in entries)


def view(journal: Journal) -> View:
    assert journal.backlog == len(journal.unacknowledged())
    return journal.unacknowledged(), journal.journaled, journal.unbilled


def traffic() -> Iterator[Op]:
    """Endless operations, with about three requests open and one to four entries unacknowledged."""
    for n in itertools.count():
        yield "open", f"r{n}"
        yield "progress", n % 1000, [f"r{m}" for m in range(max(0, n - 3), n + 1)]
        yield "close", f"r{n - 3}", n % 1000 + 1
        if n % 3 == 0:
            yield "acknowledge", [f"r{m}" for m in range(n - 9, n - 3)]


def model_after(ops: int) -> Model:
    model = Model()
    for op in itertools.islice(traffic(), ops):
        model.apply(op)
    return model


def copied(folder: Path, target: Path) -> Path:
    """A copy of the folder as a crash at this moment would leave it.

    Without the lock file: opening and closing it in this process would release the lock.
    """
    return Path(shutil.copytree(folder, target, ignore=shutil.ignore_patterns("lock")))


class AtOnce(Executor):
    """Runs each call before `submit` returns."""

    def submit(self, call: Callable[..., T], /, *arguments: Any, **named: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(call(*arguments, **named))
        except BaseException as error:
            future.set_exception(error)
        return future


class SlowDisk(Executor):
    """Runs a submitted call when `work` is called."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, call: Callable[..., T], /, *arguments: Any, **named: Any) -> Future[T]:
        future: Future[T] = Future()
        self._waiting.append((future, partial(call, *arguments, **named)))
        return future

    def work(self) -> None:
        """Run the call that waits longest, if there is one."""
        for future, call in self._waiting[:1]:
            del self._waiting[0]
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)


def reopened(folder: Path) -> View:
    """What the journal knows after it is opened; checks that opening it again gives the same."""
    views = []
    for _ in range(2):
        with closing(Journal.open(folder)) as journal:
            assert journal.open_requests == 0
            assert sorted(os.listdir(folder)) == [FILE, "lock"]
            views.append(view(journal))
    assert views[0] == views[1]
    return views[0]


IDS = st.sampled_from(["a", "b", "c", "d", "a/2", "b/2"])
OPS = st.one_of(
    st.tuples(st.just("open"), IDS),
    st.tuples(st.just("progress"), st.integers(0, 2**40), st.lists(IDS, unique=True)),
    st.tuples(st.just("close"), IDS, st.integers(0, 2**40)),
    st.tuples(st.just("acknowledge"), st.lists(IDS)),
)


def fits(model: Model, op: Op) -> bool:
    return op[0] != "open" or op[1] not in model.open | model.closed
