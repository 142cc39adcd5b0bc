"""Where chromium is, and how it gets there: `python -m tests.browser.chromium`, which `make test-browser` runs first.

Found on PATH (or named in CHROMIUM); as root on Debian it is installed once from the distribution's own packages.
Anywhere else this says what to do: the tests are not skipped in silence.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
WHAT_TO_DO = (
    "error: the tests of the page need chromium, and it is not on PATH. Install it (Debian: apt-get install chromium), "
    "or name one in CHROMIUM; everything else runs without it: make test-fast"
)


def find() -> str | None:
    """The path of a chromium, if there is one."""
    if chosen := os.environ.get("CHROMIUM"):
        return chosen
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def install() -> None:
    """Debian's own, once, as root."""
    print("installing chromium from Debian's packages (once) …", flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    commands = (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-qq", "-y", "--no-install-recommends", "chromium"],
    )
    for command in commands:
        done = subprocess.run(command, env=quiet, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{WHAT_TO_DO}\n{' '.join(command)} said: {done.stderr.strip()[-500:]}")


def main() -> int:
    if find() is None:
        if os.geteuid() == 0 and Path("/etc/debian_version").exists() and shutil.which("apt-get"):
            install()
        if find() is None:
            print(WHAT_TO_DO, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
