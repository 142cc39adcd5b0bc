"""The few requests of the demo, for a machine without kubectl: apply, get, delete and wait, in kubectl's own words.

Nothing is installed or built for the demo's sake. It is no kubectl: what the demo does not use it refuses.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from shoal.api import kinds
from shoal.api.manifests import read
from shoal.errors import ShoalError
from shoal.kube.client import Client
from shoal.kube.discovery import Discovery
from shoal.kube.errors import NotFound
from shoal.kube.kubeconfig import load

KINDS = {
    **dict.fromkeys(("appwrapper", "appwrappers"), kinds.APP_WRAPPER), "pods": kinds.POD, "nodes": kinds.NODE,
    **dict.fromkeys(("rayjob", "rayjobs"), kinds.RAY_JOB), "workloads": kinds.WORKLOAD,
    **dict.fromkeys(("provisioningrequest", "provisioningrequests"), kinds.PROVISIONING_REQUEST),
}  # fmt: skip
NAMESPACE = "default"
LOOK_AGAIN = 0.1
PATIENCE = 180.0
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


class StandIn:
    def __init__(self, kubeconfig: str) -> None:
        self._kubeconfig = kubeconfig

    def __call__(self, *arguments: str) -> str:
        """What kubectl would print. Raises ShoalError."""
        content = Path(arguments[-1]).read_bytes() if arguments[0] == "apply" else b""
        return asyncio.run(self._run(arguments, content))

    async def _run(self, arguments: tuple[str, ...], content: bytes) -> str:
        transport = load(self._kubeconfig)
        try:
            client = Client(transport, manager="shoal-demo")
            match arguments:
                case ("apply", "-f", path):
                    return await _apply(client, path, content)
                case ("get", what, *rest):
                    return await _get(client, what, rest)
                case ("delete", what, name, *rest):
                    return await _delete(client, what, name, wait="--wait=false" not in rest)
                case ("wait", what, condition, *_):
                    return await _wait(client, what, condition.removeprefix("--for="))
        finally:
            await transport.close()
        raise ShoalError(f"the demo does not know kubectl {' '.join(arguments)}")


async def _apply(client: Client, path: str, content: bytes) -> str:
    discovery, lines = Discovery(client), []
    for manifest in read(content, path):
        kind = await discovery.kind_of(manifest["apiVersion"], manifest["kind"])
        if kind is None:
            raise ShoalError(f"{path}: the cluster has no kind {manifest['kind']}")
        name = manifest["metadata"]["name"]
        where = manifest["metadata"].get("namespace", NAMESPACE) if kind.namespaced else None
        await client.patch(kind, name, where, manifest, patch_type="apply", force=True)
        lines.append(f"{kind.kind.lower()}.{kind.group}/{name} created")
    return "\n".join(lines) + "\n"


async def _get(client: Client, what: str, rest: list[str]) -> str:
    parts = []
    name = next((one for one in rest if not one.startswith("-") and one not in ("name", "json")), "")
    for word in what.split(","):
        kind = KINDS[word]
        if "json" in rest:
            return json.dumps(await client.get(kind, name, NAMESPACE if kind.namespaced else None))
        if "name" in rest:
            found = await client.list(kind, NAMESPACE if kind.namespaced else None)
            return "".join(f"{kind.plural.removesuffix('s')}/{one['metadata']['name']}\n" for one in found)
        path = kind.path(NAMESPACE if kind.namespaced else None, name or None)
        answer = json.loads((await client.request("GET", path, accept=TABLE)).body)
        parts.append(_table(answer))
    return "\n".join(parts)


def _table(answer: dict[str, Any]) -> str:
    shown = [at for at, column in enumerate(answer["columnDefinitions"]) if not column.get("priority")]
    heads = [answer["columnDefinitions"][at]["name"].upper() for at in shown]
    rows = [heads, *([str(row["cells"][at]) for at in shown] for row in answer.get("rows") or ())]
    widths = [max(len(row[at]) for row in rows) for at in range(len(heads))]
    lines = ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines) + "\n"


async def _delete(client: Client, what: str, name: str, *, wait: bool) -> str:
    kind = KINDS[what]
    await client.delete(kind, name, NAMESPACE, propagation="Background")
    began = time.monotonic()
    while wait and time.monotonic() - began < PATIENCE:
        try:
            await client.get(kind, name, NAMESPACE)
        except NotFound:
            break
        await asyncio.sleep(LOOK_AGAIN)
    return f'{kind.kind.lower()}.{kind.group} "{name}" deleted\n'


async def _wait(client: Client, what: str, condition: str) -> str:
    """As `kubectl wait --timeout=180s`: of one object by name, or of all that there are."""
    word, _, name = what.partition("/")
    began = time.monotonic()
    while time.monotonic() - began < PATIENCE:
        found = [await client.get(KINDS[word], name, NAMESPACE)] if name else await client.list(KINDS[word], NAMESPACE)
        if found and all(_holds(one, condition) for one in found):
            return ""
        await asyncio.sleep(LOOK_AGAIN)
    raise ShoalError(f"timed out waiting for {condition} on {what}")


def _holds(obj: dict[str, Any], condition: str) -> bool:
    kind, _, rest = condition.partition("=")
    if kind == "condition":
        conditions = (obj.get("status") or {}).get("conditions") or ()
        return any(one.get("type") == rest and one.get("status") == "True" for one in conditions)
    path, _, wanted = rest.rpartition("=")
    value: Any = obj
    for part in path.strip("{}").strip(".").split("."):
        value = (value or {}).get(part)
    return str(value) == wanted
