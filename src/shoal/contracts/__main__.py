"""`python -m shoal.contracts KIT package.module:object`: says what is missing, exit code 1 where something is."""

from __future__ import annotations

import sys
from collections.abc import Callable

from shoal.contracts import missing_from_policy

KITS: dict[str, tuple[str, Callable[[str], list[str]]]] = {
    "policy": ("a policy", missing_from_policy),
}


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0] not in KITS or ":" not in arguments[1]:
        print(f"usage: python -m shoal.contracts {'|'.join(KITS)} package.module:object", file=sys.stderr)
        return 2
    what, kit = KITS[arguments[0]]
    missing = kit(arguments[1])
    for sentence in missing:
        print(f"{arguments[1]}: {sentence}")
    if not missing:
        print(f"{arguments[1]} keeps the contract of {what}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
