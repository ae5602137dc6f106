"""The tests' databases: a run migrates a template, and each of its processes has a copy of it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg
from django.conf import settings
from django.core.management import call_command
from django.db import connection
from psycopg.sql import SQL, Identifier

from tests.environment import POSTGRES

ADDRESS = os.environ["LORIKEET_DATABASE_URL"]
TEMPLATE = f"tests_{hashlib.sha256(str(POSTGRES).encode()).hexdigest()[:12]}"
DRAFT = f"{TEMPLATE}_draft"
CARELESS = ("fsync", "full_page_writes", "synchronous_commit")
"""Settings that only protect data against a crash; the embedded server runs without them."""

Server = psycopg.Connection[Any]


def make_own(process: str) -> str:
    """Create the database of this process and connect Django to it. Returns its name."""
    name = f"{TEMPLATE}_{process}"
    with _server() as server:
        if not _databases(server, TEMPLATE):
            _make_template(server)
        _create(server, name, TEMPLATE)
    _use(name)
    return name


@contextmanager
def empty() -> Iterator[str]:
    """A database without tables, for the block; yields its URL."""
    name = f"{TEMPLATE}_{secrets.token_hex(4)}"
    with _server() as server:
        _create(server, name, "template1")
    try:
        yield urlsplit(ADDRESS)._replace(path=f"/{name}").geturl()
    finally:
        with _server() as server:
            _drop(server, name)


def drop_own(name: str) -> None:
    """Delete the database that `make_own` created; with the last one the template goes too."""
    connection.close()
    with _server() as server:
        _drop(server, name)
        if _databases(server, f"{TEMPLATE}%") == [TEMPLATE]:
            _drop(server, TEMPLATE)


def emptying() -> Callable[[], None]:
    """Returns a function that empties all tables of this process's database except those that
    migrations fill.

    Truncating some sixty tables, as Django's `flush` does, creates and deletes hundreds of files:
    deleting the few rows of a test takes a hundredth of the time. The function waits for
    transactions that still write.
    """
    with connection.cursor() as cursor:
        tables = connection.introspection.table_names(cursor)
        empty = [table for table in tables if not _has_rows(cursor, table)]
    lock = f"LOCK TABLE {', '.join(empty)} IN SHARE ROW EXCLUSIVE MODE"
    deletes = (f"DELETE FROM {table}" for table in empty)
    # No trigger runs, not even those of foreign keys, so every row is deleted.
    steps = ["BEGIN", lock, "SET LOCAL session_replication_role = replica", *deletes, "COMMIT"]
    sql = "; ".join(steps)

    def empty_all() -> None:
        with connection.cursor() as cursor:
            cursor.execute(sql)

    return empty_all


def _has_rows(cursor: Any, table: str) -> bool:
    cursor.execute(f"SELECT EXISTS (SELECT FROM {table})")
    found: bool = cursor.fetchone()[0]
    return found


@contextmanager
def _server() -> Iterator[Server]:
    """A connection to the server's own database; one process of the run has it at a time."""
    with POSTGRES.with_name("tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with psycopg.connect(ADDRESS, autocommit=True) as server:
            yield server


def _make_template(server: Server) -> None:
    """Create and migrate a database; it gets the template's name once it is complete."""
    if "TEST_DATABASE_URL" not in os.environ:
        for name in CARELESS:
            server.execute(SQL("ALTER SYSTEM SET {} = off").format(Identifier(name)))
        server.execute("SELECT pg_reload_conf()")
    _drop(server, DRAFT)  # a process that failed may have left it
    _create(server, DRAFT, "template1")
    _use(DRAFT)
    call_command("migrate", verbosity=0, interactive=False, run_syncdb=True)
    connection.close()
    server.execute(
        SQL("ALTER DATABASE {} RENAME TO {}").format(Identifier(DRAFT), Identifier(TEMPLATE))
    )


def _use(name: str) -> None:
    """Connect Django to this database from now on."""
    connection.close()
    settings.DATABASES["default"]["NAME"] = connection.settings_dict["NAME"] = name


def _databases(server: Server, pattern: str) -> list[str]:
    query = "SELECT datname FROM pg_database WHERE datname LIKE %s"
    return [name for (name,) in server.execute(query, [pattern])]


def _create(server: Server, name: str, template: str) -> None:
    names = Identifier(name), Identifier(template)
    server.execute(SQL("CREATE DATABASE {} TEMPLATE {}").format(*names))


def _drop(server: Server, name: str) -> None:
    server.execute(SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(Identifier(name)))
