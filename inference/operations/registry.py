"""The operations that are served. Add a new one to `OPERATIONS`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from inference.errors import InvalidRequest
from inference.operations.chat import CHAT
from inference.operations.completion import COMPLETION
from inference.operations.instant import InstantOperation
from inference.operations.messages.messages import COUNT_TOKENS, MESSAGES
from inference.operations.operation import Operation
from inference.operations.pooling.embeddings import EMBEDDINGS
from inference.operations.pooling.scoring import RERANK, SCORE
from inference.operations.responses.input_tokens import INPUT_TOKENS
from inference.operations.responses.responses import RESPONSES
from inference.operations.tokens import DETOKENIZE, TOKENIZE


class OperationRegistry:
    """Operations by name and by path."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._by_name: dict[str, Operation] = {}
        self._by_path: dict[str, Operation] = {}
        for operation in operations:
            paths = (operation.path, *operation.also_at)
            if operation.name in self._by_name or not self._by_path.keys().isdisjoint(paths):
                raise ValueError(f"{operation.name} or {operation.path} is registered already")
            self._by_name[operation.name] = operation
            self._by_path |= dict.fromkeys(paths, operation)

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._by_name.values())

    def named(self, name: str) -> Operation:
        """The operation that a frame names.

        Raises:
            InvalidRequest: this process knows none of that name.
        """
        if (operation := self._by_name.get(name)) is None:
            raise InvalidRequest(f"This engine does not support the operation `{name}`.")
        return operation

    def reworded(self, name: str, error: BaseException) -> BaseException:
        """The error in the words of that operation's clients, if it is known here."""
        operation = self._by_name.get(name)
        return error if operation is None else operation.reworded(error)

    def alike(self, name: str) -> frozenset[str]:
        """The names of all operations that a model supports if it supports this one: all that
        generate, or all that pool. Empty if this one needs only a tokenizer or is unknown here."""
        operation = self._by_name.get(name)
        if operation is None or isinstance(operation, InstantOperation):
            return frozenset()
        return frozenset(
            one.name
            for one in self
            if one.pools == operation.pools and not isinstance(one, InstantOperation)
        )

    def at(self, path: str) -> Operation | None:
        """The operation that is served at this path, if any."""
        return self._by_path.get(path)


OPERATIONS = OperationRegistry(
    [
        CHAT,
        COMPLETION,
        RESPONSES,
        MESSAGES,
        EMBEDDINGS,
        SCORE,
        RERANK,
        COUNT_TOKENS,
        INPUT_TOKENS,
        TOKENIZE,
        DETOKENIZE,
    ]
)
