"""The answer to a question about logs that outlived their pods, under the asker's rights.

Called by the desk. The right is that to the logs of the namespace's pods, as the API server knows it; where
admission recorded no asker nothing is told: a log says more than a name.
"""

from __future__ import annotations

import msgspec

from shoal.api import kinds
from shoal.api.questions import KeptLogText, LogChoice
from shoal.api.times import micro_text
from shoal.controllers.planning.creators import Creator
from shoal.controllers.planning.history.log_keeper import LogKeeper
from shoal.controllers.planning.history.log_store import KeptLog, LogQuery
from shoal.controllers.planning.questions.readers import Readers

LARGEST_ANSWER = 600 << 10
"""Bytes of JSON: an API server refuses objects that are much larger."""


class NoLogs(Exception):
    """Why there are none, in words that end a sentence."""


async def kept_logs(
    keeper: LogKeeper, readers: Readers, choice: LogChoice, asker: Creator | None, namespace: str
) -> tuple[KeptLogText, ...]:
    """Raises NoLogs, or HistoryTrouble where the store does not answer."""
    if asker is None:
        raise NoLogs("kept logs are told to users that admission records; install the webhook")
    if not await readers.may_read(asker, kinds.POD, namespace, "log"):
        raise NoLogs(f"{asker.user} may not get pods/log in namespace {namespace}")
    query = LogQuery(namespace=namespace, name=choice.name, kind=choice.kind, gang_uid=choice.uid)
    chosen = _chosen(await keeper.read(query), choice)
    found: list[KeptLogText] = []
    left = LARGEST_ANSWER
    for one in reversed(chosen):
        text, cut, size = _fitting(one.text.decode(errors="replace"), left)
        if not text and one.text:
            break
        left -= size
        found.insert(0, _told(one, text, one.cut + cut))
    return tuple(found)


def _chosen(logs: list[KeptLog], choice: LogChoice) -> list[KeptLog]:
    """Those of the role, and of them the last pod's, but for workers: there all."""
    driver = [one for one in logs if one.role in ("submitter", "")]
    own = [one for one in logs if one.role == choice.role] if choice.role else driver
    if not choice.role and not own:
        own = [one for one in logs if one.role == "head"]
    if choice.role == "worker" and not choice.previous:
        return own
    return own[-2:-1] if choice.previous else own[-1:]


def _fitting(text: str, most: int) -> tuple[str, int, int]:
    """The end of the text that fits, how many of its characters do not, and its size as JSON."""
    whole = len(text)
    while (size := len(msgspec.json.encode(text))) > most:
        text = text[len(text) // 4 + 1 :]
    return text, whole - len(text), size


def _told(one: KeptLog, text: str, cut: int) -> KeptLogText:
    return KeptLogText(
        kind=one.kind, name=one.name, uid=one.gang_uid, role=one.role, pod=one.pod, container=one.container,
        ended_at=micro_text(one.ended_at), cut=cut, text=text,
    )  # fmt: skip
