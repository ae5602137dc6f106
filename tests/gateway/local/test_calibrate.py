"""`manage.py calibrate` against a small server."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.local.calibrate import main
from inference.sizing import EngineSpeed
from tests.gateway.local.test_load import tenants, url

__all__ = ["tenants", "url"]


def test_the_speed_is_written(url: str, tenants: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tenants.write_text('[acme]\nkey = "secret-key"\nmodels = ["m"]')
    out = tenants.parent / "new" / "speed.json"
    options = ["--sequences=4", "--prompt=128", "--rounds=3", f"--out={out}"]
    main(["--base-url", url, "--tenants", str(tenants), *options])
    assert EngineSpeed.read(out.read_text()).step(1, 0) > 0
    said = capsys.readouterr().out
    assert "4 sequences of 128 tokens: " in said and str(out) in said


def test_what_refuses_is_named(url: str, tenants: Path) -> None:
    with pytest.raises(SystemExit, match="lorikeet calibrate: HTTP 429, for m of other"):
        main(["--base-url", url, "--tenants", str(tenants), "--sequences=4", "--prompt=128"])
