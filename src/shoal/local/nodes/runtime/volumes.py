"""A pod's volumes as directories of the machine, and where each container sees them.

Every volume becomes a directory below the pod's own (host paths and memory aside). Keys and paths come from users:
nothing here may write outside that directory, whatever they are called.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

from shoal.api import quantity
from shoal.api.meta import Json
from shoal.errors import BadInput, ShoalError
from shoal.local.nodes.runtime import access
from shoal.local.nodes.runtime.environment import config_data, expand, field_value, resource_value, secret_data
from shoal.local.nodes.runtime.files import Files, choose, sync
from shoal.local.nodes.runtime.ownership import claim
from shoal.local.nodes.runtime.sources import ConfigError, MountError, Sources

Mount = Json
"""`source`, `target`, and where given `readonly` and `subPath`."""

_WRITTEN = ("configMap", "secret", "downwardAPI", "projected")
_EMPTY = ("emptyDir", "ephemeral")
_DEFAULT_MODE = 0o644
_HOST_PATH_KINDS: dict[str, tuple[str, Callable[[int], bool]]] = {
    "Directory": ("directory", stat.S_ISDIR),
    "File": ("file", stat.S_ISREG),
    "Socket": ("socket", stat.S_ISSOCK),
    "CharDevice": ("character device", stat.S_ISCHR),
    "BlockDevice": ("block device", stat.S_ISBLK),
}


class Volumes:
    """The volumes of one pod. `claims` is where persistent volume claims of all pods live, `memory` where volumes go
    that are to be kept in memory."""

    def __init__(self, pod: Json, directory: Path, claims: Path, sources: Sources, memory: Path | None = None) -> None:
        self._pod = pod
        self._directory = directory
        self._claims = claims
        self._sources = sources
        self._memory = memory
        self._paths: dict[str, Path] = {}
        self._access: Json | None = None
        self._tokens: dict[tuple[str, int], str] = {}

    async def prepare(self) -> None:
        """Bring every volume into being. Safe to repeat: a restarted agent runs it again over what is there."""
        volume: Json = {}
        try:
            for volume in self._declared():
                self._paths[volume["name"]] = await self._one(volume)
            volume = access.volume(self._pod)
            await self._give_access(volume)
        except (ConfigError, OSError) as error:
            raise MountError(f'MountVolume.SetUp failed for volume "{volume["name"]}" : {error}') from error

    async def _give_access(self, volume: Json) -> None:
        """The API server's files, where they are due. What an earlier agent gave stays given, whatever became of the
        account: a pod that runs is not held up for a token that it never asked for."""
        path = self._directory / volume["name"]
        given = (path / "namespace").exists()  # the last of its files
        if not given and not await access.is_due(self._pod, self._sources):
            return
        self._access, self._paths[volume["name"]] = volume, path
        if given:
            await self._rewrite(volume)
        else:
            await self._one(volume)

    async def refresh(self, kind: str, name: str) -> bool:
        """Bring the files up to date that come from a config map or secret; whether there were any.

        A source that is gone leaves its files as they are, as the kubelet does.
        """
        concerned = [volume for volume in self._all() if (kind, name) in references(volume)]
        for volume in concerned:
            await self._rewrite(volume)
        return bool(concerned)

    def refers(self, kind: str, name: str) -> bool:
        return any((kind, name) in references(volume) for volume in self._all())

    async def renew_tokens(self) -> None:
        self._tokens.clear()
        for volume in self._all():
            if token_seconds(volume):
                await self._rewrite(volume)

    def renewal(self) -> float | None:
        """Seconds after which tokens are due to be renewed; None when there are none."""
        lives = [seconds for volume in self._all() if (seconds := token_seconds(volume))]
        return 0.8 * max(600, min(lives)) if lives else None

    def limited(self) -> bool:
        return any((volume.get("emptyDir") or {}).get("sizeLimit") for volume in self._declared())

    def over_limit(self) -> str:
        """Which volume has outgrown its limit, in the kubelet's words; empty when none has."""
        for volume in self._declared():
            limit = (volume.get("emptyDir") or {}).get("sizeLimit")
            path = self._paths.get(volume["name"])
            try:
                most = quantity.amount("memory", limit) if limit else 0
            except BadInput:
                most = 0
            if most and path is not None and used_bytes(path) > most:
                return f'Usage of EmptyDir volume "{volume["name"]}" exceeds the limit "{limit}". '
        return ""

    def mounts(self, container: Json, environment: dict[str, str] | None = None) -> list[Mount]:
        """What this container sees, outer paths before inner ones."""
        found = []
        wanted = list(container.get("volumeMounts") or ())
        if self._access is not None and access.lacks(container):
            wanted.append({"name": self._access["name"], "mountPath": access.PATH})
        for mount in wanted:
            source = self._paths.get(mount["name"])
            if source is None:
                raise ConfigError(f'volume "{mount["name"]}" is mounted but not declared')
            if _is_shared_memory(mount):
                continue  # shared memory stays the machine's: Ray's object store lives there
            sub_path = mount.get("subPath") or expand(mount.get("subPathExpr") or "", environment or {})
            found.append(
                {
                    "source": str(source),
                    "target": os.path.normpath(mount["mountPath"]),
                    "readonly": bool(mount.get("readOnly")) or self._read_only(mount["name"]),
                    "subPath": sub_path,
                }
            )
        return sorted(found, key=lambda mount: mount["target"].count("/"))

    def remove(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        if self._memory is not None:
            shutil.rmtree(self._memory, ignore_errors=True)
            with contextlib.suppress(OSError):  # other pods may have something there
                self._memory.parent.rmdir()

    def _declared(self) -> list[Json]:
        return list(self._pod["spec"].get("volumes") or ())

    def _all(self) -> list[Json]:
        return self._declared() if self._access is None else [*self._declared(), self._access]

    def _read_only(self, name: str) -> bool:
        volume = next((volume for volume in self._all() if volume["name"] == name), {})
        claimed = (volume.get("persistentVolumeClaim") or {}).get("readOnly")
        return bool(claimed) or any(kind in volume for kind in _WRITTEN)

    async def _one(self, volume: Json) -> Path:
        namespace = self._pod["metadata"].get("namespace", "")
        path = self._directory / safe_name(volume["name"])
        kind = next((kind for kind in volume if kind != "name"), "emptyDir")
        if kind == "hostPath":
            return _host_path(volume["hostPath"])
        if kind == "persistentVolumeClaim":
            name = safe_name(volume[kind]["claimName"])
            if not await self._sources.claim(namespace, name):
                raise ConfigError(f'persistentvolumeclaim "{name}" not found')
            return self._open_directory(self._claims / safe_name(namespace) / name)
        if kind in _EMPTY:
            return self._open_directory(self._in_memory(volume) or path)
        if kind not in _WRITTEN:
            raise ConfigError(f"volumes of type {kind} are not available on one machine; use hostPath or a claim")
        files = await self._files(volume)
        path.mkdir(parents=True, exist_ok=True)
        sync(path, files)
        return path

    def _in_memory(self, volume: Json) -> Path | None:
        """Where a volume goes that is to be kept in memory, and can be. One mounted at /dev/shm alone is not used."""
        if (volume.get("emptyDir") or {}).get("medium") != "Memory" or self._memory is None:
            return None
        spec = self._pod["spec"]
        everyone = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
        mounts = [mount for container in everyone for mount in container.get("volumeMounts") or ()]
        if all(_is_shared_memory(mount) for mount in mounts if mount["name"] == volume["name"]):
            return None
        try:
            claim(self._memory.parent)
        except (OSError, ShoalError):
            return None
        return self._memory / safe_name(volume["name"])

    def _open_directory(self, path: Path) -> Path:
        """A directory that any user of the pod may write to, as the kubelet makes them."""
        if not path.exists():
            path.mkdir(parents=True)
            group = (self._pod["spec"].get("securityContext") or {}).get("fsGroup")
            if group is not None and os.geteuid() == 0:
                try:
                    os.chown(path, -1, int(group))
                except OSError:
                    group = None  # a user namespace that has no such group
            os.chmod(path, 0o2777 if group is not None else 0o777)
        return path

    async def _rewrite(self, volume: Json) -> None:
        path = self._paths.get(volume["name"])
        if path is None:
            return
        try:
            sync(path, await self._files(volume))
        except (ConfigError, OSError):
            return

    async def _files(self, volume: Json) -> Files:
        """What a volume that is written by us holds."""
        namespace = self._pod["metadata"].get("namespace", "")
        if "projected" in volume:
            return await self._projected(volume["projected"] or {})
        if source := volume.get("configMap"):
            return choose(source, await config_data(namespace, source, self._sources), _DEFAULT_MODE)
        if source := volume.get("secret"):
            return choose(source, await secret_data(namespace, source, self._sources), _DEFAULT_MODE)
        source = volume.get("downwardAPI") or {}
        return self._downward(source, int(source.get("defaultMode") or _DEFAULT_MODE))

    def _downward(self, source: Json, mode: int) -> Files:
        files: Files = {}
        for item in source.get("items") or ():
            if "fieldRef" in item:
                text = field_value(self._pod, item["fieldRef"]["fieldPath"])
            else:
                container = self._pod["spec"]["containers"][0]
                text = resource_value(self._pod, container, item["resourceFieldRef"], self._sources)
            files[item["path"]] = (text.encode(), int(item.get("mode") or mode))
        return files

    async def _projected(self, volume: Json) -> Files:
        namespace = self._pod["metadata"].get("namespace", "")
        mode = int(volume.get("defaultMode") or _DEFAULT_MODE)
        files: Files = {}
        for source in volume.get("sources") or ():
            if part := source.get("configMap"):
                files.update(choose(part, await self._config(namespace, part), mode))
            elif part := source.get("secret"):
                files.update(choose(part, await secret_data(namespace, part, self._sources), mode))
            elif part := source.get("downwardAPI"):
                files.update(self._downward(part, mode))
            elif part := source.get("serviceAccountToken"):
                token = await self._token(part.get("audience", ""), int(part.get("expirationSeconds") or 3600))
                files[part["path"]] = (token.encode(), mode)
        return files

    async def _token(self, audience: str, seconds: int) -> str:
        """Asked for once until tokens are renewed: files that are written again for another reason keep theirs."""
        held = self._tokens.get((audience, seconds))
        if held is None:
            account = self._pod["spec"].get("serviceAccountName") or "default"
            held = await self._sources.token(self._pod, account, audience, seconds)
            self._tokens[audience, seconds] = held
        return held

    async def _config(self, namespace: str, reference: Json) -> dict[str, bytes]:
        """A config map's data; the server's certificate where no controller publishes it as one."""
        if reference.get("name") != access.ROOT_CA:
            return await config_data(namespace, reference, self._sources)
        published = await config_data(namespace, {**reference, "optional": True}, self._sources)
        return published or {"ca.crt": self._sources.certificate().encode()}


def _is_shared_memory(mount: Json) -> bool:
    return os.path.normpath(str(mount["mountPath"])) == "/dev/shm"


def references(volume: Json) -> set[tuple[str, str]]:
    """The config maps and secrets that a volume is written from, as (kind, name)."""
    found = set()
    for part in [volume, *((volume.get("projected") or {}).get("sources") or ())]:
        if source := part.get("configMap"):
            found.add(("ConfigMap", str(source.get("name", ""))))
        if source := part.get("secret"):
            found.add(("Secret", str(source.get("secretName") or source.get("name") or "")))
    return found


def token_seconds(volume: Json) -> int:
    """The shortest life of a token in this volume; 0 without one."""
    lives = [
        int(source["serviceAccountToken"].get("expirationSeconds") or 3600)
        for source in (volume.get("projected") or {}).get("sources") or ()
        if "serviceAccountToken" in source
    ]
    return min(lives, default=0)


def used_bytes(path: Path) -> int:
    """What lies below a directory, in blocks as `du` counts them; links are not followed."""
    total = 0
    for directory, _, files in os.walk(path):
        for name in files:
            try:
                total += os.lstat(os.path.join(directory, name)).st_blocks * 512
            except OSError:
                continue
    return total


def _host_path(source: Json) -> Path:
    path = Path(source["path"])
    kind = source.get("type") or ""
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
        kind = "Directory"
    elif kind == "FileOrCreate":
        path.touch(exist_ok=True)
        kind = "File"
    elif not path.exists():
        raise ConfigError(f"hostPath type check failed: {path} does not exist")
    if kind:
        if kind not in _HOST_PATH_KINDS:
            raise ConfigError(f"hostPath type {kind} is not known")
        what, fits = _HOST_PATH_KINDS[kind]
        if not fits(path.stat().st_mode):
            raise ConfigError(f"hostPath type check failed: {path} is not a {what}")
    return path


def safe_name(name: str) -> str:
    """A name that is a single path component. The API server checks names; this holds without it."""
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise ConfigError(f"{name!r} cannot name a volume")
    return name
