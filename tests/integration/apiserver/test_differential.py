"""The embedded server and the real one get the same requests and give the same answers.

Compared are the code, the reason, and every value of a successful answer that is not of the moment (ids, revisions,
times, addresses). What differs on purpose is listed here with its reason, and in
docs/internals/embedded-api-server.md; the list may not grow past twenty.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import yaml
from yarl import URL

from tests.controlplane.plane import ControlPlane
from tests.integration.apiserver.conftest import Embedded
from tests.integration.apiserver.requests import Step, steps
from tests.patience import PATIENCE

pytestmark = pytest.mark.controlplane

OF_THE_MOMENT = re.compile(
    r"uid$|resourceVersion$|Timestamp$|Time$|\.time$|clusterIPs?(\[0\])?$|nodePort$|\.token$|\.continue$|"
    r"remainingItemCount|controller-uid|\.cells\[\d+\]$|olumnDefinitions\[\d+\]\.description$|client-ca-file"
)
# Paths whose presence or value differs on purpose.
DIFFERENT_VALUES = {
    r"serviceAccount(Name)?$": "the real server of the tests runs without its ServiceAccount plug-in",
    r"spec\.tolerations": "pods with devices tolerate their taint here (ExtendedResourceToleration is on)",
    r"spec\.taints|status\.(nodeInfo|daemonEndpoints)": "nodes are not tainted: no lifecycle controller",
    r"status\.(conditions|acceptedNames|storedVersions)|metadata\.finalizers": "custom kinds are established at once",
    r"daemonset\.template\.generation": "an annotation of a removed API version",
    r"spec\.(ipFamilies|ipFamilyPolicy)": "one address family here",
    r"spec\.audiences": "another issuer",
    r"metadata\.generation$": "kinds without a generation do not keep one that a client sends",
    r"^\.(data|source|status)$|deprecatedSource|lastState$|state\.running$": "an empty part may be left out",
    r"status\.reason$": "reviews do not say which binding allows",
}
# Field owners are compared but for these: an apply that changes nothing, one kind written at two versions, the order of
# an entry that a scale made, labels that are written with a status, and what is asked and never stored.
DIFFERENT_OWNERS = r"deployments/applied|gadgets|(deployments|sets)/w/|daemonsets|pods/(mutable|victim)|reviews|/token$"
# Requests with another code, by what is sent.
DIFFERENT_CODES = {
    r"row > 1": "types in lists of lists are found when a rule runs",
    r"/gadgets/(g|change)/scale": "nought replicas where Kubernetes answers 500, for a number that is not there",
}
# Refusals that name another field.
DIFFERENT_FIELDS = {
    r"'containers': \[\{'image': 'x'\}\]": "an applied item without its key is numbered as in the configuration",
    r"customresourcedefinitions": "the field of a definition is named as it is written, not as it is held inside",
}
A_500 = "4xx where Kubernetes answers 500: no input makes a 500 here"
MOST_DIFFERENCES = 20
LOOKS = 30
"""At a read whose answers differ."""


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Without a judge: what is sent here is bad manners on purpose."""
    plane = ControlPlane(tmp_path_factory.mktemp("plane") / "state")
    plane.start()
    try:
        yield plane
    finally:
        plane.stop()


def session_of(kubeconfig: Path) -> tuple[str, aiohttp.ClientSession]:
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    if "certificate-authority" in cluster:
        tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        tls.load_cert_chain(user["client-certificate"], user["client-key"])
        return cluster["server"], aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls))
    import base64

    tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    headers = {"Authorization": f"Bearer {user['token']}"}
    return cluster["server"], aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls), headers=headers)


async def send(session: aiohttp.ClientSession, base: str, step: Step) -> tuple[int, Any]:
    headers = {"Accept": step.accept, **step.headers}
    if step.data is not None:
        headers["Content-Type"] = step.content
    url = URL(base + step.path, encoded=True)
    async with session.request(step.method, url, data=step.data, headers=headers) as answer:
        body = await answer.read()
        try:
            return answer.status, json.loads(body)
        except ValueError:
            pass
        try:  # a watch
            return answer.status, {"events": [json.loads(line) for line in body.splitlines()]}
        except ValueError:
            return answer.status, body.decode(errors="replace")


