"""Prints a bill of materials (CycloneDX 1.5) of the Python that runs it, and of the Debian packages around it.

The Dockerfile runs it in the image's own environment, so it needs nothing but the standard library.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

DPKG = Path("/var/lib/dpkg/status")


def components() -> list[dict[str, Any]]:
    found = {(one["purl"]): one for one in [*_python(), *_debian()]}
    return [found[purl] for purl in sorted(found)]


def _python() -> list[dict[str, Any]]:
    made = []
    for one in distributions():
        name = re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower()
        licence = one.metadata.get("License-Expression") or one.metadata.get("License") or ""
        known = {"licenses": [{"license": {"name": licence.splitlines()[0][:80]}}]} if licence.strip() else {}
        purl = f"pkg:pypi/{name}@{one.version}"
        made.append({"type": "library", "name": name, "version": one.version, "purl": purl, "bom-ref": purl, **known})
    return made


def _debian() -> list[dict[str, Any]]:
    if not DPKG.exists():
        return []
    made = []
    for block in DPKG.read_text(errors="replace").split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Architecture): (.+)$", block, re.MULTILINE))
        if len(fields) == 3:
            name, version = fields["Package"], fields["Version"]
            purl = f"pkg:deb/debian/{name}@{version}?arch={fields['Architecture']}"
            made.append({"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl})
    return made


def bill() -> dict[str, Any]:
    parts = components()
    (own,) = (one for one in parts if one["name"] == "shoal-ray")
    about = {"component": {**own, "type": "application"}}
    rest = [one for one in parts if one is not own]
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "metadata": about, "components": rest}


if __name__ == "__main__":
    json.dump(bill(), sys.stdout, indent=1)
