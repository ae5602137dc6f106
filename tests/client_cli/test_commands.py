"""Each command against a real console, and its error messages."""

from __future__ import annotations

import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connections
from django.utils import timezone

from inference.content import WEIGHTS
from lorikeet import __version__, retries
from tenants.models import Adapter, AdapterVersion, ApiKey, Route, State, Tenant, UploadSession
from tests.adapters.checks.test_checks import BAD_WEIGHTS
from tests.adapters.conftest import FakeGateway
from tests.adapters.working import run_worker
from tests.client_cli.conftest import Run, adapter
from tests.hub.conftest import Hub
from tests.tenants.making import (
    ROUTE_REPORT,
    make_adapter,
    make_eval,
    make_key,
    make_tenant,
    make_version,
)
from tests.tenants.spending import spend

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("worker", "base_model", "object_storage"),
]


@pytest.fixture
def signed_in(run: Run, hub: Hub, tenant: Tenant) -> Run:
    """Runs commands signed in with a key that has all scopes."""
    key = make_key(tenant, "admin", "adapters:write", "inference", "usage:read")[1]
    assert run("login", "--url", hub.url, "--key", key).code == 0
    return run


@contextmanager
def judging() -> Iterator[None]:
    """Runs a worker that judges the first version inside the context."""

    def judge() -> None:
        try:
            while not AdapterVersion.objects.filter(state=State.VALIDATING).exists():
                time.sleep(0.05)
            run_worker()
        finally:
            connections.close_all()

    thread = threading.Thread(target=judge)
    thread.start()
    yield
    thread.join()


# --- Signing in ----------------------------------------------------------------------------------


def test_a_key_is_kept_in_a_private_file(run: Run, hub: Hub, home: Path) -> None:
    told = run("login", "--url", f"{hub.url}/", "--key", hub.token, "--json").json
    assert told["tenant"] == "acme" and told["scopes"] == ["adapters:write"]
    file = Path(told["file"])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    who = run("whoami", "--json").json
    assert (who["tenant"], who["url"]) == ("acme", hub.url)
    file.chmod(0o644)
    refused = run("whoami")
    assert refused.code == 3 and f"chmod 600 {file}" in refused.err


