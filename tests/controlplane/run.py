"""Start and stop a real control plane by hand.

`python tests/controlplane/run.py start DIR [--nodes N]`, then `… stop DIR`; DIR/kubeconfig is its kubeconfig.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.controlplane import build
from tests.controlplane.plane import ControlPlane, stop_by_state


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=["start", "stop"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=0, help="simulated nodes of 8 cpu and 32Gi")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    if arguments.verb == "stop":
        if not (folder / "state.json").is_file():
            print(f"error: no control plane was started in {folder}", file=sys.stderr)
            return 1
        stop_by_state(folder)
        return 0
    if (folder / "state.json").exists():
        print(f"error: {folder} already holds a control plane; stop it first", file=sys.stderr)
        return 1
    began = time.monotonic()
    try:
        plane = ControlPlane(folder, controllers=True, scheduler=True, nodes=arguments.nodes, stay=True).start()
    except build.CannotBuild as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{plane.server} is ready after {time.monotonic() - began:.1f} s; export KUBECONFIG={plane.kubeconfig}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
