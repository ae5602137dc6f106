"""What is kept of an answer so that another engine can continue it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.gateway.fleet.dispatches import Bounds
from inference.gateway.requests import delivered as module
from inference.gateway.requests.delivered import Delivered
from inference.link.accounts import Usage
from inference.link.wire import Delta, Resume

pytestmark = pytest.mark.pure

MOST = Bounds(1000, 1000)
PROMPT = 5


class Script:
    """An engine whose answer is known in advance: the ids of choice `c` are `100 * c, 100 * c + 1,
    ...`.

    It holds text back, as parsers do: the text of a choice's n-th token comes with its `(n +
    lag)`-th.
    """

    def __init__(self, lengths: list[int], lag: int) -> None:
        self.lengths, self.lag = lengths, lag

    def text(self, choice: int, tokens: int) -> str:
        """The text of a choice that the reader has once `tokens` tokens were generated."""
        done = tokens >= self.lengths[choice]
        shown = tokens if done else max(0, tokens - self.lag)
        return "".join(f"[{choice}.{n}]" for n in range(shown))

    def run(self, resume: Resume | None, sizes: Iterator[int], attempt: int) -> Iterator[Delta]:
        """The deltas from `resume` on, each with at most `1 + size` tokens of one choice."""
        at = dict.fromkeys(range(len(self.lengths)), 0)
        if resume is not None:
            for choice, ids in resume.ids.items():
                assert ids == [100 * choice + n for n in range(len(ids))], "lost or doubled"
                at[choice] = len(ids)
        prompt = 0 if resume is not None else PROMPT
        for size in sizes:
            open_ = [c for c, n in at.items() if n < self.lengths[c]]
            if not open_:
                return
            choice = open_[size % len(open_)]
            before = at[choice]
            after = min(self.lengths[choice], before + 1 + size)
            at[choice] = after
            text = self.text(choice, after)[len(self.text(choice, before)) :]
            told = {choice: [100 * choice + n for n in range(before, after)]}
            yield Delta("r", text, after - before, [], prompt, 0, attempt, told)
            prompt = 0


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    lag=st.integers(0, 4),
    cuts=st.lists(st.integers(0, 8), max_size=4),
    sizes=st.lists(st.integers(0, 5), min_size=80, max_size=80),
)
def test_an_answer_in_pieces_of_many_engines_is_that_of_one(
    lengths: list[int], lag: int, cuts: list[int], sizes: list[int]
) -> None:
    """The answer is cut after arbitrary deltas, any number of times."""
    script, delivered = Script(lengths, lag), Delivered(len(lengths), logprobs=False)
    given, rest = "", iter(sizes)
    for attempt, cut in enumerate([*cuts, None], start=1):
        resume = delivered.resume(None, 1.0)
        delivered.begin(MOST, exact=True)
        for number, delta in enumerate(script.run(resume, rest, attempt)):
            if number == cut:
                break
            shown = delivered.add(delta)
            assert not shown.ids and shown.attempt == attempt
            given += shown.text
        assert delivered.can_move
    texts = [script.text(choice, length) for choice, length in enumerate(lengths)]
    for choice, text in enumerate(texts):
        pieces = [piece for piece in given.split("[") if piece.startswith(f"{choice}.")]
        assert "[" * bool(pieces) + "[".join(pieces) == text
    assert delivered.completion_tokens == sum(lengths)
    assert delivered.prompt_tokens == PROMPT


def test_an_undelivered_answer_restarts_and_counts_once() -> None:
    delivered = Delivered(1, logprobs=False)
    delivered.begin(MOST, exact=True)
    delivered.add(Delta("r", tokens=4, prompt_tokens=7, cached_tokens=2))
    assert delivered.can_move and delivered.anew and delivered.resume(0.5, 1.0) is None
    delivered.begin(MOST, exact=False)
    assert (delivered.prompt_tokens, delivered.completion_tokens) == (0, 0)
    delivered.add(Delta("r", "x", 1, prompt_tokens=7))
    assert not delivered.can_move
    assert (delivered.prompt_tokens, delivered.completion_tokens) == (7, 1)


def test_the_resume_has_the_delivered_tokens() -> None:
    delivered = Delivered(2, logprobs=True)
    delivered.begin(MOST, exact=True)
    delivered.add(Delta("r", tokens=1, prompt_tokens=7, cached_tokens=3, ids={1: [4]}))
    assert delivered.anew, "nobody knows its log-probability"
    delivered.add(Delta("r", tokens=3, chunks=[b"{}"], ids={1: [5]}))
    assert delivered.resume(0.5, 1.5) == Resume(
        {1: [4, 5]}, usage=Usage(7, 3, 2, ttft_s=0.5, total_s=1.5)
    )
    delivered.begin(MOST, exact=True)
    assert delivered.completion_tokens == 2, "two more were counted, and are generated again"


def test_text_without_token_ids_cannot_be_resumed() -> None:
    delivered = Delivered(1, logprobs=False)
    delivered.begin(MOST, exact=True)
    delivered.add(Delta("r", "x", 1))
    assert not delivered.can_move


@pytest.mark.parametrize("ids", [{1: [1]}, {-1: [1]}, {0: [-1]}, {0: [1 << 32]}, {0: [1] * 9}])
def test_token_ids_beyond_the_bounds_are_not_kept(ids: dict[int, list[int]]) -> None:
    delivered = Delivered(1, logprobs=False)
    delivered.begin(Bounds(10, 8), exact=True)
    assert delivered.add(Delta("r", "x", 1, ids=ids)).text == "x"
    assert not delivered.can_move
    delivered.add(Delta("r", "y", 1, ids={0: [1]}))
    assert not delivered.can_move


def test_the_resume_has_the_delivered_text_if_kept() -> None:
    delivered = Delivered(1, logprobs=False, keeps=True)
    delivered.begin(Bounds(100, 100), exact=True)
    delivered.add(Delta("r", "Hel", 1, ids={0: [1]}))
    delivered.add(Delta("r", "", 1, [b"{}"], ids={0: [2]}))
    resume = delivered.resume(None, 1.0)
    assert resume is not None and (resume.text, resume.chunks) == ("Hel", [b"{}"])
    delivered.forget()
    assert not delivered.keeps


def test_a_long_answer_goes_without_what_its_reader_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_KEPT_BYTES", 12)
    delivered = Delivered(1, logprobs=False, keeps=True)
    delivered.begin(Bounds(100, 100), exact=True)
    delivered.add(Delta("r", "abc", 1, ids={0: [1]}))
    assert delivered.keeps
    delivered.add(Delta("r", "d", 1, ids={0: [2]}))
    resume = delivered.resume(None, 1.0)
    assert resume is not None and (resume.ids, resume.text) == ({0: [1, 2]}, "")
    assert not delivered.keeps
