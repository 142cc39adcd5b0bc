"""A label, annotation, taint or finalizer is spelled in one module: two spellings of one name drift apart."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import shoal

ROOT = Path(shoal.__file__).parent
NAME = re.compile(r"(?:[a-z0-9-]+\.)*(?:shoal\.dev|kueue\.x-k8s\.io|ray\.io|k8s\.io|kubernetes\.io|ibm\.com)/[\w.-]+")
VERSION = re.compile(r"v\d+((alpha|beta)\d+)?")


def names_in(source: str) -> set[str]:
    found = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return {one for one in found if isinstance(one, str) and NAME.fullmatch(one) and not _is_version(one)}


def _is_version(text: str) -> bool:
    return VERSION.fullmatch(text.rpartition("/")[2]) is not None


def twice(sources: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    modules: dict[str, list[str]] = defaultdict(list)
    for path, source in sources:
        for name in names_in(source):
            modules[name].append(path)
    return {name: paths for name, paths in modules.items() if len(paths) > 1}


def test_every_label_is_spelled_in_one_module():
    sources = [(str(path.relative_to(ROOT)), path.read_text()) for path in sorted(ROOT.rglob("*.py"))]
    assert any("kueue.x-k8s.io/queue-name" in names_in(source) for _, source in sources)
    assert twice(sources) == {}


def test_what_the_check_finds():
    a = 'QUEUE = "kueue.x-k8s.io/queue-name"\nVERSION = "ray.io/v1"\n'
    b = 'labels.get("kueue.x-k8s.io/queue-name")\nkind = "ray.io/v1"\n"""Reads kueue.x-k8s.io/queue-name of jobs."""\n'
    assert twice([("a.py", a), ("b.py", b)]) == {"kueue.x-k8s.io/queue-name": ["a.py", "b.py"]}
    assert twice([("a.py", a)]) == {}
