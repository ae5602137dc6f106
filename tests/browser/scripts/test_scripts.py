"""Scripts that need no page of the console: branches of a conversation, tokens, figures, lists.

They are served to Chromium from the repository; no Lorikeet runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from frontend import formats
from inference.interfaces.directory import PICO
from tests.browser.scripts.static import serve

HOME = "http://scripts.test/"
HTML = "<!doctype html><div id=token-tip hidden></div>"
"""A page with only what a tooltip needs."""
USAGE = {
    "prompt_tokens": 310,
    "completion_tokens": 88,
    "prompt_tokens_details": {"cached_tokens": 256},
}
DONE = {
    "ttft_ms": 181.6,
    "tokens_per_s": 93.9,
    "usage": USAGE,
    "cost": 400_000_000,
    "request_id": "req_1",
    "queue_ms": 812.0,
    "load_ms": 12.0,
}


@pytest.fixture(scope="module")
def blank(chromium: Browser) -> Iterator[Page]:
    """A blank page that can import the scripts."""
    page = chromium.new_page()
    page.route(f"{HOME}**", lambda route: serve(route, HOME, HTML))
    page.goto(HOME)
    yield page
    page.close()


def run(page: Page, module: str, script: str, given: Any = None) -> Any:
    """The result of a script, which gets `given`, and the module's exports as `it`."""
    source = f"async ([path, given]) => {{ const it = await import(path); {script} }}"
    return page.evaluate(source, [f"{HOME}js/playground/{module}.js", given])


# --- Branches ------------------------------------------------------------------------------------

SAY = """
    const tree = new it.Tree();
    const say = (role, text) => tree.add(tree.leaf, role, text);
    const shown = () => tree.path.map((node) => node.content).join(" ");
    const [hi, hello, how, fine] = [say("user", "hi"), say("assistant", "hello"),
        say("user", "how"), say("assistant", "fine")];
"""


def test_an_edited_message_is_a_version_with_its_own_answers(blank: Page) -> None:
    found = run(
        blank,
        "tree",
        SAY
        + """
        const before = shown();
        tree.add(tree.edit(hi, "hey"), "assistant", "yes?");
        const [after, place] = [shown(), tree.versions(tree.path[0])];
        tree.choose(hi);
        return [before, after, place, shown(), tree.versions(how).of.length];
        """,
    )
    assert found == ["hi hello how fine", "hey yes?", {"at": 1, "of": [1, 5]}, found[0], 1]


def test_another_answer_is_a_version_and_what_followed_comes_back_with_its_own(blank: Page) -> None:
    found = run(
        blank,
        "tree",
        SAY
        + """
        tree.add(tree.get(hello.parent), "assistant", "good day");
        const retried = shown();
        tree.choose(hello);
        return [retried, shown(), tree.turns(fine).map((turn) => turn.role)];
        """,
    )
    assert found == ["hi good day", "hi hello how fine", ["user", "assistant"] * 2]


def test_a_tree_is_stored_and_read_with_all_versions_and_the_chosen_ones(blank: Page) -> None:
    found = run(
        blank,
        "tree",
        SAY
        + """
        tree.edit(how, "why");
        Object.assign(fine, { foot: "2 out", secret: "no" });
        tree.choose(how);
        tree.add(tree.leaf, "user", "and");
        tree.add(tree.leaf, "assistant", "", { running: "id" });
        const json = tree.stored();
        const again = it.Tree.of(json);
        const next = again.add(again.leaf, "assistant", "so");
        return [json, again.path.map((node) => node.content), next.id];
        """,
    )
    stored, path, next_id = found
    assert stored["leaf"] == 6 and path == ["hi", "hello", "how", "fine", "and", "so"]
    assert stored["nodes"][3] == {
        "id": 4, "parent": 3, "role": "assistant", "content": "fine", "foot": "2 out",
    }  # fmt: skip
    assert [node["id"] for node in stored["nodes"]] == [1, 2, 3, 4, 5, 6] and next_id == 7


def test_an_answer_without_text_is_no_turn_and_nothing_is_an_empty_tree(blank: Page) -> None:
    found = run(
        blank,
        "tree",
        """
        const tree = new it.Tree();
        const empty = [tree.path, tree.leaf, tree.stored()];
        const asked = tree.add(null, "user", "hi");
        tree.add(asked, "assistant", "");
        return [empty, tree.turns(tree.leaf), tree.stored().leaf];
        """,
    )
    assert found == [
        [[], None, {"nodes": [], "leaf": None}],
        [{"role": "user", "content": "hi"}],
        1,
    ]


# --- Tokens --------------------------------------------------------------------------------------


def token(text: str, logprob: float = -0.1, data: bytes | None = None) -> dict[str, Any]:
    bytes_ = list(text.encode() if data is None else data)
    return {"token": text, "logprob": logprob, "bytes": bytes_, "top_logprobs": []}


