"""A pod's volumes as directories of the machine, and where each container sees them.

Every volume becomes a directory below the pod's own (host paths aside). Keys and paths come from users: nothing here
may write outside that directory, whatever they are called.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from shoal.api.meta import Json
from shoal.local.runtime.environment import config_data, expand, field_value, resource_value, secret_data
from shoal.local.runtime.sources import ConfigError, MountError, Sources

Mount = Json
"""`source`, `target`, and where given `readonly` and `subPath`."""


class Volumes:
    """The volumes of one pod. `claims` is where persistent volume claims of all pods live."""

    def __init__(self, pod: Json, directory: Path, claims: Path, sources: Sources) -> None:
        self._pod = pod
        self._directory = directory
        self._claims = claims
        self._sources = sources
        self._paths: dict[str, Path] = {}

    async def prepare(self) -> None:
        """Bring every volume into being. Safe to repeat: a restarted agent runs it again over what is there."""
        for volume in self._pod["spec"].get("volumes") or ():
            try:
                self._paths[volume["name"]] = await self._one(volume)
            except (ConfigError, OSError) as error:
                raise MountError(f'MountVolume.SetUp failed for volume "{volume["name"]}" : {error}') from error

    def mounts(self, container: Json, environment: dict[str, str] | None = None) -> list[Mount]:
        """What this container sees, outer paths before inner ones."""
        found = []
        for mount in container.get("volumeMounts") or ():
            source = self._paths.get(mount["name"])
            if source is None:
                raise ConfigError(f'volume "{mount["name"]}" is mounted but not declared')
            if os.path.normpath(mount["mountPath"]) == "/dev/shm":
                continue  # shared memory stays the machine's: Ray's object store lives there
            sub_path = mount.get("subPath") or expand(mount.get("subPathExpr") or "", environment or {})
            found.append(
                {
                    "source": str(source),
                    "target": os.path.normpath(mount["mountPath"]),
                    "readonly": bool(mount.get("readOnly")),
                    "subPath": sub_path,
                }
            )
        return sorted(found, key=lambda mount: mount["target"].count("/"))

    def remove(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _one(self, volume: Json) -> Path:
        namespace = self._pod["metadata"].get("namespace", "")
        path = self._directory / safe_name(volume["name"])
        if "hostPath" in volume:
            return _host_path(volume["hostPath"])
        if claim := volume.get("persistentVolumeClaim"):
            path = self._claims / safe_name(namespace) / safe_name(claim["claimName"])
        path.mkdir(parents=True, exist_ok=True)
        if source := volume.get("configMap"):
            write_files(path, source, await config_data(namespace, source, self._sources))
        elif source := volume.get("secret"):
            write_files(path, source, await secret_data(namespace, source, self._sources))
        elif "downwardAPI" in volume:
            write_files(path, {}, self._downward(volume["downwardAPI"] or {}))
        elif "projected" in volume:
            await self._projected(path, volume["projected"] or {})
        return path

    def _downward(self, source: Json) -> dict[str, bytes]:
        files = {}
        for item in source.get("items") or ():
            if "fieldRef" in item:
                text = field_value(self._pod, item["fieldRef"]["fieldPath"])
            else:
                container = self._pod["spec"]["containers"][0]
                text = resource_value(self._pod, container, item["resourceFieldRef"], self._sources)
            files[item["path"]] = text.encode()
        return files

    async def _projected(self, path: Path, volume: Json) -> None:
        namespace = self._pod["metadata"].get("namespace", "")
        for source in volume.get("sources") or ():
            if part := source.get("configMap"):
                if (
                    part.get("name") == "kube-root-ca.crt"
                    and await self._sources.config_map(namespace, part["name"]) is None
                ):
                    write_files(path, {}, {"ca.crt": self._sources.certificate().encode()})
                else:
                    write_files(path, part, await config_data(namespace, part, self._sources))
            elif part := source.get("secret"):
                write_files(path, part, await secret_data(namespace, part, self._sources))
            elif part := source.get("downwardAPI"):
                write_files(path, {}, self._downward(part))
            elif part := source.get("serviceAccountToken"):
                account = self._pod["spec"].get("serviceAccountName") or "default"
                token = await self._sources.token(
                    namespace, account, part.get("audience", ""), int(part.get("expirationSeconds") or 3600)
                )
                write_files(path, {}, {part["path"]: token.encode()})


def write_files(directory: Path, source: Json, data: dict[str, bytes]) -> None:
    """Keys as files; `items` choose and rename. Written through directory handles: a link is never followed."""
    mode = source.get("defaultMode", 0o644)
    if items := source.get("items"):
        chosen = []
        for item in items:
            if item["key"] in data:
                chosen.append((item["path"], data[item["key"]], item.get("mode", mode)))
            elif not source.get("optional"):
                raise ConfigError(f"references non-existent config key: {item['key']}")
    else:
        chosen = [(key, value, mode) for key, value in data.items()]
    root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for relative, value, bits in chosen:
            _write_beneath(root, relative, value, int(bits))
    finally:
        os.close(root)


def _write_beneath(root: int, relative: str, value: bytes, mode: int) -> None:
    parts = [part for part in relative.split("/") if part not in ("", ".")]
    if not parts or ".." in parts or relative.startswith("/"):
        raise ConfigError(f"{relative!r} is not a path inside the volume; keys and paths may not leave it")
    held = os.dup(root)
    try:
        for part in parts[:-1]:
            try:
                os.mkdir(part, 0o755, dir_fd=held)
            except FileExistsError:
                pass
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=held)
            os.close(held)
            held = inner
        partial = f"..{parts[-1]}.partial"
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode, dir_fd=held)
        with os.fdopen(descriptor, "wb") as file:
            file.write(value)
            os.fchmod(file.fileno(), mode)
        os.rename(partial, parts[-1], src_dir_fd=held, dst_dir_fd=held)
    finally:
        os.close(held)


def _host_path(source: Json) -> Path:
    path = Path(source["path"])
    kind = source.get("type") or ""
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        path.touch(exist_ok=True)
    elif not path.exists():
        raise ConfigError(f"hostPath type check failed: {path} does not exist")
    elif kind == "Directory" and not path.is_dir():
        raise ConfigError(f"hostPath type check failed: {path} is not a directory")
    elif kind == "File" and not path.is_file():
        raise ConfigError(f"hostPath type check failed: {path} is not a file")
    return path


def safe_name(name: str) -> str:
    """A name that is a single path component. The API server checks names; this holds without it."""
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise ConfigError(f"{name!r} cannot name a volume")
    return name
