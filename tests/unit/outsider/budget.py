"""An admission check as another package would bring it: one file, and an entry point in its packaging.

A gang may start while its namespace's budget is open: the AdmissionCheck names the annotation that says so.
"""

from __future__ import annotations

from typing import Any

from shoal.controllers.queues.checks.base import CheckAnswer

Json = dict[str, Any]


class Budget:
    controller_name = "lab.example/budget"

    def problem(self, check: Json) -> str:
        return "" if check["spec"].get("parameters") else "spec.parameters must name the budget"

    def answer(self, workload: Json, check: Json, now: int) -> CheckAnswer:
        granted = (workload["metadata"].get("labels") or {}).get("lab.example/granted")
        if granted == "yes":
            return CheckAnswer(state="Ready", message="the budget is granted")
        return CheckAnswer(state="Pending", message="the budget is not granted yet", look_again=600)