WRITE = """
    const root = document.body.appendChild(document.createElement("div"));
    const writer = new it.Tokens(root);
    for (const [text, tokens] of given) writer.add(text, tokens);
    writer.end();
    const spans = [...root.querySelectorAll(".token")];
    const signs = spans.filter((one) => one.classList.contains("sign"));
    const pieces = spans.map((one) => [one.textContent, one.tokens.length]);
    const shown = [...root.childNodes].filter((one) => !signs.includes(one));
    const texts = (all) => all.map((one) => one.textContent);
    const found = [texts(shown).join(""), pieces, texts(signs), root.innerHTML];
    root.remove();
    return found;
"""


def written(page: Page, *deltas: tuple[str, list[dict[str, Any]]]) -> list[Any]:
    """The shown text, each span's text with its number of tokens, the signs, and the HTML."""
    found: list[Any] = run(page, "tokens", WRITE, [list(delta) for delta in deltas])
    return found


def test_tokens_are_spans_and_the_end_of_an_answer_is_a_sign(blank: Page) -> None:
    text, tokens, signs, _ = written(
        blank, ("Hi", [token("Hi")]), (" you", [token(" you")]), ("", [token("<|eos|>")])
    )
    assert (text, signs) == ("Hi you", ["<|eos|>"])
    assert tokens == [["Hi", 1], [" you", 1], ["<|eos|>", 1]]


@pytest.mark.parametrize(
    "parts",
    [
        [token("�", data="🦜".encode()[:2]), token("�", data="🦜".encode()[2:])],
        [token("", data=b""), token("", data=b""), token("🦜")],
    ],
    ids=["bytes of each", "all with the last"],
)
def test_a_character_of_several_tokens_is_one_span(
    blank: Page, parts: list[dict[str, Any]]
) -> None:
    deltas = [("", [part]) for part in parts[:-1]]
    text, tokens, signs, _ = written(blank, *deltas, ("🦜", parts[-1:]), ("!", [token("!")]))
    assert (text, signs) == ("🦜!", [])
    assert tokens == [["🦜", len(parts)], ["!", 1]]


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        ("Hello there", [" Hello", " there"]),
        ("Hello there", ["Hello", "there"]),
        ("Hello there", ["Hel", "something else", "lo", " there"]),
        ("Hello there", ["Hello"]),
        ("Hello there", []),
        ("Hello", ["Hello", " there", "!"]),
        ("\ufffd!", ["\ufffd", "!"]),
        ("cut \ufffdéä!", ["cut", " ", "éä", "!"]),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_the_text_is_the_engines_whatever_tokens_say(
    blank: Page, answer: str, tokens: list[str], late: bool
) -> None:
    made = [token(text) for text in tokens]
    deltas = [("", made), *((char, []) for char in answer)] if late else [(answer, made)]
    assert written(blank, *deltas)[0] == answer


def test_bytes_that_are_no_character_do_not_part_text_and_tokens(blank: Page) -> None:
    broken = [token("", data=b""), token("éä"), token("!")]
    text, tokens, signs, _ = written(blank, ("\ufffdéä!", broken))
    assert (text, tokens, signs) == ("\ufffdéä!", [["éä", 2], ["!", 1]], [])


def test_hostile_tokens_are_text(blank: Page) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    text, _, signs, html = written(blank, (hostile, [token(hostile), token("<b>")]))
    assert (text, signs) == (hostile, ["<b>"])
    assert "<img" not in html and "<b>" not in html


def test_what_might_have_been_is_told_to_mouse_and_keyboard(blank: Page) -> None:
    top = [token("Yes", math.log(0.15)), token("\n<i>", math.log(0.6))]
    doubtful, unsure, sure = token("Yes", math.log(0.15)), token(" but", math.log(0.4)), token("!")
    given = [["Yes but!", [doubtful | {"top_logprobs": top}, unsure, sure]]]
    classes, roles, tips, hidden = run(
        blank,
        "tokens",
        """
        const root = document.body.appendChild(document.createElement("div"));
        const writer = new it.Tokens(root);
        for (const [text, tokens] of given) writer.add(text, tokens);
        writer.end();
        const tip = document.getElementById("token-tip");
        const press = (key) => document.activeElement.dispatchEvent(
            new KeyboardEvent("keydown", { key, bubbles: true }));
        const state = () => [document.activeElement.textContent, tip.hidden, tip.innerText];
        const spans = [...root.querySelectorAll(".token")];
        const stops = () => spans.map((one) => one.tabIndex);
        spans[0].focus();
        const tips = [state()];
        for (const key of ["ArrowRight", "End", "ArrowRight", "Home", "ArrowLeft"]) {
            press(key);
            tips.push([document.activeElement.textContent, stops().indexOf(0)]);
        }
        press("Escape");
        return [spans.map((one) => one.className), spans.map((one) => one.getAttribute("role")),
            tips, tip.hidden];
        """,
        given,
    )
    assert classes == ["token doubtful", "token unsure", "token"]
    assert roles == ["button"] * 3 and hidden
    (first, shown), rest = tips[0][::2], tips[1:]
    assert first == "Yes" and tips[0][1] is False
    assert "Yes 15.0%" in shown and "⏎<i>" in shown and "60.0%" in shown
    assert rest == [[" but", 1], ["!", 2], ["!", 2], ["Yes", 0], ["Yes", 0]]


