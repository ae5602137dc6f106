"""What is photographed: every page, and states in which a page seldom is."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import django
from playwright.sync_api import Page, expect

django.setup()
from allauth.mfa.totp.internal import auth as totp  # noqa: E402

from inference.content import FILES  # noqa: E402
from tests.browser.people import follow  # noqa: E402
from tests.browser.scenery import Scenery  # noqa: E402
from tests.browser.served import ADAPTERS, MODEL_NAME  # noqa: E402
from tests.frontend.addresses import Subject, pages_of  # noqa: E402
from tests.labs.screenshots.camera import Shot  # noqa: E402
from tests.stack.asking import until  # noqa: E402

LEAST_INTERESTING = ("viewer", "developer", "admin")
QUESTION = "What is your refund policy?"
LONG = " ".join(f"word{number}" for number in range(400))
CREDENTIALS = "/operate/engines/credentials"
SECOND_FACTOR = "/account/2fa/"


def shots(scenery: Scenery) -> list[Shot]:
    """All shots, each name once."""
    return [*_pages(scenery), *_empty(scenery), *_crowded(), *_states(scenery), *_entrance(scenery)]


def in_docs(scenery: Scenery) -> list[Shot]:
    """The shots of the user documentation, by the names that it links."""
    at = f"/t/{scenery.slug}"
    return [
        Shot("overview", "owner", f"{at}/"),
        Shot("playground", "owner", f"{at}/playground", compare),
        Shot("version", "owner", f"{at}/adapters/support/versions/1"),
        Shot("keys", "owner", f"{at}/keys"),
        Shot("limits", "owner", f"{at}/limits"),
        Shot("usage", "owner", f"{at}/usage?period=30d&show=cost"),
        Shot("request", "owner", f"{at}/requests", drawer),
        Shot("operate", "operator", "/operate/", checked),
    ]


def _pages(scenery: Scenery) -> Iterator[Shot]:
    """Each page once, as the role that sees most of it."""
    found: dict[str, Shot] = {}
    for page in pages_of(Subject(**scenery.subject)):
        if page.role not in LEAST_INTERESTING or page.name.startswith(
            ("account", "mfa", "usersessions")
        ):
            found.setdefault(page.name, Shot(page.name, page.role, page.url))
    yield from found.values()


def _empty(scenery: Scenery) -> Iterator[Shot]:
    """The pages of an empty tenant with a long name."""
    for page in pages_of(Subject(scenery.empty)):
        if page.role == "owner":
            yield Shot(f"empty-{page.name}", page.role, page.url)


def _crowded() -> Iterator[Shot]:
    """A tenant with hundreds of adapters, and one whose names all have 60 characters."""
    for tenant in ("crowd-0000", "crowd-0001"):
        for page in ("", "adapters", "keys", "members", "limits", "usage", "audit", "requests"):
            yield Shot(f"{tenant}-{page or 'overview'}", "operator", f"/t/{tenant}/{page}")


def _states(scenery: Scenery) -> Iterator[Shot]:
    at = f"/t/{scenery.slug}"
    yield Shot("split", "owner", f"{at}/adapters/support/")
    yield Shot("gates", "owner", f"{at}/adapters/support/gates")
    yield Shot("rejected", "owner", f"{at}/adapters/size-advisor/versions/2")
    yield Shot("difference", "owner", f"{at}/adapters/support/versions/2/diff?with=1")
    yield Shot("no-match", "owner", f"{at}/keys?q=nothing-is-called-so")
    yield Shot("usage-hours", "owner", f"{at}/usage?period=24h&by=key&show=cost")
    yield Shot("forbidden", "viewer", f"{at}/audit")
    yield Shot("not-found", "viewer", f"{at}/adapters/nothing/")
    yield Shot("viewers-keys", "viewer", f"{at}/keys")
    yield Shot("menu", "owner", f"{at}/", menu)
    yield Shot("palette", "owner", f"{at}/", palette)
    yield Shot("shortcuts", "owner", f"{at}/", shortcuts)
    yield Shot("request", "owner", f"{at}/requests", drawer)
    yield Shot("sending", "owner", f"{at}/adapters", sending)
    yield Shot("new-key", "owner", f"{at}/keys", partial(opened, "new-key"))
    yield Shot("key-refused", "owner", f"{at}/keys", refused)
    yield Shot("invite", "owner", f"{at}/members", partial(opened, "invite"))
    yield Shot("upload", "owner", f"{at}/adapters", partial(opened, "upload"))
    yield Shot("role", "owner", f"{at}/members", partial(opened, "role"))
    yield Shot("price", "operator", "/operate/prices", priced)
    yield Shot("promote", "owner", f"{at}/adapters/support/", partial(opened, "promote"))
    yield Shot("edit-limits", "owner", f"{at}/limits", partial(opened, "edit-tenant"))
    yield Shot("new-tenant", "operator", "/operate/tenants", partial(opened, "new-tenant"))
    yield Shot("new-credential", "operator", CREDENTIALS, partial(opened, "new-credential"))
    yield Shot("credential", "operator", CREDENTIALS, new_credential)
    yield Shot("quarantine-all", "operator", "/operate/quarantine?state=all")
    yield Shot("quarantine-bill", "operator", "/operate/quarantine", partial(opened_first, "bill"))
    yield Shot("user-password", "operator", "/operate/users?q=linus", new_password)
    yield Shot("user-operator", "operator", "/operate/users", partial(opened, "operator"))
    yield Shot("two-factor", "viewer", SECOND_FACTOR)
    yield Shot("two-factor-setup", "viewer", f"{SECOND_FACTOR}totp/activate/")
    yield Shot("two-factor-wrong", "viewer", f"{SECOND_FACTOR}totp/activate/", wrong_code)
    yield Shot("two-factor-codes", "viewer", f"{SECOND_FACTOR}totp/activate/", right_code)
    yield Shot("two-factor-set-up", "viewer", SECOND_FACTOR)
    yield Shot("protect-account", "operator", "/account/second-factor")
    yield Shot("compare", "owner", f"{at}/playground", compare)
    yield Shot("picker", "owner", f"{at}/playground", picker)
    yield Shot("generating", "owner", f"{at}/playground", generating)
    yield Shot("no-model", "owner", f"{at}/playground", no_model)
    yield Shot("settings", "owner", f"{at}/playground", settings)
    yield Shot("code", "owner", f"{at}/playground", code)
    yield Shot("overview-tokens", "owner", f"{at}/?period=7d&show=tokens")
    yield Shot("files-some", "owner", f"{at}/files", filed)
    yield Shot("stored", "owner", f"{at}/content", stored)


def _entrance(scenery: Scenery) -> Iterator[Shot]:
    yield Shot("wrong-password", "nobody", "/account/login/", wrong_password)
    yield Shot("wait", "nobody", "/account/login/", too_many_passwords)
    yield Shot("reset", "nobody", "/account/password/reset/", mail_sent)
    yield Shot("reset-link-over", "nobody", "/account/password/reset/key/1-set-password/")
    yield Shot("invited", "nobody", f"/invitations/{scenery.invitation}")
    yield Shot("join", "developer", f"/invitations/{scenery.invitation}")
    yield Shot("sign-up", "nobody", "/account/signup/?next=/join")
    yield Shot("sign-up-refused", "nobody", "/account/signup/?next=/join", short_password)
    yield Shot("sign-up-closed", "stranger", "/account/signup/")
    yield Shot("invitation-over", "nobody", "/invitations/nonsense")
    yield Shot("invitation-wait", "nobody", "/invitations/nonsense", too_many_links)


def shortcuts(page: Page) -> None:
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()


def opened(dialog: str, page: Page) -> None:
    page.locator(f"[data-opens={dialog}]").first.click()


def opened_first(dialog: str, page: Page) -> None:
    """Open the dialog of a table's first row."""
    page.locator(f"[data-opens^={dialog}-]").first.click()


