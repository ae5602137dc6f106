"""Rows as token ids, by the base model's chat template and tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tenants.tuning.child.rows import Row, RowFault, TrainingRow

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class EncodedRow:
    """Token ids, and whether each is learned; the first one never is."""

    ids: list[int]
    learned: list[bool]

    @property
    def tokens(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class EncodedPair:
    """The dialogues of a PreferenceRow."""

    preferred: EncodedRow
    other: EncodedRow

    @property
    def tokens(self) -> int:
        return self.preferred.tokens + self.other.tokens


Example = EncodedRow | EncodedPair


class RowEncoder:
    """Encodes rows of at most `max_tokens`."""

    def __init__(self, tokenizer: Any, max_tokens: int) -> None:
        """`tokenizer` is one of transformers', with offsets and a chat template."""
        self._tokenizer, self._max_tokens = tokenizer, max_tokens

    def encode(self, row: Row) -> Example:
        """The row as the base model's engine would read it.

        Raises:
            RowFault: it is too long, or the template refuses it.
        """
        found = [self._encoded(dialogue) for dialogue in row.dialogues]
        return EncodedPair(*found) if len(found) > 1 else found[0]

    def _encoded(self, row: TrainingRow) -> EncodedRow:
        try:
            text, spans = self._rendered(row)
            encoded = self._tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
        except RowFault:
            raise
        except Exception as error:  # a template's own, or one of Jinja or the tokenizer
            raise RowFault(f"The base model's chat template refuses it: {error}") from error
        ids = encoded["input_ids"]
        if len(ids) > self._max_tokens:
            raise RowFault(f"It has {len(ids)} tokens; at most {self._max_tokens} are allowed.")
        learned = [
            any(low <= start < end <= high for low, high in spans)
            for start, end in encoded["offset_mapping"]
        ]
        learned[:1] = [False]
        if not any(learned):
            raise RowFault("No token is to be learned.")
        return EncodedRow(ids, learned)

    def _rendered(self, row: TrainingRow) -> tuple[str, list[Span]]:
        """The whole dialogue, and the spans of it that are learned."""
        messages = [message.rendered() for message in row.messages]
        text = self._text(row, messages)
        return text, list(self._spans(row, messages, text))

    def _spans(self, row: TrainingRow, messages: list[dict[str, Any]], text: str) -> Iterator[Span]:
        """What the template adds to the prompt of a turn for an assistant's message is learned: the
        message and its end."""
        for at, message in enumerate(row.messages):
            if not message.learned:
                continue
            prompt = self._text(row, messages[:at], prompting=True)
            whole = self._text(row, messages[: at + 1])
            if not (text.startswith(prompt) and text.startswith(whole)):
                raise RowFault(
                    f"The base model's chat template changes earlier turns, so `messages[{at}]` "
                    "can't be learned here: give it `weight` 0, or a row in which it is the last."
                )
            yield len(prompt), len(whole)

    def _text(
        self, row: TrainingRow, messages: list[dict[str, Any]], *, prompting: bool = False
    ) -> str:
        text: str = self._tokenizer.apply_chat_template(
            messages, tools=row.tools or None, add_generation_prompt=prompting, tokenize=False
        )
        return text
