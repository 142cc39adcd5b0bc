"""A container's environment and command line, as the kubelet builds them.

Nothing is inherited from the agent but what the image's environment needs: a stray RAY_ADDRESS or PYTHONPATH of the
user who ran `shoal up` must not reach a pod.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable

from shoal.api import quantity
from shoal.api.meta import Json
from shoal.errors import BadInput
from shoal.local.nodes.runtime.sources import ConfigError, Sources

_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.\-][A-Za-z0-9_.\-]*)\)")


def expand(text: str, values: dict[str, str]) -> str:
    """`$(NAME)` by its value when there is one, `$$` by a dollar; anything else stays as it is."""

    def one(match: re.Match[str]) -> str:
        if match.group(0) == "$$":
            return "$"
        return values.get(match.group(1), match.group(0))

    return _REFERENCE.sub(one, text)


def command_line(container: Json, default: Iterable[str], values: dict[str, str]) -> list[str]:
    """Command and args with references expanded; the image's own command when the manifest names neither, or only flags
    for it."""
    command, args = container.get("command") or [], container.get("args") or []
    flags = not command and str(next(iter(args), "")).startswith("-")
    words = [*(default if flags else command), *args] or list(default)
    return [expand(str(word), values) for word in words]


async def variables(pod: Json, container: Json, base: dict[str, str], sources: Sources) -> dict[str, str]:
    """`base`, then envFrom, then env in order, each able to refer to what came before it."""
    values = dict(base)
    namespace = pod["metadata"].get("namespace", "")
    for source in container.get("envFrom") or ():
        values.update(await _whole_source(namespace, source, sources))
    for entry in container.get("env") or ():
        if entry.get("valueFrom"):
            found = await _value_from(pod, container, entry["valueFrom"], sources)
            if found is not None:
                values[entry["name"]] = found
        else:
            values[entry["name"]] = expand(str(entry.get("value") or ""), values)
    return values


async def _whole_source(namespace: str, source: Json, sources: Sources) -> dict[str, str]:
    prefix = source.get("prefix") or ""
    if reference := source.get("configMapRef"):
        data = await config_data(namespace, reference, sources)
    elif reference := source.get("secretRef"):
        data = await secret_data(namespace, reference, sources)
    else:
        data = {}
    return {prefix + name: value.decode(errors="replace") for name, value in data.items()}


async def _value_from(pod: Json, container: Json, reference: Json, sources: Sources) -> str | None:
    namespace = pod["metadata"].get("namespace", "")
    if field := reference.get("fieldRef"):
        return field_value(pod, field["fieldPath"])
    if resource := reference.get("resourceFieldRef"):
        return resource_value(pod, container, resource, sources)
    for key, kind, read in (("configMapKeyRef", "ConfigMap", config_data), ("secretKeyRef", "Secret", secret_data)):
        if wanted := reference.get(key):
            data = await read(namespace, wanted, sources)
            if wanted["key"] in data:
                return data[wanted["key"]].decode(errors="replace")
            if wanted.get("optional"):
                return None
            raise ConfigError(f"couldn't find key {wanted['key']} in {kind} {namespace}/{wanted['name']}")
    return None


async def config_data(namespace: str, reference: Json, sources: Sources) -> dict[str, bytes]:
    found = await sources.config_map(namespace, reference.get("name", ""))
    if found is None:
        if reference.get("optional"):
            return {}
        raise ConfigError(f'configmap "{reference.get("name", "")}" not found')
    data = {name: text.encode() for name, text in (found.get("data") or {}).items()}
    data.update({name: base64.b64decode(text) for name, text in (found.get("binaryData") or {}).items()})
    return data


async def secret_data(namespace: str, reference: Json, sources: Sources) -> dict[str, bytes]:
    name = reference.get("name") or reference.get("secretName") or ""
    found = await sources.secret(namespace, name)
    if found is None:
        if reference.get("optional"):
            return {}
        raise ConfigError(f'secret "{name}" not found')
    data = {key: base64.b64decode(text) for key, text in (found.get("data") or {}).items()}
    data.update({key: text.encode() for key, text in (found.get("stringData") or {}).items()})
    return data


def field_value(pod: Json, path: str) -> str:
    """The downward API's paths; an unknown one is a configuration error."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    if keyed := _KEYED.fullmatch(path):
        return str((metadata.get(keyed.group(1)) or {}).get(keyed.group(2), ""))
    plain = {
        "metadata.name": metadata.get("name", ""),
        "metadata.namespace": metadata.get("namespace", ""),
        "metadata.uid": metadata.get("uid", ""),
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.hostIP": status.get("hostIP", ""),
        "status.hostIPs": status.get("hostIP", ""),
        "status.podIP": status.get("podIP", ""),
        "status.podIPs": status.get("podIP", ""),
    }
    if path in plain:
        return str(plain[path])
    if path in ("metadata.labels", "metadata.annotations"):
        pairs = metadata.get(path.partition(".")[2]) or {}
        return "\n".join(f'{name}="{_escaped(str(value))}"' for name, value in sorted(pairs.items()))
    raise ConfigError(f"unsupported fieldPath: {path}")


def resource_value(pod: Json, container: Json, reference: Json, sources: Sources) -> str:
    """A container's request or limit in units of the divisor, rounded up; the node's size where no limit is set."""
    named = reference.get("containerName")
    if named:
        spec = pod["spec"]
        everyone = [*spec.get("containers", []), *(spec.get("initContainers") or [])]
        container = next((other for other in everyone if other["name"] == named), container)
    which, _, resource = reference["resource"].partition(".")
    resources = container.get("resources") or {}
    text = (resources.get(which) or {}).get(resource)
    if text is None and which == "requests":
        text = (resources.get("limits") or {}).get(resource)
    if text is None and which == "limits":
        text = sources.allocatable(pod["spec"].get("nodeName", "")).get(resource)
    divisor = str(reference.get("divisor") or "1")
    try:
        unit = quantity.parse(divisor).nano or quantity.NANO
        return str(-(-quantity.parse(text or "0").nano // unit))
    except BadInput as error:
        raise ConfigError(str(error)) from error


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