# --- Figures -------------------------------------------------------------------------------------


def test_the_foot_has_the_figures_and_the_cost(blank: Page) -> None:
    lines = [
        DONE,
        DONE | {"cost": 7_512_345, "ttft_ms": None, "tokens_per_s": None},
        DONE | {"cost": 0},
    ]
    found = run(blank, "figures", "return given.map((one) => it.footline(one));", lines)
    assert found == [
        "TTFT 182 ms · 94 tok/s · 310 in (256 cached) · 88 out · $0.0004 · req_1",
        "310 in (256 cached) · 88 out · $0.0000075 · req_1",
        "TTFT 182 ms · 94 tok/s · 310 in (256 cached) · 88 out · $0.00 · req_1",
    ]
    assert run(blank, "figures", "return it.waits(given)", DONE) == "queued 812 ms"


def test_pages_scripts_write_amounts_and_durations_as_the_server_does(blank: Page) -> None:
    amounts = [0, 1e-12, 0.003104, 0.0004, 0.009999, 0.01, 1284.1]
    shown = run(blank, "../format", "return given.map(it.money);", amounts)
    assert shown == [formats.money(round(one * PICO)) for one in amounts]
    lengths = [0.00182, 0.182, 0.9996, 1.4, 12.34, 125.2]
    shown = run(blank, "../format", "return given.map((s) => it.duration(s * 1000));", lengths)
    assert shown == [formats.duration(one) for one in lengths]


def test_the_axis_of_small_costs_tells_its_lines_apart(blank: Page) -> None:
    script = "return given.map((one) => it.tick(one, { isMoney: true }));"
    assert run(blank, "../format", script, [0, 0.0002, 0.0004, 12.5, 1234]) == [
        "$0", "$0.0002", "$0.0004", "$12.50", "$1.23K",
    ]  # fmt: skip


# --- Lists ---------------------------------------------------------------------------------------

TWO_LISTS = """
    const list = (id) => `<input type=checkbox form=${id} data-all>
      <input type=checkbox form=${id} name=row><input type=checkbox form=${id} name=row>
      <form id=${id} class=bulk><span data-count></span></form>`;
    document.body.innerHTML += `<main>${list("one")}${list("two")}</main>`;
    const box = (which, n) => document.querySelectorAll(`[form=${which}]`)[n];
    const counts = () => [...document.querySelectorAll("form.bulk")].map((form) => {
      const all = form.elements[0];
      const state = all.indeterminate ? "some" : all.checked ? "all" : "none";
      return [form.textContent, state, "any" in form.dataset];
    });
    const seen = given.map(([which, n]) => (box(which, n).click(), counts()));
    document.querySelector("main").remove();
    return seen;
"""


def test_each_list_of_a_page_counts_its_own_rows(blank: Page) -> None:
    none, some, both = ["0", "none", False], ["1", "some", True], ["2", "all", True]
    clicked = [("one", 1), ("two", 0), ("one", 2), ("two", 0), ("one", 1)]
    assert run(blank, "../lists", TWO_LISTS, clicked) == [
        [some, none], [some, both], [both, both], [both, none], [some, none],
    ]  # fmt: skip


# --- Answers -------------------------------------------------------------------------------------

WRITTEN = """
    const written = (parts) => {
      const element = document.createElement("div");
      const answer = new it.Answer(element);
      for (const part of parts) answer.add(part);
      answer.end();
      const code = element.querySelector("pre.json code");
      return code ? ["json", code.textContent, code.querySelectorAll("[class^=hljs-]").length > 0]
        : ["text", element.textContent, element.querySelectorAll("a[href], strong").length];
    };
    return given.map(written);
"""
LINK = "[the page](https://example.com/) is **here**"


