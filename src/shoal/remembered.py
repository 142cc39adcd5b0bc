"""A memory of a bounded size for what can be worked out again: full, it starts over.

Used wherever most of many gangs ask the same. To forget all at once costs one clearing and no order of use; what is in
use is soon there again. Reading it is reading a dictionary.
"""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


class Remembered(dict[K, V]):
    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def remember(self, key: K, value: V) -> V:
        if len(self) >= self._most:
            self.clear()
        self[key] = value
        return value

    def shared(self, key: K, value: V) -> V:
        """What is remembered under this key; `value` from now on where nothing is. So equal values are held once."""
        known = self.get(key)
        return self.remember(key, value) if known is None else known
