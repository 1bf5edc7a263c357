"""Choices, numbers and text out of a fuzzer's bytes.

Where: targets build structured requests with it. A mutation of one byte changes one choice and leaves the rest of the
request as it was, which is what lets coverage guide the search. When the bytes are used up every choice is the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

_BYTE = 256


class ByteReader:
    """Reads from the front of `data`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_empty(self) -> bool:
        """Whether every byte was used."""
        return self._at >= len(self._data)

    def byte(self) -> int:
        """Return the next byte, or 0 at the end."""
        if self._at >= len(self._data):
            return 0
        self._at += 1
        return self._data[self._at - 1]

    def below(self, limit: int) -> int:
        """Return a number from 0 to `limit` - 1; limits above 256 take two bytes."""
        if limit <= _BYTE:
            return self.byte() % max(limit, 1)
        return (self.byte() * _BYTE + self.byte()) % limit

    def chance(self, one_in: int = 2) -> bool:
        """Return true once in `one_in`, and false when the bytes are used up."""
        return self.byte() % one_in == one_in - 1

    def choose(self, options: Sequence[T]) -> T:
        """Return one of the options."""
        return options[self.below(len(options))]

    def take(self, num_bytes: int) -> bytes:
        """Return up to `num_bytes` bytes as they are."""
        taken = self._data[self._at : self._at + num_bytes]
        self._at += len(taken)
        return taken

    def chunk(self) -> bytes:
        """Return bytes whose number is in their first byte."""
        return self.take(self.byte())

    def rest(self) -> bytes:
        """Return all that is left."""
        return self.take(len(self._data))

    def text(self) -> str:
        """Return text as HTTP libraries hand it over: UTF-8, with undecodable bytes as lone surrogates."""
        return self.chunk().decode("utf-8", "surrogateescape")

    def word(self, known: Sequence[str]) -> str:
        """Return one of the known words, or text, or a word with text behind it."""
        kind = self.byte() % 8
        if kind == 7:
            return self.text()
        word = self.choose(known)
        return word + self.text() if kind == 6 else word
