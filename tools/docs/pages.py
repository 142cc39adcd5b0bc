"""The pages of the documentation as blocks of code with their line numbers.

Two sorts of block hold commands: `bash`, commands alone, and `console`, where `$ ` begins a command and the lines
below it are what it prints. A block that cannot be run on any machine stands below a visible line
`*Not run by the docs check: REASON.*`. A YAML block whose first line is `# file: NAME` is saved under that name for
the commands below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
COMMANDS = ("bash", "console")
_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+|~~~+)(?P<info>.*)$")
_NOT_RUN = re.compile(r"^\s*\*Not run by the docs check: (?P<reason>.+)\.\*$")
_PRELUDE = re.compile(r"^<!-- docs-check: (?P<command>.+) -->$")
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")


class Command(msgspec.Struct, frozen=True):
    """One command and what the page shows that it prints; `shown` None where the page shows nothing."""

    text: str
    line: int
    shown: tuple[str, ...] | None = None


class Block(msgspec.Struct, frozen=True):
    language: str
    lines: tuple[str, ...]
    line: int
    """Of the first line inside."""
    not_run: str = ""
    """Why nothing can carry it out here."""

    @property
    def file(self) -> str:
        """The name under which commands below find this block."""
        return self.lines[0].removeprefix("# file: ").strip() if self.lines[:1] and "# file: " in self.lines[0] else ""


class Page(msgspec.Struct, frozen=True):
    path: Path
    blocks: tuple[Block, ...]
    prose: tuple[tuple[int, str], ...]
    """Lines outside blocks, numbered."""
    preludes: tuple[Command, ...] = ()
    """Commands that set the stage and that a reader does not see."""

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    def commands(self) -> Iterator[tuple[Block, Command]]:
        for block in self.blocks:
            if block.language in COMMANDS:
                for command in commands_of(block):
                    yield block, command


def all_pages() -> list[Path]:
    """Every page that a reader of the repository or of the site sees."""
    own = [ROOT / name for name in ("README.md", "AGENTS.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return [*own, *sorted((ROOT / "docs").rglob("*.md"))]


def read(path: Path) -> Page:
    return parse(path, path.read_text())


def parse(path: Path, text: str) -> Page:
    blocks: list[Block] = []
    prose: list[tuple[int, str]] = []
    preludes: list[Command] = []
    inside: tuple[str, str, str, int, str] | None = None  # ticks, indent, language, first line, reason
    held: list[str] = []
    reason = ""
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if inside is not None:
            if fence and fence["ticks"].startswith(inside[0]) and not fence["info"].strip():
                blocks.append(Block(inside[2], tuple(held), inside[3], inside[4]))
                inside, held, reason = None, [], ""
            else:
                held.append(line.removeprefix(inside[1]))
        elif fence:
            language = (fence["info"].split() or [""])[0]
            inside = (fence["ticks"], fence["indent"], language, number + 1, reason)
        else:
            prose.append((number, line))
            if found := _PRELUDE.match(line):
                preludes.append(Command(found["command"], number))
            if found := _NOT_RUN.match(line):
                reason = found["reason"]
            elif line.strip():
                reason = ""
    if inside is not None:
        raise ValueError(f"{path}:{inside[3] - 1}: this block of code is never closed")
    return Page(path, tuple(blocks), tuple(prose), tuple(preludes))


def commands_of(block: Block) -> list[Command]:
    return _of_console(block) if block.language == "console" else _of_bash(block)


def _of_console(block: Block) -> list[Command]:
    found: list[Command] = []
    index = 0
    while index < len(block.lines):
        line = block.lines[index]
        if not line.startswith("$ "):
            index += 1
            continue
        begin, text = index, line[2:]
        index += 1
        while text.endswith("\\") and index < len(block.lines):
            text += "\n" + block.lines[index]
            index += 1
        shown = []
        while index < len(block.lines) and not block.lines[index].startswith("$ "):
            shown.append(block.lines[index])
            index += 1
        found.append(Command(text, block.line + begin, tuple(shown) if any(one.strip() for one in shown) else None))
    return found


def _of_bash(block: Block) -> list[Command]:
    found: list[Command] = []
    index = 0
    while index < len(block.lines):
        begin, text = index, block.lines[index]
        index += 1
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        while text.endswith("\\") and index < len(block.lines):
            text += "\n" + block.lines[index]
            index += 1
        if ends := _HEREDOC.search(text):
            while index < len(block.lines):
                text += "\n" + block.lines[index]
                index += 1
                if text.endswith("\n" + ends[1]):
                    break
        found.append(Command(text, block.line + begin))
    return found
