"""The judgement on a stage: which invariants the operator violated in all that it asked of the server."""

from __future__ import annotations

from tests.checker import normalize
from tests.checker.ray import CHECKS
from tests.checker.status import vain_writes
from tests.conformance.kuberay_traces import Stage


def violations(stage: Stage) -> list[str]:
    """I32 to I37, and vain writes (I21)."""
    records = normalize(stage.history.entries)
    return [str(violation) for check in (*CHECKS.values(), vain_writes) for violation in check(records)]
