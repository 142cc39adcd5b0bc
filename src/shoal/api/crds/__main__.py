"""`python -m shoal.api.crds`: write the YAML of every CRD beside this package, or to the directory given."""

from __future__ import annotations

import sys
from pathlib import Path

from shoal.api.crds import DEFINITIONS, DIRECTORY, yaml_text


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY
    target.mkdir(parents=True, exist_ok=True)
    for definition in DEFINITIONS:
        path = target / f"{definition.name}.yaml"
        path.write_text(yaml_text(definition), encoding="utf-8")
        print(f"{path}  {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
