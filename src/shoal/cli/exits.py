"""The exit codes of every command, in one place: scripts and agents rely on them, the reference prints them.

0 and 1 are as everywhere, 2 is click's for wrong flags. `submit` ends with the driver's own code where Ray has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.sdk.following import GangView

DONE = 0
ERROR = 1
USAGE = 2
FAILED = 3
GONE = 4
WAITS = 5
NEVER = 6
TIMED_OUT = 124
DETACHED = 130

MEANING = {
    DONE: "done as asked; the gang succeeded or got where it was waited for",
    ERROR: "an error, said in one line: the server refused, cannot be reached, or there is no such gang",
    USAGE: "flags or a manifest that cannot work as written; nothing was sent",
    FAILED: "the gang failed (`submit` and `rerun`: unless the driver's own exit code is known, which is then used)",
    GONE: "the gang was deleted while it was followed",
    WAITS: "`submit --check`: the gang would wait",
    NEVER: "`submit --check`: the gang can never run as it is written, as quotas and nodes are",
    TIMED_OUT: "`wait --timeout`: time ran out; the gang goes on",
    DETACHED: "interrupted (Ctrl-C); the gang goes on",
}


def of(view: GangView) -> int:
    """Of a gang that was followed to its end."""
    if view.outcome.stage == "succeeded":
        return DONE
    if view.gone:
        return GONE
    code = view.outcome.exit_code
    return code if code is not None and 0 < code < 256 else FAILED
