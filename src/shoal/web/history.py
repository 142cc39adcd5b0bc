"""What gangs did in the last day, also those that are gone: asked of the leading controller as the visitor.

What is stored the rows tell themselves; the history adds earlier rounds of a gang and gangs that were deleted. It is
kept for a moment, so that tabs and looks of one session are one question.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from shoal.api.times import seconds_text
from shoal.kube.clock import SystemClock
from shoal.sdk import asking
from shoal.web.replies import reply
from shoal.web.sessions import PageSession

DAY = 86_400_000_000
KEPT = 15.0
MOST = 500
FIELDS = ("kind", "namespace", "name", "queue", "user", "queuedAt", "startedAt", "endedAt", "outcome", "uid", "round")


async def past(request: web.Request, session: PageSession) -> web.Response:
    """Rounds of the last day that the visitor may read, newest first; or why they are not known."""
    clock, namespace = SystemClock(), request.query.get("namespace", "")
    kept: dict[str, tuple[float, dict[str, Any]]] = session.kept.setdefault("history", {})
    until, told = kept.get(namespace, (0.0, {}))
    if until <= clock.monotonic():
        window = {"since": seconds_text(clock.now() - DAY), "limit": MOST, "allNamespaces": not namespace}
        try:
            answer = await asking.history(session.visitor.client, namespace or "default", window)
            runs = [{name: one[name] for name in FIELDS if one.get(name)} for one in answer.get("runs") or ()]
            told = {"runs": runs, "hidden": answer.get("hidden", 0), "more": answer.get("more", False)}
        except asking.NoAnswer as error:
            told = {"runs": [], "notAnswered": str(error)}
        kept.clear()  # one namespace is looked at
        kept[namespace] = (clock.monotonic() + KEPT, told)
    return reply(told)
