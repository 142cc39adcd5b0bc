"""What is wrong with a RayCronJob: the first problem, in KubeRay's words. Pure; for the reconciler and the webhook."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.api.meta import Json
from shoal.controllers.ray import names, view
from shoal.controllers.ray.cron.schedule import parse_schedule, parse_zone
from shoal.controllers.ray.settings import RaySettings
from shoal.controllers.ray.validation.job_rules import problems_of_job_spec
from shoal.errors import BadInput

POLICIES = ("Allow", "Forbid", "Replace")


def cron_problem(cron: Json, settings: RaySettings) -> str:
    """Empty when all is well."""
    return next(_problems(cron, settings), "")


def _problems(cron: Json, settings: RaySettings) -> Iterator[str]:
    spec = view.spec(cron)
    if len(view.name(cron)) > names.LONGEST_CRON_JOB:
        yield f"RayCronJob name should be no more than {names.LONGEST_CRON_JOB} characters"
    schedule, zone = str(spec.get("schedule") or ""), spec.get("timeZone")
    if "TZ" in schedule:
        yield "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
    try:
        parse_schedule(schedule)
    except BadInput as error:
        yield f"invalid cron schedule: {error}"
    if zone == "":
        yield "timeZone must not be empty string, leave it out for the operator's own time zone"
    try:
        parse_zone(str(zone or "UTC"))
    except BadInput as error:
        yield f"invalid time zone: {error}"
    for problem in problems_of_job_spec({"metadata": view.metadata(cron), "spec": spec.get("jobTemplate")}, settings):
        yield f"invalid RayJob template: {problem}"
    if spec.get("concurrencyPolicy") not in (None, *POLICIES):
        yield f"concurrencyPolicy {spec['concurrencyPolicy']!r}: use one of {', '.join(POLICIES)}"