def test_json_is_shown_as_json_and_text_as_markdown(blank: Page) -> None:
    whole, cut = '{"a_b": "*not* bold", "n": 4180.0}', '{"a": [1, 2'
    given = [
        [*whole], ["  ", '{\n "a"', ": 1}"], [cut], ['[{"a": 1}]'],
        [LINK], [*LINK], ["[1](https://example.com/) **one**"], ["{not json}"], [""],
    ]  # fmt: skip
    found = run(blank, "json", WRITTEN, given)
    assert found[:4] == [
        ["json", whole, True], ["json", '{\n "a": 1}', True], ["json", cut, True],
        ["json", '[{"a": 1}]', True],
    ]  # fmt: skip
    assert found[4:] == [
        ["text", "the page is here", 2], ["text", "the page is here", 2], ["text", "1 one", 2],
        ["text", "{not json}", 0], ["text", "", 0],
    ]  # fmt: skip


# --- Drafts --------------------------------------------------------------------------------------


def test_a_draft_is_of_its_address_and_its_user(blank: Page) -> None:
    found = run(
        blank,
        "drafts",
        """
        const at = (path) => history.replaceState(null, "", path);
        sessionStorage.clear();
        it.keep("1", { message: "first" });
        at("/other");
        const none = it.kept("1");
        it.keep("1", { message: "second" });
        it.forget("1", "/");
        const second = it.kept("1");
        at("/");
        const first = it.kept("1");
        it.keep("2", { message: "theirs" });
        it.kept("1");
        const left = sessionStorage.length;
        it.keep("1", { message: "mine" });
        const name = "playground:1:/";
        const old = JSON.parse(sessionStorage.getItem(name));
        sessionStorage.setItem(name, JSON.stringify({ ...old, at: old.at - 3_600_000 }));
        return [none, second.message, second.recent, first, left, it.kept("1").recent];
        """,
    )
    assert found == [None, "second", True, None, 1, False]


def test_a_draft_has_room_before_older_ones(blank: Page) -> None:
    found = run(
        blank,
        "drafts",
        """
        sessionStorage.clear();
        const big = "x".repeat(3_000_000);
        for (const path of ["/a", "/b", "/c"]) {
          history.replaceState(null, "", path);
          it.keep("1", { message: big });
        }
        const last = it.kept("1").message.length;
        it.keep("1", { message: big.repeat(4) });
        history.replaceState(null, "", "/");
        return [last, Object.keys(sessionStorage).filter((key) => key.endsWith("/a")).length];
        """,
    )
    assert found == [3_000_000, 0]


# --- Saving --------------------------------------------------------------------------------------

SERVER = """
    const stored = { revision: 1, text: "", lost: 0 };
    const answer = (status, body) => new Response(JSON.stringify(body), { status });
    window.fetch = async (url, { body }) => {
      const { revision, text } = JSON.parse(body);
      const changed = { code: "conversation_changed", message: "no" };
      if (revision !== stored.revision) return answer(409, changed);
      Object.assign(stored, { text, revision: revision + 1 });
      if (stored.lost-- > 0) throw new TypeError("lost");
      return answer(200, { revision: stored.revision });
    };
    const states = [];
    const home = { text: "", conversation: () => ({ text: home.text }) };
    const tab = (revision) => new it.Keeping(home, {
      kept: { url: "/", revision }, onState: (state) => state !== "saving" && states.push(state),
    });
    const save = (keeping, text) => { home.text = text; return keeping.changed(); };
"""
"""A stored conversation whose answers can be lost after it was changed."""


def test_a_save_whose_answer_is_lost_is_no_change_from_elsewhere(blank: Page) -> None:
    found = run(
        blank,
        "keeping",
        f"""
        {SERVER}
        stored.lost = 1;
        const [keeping, other] = [tab(1), tab(1)];
        for (const text of ["one", "two", "three"]) await save(keeping, text);
        const own = [stored.text, stored.revision, states.splice(0)];
        await save(other, "theirs");
        await save(other, "theirs");
        return [own, stored.text, states];
        """,
    )
    assert found == [["three", 4, ["failed", "kept", "kept"]], "three", ["failed", "failed"]]


@pytest.mark.parametrize(
    ("page", "draft", "taken", "then"),
    [
        (2, {}, False, []),
        (2, {"revision": 2}, True, ["kept"]),
        (2, {"revision": 1}, False, []),  # another tab has saved
        (2, {"revision": 1, "unsure": True}, True, ["kept"]),  # this tab has
        (1, {"revision": 2}, True, ["kept"]),  # the page was read before this tab's save
        (1, {"revision": 1, "unsure": True}, True, ["kept"]),  # and its answer did not arrive
    ],
)
def test_a_draft_is_newer_than_its_page_unless_another_tab_has_saved(
    blank: Page, page: int, draft: dict[str, Any], taken: bool, then: list[str]
) -> None:
    found = run(
        blank,
        "keeping",
        f"""
        {SERVER}
        stored.revision = 2;
        const keeping = tab(given[0]);
        const taken = keeping.takes(given[1]);
        if (taken) await save(keeping, "more");
        return [taken, states];
        """,
        [page, draft],
    )
    assert found == [taken, then]
