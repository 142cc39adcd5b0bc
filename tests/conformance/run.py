"""Run neutral cases against the engine: `python tests/conformance/run.py kueue FILE [--json OUT]`.

Prints passed, failed and skipped per kind of case, and exits non-zero when anything failed. Each subject has a runner
module with one function, `run(path) -> {kind: {passed, failed, skipped, failed_ids}}`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # so that `tests` imports when run as a script

SUBJECTS = ("kueue", "kuberay", "rayservice")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("subject", choices=SUBJECTS)
    parser.add_argument("file", type=Path)
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the result here")
    options = parser.parse_args(arguments)
    runner = importlib.import_module(f"tests.conformance.{options.subject}_runner")
    results: dict[str, dict[str, Any]] = runner.run(options.file)
    for kind, result in sorted(results.items()):
        print(f"{kind:12} passed {result['passed']:4}  failed {result['failed']:3}  skipped {result['skipped']:3}")
        for identifier in result["failed_ids"]:
            print(f"    failed: {identifier}")
        for reason, count in sorted((result.get("reasons") or {}).items()):
            print(f"    skipped {count}: {reason}")
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")
    return 1 if any(result["failed"] for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
