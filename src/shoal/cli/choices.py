"""`--set NAME=VALUE`: settings of AppWrappers, queues (`queues.NAME`), clusters (`clusters.NAME`), Ray (`ray.NAME`).

Read once at the entry point; a name that does not exist, or a value that does not fit, is refused with what would.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

import click

from shoal.errors import BadInput

if TYPE_CHECKING:
    from shoal.cli.kueue_config import KueueConfig
    from shoal.controllers.appwrapper import AppWrapperSettings
    from shoal.controllers.multicluster import ClusterSettings
    from shoal.controllers.queues import QueueSettings
    from shoal.controllers.ray import RaySettings

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
QUEUES = "queues."
CLUSTERS = "clusters."
RAY = "ray."
GATES = "SHOAL_RAY_FEATURE_GATES"


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
        "queues.pods_ready.timeout=600, or of several clusters, such as clusters.lost_seconds=300, or of the Ray "
        "operator, such as ray.feature_gates=SidecarSubmitterRestart=true or ray.stop_timeout=60; repeat for more.",
    )(command)


def kueue_config_option(command: F) -> F:
    return click.option(
        "--kueue-config",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Configuration file of Kueue (config.kueue.x-k8s.io); --set wins over it. Fields without a meaning here "
        "are named.",
    )(command)


def of_kueue(path: Path | None) -> KueueConfig:
    """Settings of Kueue's configuration file, read as --set reads them; what has no meaning here is said."""
    from shoal.cli import kueue_config

    if path is None:
        return kueue_config.KueueConfig({}, [])
    found = kueue_config.read(path)
    if found.unused:
        click.echo(f"{path}: without a meaning here: {', '.join(found.unused)}", err=True)
    settings = read(f"{name}={value}" for name, value in found.settings.items())
    return kueue_config.KueueConfig(settings, found.unused, found.qps, found.burst)


def read(chosen: Iterable[str]) -> dict[str, str]:
    """Names and values as they were written, files read; refused where they could never be settings."""
    found = {name: _content(name, value) for name, value in (_split(text) for text in chosen)}
    wrapper_settings({}, found)
    queue_settings({}, found)
    cluster_settings({}, found)
    if any(name.startswith(RAY) for name in found):
        ray_settings({}, found)
    return found


def wrapper_settings(base: Mapping[str, Any], chosen: Mapping[str, str]) -> AppWrapperSettings:
    """What an administrator chose: `base` from options of their own, `chosen` from --set. The latter wins."""
    from shoal.controllers.appwrapper import AppWrapperSettings

    own = {name: value for name, value in chosen.items() if not name.startswith((QUEUES, CLUSTERS, RAY))}
    return _settings(AppWrapperSettings, base, own, "")


def queue_settings(base: Mapping[str, Any], chosen: Mapping[str, str]) -> QueueSettings:
    """What an administrator chose about queues: those of `chosen` that begin with `queues.`."""
    from shoal.controllers.queues import QueueSettings

    own = {name.removeprefix(QUEUES): value for name, value in chosen.items() if name.startswith(QUEUES)}
    return _settings(QueueSettings, base, own, QUEUES)


def cluster_settings(base: Mapping[str, Any], chosen: Mapping[str, str]) -> ClusterSettings:
    """What an administrator chose about several clusters: those of `chosen` that begin with `clusters.`."""
    from shoal.controllers.multicluster import ClusterSettings

    own = {name.removeprefix(CLUSTERS): value for name, value in chosen.items() if name.startswith(CLUSTERS)}
    return _settings(ClusterSettings, base, own, CLUSTERS)


def ray_settings(environment: Mapping[str, str], chosen: Mapping[str, str], **base: Any) -> RaySettings:
    """The Ray operator's: `environment` as KubeRay reads it, `base` for this way of running, `ray.NAME` of `chosen`."""
    import msgspec

    from shoal.controllers import ray

    own = {name.removeprefix(RAY): value for name, value in chosen.items() if name.startswith(RAY)}
    gates = ",".join(filter(None, (environment.get(GATES, ""), own.pop("feature_gates", ""))))
    settings = msgspec.structs.replace(ray.from_environment({**environment, GATES: gates}), **base)
    if not own:
        return settings
    _settings(ray.RaySettings, {}, own, RAY)  # refuses in words
    held = {name: getattr(settings, name) for name in ray.RaySettings.__struct_fields__}
    return _settings(ray.RaySettings, held, own, RAY)


def _settings(type: type[T], base: Mapping[str, Any], chosen: Mapping[str, str], prefix: str) -> T:
    import msgspec

    values: dict[str, Any] = dict(base)
    for name, value in chosen.items():
        _put(values, type, name, value)
    try:
        return msgspec.convert(values, type, strict=False)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$")
        place = place.strip(".`")
        raise BadInput(f"--set {prefix}{place}: {_plainly(reason, type, place)}".replace(" : ", " ")) from None


