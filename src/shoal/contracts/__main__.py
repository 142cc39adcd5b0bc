"""`python -m shoal.contracts KIT package.module:object [EXAMPLE.yaml]`: says what is missing; exit code 1 where
something is."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from shoal.contracts import missing_from_check, missing_from_job, missing_from_policy

USAGE = """usage: python -m shoal.contracts policy package.module:object
       python -m shoal.contracts job package.module:object EXAMPLE.yaml
       python -m shoal.contracts check package.module:object EXAMPLE.yaml"""


def main(arguments: list[str]) -> int:
    match arguments:
        case ["policy", path]:
            missing = missing_from_policy(path)
        case ["job", path, file]:
            missing = missing_from_job(path, *[one for one in yaml.safe_load_all(Path(file).read_text()) if one][:2])
        case ["check", path, file]:
            missing = missing_from_check(path, yaml.safe_load(Path(file).read_text()))
        case _:
            print(USAGE, file=sys.stderr)
            return 2
    what = {"policy": "a policy", "job": "a kind of job", "check": "an admission check"}[arguments[0]]
    for sentence in missing:
        print(f"{path}: {sentence}")
    if not missing:
        print(f"{path} keeps the contract of {what}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
