"""The deeds of `shoal import`: read what is there, stop the other controllers, and start them again.

The record is stored before anything is stopped, so that what was can be restored from it whatever happens in between;
every step may be repeated. Objects of users are not changed: the controllers go on from what is stored in them.
"""

from __future__ import annotations

import asyncio

import msgspec

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.meta import Json
from shoal.cli import kueue_config
from shoal.cli.install_workload import NAME
from shoal.controllers.planning import imports
from shoal.controllers.planning.imports import ImportedObject, SoftenedWebhooks, StoppedController, StoppedParts
from shoal.errors import ShoalError
from shoal.kube.client import Client
from shoal.kube.errors import AlreadyExists, Forbidden, NotFound
from shoal.sdk import moving_in, other_controllers
from shoal.sdk.moving_in import ImportRow
from shoal.sdk.other_controllers import FoundController

PATIENCE = 120.0
"""Seconds in which the pods of a stopped Deployment must go."""
_WEBHOOKS = (kinds.MUTATING_WEBHOOK, kinds.VALIDATING_WEBHOOK)


async def look(client: Client) -> tuple[list[ImportRow], list[FoundController]]:
    """Everything of the others that is there; kinds that are not installed are passed over."""
    objects: list[Json] = []
    for kind in moving_in.READ:
        try:
            found = await client.list(kind)
        except (NotFound, Forbidden):
            continue
        objects += [{**obj, "apiVersion": kind.api_version, "kind": kind.kind} for obj in found]
    deployments = await client.list(kinds.DEPLOYMENT)
    controllers: list[FoundController] = []
    for obj in deployments:
        if other_controllers.controller_of(obj) is None:
            continue
        given = await _config_maps(client, obj)
        one = other_controllers.controller_of(obj, given)
        controllers += [_with_file(one, given)] if one is not None else []
    return moving_in.rows(objects), controllers


def _with_file(found: FoundController, config_maps: dict[str, Json]) -> FoundController:
    """Kueue is configured by a file of a ConfigMap; what is found there are settings here."""
    texts = [text for one in config_maps.values() for text in (one.get("data") or {}).values()]
    for text in texts if found.source == "Kueue" else ():
        if any(version in text for version in kueue_config.VERSIONS):
            read = kueue_config.parsed(text.encode(), f"the configuration of Deployment {found.namespace}/{found.name}")
            rate = [f"--kube-api-qps={read.qps:g}", f"--kube-api-burst={read.burst}"] if read.qps else []
            return msgspec.structs.replace(found, settings=read.settings, unused=read.unused, options=rate)
    return found


async def _config_maps(client: Client, deployment: Json) -> dict[str, Json]:
    """What its variables come from; one that may not be read counts as empty."""
    found: dict[str, Json] = {}
    for name in other_controllers.sources_of(deployment):
        try:
            found[name] = await client.get(kinds.CONFIG_MAP, name, deployment["metadata"]["namespace"])
        except (NotFound, Forbidden):
            continue
    return found


async def take(
    client: Client, namespace: str, rows: list[ImportRow], controllers: list[FoundController], creator: str
) -> list[str]:
    """Record what is taken over, then stop the others. Returns what was done, line by line."""
    before = await _record(client, namespace)
    stopped = _merged(imports.stopped_parts(before) if before is not None else StoppedParts(), controllers)
    stopped = msgspec.structs.replace(stopped, webhooks=stopped.webhooks or await _hard_webhooks(client, controllers))
    user, *groups = creator.split(",") if creator else ("",)
    listed = {
        row.uid: ImportedObject(
            object=f"{row.kind}/{row.namespace}/{row.name}",
            user=user if row.needs_creator else "",
            groups=tuple(groups) if row.needs_creator else (),
        )
        for row in rows
        if row.uid and row.verdict != "left alone"
    }
    record = imports.record_of(namespace, listed, stopped)
    if len(msgspec.json.encode(record)) > imports.MOST_BYTES:
        raise ShoalError(
            f"{len(listed)} objects are too many for one record; delete those that have ended, then try again"
        )
    await _store(client, namespace, record)
    said = [f"configmap/{imports.RECORD} in {namespace}: {len(listed)} objects"]
    for one in stopped.webhooks:
        await _set_policies(client, one, "Ignore")
        said.append(f"{one.kind.lower()}/{one.name}: calls that fail are passed over")
    for deployment in stopped.deployments:
        await _scale(client, deployment.namespace, deployment.name, 0)
        said.append(
            f"deployment/{deployment.name} in {deployment.namespace} stopped ({deployment.replicas} replicas before)"
        )
    said.append("now: shoal install --image IMAGE, with the settings shown; or shoal import --give-back")
    return said


