"""The tokens of the synthetic engine: four characters each."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from inference.errors import InvalidRequest
from inference.operations.pooling.pooling import Text

TOKEN_CHARS = 4


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """See `inference.operations.instant.PlainTokenizer`. Unlike `ids_of`, it is reversible."""

    max_model_len: int

    def encode(self, text: str) -> list[int]:
        """Each token's bytes as an integer, with a 1 in front so that no leading one is lost."""
        pieces = (text[at : at + TOKEN_CHARS] for at in range(0, len(text), TOKEN_CHARS))
        return [int.from_bytes(b"\1" + piece.encode()) for piece in pieces]

    def decode(self, tokens: list[int]) -> str:
        """As the protocol says."""
        pieces = [token.to_bytes((token.bit_length() + 7) // 8) for token in tokens]
        if not all(piece.startswith(b"\1") for piece in pieces):
            raise InvalidRequest(
                "`tokens` has a token that is not in this model's vocabulary.", param="tokens"
            )
        return b"".join(piece[1:] for piece in pieces).decode(errors="replace")


def tokens_in(text: str) -> int:
    """The length of `text` in tokens."""
    return -(-len(text) // TOKEN_CHARS)


def length_of(text: Text) -> int:
    """The length in tokens of a text, or of a list of tokens."""
    return tokens_in(text) if isinstance(text, str) else len(text)


def ids_of(text: str) -> list[int]:
    """A token's id is the checksum of its characters."""
    pieces = (text[at : at + TOKEN_CHARS] for at in range(0, len(text), TOKEN_CHARS))
    return [zlib.crc32(piece.encode()) for piece in pieces]
