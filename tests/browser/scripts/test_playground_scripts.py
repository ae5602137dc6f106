"""The playground's scripts that need no page: checks, code, special tokens, shuffled answers."""

from __future__ import annotations

import inspect
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from openai.resources.chat.completions import Completions
from playwright.sync_api import Page

from frontend.playground.checks import OWN, SET_HERE
from tests.browser.scripts.test_scripts import blank, run
from tests.frontend.playground.settings import EXTRAS, TOOLS

__all__ = ["blank"]


def test_the_page_says_of_tools_and_fields_what_the_server_says(blank: Page) -> None:
    tools, extras = ([value for value, _ in cases] for cases in (TOOLS, EXTRAS))
    found = run(blank, "checks", "return given.map(it.toolsProblem)", tools)
    assert found == [problem for _, problem in TOOLS]
    found = run(blank, "checks", "return given.map((one) => it.extraProblem(one, true))", extras)
    assert found == [problem for _, problem in EXTRAS]
    named = [{name: 1} for name in (*OWN, *SET_HERE)]
    found = run(blank, "checks", "return given.map((one) => it.extraProblem(one, false))", named)
    assert all(found)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", ""), ("[]", ""), (' {"a": [1, -0.5e3, "\\u00e9", null, {}, []]} ', ""),
        ("{", 'line 1, column 2: a name in double quotes is expected, but the text ends.'),
        ("[\n  {a: 1}]", 'line 2, column 4: a name in double quotes is expected, not "a".'),
        ('{"a" 1}', 'line 1, column 6: ":" is expected, not "1".'),
        ('{"a": }', 'line 1, column 7: a value is expected, not "}".'),
        ("[1 2]", 'line 1, column 4: "," or "]" is expected, not "2".'),
        ("[1,]", 'line 1, column 4: a value is expected, not "]".'),
        ('{"a": 1,}', 'line 1, column 9: a name in double quotes is expected, not "}".'),
        ("[] x", 'line 1, column 4: the end is expected, not "x".'),
        ('["a\nb"]', 'line 1, column 2: a value is expected, not "\\"".'),
        ("[" * 100_000, "line 1, column 100001: a value is expected, but the text ends."),
    ],
)  # fmt: skip
def test_where_a_text_stops_being_json_is_said(blank: Page, text: str, problem: str) -> None:
    found = run(blank, "checks", 'return it.jsonProblem(given, () => "")', text)
    assert found == (problem and f"This is not JSON: {problem}")


BODY = {
    "model": "base",
    "messages": [{"role": "user", "content": 'Sag "höher"\n</script> 🦜 \u2028 it\'s'}],
    "temperature": 0.5,
    "stop": ["END"],
    "seed": 0,
    "tools": [{"type": "function", "function": {"name": "sky", "strict": True, "x": None}}],
    "tool_choice": "none",
    "top_k": 3,
    "chat_template_kwargs": {"enable_thinking": False},
}
SNIPPETS = "return it.snippets(given[0], given[1]);"
ANSWER = {
    "id": "a", "object": "chat.completion", "created": 1, "model": "base",
    "choices": [{"index": 0, "finish_reason": "stop",
                 "message": {"role": "assistant", "content": "blue"}}],
}  # fmt: skip


@contextmanager
def api() -> Iterator[tuple[str, list[Any]]]:
    """An API that answers every request; its address, and the bodies that it has received."""
    bodies: list[Any] = []

    class Api(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            answer = json.dumps(ANSWER).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    server = HTTPServer(("127.0.0.1", 0), Api)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_code_for_python_sends_the_request(
    blank: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LORIKEET_KEY", "lk_test")
    with api() as (url, bodies):
        for body in (BODY, {name: BODY[name] for name in ("model", "messages")}):
            code = run(blank, "code", SNIPPETS, [body, url])["python"]
            with redirect_stdout(io.StringIO()) as printed:
                exec(code, {})
            assert bodies[-1] == body and "blue" in printed.getvalue()


def test_the_code_uses_the_sdks_arguments(blank: Page) -> None:
    names = set(inspect.signature(Completions.create).parameters)
    assert set(run(blank, "code", "return [...it.OF_SDK];")) <= names
    found = run(blank, "code", SNIPPETS, [BODY, "http://x/v1"])
    assert "extra_body={" in found["python"] and "extra_body" not in found["javascript"]
    for part in (
        'import OpenAI from "openai"',
        "baseURL: ",
        "chat.completions.create({",
        "top_k: 3",
    ):
        assert part in found["javascript"]
    start = found["javascript"].index("create(") + len("create(")
    literal = found["javascript"][start : found["javascript"].index(");\nconsole")]
    assert blank.evaluate(f"({literal})") == BODY


def test_special_tokens_are_told_from_text(blank: Page) -> None:
    texts = [
        "<|im_start|>user", "a</s>b<s>", "[INST] <<SYS>>", "<end_of_turn>", "<\uff5cUser\uff5c>",
        "a < b | c > d", "<b>bold</b>", "<|no end", "<||>", "1 <|a b|> 2",
    ]  # fmt: skip
    found = run(
        blank,
        "special",
        """
        return given.map((text) => {
          const root = document.createElement("div");
          root.textContent = text;
          it.markSpecial(root);
          it.markSpecial(root);
          const marks = [...root.querySelectorAll(".special")].map((one) => one.textContent);
          return [root.textContent, marks];
        });
        """,
        texts,
    )
    assert [text for text, _ in found] == texts
    assert [marks for _, marks in found] == [
        ["<|im_start|>"], ["</s>", "<s>"], ["[INST]", "<<SYS>>"], ["<end_of_turn>"],
        ["<\uff5cUser\uff5c>"], [], [], [], [], [],
    ]  # fmt: skip
    script = "return given.map((one) => it.isSpecial(one));"
    assert run(blank, "special", script, ["<|eos|>", " </s>", "word", "", " "]) == [
        True, True, False, False, False,
    ]  # fmt: skip


def test_an_answer_shows_special_tokens_whole_and_one_by_one(blank: Page) -> None:
    script = """
      const root = document.createElement("div");
      const answer = new it.Answer(root);
      for (const part of given) answer.add(part);
      answer.end();
      const marks = [...root.querySelectorAll(".special")].map((one) => one.textContent);
      return [root.textContent, marks];
    """
    text = "One <|im_start|>two<|im_end|>"
    assert run(blank, "json", script, [*text]) == [text, ["<|im_start|>", "<|im_end|>"]]


def test_answers_are_shuffled_evenly(blank: Page) -> None:
    """Each choice of random numbers gives another order: all orders are equally likely."""
    script = """
      const all = [];
      for (let a = 0; a < 3; a++) for (let b = 0; b < 2; b++) {
        const drawn = { 3: a, 2: b };
        all.push(it.shuffled(3, (n) => drawn[n]).join(""));
      }
      return [...new Set(all)].sort();
    """
    orders = ["012", "021", "102", "120", "201", "210"]
    assert run(blank, "prompts/run", script) == orders