async def give_back(client: Client, namespace: str) -> list[str]:
    """Stop Shoal's controller, start the others as the record has them, then drop the record."""
    record = await _record(client, namespace)
    if record is None:
        raise ShoalError(f"there is no import record in {namespace}: nothing was taken, or --namespace names another")
    said, stopped = [], imports.stopped_parts(record)
    if await _scale(client, namespace, NAME, 0):
        said.append(f"deployment/{NAME} in {namespace} stopped")
    for one in stopped.webhooks:
        await _set_policies(client, one)
        said.append(f"{one.kind.lower()}/{one.name}: as it was")
    for deployment in stopped.deployments:
        if await _scale(client, deployment.namespace, deployment.name, deployment.replicas):
            said.append(f"deployment/{deployment.name} in {deployment.namespace}: {deployment.replicas} replicas")
        else:
            said.append(f"deployment/{deployment.name} in {deployment.namespace} is gone; install it again")
    await client.delete(kinds.CONFIG_MAP, imports.RECORD, namespace, uid=record["metadata"]["uid"])
    said.append("objects stay as they are; shoal uninstall takes Shoal's rights and webhooks away, and its CRDs stay")
    return said


def _merged(before: StoppedParts, found: list[FoundController]) -> StoppedParts:
    """A Deployment that was stopped by an earlier call keeps the number of replicas that it had."""
    known = {(one.namespace, one.name): one for one in before.deployments}
    for one in found:
        if one.replicas:
            known[one.namespace, one.name] = StoppedController(one.namespace, one.name, one.replicas)
    return StoppedParts(tuple(known[key] for key in sorted(known)), before.webhooks)


async def _hard_webhooks(client: Client, controllers: list[FoundController]) -> tuple[SoftenedWebhooks, ...]:
    """Those that call a Service of a namespace in which a controller is stopped."""
    namespaces, found = {one.namespace for one in controllers}, []
    for kind in _WEBHOOKS:
        for obj in await client.list(kind):
            called = [(one.get("clientConfig") or {}).get("service") or {} for one in obj.get("webhooks") or ()]
            if any(one.get("namespace") in namespaces and one.get("name") != "shoal-webhook" for one in called):
                policies = tuple(str(one.get("failurePolicy") or "Fail") for one in obj["webhooks"])
                found.append(SoftenedWebhooks(kind.kind, obj["metadata"]["name"], policies))
    return tuple(found)


async def _set_policies(client: Client, one: SoftenedWebhooks, policy: str = "") -> None:
    """All of them this one, or each as it was."""
    kind = next(kind for kind in _WEBHOOKS if kind.kind == one.kind)
    try:
        obj = await client.get(kind, one.name)
    except NotFound:
        return
    webhooks = obj.get("webhooks") or []
    if len(webhooks) != len(one.policies):
        return  # made again meanwhile
    wanted = [{**hook, "failurePolicy": policy or was} for hook, was in zip(webhooks, one.policies, strict=True)]
    if wanted != webhooks:
        await client.update(kind, {**obj, "webhooks": wanted}, one.name)


async def _scale(client: Client, namespace: str, name: str, replicas: int) -> bool:
    """False where there is none. Scaled to nothing, it is waited for: two controllers would work against each other."""
    try:
        obj = await client.get(kinds.DEPLOYMENT, name, namespace)
        if (obj.get("spec") or {}).get("replicas", 1) != replicas:
            await client.patch(kinds.DEPLOYMENT, name, namespace, {"spec": {"replicas": replicas}})
        if replicas == 0:
            await _until_stopped(client, kinds.DEPLOYMENT, namespace, name)
    except NotFound:
        return False
    return True


async def _until_stopped(client: Client, kind: Kind, namespace: str, name: str) -> None:
    def is_stopped(obj: Json) -> bool:
        status = obj.get("status") or {}
        seen = int(status.get("observedGeneration") or 0) >= int(obj["metadata"].get("generation") or 0)
        return seen and not status.get("replicas")

    try:
        async with asyncio.timeout(PATIENCE):
            watch = client.watch(kind, namespace, field_selector=f"metadata.name={name}", send_initial_events=True)
            async for event in watch:
                if event.type == "DELETED":
                    return
                if event.type in ("ADDED", "MODIFIED") and is_stopped(msgspec.json.decode(event.object)):
                    return
    except TimeoutError:
        raise ShoalError(
            f"deployment/{name} in {namespace} still has pods after {PATIENCE:.0f} s; see why, then try again"
        ) from None


async def _record(client: Client, namespace: str) -> Json | None:
    try:
        return await client.get(kinds.CONFIG_MAP, imports.RECORD, namespace)
    except NotFound:
        return None


async def _store(client: Client, namespace: str, record: Json) -> None:
    made = {"apiVersion": kinds.NAMESPACE.api_version, "kind": kinds.NAMESPACE.kind, "metadata": {"name": namespace}}
    try:
        await client.create(kinds.NAMESPACE, made)
    except AlreadyExists:
        pass
    try:
        await client.create(kinds.CONFIG_MAP, record, namespace)
    except AlreadyExists:
        await client.patch(kinds.CONFIG_MAP, imports.RECORD, namespace, {"data": record["data"]})