def test_variables_win_over_the_file(
    signed_in: Run, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LORIKEET_KEY", make_key(make_tenant("other"), "admin")[1])
    assert signed_in("whoami", "--json").json["tenant"] == "other"
    monkeypatch.setenv("LORIKEET_URL", "http://127.0.0.1:9")
    assert signed_in("whoami").code == 6


def test_two_variables_are_enough(run: Run, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The console says where the API is."""
    monkeypatch.setenv("LORIKEET_URL", f"{hub.url}/")
    monkeypatch.setenv("LORIKEET_KEY", hub.token)
    who = run("whoami", "--json").json
    assert (who["url"], who["api_url"]) == (hub.url, settings.API_URL)


def test_an_address_needs_a_scheme(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    told = "'lorikeet.example' is not a URL: it must begin with https:// or http://."
    assert told in run("login", "--url", "lorikeet.example", "--key", "lk_x").err
    monkeypatch.setenv("LORIKEET_URL", "lorikeet.example")
    monkeypatch.setenv("LORIKEET_KEY", "lk_x")
    refused = run("models")
    assert (refused.code, told in refused.err) == (1, True)


def test_the_version(run: Run) -> None:
    assert run("--version").out == f"lorikeet {__version__}\n"


def test_a_wrong_key_is_not_kept(run: Run, hub: Hub, home: Path) -> None:
    refused = run("login", "--url", hub.url, "--key", "lk_wrong")
    assert refused.code == 3 and "Invalid credentials" in refused.err
    assert refused.err.endswith("header. Sign in with `lorikeet login`.\n")
    assert not home.exists()
    unknown = run("adapters", "list")
    assert unknown.code == 3 and "lorikeet login" in unknown.err


def test_a_server_that_is_not_there(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    refused = run("login", "--url", url, "--key", "lk_x")
    assert refused.code == 6 and f"Cannot connect to {url}" in refused.err


@pytest.mark.parametrize("arguments", [["adapters"], ["adapters", "push"], ["nothing"]])
def test_a_command_that_is_not_well_formed(run: Run, arguments: list[str]) -> None:
    assert run(*arguments).code == 2


# --- Pushing -------------------------------------------------------------------------------------


def test_a_push_waits_for_the_verdict(
    signed_in: Run, gateway: FakeGateway, tmp_path: Path, home: Path
) -> None:
    with judging():
        pushed = signed_in("adapters", "push", adapter(tmp_path / "pirate"))
    assert (pushed.code, pushed.out) == (0, "")
    assert "pirate@1 is ready." in pushed.err and "It serves the models pirate." in pushed.err
    again = signed_in("adapters", "push", tmp_path / "pirate", "--json").json
    assert (again["number"], again["state"], again["aliases"]) == (1, "ready", ["live"])
    assert not list((home / "uploads").iterdir())


def test_what_is_rejected_is_shown_with_its_findings(
    signed_in: Run, gateway: FakeGateway, tmp_path: Path
) -> None:
    folder = adapter(tmp_path / "pirate")
    (folder / WEIGHTS).write_bytes(BAD_WEIGHTS["rank other than r"][0])
    with judging():
        pushed = signed_in("adapters", "push", folder, "--json")
    assert pushed.code == 5 and pushed.json["state"] == "rejected"
    assert "pirate@1 was rejected." in pushed.err and "rank_mismatch: " in pushed.err


def test_what_is_refused_says_why(signed_in: Run, tmp_path: Path, home: Path) -> None:
    folder = adapter(tmp_path / "pirate", base_model_name_or_path="other/model")
    refused = signed_in("adapters", "push", folder)
    assert refused.code == 5 and "confirm_base_model" in refused.err
    (folder / WEIGHTS).write_bytes(b"PK\x03\x04 a torch file")
    assert "pickle" in signed_in("adapters", "push", folder, "--confirm-base-model").err
    assert "Lower-case letters" in signed_in("adapters", "push", folder, "--name", "No").err
    assert not AdapterVersion.objects.exists()
    assert not list((home / "uploads").iterdir())


class Cutting:
    """A proxy that closes a connection once `after` bytes passed to the server, `times` times."""

    def __init__(self, url: str, after: int, times: int) -> None:
        self._to = int(url.rsplit(":", 1)[1])
        self._after, self._times = after, times
        self.passed = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._to))
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        up = target.getpeername()[1] == self._to
        sent = 0
        with source, target, suppress(OSError):
            while data := source.recv(4096):
                target.sendall(data)
                sent += len(data)
                self.passed += len(data) if up else 0
                if up and self._times and sent > self._after:
                    self._times -= 1
                    time.sleep(0.1)  # let passed bytes arrive before a reset discards them
                    break
            for end in (source, target):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def cutting(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cutting]:
    proxy = Cutting(hub.url, after=20_000, times=1)
    monkeypatch.setenv("LORIKEET_URL", proxy.url)
    monkeypatch.setattr(retries, "PAUSE_S", 0.05)
    yield proxy
    proxy.close()


def large(folder: Path) -> Path:
    """An adapter whose upload takes several packets."""
    from tests.adapters.checks.builder import lora

    weights = lora()
    weights.metadata = {"padding": "x" * 200_000}
    adapter(folder)
    (folder / WEIGHTS).write_bytes(weights.bytes())
    return folder


def test_a_push_goes_on_where_its_connection_broke(
    signed_in: Run, cutting: Cutting, tmp_path: Path
) -> None:
    folder = large(tmp_path / "pirate")
    pushed = signed_in("adapters", "push", folder, "--no-wait", "--json")
    assert (pushed.code, pushed.json["number"]) == (0, 1)
    size = (folder / WEIGHTS).stat().st_size
    assert size < cutting.passed < 2 * size


def test_the_next_push_goes_on_where_one_ended(
    signed_in: Run, cutting: Cutting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = large(tmp_path / "pirate")
    with monkeypatch.context() as once:
        once.setattr(retries, "ATTEMPTS", 1)
        broken = signed_in("adapters", "push", folder, "--no-wait")
    assert broken.code == 6 and "Push again to resume it" in broken.err
    before = UploadSession.objects.get().pk
    assert signed_in("adapters", "push", folder, "--no-wait").code == 0
    ended = UploadSession.objects.get()
    assert ended.pk == before and ended.version is not None


def test_an_upload_that_is_gone_begins_anew(
    signed_in: Run, cutting: Cutting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = large(tmp_path / "pirate")
    with monkeypatch.context() as once:
        once.setattr(retries, "ATTEMPTS", 1)
        assert signed_in("adapters", "push", folder, "--no-wait").code == 6
    UploadSession.objects.update(expires_at=timezone.now())
    assert signed_in("adapters", "push", folder, "--no-wait").code == 0
    assert AdapterVersion.objects.count() == 1


# --- Adapters ------------------------------------------------------------------------------------


@pytest.fixture
def support(tenant: Tenant) -> Adapter:
    """An adapter with three ready versions, of which the first is live."""
    made = make_adapter(tenant)
    for number, config in enumerate(({"r": 4}, {"r": 8, "lora_alpha": 16}, {}), start=1):
        version = make_version(made)
        AdapterVersion.objects.filter(pk=version.pk).update(config=config)
        if number == 1:
            made.promote(version)
    return made


def test_adapters_and_their_versions_are_listed(signed_in: Run, support: Adapter) -> None:
    assert "live -> 1" in signed_in("adapters", "list").out
    (one,) = signed_in("adapters", "list", "--json").json
    assert one["name"] == "support"
    versions = signed_in("adapters", "list", "support", "--json").json
    assert [version["number"] for version in versions] == [3, 2, 1]
    assert "ready" in signed_in("adapters", "list", "support").out


def test_promoting_and_rolling_back(signed_in: Run, support: Adapter) -> None:
    promoted = signed_in("adapters", "promote", "support", 2)
    assert promoted.code == 0 and "points at version 2 (previously 1)." in promoted.err
    assert signed_in("adapters", "rollback", "support", "--json").json["version"] == 1
    canary = signed_in("adapters", "promote", "support", 2, "--alias", "canary", "--json").json
    assert (canary["name"], canary["version"]) == ("canary", 2)
    nowhere = signed_in("adapters", "rollback", "support")
    assert nowhere.code == 1 and nowhere.err.startswith("lorikeet: ")
    assert signed_in("adapters", "promote", "support", 9).code == 1
    assert signed_in("adapters", "promote", "nobody", 1).code == 4


def test_an_alias_requires_an_eval(signed_in: Run, support: Adapter, tenant: Tenant) -> None:
    eval = make_eval(tenant)
    given = ("adapters", "require-eval", "support")
    (gate,) = signed_in(*given, eval.pk, "--min-pass-rate", 0.8, "--json").json
    assert (gate["alias"], gate["eval"], gate["min_pass_rate"]) == ("live", eval.pk, 0.8)
    assert "80%" in signed_in(*given).out
    refused = signed_in("adapters", "promote", "support", 2)
    assert refused.code == 1 and "requires 80% in the eval" in refused.err
    assert "requires no eval" in signed_in(*given, "--remove").err
    assert signed_in("adapters", "promote", "support", 2).code == 0


def test_a_route_from_its_creation_to_its_end(
    signed_in: Run, support: Adapter, tenant: Tenant
) -> None:
    made = signed_in("routes", "create", "auto", "support", "base", "--margin", 5, "--json").json
    assert (made["options"], made["margin"], made["is_on"]) == (["support", "base"], 0.05, False)
    assert "auto is off. base answers all requests." in signed_in("routes", "show", "auto").err
    refused = signed_in("routes", "fit", "auto", make_eval(tenant).pk)
    assert refused.code == 1 and "All options are free" in refused.err
    assert "gains nothing" in signed_in("routes", "on", "auto").err
    Route.objects.update(report=ROUTE_REPORT)
    shown = signed_in("routes", "show", "auto")
    assert "large alone" in shown.out and "-0.4 points (-2.1 to +1.3)" in shown.err
    assert signed_in("routes", "off", "auto", "--json").json["reason"] == "It was turned off."
    assert signed_in("routes", "list", "--json").json[0]["name"] == "auto"
    assert "auto is deleted" in signed_in("routes", "delete", "auto").err
    assert "support, base" not in signed_in("routes", "list").out


def test_a_split_from_its_start_to_its_end(signed_in: Run, support: Adapter) -> None:
    given = ("--weights", "10,50", "--sticky", "header:x-team", "--guard", "errors=1",
             "--guard", "slow=2@1.5", "--guard", "liked=5")  # fmt: skip
    split = signed_in("splits", "start", "support", 2, *given, "--json").json
    assert (split["weights"], split["sticky"], split["header"]) == ([10, 50], "header", "x-team")
    assert [(one["kind"], one["margin"], one["name"]) for one in split["guards"]] == [
        ("errors", 0.01, None), ("slow", 0.02, None), ("score", 0.05, "liked"),
    ]  # fmt: skip
    assert (
        "version 2 gets 10%, version 1 the rest. running."
        in signed_in("splits", "show", "support").err
    )
    assert signed_in("splits", "weight", "support", 30, "--json").json["weight"] == 30
    refused = signed_in("splits", "evaluate", "support")
    assert refused.code == 1 and "requires no eval" in refused.err
    for command, state in (("pause", "paused"), ("resume", "running"), ("promote", "promoted")):
        assert signed_in("splits", command, "support", "--json").json["state"] == state
    assert "live -> 2" in signed_in("adapters", "list").out
    assert signed_in("splits", "stop", "support").code == 4
    key = support.tenant.keys.with_text().first()
    assert key is not None
    shadow = signed_in("splits", "start", "support", 1, "--shadow-key", key.pk)
    assert "version 2 gets all, version 1 copies of 5%" in shadow.err
    for wrong in (("--guard", "x"), ("--weights", "five"), ("--guard", "errors=.")):
        assert "such as" in signed_in("splits", "start", "support", 1, *wrong).err


def test_what_two_versions_differ_in(signed_in: Run, support: Adapter) -> None:
    assert signed_in("adapters", "diff", "support", 1, 2, "--json").json == [
        {"field": "lora_alpha", "old": None, "new": 16},
        {"field": "r", "old": 4, "new": 8},
    ]
    assert "lora_alpha" in signed_in("adapters", "diff", "support", 1, 2).out
    assert signed_in("adapters", "diff", "support", 1, 3).code == 4


def test_what_is_anothers_is_not_there(signed_in: Run, support: Adapter) -> None:
    make_version(make_adapter(make_tenant("other"), "theirs"))
    assert signed_in("adapters", "list", "theirs").code == 4
    assert "theirs" not in signed_in("adapters", "list").out


# --- Keys and usage ------------------------------------------------------------------------------


def test_keys_are_made_listed_and_revoked(signed_in: Run, hub: Hub) -> None:
    made = signed_in("keys", "create", "nightly", "--scope", "inference", "--model", "support")
    assert made.code == 0, made.err
    secret = made.out.strip()
    key = ApiKey.objects.find(secret)
    assert key is not None and (key.scopes, key.allowed_models) == (["inference"], ["support"])
    assert "nightly" in signed_in("keys", "list").out
    assert secret not in signed_in("keys", "list", "--json").out
    assert signed_in("keys", "revoke", key.pk).code == 0
    key.refresh_from_db()
    assert key.revoked_at is not None
    assert signed_in("keys", "revoke", 999_999_999).code == 4


def test_a_key_that_may_not_is_told_so(run: Run, hub: Hub) -> None:
    assert run("login", "--url", hub.url, "--key", hub.token).code == 0
    refused = run("keys", "list")
    assert refused.code == 3 and refused.err == "lorikeet: You may not see the API keys.\n"


def test_usage_and_costs(signed_in: Run, tenant: Tenant) -> None:
    key = make_key(tenant)[0]
    spend(key, timezone.now())
    (line,) = signed_in("usage", "--json").json
    assert line["requests"] == 1
    assert key.name in signed_in("usage", "--by", "key", "--bucket", "day").out
    assert "cost" in signed_in("usage", "--costs", "--json").json[0]
    wrong = signed_in("usage", "--by", "colour")
    assert wrong.code == 1 and "colour" in wrong.err