class Memory:
    """What one server said, for the steps that send it back: `{{uid_x}}`, `{{rv_x}}`, `{{continue}}`."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def note(self, answer: tuple[int, Any]) -> None:
        metadata = answer[1].get("metadata") if answer[0] < 300 and isinstance(answer[1], dict) else None
        if isinstance(metadata, dict):
            for key, field in (("uid", "uid"), ("rv", "resourceVersion")):
                if metadata.get("name") and metadata.get(field):
                    self._known[f"{key}_{metadata['name']}"] = metadata[field]
            if metadata.get("continue"):
                self._known["continue"] = metadata["continue"]

    def fill(self, step: Step) -> Step:
        def told(match: re.Match[str]) -> str:
            return self._known.get(match[1], "0")

        path = re.sub(r"\{\{(\w+)\}\}", told, step.path)
        body = json.loads(re.sub(r"\{\{(\w+)\}\}", told, json.dumps(step.body)))
        return msgspec.structs.replace(step, path=path, body=body)


Server = tuple[aiohttp.ClientSession, str, Memory]


async def settled(session: aiohttp.ClientSession, base: str, step: Step) -> None:
    """The real server needs a moment until it serves a new kind or knows a new right: then it answers this."""
    async with asyncio.timeout(PATIENCE):
        while (await send(session, base, Step("GET", step.path, headers=step.headers)))[0] != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    if isinstance(value, dict) and value:
        for name, item in value.items():
            if name == "managedFields":  # by time, then by name: and the two servers are not equally fast
                item = sorted(
                    item or (), key=lambda one: (one["operation"], one["manager"], one.get("subresource", ""))
                )
            found.update(leaves(item, f"{path}.{name}"))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            found.update(leaves(item, f"{path}[{index}]"))
    elif value is not None and not OF_THE_MOMENT.search(path):
        found[path] = re.sub("^(gen|many)-.*", "generated", value) if isinstance(value, str) else value
    return found


def _refusal(status: dict[str, Any]) -> tuple[Any, set[Any]]:
    """What clients match on: the reason, and which fields are at fault."""
    causes = (status.get("details") or {}).get("causes") or ()
    return status.get("reason"), {cause.get("field") for cause in causes}


def _same_refusal(real: dict[str, Any], ours: dict[str, Any]) -> bool:
    """The same reason, and a field in common where fields are named: each may see more at once than the other."""
    (why, fields), (our_why, our_fields) = _refusal(real), _refusal(ours)
    return why == our_why and (not fields or not our_fields or bool(fields & our_fields))


def _sent(step: Step) -> str:
    return f"{step.method} {step.path} {step.body}"


def difference(step: Step, real: tuple[int, Any], ours: tuple[int, Any]) -> str:
    """What differs and is not listed, or nothing."""
    if real[0] == 500 and 400 <= ours[0] < 500:
        return ""  # see A_500
    if real[0] != ours[0]:
        return (
            ""
            if any(re.search(known, _sent(step)) for known in DIFFERENT_CODES)
            else f"code {real[0]}, ours {ours[0]}: {ours[1]}"
        )
    if not isinstance(real[1], dict) or not isinstance(ours[1], dict):
        return ""
    if real[0] >= 300:
        return (
            ""
            if _same_refusal(real[1], ours[1]) or any(re.search(known, _sent(step)) for known in DIFFERENT_FIELDS)
            else f"refusal {_refusal(real[1])}, ours {_refusal(ours[1])}"
        )
    if "generateName" in str(step.body) or step.path.count("/") < 4:
        return ""
    theirs, mine = leaves(real[1]), leaves(ours[1])
    differing = [
        path
        for path in sorted({*theirs, *mine})
        if theirs.get(path) != mine.get(path)
        and not any(re.search(known, path) for known in DIFFERENT_VALUES)
        and not ("managedFields" in path and re.search(DIFFERENT_OWNERS, step.path))
    ]
    return "; ".join(f"{path}: {theirs.get(path)!r}, ours {mine.get(path)!r}" for path in differing[:5])


async def both(step: Step, servers: Sequence[Server]) -> tuple[list[tuple[int, Any]], str]:
    """What each of them answers, and what differs."""
    answers = await asyncio.gather(*(send(session, base, memory.fill(step)) for session, base, memory in servers))
    return answers, difference(step, *answers)


def _changes_nothing(step: Step) -> bool:
    return step.method == "GET" or "dryRun=All" in step.path


def slower(step: Step) -> Step:
    """A watch of one second may end before a loaded machine has sent all that there is."""
    return msgspec.structs.replace(step, path=step.path.replace("timeoutSeconds=1", "timeoutSeconds=5"))


async def test_both_servers_answer_alike(control_plane: ControlPlane, embedded: Embedded) -> None:
    real_base, real = session_of(control_plane.kubeconfig)
    our_base, ours = session_of(embedded.kubeconfig)
    found: list[str] = []
    memories = (Memory(), Memory())
    count = 0
    async with real, ours:
        for step in steps():
            if step.method == "WAIT":
                await settled(real, real_base, step)
                continue
            count += 1
            servers = tuple(zip((real, ours), (real_base, our_base), memories, strict=True))
            answers, differs = await both(step, servers)
            for _ in range(LOOKS):
                if not differs or not _changes_nothing(step):
                    break
                await asyncio.sleep(0.5)  # what a real server knows of kinds, rights and classes comes a little later
                answers, differs = await both(slower(step), servers)
            for memory, answer in zip(memories, answers, strict=True):
                memory.note(answer)
            if differs:
                found.append(f"{step}\n    {differs}")
    assert count > 1000
    assert not found, f"{len(found)} of {count} answers differ:\n" + "\n".join(found)


def test_the_list_of_differences_stays_short() -> None:
    assert (
        len(
            {*DIFFERENT_VALUES.values(), *DIFFERENT_CODES.values(), *DIFFERENT_FIELDS.values(), A_500, DIFFERENT_OWNERS}
        )
        <= MOST_DIFFERENCES
    )
