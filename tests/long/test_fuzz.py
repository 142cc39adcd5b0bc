"""A million requests of any shape to the embedded API server, as five kinds of user."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.timeout(3500)
def test_no_request_of_any_shape_breaks_the_server() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.attacks.fuzz", "--requests", "1000000"], text=True)
    assert done.returncode == 0
