"""A few attacks of `make attack`, for a moment each."""

from __future__ import annotations

import argparse
import asyncio

import pytest
from rich.console import Console

from tests.labs.attack import __main__ as lab
from tests.labs.attack.attacks import STRANGERS, TENANTS
from tests.stack.running import Stack

pytestmark = pytest.mark.stack


def test_another_tenant_is_served_beside_attacks(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab, "give_way", lambda nice: None)  # the other tests keep their priority
    names = ("an endless header", "guessed keys", "nested bodies", "a flood")
    chosen = {name: attack for name, attack in (STRANGERS | TENANTS).items() if name in names}
    options = argparse.Namespace(seconds=0.5, quiet=0.3, settle=0.2)
    quiet, rounds = asyncio.run(lab.attacked(stack, chosen, options, Console(quiet=True)))
    assert len(rounds) == len(names)
    assert {one.name: one.faults for one in rounds if one.faults} == {}
    assert not quiet.faults
