"""The options of `manage.py`'s own commands."""

from __future__ import annotations

import re

import pytest
from django.core.management import get_commands, load_command_class

from gateway.planes import process
from inference.agent import __main__ as agent


@pytest.mark.parametrize("command", ["gateway", "console", "worker", "engine", "up", "make_demo"])
def test_help_explains_every_option(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    if command == "engine":
        agent.parser().print_help()
    elif command == "gateway":
        with pytest.raises(SystemExit):
            process.main(["--help"])
    else:
        found = load_command_class(get_commands()[command], command)
        found.create_parser("manage.py", command).print_help()
    said = capsys.readouterr().out
    assert re.findall(r"^  (--[a-z-]+ [A-Z_]+)$\n(?=  -|\n|\Z)", said, re.M) == []
    assert f"usage: manage.py {command}" in said
