"""The documentation holds as far as that can be read: links, flags, targets, files, generated pages, messages.

What takes a cluster (running every command) is `make docs-check`.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import yaml
from tools.docs import commands, links, pages, reference
from tools.docs.pages import ROOT, Page

from shoal.local import images
from shoal.local.images import ImageTable

PAGES = [pages.read(path) for path in pages.all_pages()]
_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Page) -> None:
    assert links.problems(page) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_could_be_typed(page: Page) -> None:
    found = [f"{page.name}:{one.line}: {wrong}" for _, one in page.commands() for wrong in commands.problems(one.text)]
    assert found == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_sentences_could_be_typed(page: Page) -> None:
    """`shoal up --detach` in the middle of a sentence is a command as well."""
    said = [
        (number, code) for number, line in page.prose for code in _CODE.findall(line) if _is_command(code.split(" ")[0])
    ]
    found = [f"{page.name}:{number}: {wrong}" for number, code in said for wrong in commands.problems(_plain(code))]
    assert [one for one in found if "takes a value" not in one] == []  # a sentence may name the flag alone


def _is_command(word: str) -> bool:
    return word in ("shoal", "make")


def _plain(code: str) -> str:
    """Without the marks for what may be left out or repeated."""
    return re.sub(r"[\[\]]", "", code.replace("\\|", "|"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_stand_in_blocks_that_are_run(page: Page) -> None:
    """A command in an indented block would be neither run nor read."""
    stray = [
        f"{page.name}:{number}: put this command into a block of bash or console"
        for number, line in page.prose
        if re.match(r" {4,}(\$ )?(shoal|kubectl|make) [a-z]", line)
    ]
    assert stray == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_yaml_can_be_read(page: Page) -> None:
    for block in page.blocks:
        if block.language == "yaml":
            assert list(yaml.safe_load_all("\n".join(block.lines))), f"{page.name}:{block.line}"


def test_generated_pages_are_up_to_date() -> None:
    stale = [path.name for path, text in reference.pages().items() if path.read_text() != text]
    assert stale == [], "run make docs-reference"


def test_every_page_is_in_the_menu() -> None:
    menu = ast.literal_eval(_assigned(ROOT / "docs" / "conf.py", "MENU"))
    listed = {f"{entry}.md" for entries in menu.values() for entry in entries} | {"docs/index.md"}
    assert {page.name for page in PAGES} - listed == {"README.md"}


def _assigned(path: Path, name: str) -> ast.expr:
    found = [
        one.value
        for one in ast.parse(path.read_text()).body
        if isinstance(one, ast.AnnAssign) and getattr(one.target, "id", "") == name
    ]
    assert found and found[0] is not None
    return found[0]


@cache
def texts_of_the_program() -> str:
    """Every text in the source, the parts of one f-string on one line."""
    found = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def test_messages_to_look_up_are_those_of_the_program() -> None:
    page = pages.read(ROOT / "docs" / "guides" / "troubleshoot.md")
    rows = [line.split("|")[1] for _, line in page.prose if line.startswith("| `")]
    messages = [message for row in rows for message in _CODE.findall(row)]
    assert len(messages) > 30
    missing = [message for message in messages if message not in texts_of_the_program()]
    assert missing == [], "the program does not say this any more: correct docs/guides/troubleshoot.md"


def test_every_kind_is_listed() -> None:
    listed = (ROOT / "docs" / "reference" / "kinds.md").read_text()
    crds = [
        one
        for path in sorted((ROOT / "src" / "shoal" / "api" / "crds").glob("*.yaml"))
        for one in yaml.safe_load_all(path.read_text())
        if one and one["kind"] == "CustomResourceDefinition"
    ]
    assert len(crds) > 15
    assert [one["spec"]["names"]["kind"] for one in crds if one["spec"]["names"]["kind"] not in listed] == []


def test_every_image_name_is_listed_and_every_listed_one_is_known() -> None:
    page = pages.read(ROOT / "docs" / "reference" / "one-machine.md")
    lines = [line for _, line in page.prose]
    table = lines[lines.index("### Images") : lines.index("### Sandboxes")]
    listed = {name for line in table if line.startswith("| `") for name in _CODE.findall(line.split("|")[1])}
    known = ImageTable()
    assert {name for name in listed if "…" not in name and known.find(name) is None} <= {"redis"}
    assert {*images._RAY, *images._SHELL, *images._ECHO, "pause", "redis"} - listed == set()


def test_every_setting_says_what_it_does() -> None:
    silent = [line for line in reference.settings().splitlines() if line.startswith("| `") and line.endswith("|  |")]
    assert silent == [], "write the text below the field of its type"