def new_credential(page: Page) -> None:
    opened("new-credential", page)
    page.locator("#new-credential [name=name]").fill("rack-8")
    follow(page, page.get_by_role("button", name="Create", exact=True))
    expect(page.locator("#secret")).to_be_visible()


def new_password(page: Page) -> None:
    opened("password", page)
    follow(page, page.get_by_role("button", name="Create link"))
    expect(page.locator("#password-link")).to_be_visible()


def wrong_code(page: Page) -> None:
    entered(page, "000000x")
    expect(page.locator(".errors").first).to_be_visible()


def right_code(page: Page) -> None:
    """Set up the second factor, which shows its recovery codes."""
    secret = page.locator("#authenticator_secret").input_value()
    counter = next(totp.yield_hotp_counters_from_time())
    entered(page, totp.format_hotp_value(totp.hotp_value(secret, counter)))
    expect(page.get_by_role("heading", name="Recovery codes")).to_be_visible()


def entered(page: Page, code: str) -> None:
    page.fill("[name=code]", code)
    follow(page, page.get_by_role("button", name="Set up"))


def drawer(page: Page) -> None:
    """Open a request, with its timeline."""
    page.locator(".requests tbody th a").first.click()
    expect(page.locator("#request")).to_be_visible()


def filed(page: Page) -> None:
    """Upload a file for batches."""
    opened("upload", page)
    page.set_input_files(
        "#id_upload", {"name": "lines.jsonl", "mimeType": "application/jsonl", "buffer": b"{}"}
    )
    follow(page, page.get_by_role("button", name="Upload", exact=True))
    expect(page.get_by_role("link", name="lines.jsonl").first).to_be_visible()


