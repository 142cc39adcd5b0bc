"""How `make docs` builds the site. The source is the repository itself, so that links are the same here and there.

Pages are plain Markdown; the order of the menu is `MENU`, and a page that it does not name fails the build.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

project = "Shoal"
copyright = "the Shoal authors, Apache-2.0"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "docs/index"
include_patterns = ["docs/**.md", "AGENTS.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
exclude_patterns = [
    *(".*", "build", "dist", "src", "tests", "bench", "demo", "tools", "samples", "**/__pycache__", "**/*.egg-info"),
]
myst_heading_anchors = 4
html_theme = "furo"
html_title = "Shoal"
html_static_path: list[str] = []
html_copy_source = False
html_show_sphinx = False
highlight_language = "text"
nitpicky = True

MENU: dict[str, list[str]] = {
    "Start": ["docs/start", "docs/concepts"],
    "Tutorials": [
        "docs/tutorials/two-ray-clusters",
        "docs/tutorials/provisioned-gpu",
        "docs/tutorials/team-quotas",
        "docs/tutorials/several-clusters",
        "docs/tutorials/ray-service",
        "docs/tutorials/gpu-workstation",
    ],
    "Guides": [
        "docs/guides/submit",
        "docs/guides/python",
        "docs/guides/page",
        "AGENTS",
        "docs/guides/install",
        "docs/guides/people",
        "docs/guides/operate",
        "docs/guides/scheduler",
        "docs/guides/large-clusters",
        "docs/guides/move-in",
        "docs/guides/upgrade",
        "docs/guides/troubleshoot",
        "docs/guides/policy",
        "docs/guides/job-kind",
        "CONTRIBUTING",
    ],
    "Reference": [
        "docs/reference/cli",
        "docs/reference/settings",
        "docs/reference/metrics",
        "docs/reference/kinds",
        "docs/reference/appwrapper",
        "docs/reference/queues",
        "docs/reference/ray",
        "docs/reference/clusters",
        "docs/reference/one-machine",
        "docs/reference/node-autoscaler",
        "docs/reference/questions",
        "docs/reference/security",
        "docs/reference/compatibility/mcad",
        "docs/reference/compatibility/kueue",
        "docs/reference/compatibility/kuberay",
        "docs/reference/compatibility/kubernetes",
        "CHANGELOG",
    ],
    "Internals": [
        "ARCHITECTURE",
        "docs/internals/engine",
        "docs/internals/controllers",
        "docs/internals/kube",
        "docs/internals/embedded-api-server",
        "docs/internals/built-in-controllers",
        "docs/internals/invariants",
        "docs/internals/faults",
        "docs/internals/long-tests",
    ],
}


def add_menu(app: Any, name: str, source: list[str]) -> None:
    """The menu stands below the first page; there it is invisible to those who read Markdown."""
    if name == root_doc:
        for caption, entries in MENU.items():
            listed = "\n".join("/" + entry for entry in entries)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n"


def add_door(app: Any, error: Exception | None) -> None:
    """`index.html` at the top leads to the first page."""
    if error is None and app.builder.name == "html":
        door = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=docs/index.html">\n'
        Path(app.outdir, "index.html").write_text(door)


def setup(app: Any) -> None:
    app.connect("source-read", add_menu)
    app.connect("build-finished", add_door)
