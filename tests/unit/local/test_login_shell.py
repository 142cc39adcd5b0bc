"""Published Ray manifests start login shells; here such a shell would lose the PATH of its image."""

from __future__ import annotations

import pytest

from shoal.local.nodes.runtime.planning import without_login


@pytest.mark.parametrize(
    "given, run",
    [
        (["/bin/bash", "-lc", "--", "ray start"], ["/bin/bash", "-c", "--", "ray start"]),
        (["bash", "-l", "-c", "ls -l"], ["bash", "-c", "ls -l"]),
        (["bash", "--login", "-ec", "x"], ["bash", "-ec", "x"]),
        (["/bin/bash", "-c", "ls -l"], ["/bin/bash", "-c", "ls -l"]),
        (["ls", "-l"], ["ls", "-l"]),
        (["bash", "run.sh", "-l"], ["bash", "run.sh", "-l"]),
        ([], []),
    ],
)
def test_a_login_shell_becomes_an_ordinary_one(given, run):
    assert without_login(given) == run