def stored(page: Page) -> None:
    """Store prompts and answers, and read one."""
    if page.get_by_text("Not stored", exact=True).count():
        opened("choose", page)
        page.get_by_label("Prompts and answers", exact=True).select_option("Store for 7 days")
        follow(page, page.get_by_role("button", name="Save"))
    shows = page.get_by_role("button", name="Show prompt and answer")

    def read() -> bool:
        """Whether the answer to a new question is stored: the gateway may not know of it yet."""
        follow(page, page.get_by_role("link", name="Playground", exact=True))
        say(page, QUESTION)
        page.locator(".foot a").last.click()
        page.get_by_role("heading", name="Content").wait_for()
        return shows.count() > 0

    until(read)
    follow(page, shows)
    expect(page.get_by_role("article").first).to_be_visible()


def priced(page: Page) -> None:
    """Plan a price, which is then to be confirmed."""
    for name, value in {
        "of": MODEL_NAME,
        "prompt": "0.2",
        "cached_prompt": "0.02",
        "output": "0.8",
    }.items():
        page.fill(f"[name={name}]", value)
    page.fill("[name=starts_at]", "2199-01-01T00:00")
    follow(page, page.get_by_role("button", name="Review price"))
    expect(page.get_by_role("dialog")).to_be_visible()


def checked(page: Page) -> None:
    """Run the isolation check from the operator's overview, and wait for its result."""
    follow(page, page.get_by_role("button", name="Check now"))
    unknown = page.get_by_text("Not checked yet")
    until(lambda: page.reload() and not unknown.is_visible())


def menu(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 820})
    page.get_by_role("button", name="Menu").click()


def palette(page: Page) -> None:
    page.keyboard.press("Control+k")
    page.keyboard.type("s")
    page.locator("#palette-found [role=option]").first.wait_for()


def sending(page: Page) -> None:
    """Start an upload to which the server does not respond."""
    page.route("**/api/v1/**", lambda route: None)
    opened("upload", page)
    page.fill("#upload-name", "gift-finder")
    page.set_input_files("#upload-files", [ADAPTERS["pirate"] / name for name in FILES])
    page.locator("#upload").get_by_role("button", name="Upload", exact=True).click()
    expect(page.locator("#upload .sending")).to_be_visible()


def refused(page: Page) -> None:
    """Submit a form with an error."""
    opened("new-key", page)
    page.locator("#new-key [name=scopes]").first.uncheck()
    page.locator("#new-key form").evaluate("form => { form.noValidate = true; }")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.locator("#new-key .errors").first).to_be_visible()


def wrong_password(page: Page) -> None:
    page.fill("[name=login]", "ada")
    page.fill("[name=password]", "not that")
    page.press("[name=password]", "Enter")
    expect(page.get_by_role("alert").first).to_be_visible()


def too_many_passwords(page: Page) -> None:
    for _ in range(6):
        page.fill("[name=login]", "grace")
        page.fill("[name=password]", "not that")
        follow(page, page.get_by_role("button", name="Sign in"))
    expect(page.get_by_text("Too many attempts")).to_be_visible()


def too_many_links(page: Page) -> None:
    for number in range(25):
        page.request.get(f"/invitations/nonsense-{number}")
    page.reload()
    expect(page.get_by_text("Too many attempts")).to_be_visible()


def mail_sent(page: Page) -> None:
    page.fill("[name=email]", "nobody@example.com")
    follow(page, page.get_by_role("button").first)


def short_password(page: Page) -> None:
    page.fill("[name=username]", "x")
    page.fill("[name=password1]", "short")
    page.fill("[name=password2]", "other")
    page.locator("form").evaluate("form => { form.noValidate = true; }")
    follow(page, page.get_by_role("button", name="Sign up"))
    expect(page.locator(".errors").first).to_be_visible()


def compare(page: Page) -> None:
    """Get answers in two panes, from an adapter and its base model."""
    page.click("#add-pane")
    for place, name in enumerate(("support", MODEL_NAME)):
        page.locator("[data-field=model]").nth(place).fill(name)
    say(page, QUESTION)
    expect(page.locator(".foot")).to_have_count(2)


def picker(page: Page) -> None:
    page.click("[data-field=model]")
    expect(page.get_by_role("listbox", name="Models")).to_be_visible()


def generating(page: Page) -> None:
    say(page, LONG)
    expect(page.locator(".output").last).to_contain_text("word9 ")


def no_model(page: Page) -> None:
    page.locator("[data-field=model]").fill("nobody")
    say(page, QUESTION)
    expect(page.get_by_role("alert").first).to_be_visible()


def settings(page: Page) -> None:
    page.click("[data-act=settings]")


def code(page: Page) -> None:
    say(page, QUESTION)
    expect(page.locator(".foot")).to_have_count(1)
    page.click("[data-act=code]")


def say(page: Page, text: str) -> None:
    expect(page.locator("#link-state")).to_have_text("Live")
    page.fill("#message", text)
    page.press("#message", "Control+Enter")
