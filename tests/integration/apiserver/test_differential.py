"""The embedded server and the real one get the same requests and give the same answers.

Compared are the code, the reason, and every value of a successful answer that is not of the moment (ids, revisions,
times, addresses). What differs on purpose is listed here with its reason, and in docs/embedded-api-server.md; the list
may not grow past twenty.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from yarl import URL

from tests.controlplane.plane import ControlPlane
from tests.integration.apiserver.conftest import Embedded
from tests.integration.apiserver.requests import Step, steps

pytestmark = pytest.mark.controlplane

OF_THE_MOMENT = re.compile(
    r"uid$|resourceVersion$|Timestamp$|Time$|managedFields|clusterIPs?(\[0\])?$|nodePort$|\.token$|\.continue$|remainingItemCount|"
    r"controller-uid|\.rows\[\d+\]\.|\.columnDefinitions|\.items\[|status\.reason$|status\.error$|generation$"
)
# Paths whose presence or value differs on purpose.
DIFFERENT_VALUES = {
    r"serviceAccount(Name)?$": "the real server of the tests runs without its ServiceAccount plug-in",
    r"spec\.tolerations": "pods with devices tolerate their taint here (ExtendedResourceToleration is on)",
    r"spec\.taints|status\.(nodeInfo|daemonEndpoints)": "nodes are not tainted: no lifecycle controller",
    r"daemonset\.template\.generation": "an annotation of a removed API version",
    r"status\.(conditions|acceptedNames|storedVersions)|metadata\.finalizers": "custom kinds are established at once",
    r"spec\.(ipFamilies|ipFamilyPolicy)": "one address family here",
    r"spec\.audiences": "another issuer",
    r"metadata\.generation": "kinds without a generation do not keep one that a client sends",
    r"^\.data$|^\.source$|deprecatedSource": "an empty part may be left out",
}
# Requests with another code, by what is sent.
DIFFERENT_CODES = {
    r"POST .*'resourceVersion': '5'": "400 where Kubernetes answers 500: no input makes a 500 here",
    r"watch=1&timeoutSeconds=1&resourceVersion=abc": "400 where Kubernetes answers 500",
    r"/binding .*'target': \{\}": "422 where Kubernetes answers 500",
    r"'terminationGracePeriodSeconds': -1": "refused; Kubernetes silently makes it 1",
    r"'overhead': \{'cpu'": "accepted: there are no runtime classes to compare with",
    r"'effect': 'Bogus'": "taints of nodes are not checked",
}
MOST_DIFFERENCES = 20


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
            return answer.status, body.decode(errors="replace")


async def settled(session: aiohttp.ClientSession, base: str, step: Step) -> None:
    """The real server needs a moment until a new kind or a new right is known everywhere."""
    for _ in range(100):
        code, body = await send(session, base, Step("GET", step.path, headers=step.headers))
        conditions = (body.get("status") or {}).get("conditions") or [] if code == 200 else []
        known = code == 200 and (
            body["kind"] != "CustomResourceDefinition"
            or any(one["type"] == "Established" and one["status"] == "True" for one in conditions)
        )
        if known:
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.5)


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    if isinstance(value, dict) and value:
        for name, item in value.items():
            found.update(leaves(item, f"{path}.{name}"))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            found.update(leaves(item, f"{path}[{index}]"))
    elif value is not None and not OF_THE_MOMENT.search(path):
        found[path] = value
    return found


def difference(step: Step, real: tuple[int, Any], ours: tuple[int, Any]) -> str:
    """What differs and is not listed, or nothing."""
    if real[0] != ours[0]:
        return (
            ""
            if any(re.search(known, str(step)) for known in DIFFERENT_CODES)
            else f"code {real[0]}, ours {ours[0]}: {ours[1]}"
        )
    if not isinstance(real[1], dict) or not isinstance(ours[1], dict):
        return ""
    if real[0] >= 300:
        return (
            ""
            if real[1].get("reason") == ours[1].get("reason")
            else f"reason {real[1].get('reason')}, ours {ours[1].get('reason')}"
        )
    if "generateName" in str(step.body) or step.path.count("/") < 4:
        return ""
    theirs, mine = leaves(real[1]), leaves(ours[1])
    differing = [
        path
        for path in sorted({*theirs, *mine})
        if theirs.get(path) != mine.get(path) and not any(re.search(known, path) for known in DIFFERENT_VALUES)
    ]
    return "; ".join(f"{path}: {theirs.get(path)!r}, ours {mine.get(path)!r}" for path in differing[:5])


async def test_both_servers_answer_alike(control_plane: ControlPlane, embedded: Embedded) -> None:
    real_base, real = session_of(control_plane.kubeconfig)
    our_base, ours = session_of(embedded.kubeconfig)
    found: list[str] = []
    count = 0
    async with real, ours:
        for step in steps():
            if step.method == "WAIT":
                await settled(real, real_base, step)
                continue
            count += 1
            answers = await asyncio.gather(send(real, real_base, step), send(ours, our_base, step))
            differs = difference(step, *answers)
            if differs:
                found.append(f"{step}\n    {differs}")
    assert count > 400
    assert not found, f"{len(found)} of {count} answers differ:\n" + "\n".join(found)


def test_the_list_of_differences_stays_short() -> None:
    assert len(DIFFERENT_VALUES) + len(DIFFERENT_CODES) <= MOST_DIFFERENCES