def _plainly(reason: str, type: Any, place: str) -> str:
    """The complaint in words for people who do not read Python."""
    if reason.startswith("Invalid enum value"):
        return f"{reason.removeprefix('Invalid enum value ')} is none of {', '.join(map(str, _allowed(type, place)))}"
    for typed, words in (("bool", "true or false"), ("float", "a number"), ("int", "a whole number")):
        reason = re.sub(rf"Expected `{typed}(?: \\| null)?`", f"expected {words}", reason)
    return reason.replace(", got `str`", "").replace("`", "").replace(">=", "of at least").replace("<=", "of at most")


def _allowed(type: Any, place: str) -> tuple[Any, ...]:
    """The values that a setting may have, by its path."""
    import msgspec

    for step in place.split("."):
        name = step.partition("[")[0]  # of a list, which value
        found = next((one.type for one in msgspec.structs.fields(type) if one.name == name), None)
        found = get_args(found)[0] if get_origin(found) is tuple else found
        options = get_args(found) or (found,)
        type = next((one for one in options if hasattr(one, "__struct_fields__")), found)
    return get_args(type)


def check_policy(name: str, *, importable: bool = True) -> None:
    """Raises BadInput for an order that there is not. Not `importable`: an import path is for another machine."""
    if name == "priority" or (":" in name and not importable):  # the engine takes half a second to load
        return
    from shoal.engine import policies

    policies.load(name)


def dns_label(context: click.Context, option: click.Parameter, value: str) -> str:
    """For options that name a namespace."""
    try:
        return _namespace(value)
    except BadInput as error:
        raise click.BadParameter(str(error)) from None


def namespaces(context: click.Context, option: click.Parameter, value: str | None) -> tuple[str, ...]:
    """For options that name several, comma-separated."""
    named = [one.strip() for one in (value or "").split(",") if one.strip()]
    return tuple(dns_label(context, option, one) for one in dict.fromkeys(named))


def check_limits(watched: Iterable[str], parts: Iterable[str]) -> None:
    """Raises BadInput where these parts cannot be limited to these namespaces."""
    named = [_namespace(one) for one in watched]
    if named and "clusters" in parts:
        raise BadInput("the part clusters needs all namespaces: its members are told of namespaces that it reads")


def _namespace(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name):
        raise BadInput(f"{name!r} is no name of a namespace: lower-case letters, digits and -, at most 63")
    return name


def ip_address(context: click.Context, option: click.Parameter, value: str) -> str:
    """For options that name an address of this machine; empty where it is found out."""
    try:
        return str(ipaddress.ip_address(value)) if value else value
    except ValueError:
        raise click.BadParameter(f"{value!r} is no IP address, such as 10.0.0.5") from None


def webhook_address(context: click.Context, option: click.Parameter, value: str) -> str:
    """For options that say where the API server finds a webhook; empty where its Service does."""
    from urllib.parse import urlsplit

    if not value:
        return value
    try:
        parts = urlsplit(value)
        sound = parts.scheme == "https" and bool(parts.hostname) and parts.port != 0 and not parts.query
    except ValueError:
        sound = False
    if not sound or any(char.isspace() for char in value):
        raise click.BadParameter(f"{value!r} is no address of a webhook, such as https://10.0.0.5:9443")
    return value


def page_address(context: click.Context, option: click.Parameter, value: str) -> str:
    """For options that say where browsers find the page; empty for a port of loopback."""
    if not value:
        return value
    from shoal.web.server import page_url

    try:
        return page_url(value)
    except BadInput as error:
        raise click.BadParameter(str(error)) from None


def use_job_kinds(settings: QueueSettings) -> None:
    """Take the kinds of jobs that an administrator described, before anything is put together."""
    from shoal.controllers.queues import jobs
    from shoal.controllers.queues.jobs.configured import ConfiguredJobs

    jobs.use(made for one in settings.job_kinds if (made := ConfiguredJobs(one)).kind not in jobs.BY_KIND)


def use_frameworks(settings: QueueSettings) -> None:
    """Leave out the kinds of jobs that queues shall not hold. Webhooks and rights are the same for all: a job of such a
    kind is let pass."""
    from shoal.controllers.queues import jobs

    if settings.frameworks:
        jobs.only(settings.frameworks)


def _content(name: str, value: str) -> str:
    """`@FILE` stands for what the file holds: YAML, taken as JSON from here on."""
    if not value.startswith("@"):
        return value
    import msgspec

    try:
        return msgspec.json.encode(msgspec.yaml.decode(Path(value[1:]).read_bytes())).decode()
    except OSError as error:
        raise BadInput(f"--set {name}: {value[1:]}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise BadInput(f"--set {name}: {value[1:]}: {error}") from None


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
        is_list = get_origin(fields[outer]) is tuple
        if is_list and value.startswith("["):
            try:
                values[outer] = msgspec.json.decode(value)
            except msgspec.DecodeError as error:
                raise BadInput(f"--set {name}: {error}") from None
            return
        values[outer] = [one.strip() for one in value.split(",") if one.strip()] if is_list else value
        return
    choices = get_args(fields[outer]) or (fields[outer],)
    whole = next((one for one in choices if hasattr(one, "__struct_fields__")), None)
    if whole is None:
        raise BadInput(f"--set {name}: {outer} has no parts")
    _put(values.setdefault(outer, {}), whole, inner, value)
