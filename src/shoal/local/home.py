"""Where a one-machine cluster keeps its state, and who is running it.

One directory per cluster name. Read by every command that names a cluster; the running process is known by pid and
start time, so that a stale file never leads to a stranger.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from shoal.errors import BadInput, ShoalError
from shoal.local.nodes.runtime.identity import ProcessIdentity, alive, boot_id, start_time
from shoal.local.shapes import RuntimeName

DEFAULT_NAME = "local"
DEFAULT_NODE = "node-0"
"""The one of the machine's own size, where no others are declared."""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?", re.ASCII)


class Home:
    """The directory of one cluster."""

    def __init__(self, name: str = DEFAULT_NAME, root: Path | None = None) -> None:
        if not _NAME.fullmatch(name):
            raise BadInput(f"cluster name {name!r} must be lower-case letters, digits and dashes, at most 32 of them")
        self.name = name
        self.directory = (root or default_root()) / name

    @property
    def context(self) -> str:
        return f"shoal-{self.name}"

    @property
    def identity(self) -> str:
        """Tells apart clusters of one name in different state directories: names of bridges and groups come from it."""
        return f"{self.name}@{self.directory.resolve()}"

    @property
    def api(self) -> Path:
        return self.directory / "api"

    @property
    def history(self) -> Path:
        return self.directory / "history.db"

    @property
    def kubeconfig(self) -> Path:
        return self.directory / "kubeconfig"

    @property
    def log(self) -> Path:
        return self.directory / "shoal.log"

    @property
    def runtime(self) -> Path:
        return self.directory / "run"

    def create(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            os.chmod(self.directory, 0o700)
        except OSError as error:
            raise ShoalError(
                f"state cannot be kept in {self.directory}: {error.strerror}; name another directory in SHOAL_HOME"
            ) from None

    def exists(self) -> bool:
        return self.directory.is_dir()

    def write_running(self, **facts: object) -> None:
        pid = os.getpid()
        value = {"pid": pid, "start": start_time(pid), "boot": boot_id(), **facts}
        partial = self.directory / ".running.partial"
        partial.write_text(json.dumps(value))
        partial.replace(self.directory / "running.json")

    def running(self) -> tuple[ProcessIdentity, dict[str, object]] | None:
        """The process that runs this cluster, if it lives."""
        try:
            value = json.loads((self.directory / "running.json").read_bytes())
        except (OSError, ValueError):
            return None
        identity = ProcessIdentity(int(value["pid"]), int(value["start"]))
        return (identity, value) if value.get("boot") == boot_id() and alive(identity) else None

    def forget_running(self) -> None:
        (self.directory / "running.json").unlink(missing_ok=True)

    def remembered(self) -> dict[str, object]:
        """Facts of the last start, such as its port; empty at the first."""
        try:
            return dict(json.loads((self.directory / "remembered.json").read_bytes()))
        except (OSError, ValueError):
            return {}

    def last_port(self, of: str = "") -> int:
        """The port of the last start, of the API server or of what is named; 0 at the first."""
        return int(str(self.remembered().get(f"{of}_port" if of else "port") or 0))

    def remembered_nodes(self) -> list[str]:
        """Names of the nodes that the last start declared, without those removed by hand since."""
        settings = self.remembered().get("settings")
        if not isinstance(settings, dict):
            return []
        names = [str(node["name"]) for node in settings.get("nodes") or ()]
        if not names and not settings.get("pools"):
            names = [DEFAULT_NODE]
        return [name for name in names if name not in (settings.get("removed") or ())]

    def note_removed(self, name: str) -> None:
        """This node was removed by hand: a start that does not declare nodes does not bring it back."""
        settings = self.remembered().get("settings")
        if isinstance(settings, dict) and name in self.remembered_nodes():
            self.remember(settings={**settings, "removed": [*(settings.get("removed") or ()), name]})

    def remembered_runtime(self) -> RuntimeName:
        """What pods are on this cluster's nodes unless a node says otherwise."""
        settings = self.remembered().get("settings")
        return "simulated" if isinstance(settings, dict) and settings.get("runtime") == "simulated" else "process"

    def remember(self, **facts: object) -> None:
        partial = self.directory / ".remembered.partial"
        partial.write_text(json.dumps({**self.remembered(), **facts}))
        partial.replace(self.directory / "remembered.json")


def default_root() -> Path:
    if chosen := os.environ.get("SHOAL_HOME"):
        return Path(chosen)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "shoal"
