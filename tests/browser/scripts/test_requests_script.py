"""requests.js alone in Chromium: the drawer of a list whose requests arrive when the test sends
them; no Lorikeet runs."""

from __future__ import annotations

from playwright.sync_api import Browser, Route, expect

from tests.browser.scripts.static import serve

HOME = "http://requests.test/"
HTML = """<!doctype html><dialog id=request></dialog>
<table class=requests><tbody><tr><th><a href=/requests/1>one</a></th></tr></tbody></table>
<script src=/vendor/htmx.js></script><script type=module src=/js/requests.js></script>"""


def test_a_double_click_opens_a_request_once_however_slow_it_is(chromium: Browser) -> None:
    page = chromium.new_page()
    asked: list[Route] = []
    page.route(f"{HOME}**", lambda route: serve(route, HOME, HTML))
    page.route(f"{HOME}requests/*", lambda route: asked.append(route))
    page.goto(HOME)
    with page.expect_request(f"{HOME}requests/*"):
        page.get_by_role("link").dblclick()
    expect(page.get_by_role("dialog")).not_to_be_visible()
    asked[0].fulfill(body="<h2>Request</h2>", content_type="text/html")
    expect(page.get_by_role("dialog")).to_be_visible()
    expect(page).to_have_url(f"{HOME}requests/1")
    assert len(asked) == 1
    page.close()
