"""`python -m tests.labs.screenshots [--out FOLDER] [--docs] [--engine synthetic|vllm]`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, expect, sync_playwright
from rich.console import Console
from rich.progress import track

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]
if "--docs" in sys.argv:
    os.environ["LORIKEET_DEMO"] = "SmolLM2-135M-Instruct"  # what a newcomer sees
from tests.browser import executable  # noqa: E402
from tests.browser.scenery import inside, make  # noqa: E402
from tests.browser.served import MODEL_NAME  # noqa: E402
from tests.stack.running import Stack, up  # noqa: E402

ENGINES = {"synthetic": "--engine synthetic --tokens-per-second 60", "vllm": ""}
CROWD = ("--tenants", "40", "--adapters", "4000", "--events", "20000", "--audit-entries", "500")
COMPANY = "brightwater"
"""One of the demo's tenants, whose adapter really answers in its own style."""
DOCS = ROOT / "docs" / "images"


def main() -> None:
    """Start Lorikeet, fill it, photograph it, and print where the pictures are."""
    options = _options()
    console = Console(highlight=False)
    path = executable.chromium() or sys.exit("screenshots need Chromium")
    with tempfile.TemporaryDirectory(prefix="lorikeet-screenshots-") as var:
        console.print("Lorikeet starts, and is used for a month ...")
        engine = options.engine or ("vllm" if options.docs else "synthetic")
        with up(
            Path(var), LORIKEET_ENGINE_OPTIONS=ENGINES[engine], LORIKEET_DEMO=MODEL_NAME
        ) as stack:
            with _chromium(path) as browser:
                _photograph(stack, browser, options, console)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.labs.screenshots", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "var" / "screenshots")
    parser.add_argument("--docs", action="store_true", help="renew docs/images instead")
    parser.add_argument("--engine", choices=sorted(ENGINES), help="synthetic, but vllm for --docs")
    parser.add_argument("--only", default="", help="those with one of these in their names: a,b")
    return parser.parse_args()


@contextmanager
def _chromium(executable: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable, args=["--no-sandbox", "--disable-gpu"]
        )
        expect.set_options(timeout=30_000)
        yield browser
        browser.close()


def _photograph(
    stack: Stack, browser: Browser, options: argparse.Namespace, console: Console
) -> None:
    scenery = make(stack, COMPANY)
    if not options.docs:
        crowd = stack.manage("make_crowd", "--into-existing", *CROWD)
        assert crowd.returncode == 0, crowd.stderr
        inside(stack, "quarantine", COMPANY)
        inside(stack, "split", COMPANY)
    os.environ |= {"LORIKEET_VAR": str(stack.var), "LORIKEET_DATABASE_URL": stack.database_url}
    os.environ["DJANGO_SETTINGS_MODULE"] = "gateway.settings"
    from tests.labs.screenshots.camera import Camera, sheet  # needs Django's settings
    from tests.labs.screenshots.shots import in_docs, shots

    wanted = in_docs(scenery) if options.docs else shots(scenery)
    wanted = [shot for shot in wanted if any(one in shot.name for one in options.only.split(","))]
    out = DOCS if options.docs else options.out
    out.mkdir(parents=True, exist_ok=True)
    camera = Camera(browser, stack, scenery, out)
    for shot in track(wanted, "photographing", console=console):
        camera.take_for_docs(shot) if options.docs else camera.take(shot)
    if not options.docs:
        sheet(out, [shot.name for shot in wanted])
    console.print(f"{len(wanted)} of them: {out}", soft_wrap=True)
    if camera.failed:
        sys.exit("not as they should be:\n" + "\n".join(camera.failed))


if __name__ == "__main__":
    main()
