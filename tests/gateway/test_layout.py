"""Invariants of the source tree."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(code: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)


def test_platform_is_no_package() -> None:
    """A package would shadow the standard library's module and break uuid, torch and Django."""
    assert not (ROOT / "platform" / "__init__.py").exists()
    assert run("import platform; print(platform.python_version())").stdout.strip()


@pytest.mark.parametrize(
    "module", ["inference.agent.agent", "inference.agent.__main__", "inference.gateway.hub"]
)
def test_the_agent_and_the_hub_start_without_django(module: str) -> None:
    done = run(
        f"import sys, {module}; "
        "print([name for name in ('django', 'channels', 'vllm', 'torch') if name in sys.modules])"
    )
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def test_every_setting_is_documented() -> None:
    """Each variable that the sources read is in `.env.example`."""
    import re

    documented = set(
        re.findall(r"^#?([A-Z][A-Z0-9_]+)=", (ROOT / ".env.example").read_text(), re.M)
    )
    read: set[str] = set()
    reader = r'(?:environ\.\w+|environ\.get|_default)\(\s*"([A-Z][A-Z0-9_]+)"'
    for folder in ("platform", "tenants", "inference", "frontend", "tools"):
        for file in (ROOT / folder).rglob("*.py"):
            read |= set(re.findall(reader, file.read_text()))
    read -= {"CUDA_VISIBLE_DEVICES", "DJANGO_SETTINGS_MODULE", "UV", "XDG_DATA_HOME"}  # of others
    assert read - documented == set()
    ours = {name for name in read if name.startswith("LORIKEET_")}
    assert read - ours <= {"NOTIFY_SOCKET", "WATCHDOG_USEC"} | {
        name for name in read if name.startswith("OTEL_")
    }
    assert len(ours) > 20


def test_the_locks_never_pull_cuda_builds_onto_a_cpu() -> None:
    for name in ("cpu", "dev"):
        lock = (ROOT / "requirements" / f"{name}.txt").read_text()
        for unwanted in ("torchvision", "torchaudio", "torchcodec", "triton", "nvidia-"):
            assert f"\n{unwanted}" not in f"\n{lock}"
        for line in lock.splitlines():
            assert re.match(r"\S+==\S+ \\$|    --hash=sha256:[0-9a-f]{64}( \\)?$", line), line
    assert "\nvllm==0.32.0 \\\n" in (ROOT / "requirements" / "gpu.txt").read_text()
