"""Links of the pages that lead nowhere: a file that is not there, or a heading that the page does not have."""

from __future__ import annotations

import re
from pathlib import Path

from tools.docs.pages import ROOT, Page, read

_LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"`[^`]*`")
_HEADING = re.compile(r"^#{1,6} (?P<text>.+?)\s*#*$")


def problems(page: Page) -> list[str]:
    """`page:line: what is wrong`, one for each link."""
    found = []
    for number, line in page.prose:
        for link in _LINK.finditer(_CODE.sub("code", line)):
            wrong = _wrong(page, link["target"])
            if wrong:
                found.append(f"{page.name}:{number}: {wrong}")
    return found


def _wrong(page: Page, target: str) -> str:
    if re.match(r"[a-z]+:", target):
        return ""
    place, _, anchor = target.partition("#")
    path = (page.path.parent / place).resolve() if place else page.path
    if not path.exists() or not path.is_relative_to(ROOT):
        return f"the link {target} leads to no file"
    if anchor and (path.suffix != ".md" or anchor not in anchors(path)):
        return f"the link {target} leads to no heading"
    return ""


def anchors(path: Path) -> set[str]:
    """As GitHub and MyST make them from headings."""
    found: set[str] = set()
    for _, line in read(path).prose:
        if heading := _HEADING.match(line):
            slug = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading["text"]).lower())
            slug, count = slug.replace(" ", "-"), 1
            while (one := slug if count == 1 else f"{slug}-{count - 1}") in found:
                count += 1
            found.add(one)
    return found
