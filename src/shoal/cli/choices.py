"""`--set NAME=VALUE`: any setting of AppWrappers, of queues as `queues.NAME`, of several clusters as `clusters.NAME`.

Read once at the entry point; a name that does not exist, or a value that does not fit, is refused with what would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from shoal.errors import BadInput

if TYPE_CHECKING:
    from shoal.controllers.appwrapper import AppWrapperSettings
    from shoal.controllers.clusters import ClusterSettings
    from shoal.controllers.queues import QueueSettings

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
QUEUES = "queues."
CLUSTERS = "clusters."


@contextmanager
def flag(name: str) -> Iterator[None]:
    """What is refused inside was wrong in this flag: exit code 2, as for flags that click itself refuses."""
    try:
        yield
    except BadInput as error:
        raise click.BadParameter(
            str(error).removeprefix(f"{name} "), click.get_current_context(silent=True), param_hint=f"'{name}'"
        ) from None


def set_option(command: F) -> F:
    return click.option(
        "--set",
        "chosen",
        multiple=True,
        metavar="NAME=VALUE",
        help="Any other setting of AppWrappers, such as bind_seconds=120, pod_groups=true, "
        "count_autoscaled_workers=maximum or patience.retry_limit=5, or of queues, such as queues.fair_sharing=true or "
        "queues.pods_ready.timeout=600, or of several clusters, such as clusters.lost_seconds=300; repeat for more.",
    )(command)


def read(chosen: Iterable[str]) -> dict[str, str]:
    """Names and values as they were written; refused where they could never be settings."""
    found = dict(_split(text) for text in chosen)
    wrapper_settings({}, found)
    queue_settings({}, found)
    cluster_settings({}, found)
    return found


def wrapper_settings(base: Mapping[str, Any], chosen: Mapping[str, str]) -> AppWrapperSettings:
    """What an administrator chose: `base` from options of their own, `chosen` from --set. The latter wins."""
    from shoal.controllers.appwrapper import AppWrapperSettings

    own = {name: value for name, value in chosen.items() if not name.startswith((QUEUES, CLUSTERS))}
    return _settings(AppWrapperSettings, base, own, "")


def queue_settings(base: Mapping[str, Any], chosen: Mapping[str, str]) -> QueueSettings:
    """What an administrator chose about queues: those of `chosen` that begin with `queues.`."""
    from shoal.controllers.queues import QueueSettings

    own = {name.removeprefix(QUEUES): value for name, value in chosen.items() if name.startswith(QUEUES)}
    return _settings(QueueSettings, base, own, QUEUES)


def cluster_settings(base: Mapping[str, Any], chosen: Mapping[str, str]) -> ClusterSettings:
    """What an administrator chose about several clusters: those of `chosen` that begin with `clusters.`."""
    from shoal.controllers.clusters import ClusterSettings

    own = {name.removeprefix(CLUSTERS): value for name, value in chosen.items() if name.startswith(CLUSTERS)}
    return _settings(ClusterSettings, base, own, CLUSTERS)


def _settings(type: type[T], base: Mapping[str, Any], chosen: Mapping[str, str], prefix: str) -> T:
    import msgspec

    values: dict[str, Any] = dict(base)
    for name, value in chosen.items():
        _put(values, type, name, value)
    try:
        return msgspec.convert(values, type, strict=False)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        reason = reason.replace("Expected `bool`, got `str`", "expected true or false")
        raise BadInput(f"--set {prefix}{place.rstrip('`')}: {reason}") from None


def _split(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise BadInput(f"--set {text}: write NAME=VALUE, such as bind_seconds=120")
    return name.strip().replace("-", "_"), value.strip()


def _put(values: dict[str, Any], type: Any, name: str, value: str) -> None:
    """`patience.retry_limit` reaches into the setting `patience`."""
    import msgspec

    outer, _, inner = name.partition(".")
    fields = {field.name: field.type for field in msgspec.structs.fields(type)}
    if outer not in fields:
        raise BadInput(f"--set {name}: there is no such setting; choose from {', '.join(sorted(fields))}")
    if not inner:
        values[outer] = value
        return
    choices = get_args(fields[outer]) or (fields[outer],)
    whole = next((one for one in choices if hasattr(one, "__struct_fields__")), None)
    if whole is None:
        raise BadInput(f"--set {name}: {outer} has no parts")
    _put(values.setdefault(outer, {}), whole, inner, value)
