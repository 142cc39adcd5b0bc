"""Files of recorded outcomes of the references, where they are at hand: in the folder that SHOAL_CASES names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


class Recorded:
    def __init__(self, name: str) -> None:
        folder = os.environ.get("SHOAL_CASES", "")
        self.path = Path(folder, name)
        self.is_there = bool(folder) and self.path.is_file()
        self.needed = pytest.mark.skipif(not self.is_there, reason=f"no {name} in the folder that SHOAL_CASES names")
        """A mark for tests that ask for it."""
