"""Which environment a container gets: by its image name, or by an annotation of its pod.

`image.shoal.dev/environment` names a known image, the directory of an environment, or a requirements file, from which
one is built once for all pods. Asked for every run of a container. The annotation is for Ray images and for names that
are not known here; a sidecar's `busybox` stays what it is. It must never show a pod what is hidden from pods.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from shoal.api.labels import IMAGE_ENVIRONMENT, RAY_NODE_TYPE
from shoal.api.meta import Json
from shoal.errors import ShoalError
from shoal.local import environments
from shoal.local.images import Image, short_name
from shoal.local.nodes.runtime.host import PodHost
from shoal.local.nodes.runtime.sources import ConfigError


class UnknownImage(ShoalError):
    """An image name that has no meaning on this machine."""


async def image_of(host: PodHost, pod: Json, container: Json) -> Image:
    """Raises UnknownImage, or ConfigError with what is wrong with the annotation."""
    reference = str(container.get("image") or "")
    known = host.images.find(reference)
    asked = _annotation(pod)
    if not asked or (known is not None and known.family != "ray"):
        if known is None:
            raise UnknownImage(host.images.refusal(reference))
        return known
    try:
        return await _of_annotation(host, pod, short_name(reference), asked)
    except ShoalError as error:
        raise ConfigError(f"annotation {IMAGE_ENVIRONMENT}: {error}") from None


async def _of_annotation(host: PodHost, pod: Json, name: str, asked: str) -> Image:
    found = host.images.find(asked) if "/" not in asked else None
    if found is not None:
        return found
    if not asked.startswith("/"):
        raise ConfigError(f"{asked!r} is neither a known image nor an absolute path on the node's machine")
    target = _target(host, asked)
    if target.endswith(".txt"):
        target = await host.builds.built(name, Path(target), host.clock, partial(host.announce, pod))
    return host.images.of_environment(name, target)


def _target(host: PodHost, asked: str) -> str:
    target = environments.target_of(asked)
    where = Path(target).resolve()
    if any(where.is_relative_to(hidden) for hidden in host.private):
        raise ConfigError(f"{asked} is hidden from pods")
    return target


def check_versions(host: PodHost, pod: Json, image: Image) -> None:
    """Raises ConfigError for a worker whose Ray or Python is not its head's."""
    labels = pod["metadata"].get("labels") or {}
    head = host.head_of(pod) if labels.get(RAY_NODE_TYPE) == "worker" else None
    if head is None:
        return
    containers = head["spec"].get("containers") or [{}]
    its_image = _built(host, head, containers[0])
    if its_image is None:
        return
    own, its = host.images.versions(image), host.images.versions(its_image)
    for what, mine, heads in (("Ray", own.ray, its.ray), ("Python", own.python, its.python)):
        if mine and heads and mine != heads:
            raise ConfigError(
                f"image {image.name} has {what} {mine} and the head of this Ray cluster {heads}; Ray needs the same in "
                f"all its pods: give both the same environment, or install {what} {heads} in {own.prefix}"
            )


def _built(host: PodHost, pod: Json, container: Json) -> Image | None:
    """The image of a container, as far as nothing has to be built for it."""
    asked, reference = _annotation(pod), str(container.get("image") or "")
    known = host.images.find(reference)
    if not asked or (known is not None and known.family != "ray"):
        return known
    if "/" not in asked:
        return host.images.find(asked)
    try:
        return host.images.of_environment(short_name(reference), environments.prefix_of(environments.target_of(asked)))
    except ShoalError:
        return None


def _annotation(pod: Json) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(IMAGE_ENVIRONMENT) or "").strip()
