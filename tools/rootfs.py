"""Carries out the Dockerfile without a registry: its base is a root file system from Debian packages.

`python -m tools.rootfs FOLDER` needs root, and apt and dpkg for the packages. It knows the instructions that our
Dockerfile uses and refuses others. What comes out is the last stage's root with its configuration, and is run by tests
as a container runtime would: the same entry point, user, environment and files.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[1]
BASE_PACKAGES = ("python3", "python3-venv", "python3-pip", "ca-certificates", "dash", "coreutils", "libstdc++6")
CERTIFICATES = "/run/trusted.pem"
"""Of this machine, while a step runs: a proxy here may have its own."""
NOT_WANTED = frozenset({"perl-base", "debconf", "dpkg", "tar"})
"""Needed by scripts that install packages, which do not run here."""


class CannotMake(Exception):
    """What is missing, and what to do."""


class ImageConfig(msgspec.Struct, rename="camel"):
    """What a runtime reads beside the files."""

    env: dict[str, str] = {}
    labels: dict[str, str] = {}
    user: str = "0:0"
    work_dir: str = "/"
    entrypoint: list[str] = []
    command: list[str] = []


class Stage(msgspec.Struct):
    name: str
    root: Path
    config: ImageConfig
    args: dict[str, str]


def instructions(text: str) -> list[tuple[str, str]]:
    joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    return [
        (word, rest) for line in joined.splitlines() if line.strip() for word, rest in [line.strip().split(None, 1)]
    ]


def make(folder: Path, given: dict[str, str] | None = None) -> Stage:
    """Every stage below `folder`; returns the last."""
    base = debian(folder)
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    args: dict[str, str] = {}
    for word, rest in instructions((ROOT / "Dockerfile").read_text()):
        if word == "FROM":
            name = rest.rpartition(" AS ")[2] if " AS " in rest else "last"
            root = folder / name
            subprocess.run(["cp", "-a", "--reflink=auto", str(base), str(root)], check=True)
            stage = stages[name] = Stage(name, root, ImageConfig(env={"PATH": "/usr/local/bin:/usr/bin:/bin"}), {})
        elif word == "ARG":
            name, _, default = rest.partition("=")
            (stage.args if stage is not None else args)[name] = (given or {}).get(name, default)
        elif stage is None:
            raise CannotMake(f"the Dockerfile says {word} before FROM")
        else:
            carry_out(stage, word, rest, stages)
    if stage is None:
        raise CannotMake("the Dockerfile has no stage")
    return stage


def carry_out(stage: Stage, word: str, rest: str, stages: dict[str, Stage]) -> None:
    config = stage.config
    match word:
        case "WORKDIR":
            config.work_dir = rest
            (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        case "ENV" | "LABEL":
            filled = re.sub(r"\$\{(\w+)\}", lambda found: stage.args.get(found.group(1), ""), rest)
            pairs = dict(one.split("=", 1) for one in shlex.split(filled))
            (config.env if word == "ENV" else config.labels).update(pairs)
        case "USER":
            config.user = rest
        case "ENTRYPOINT":
            config.entrypoint = json.loads(rest)
        case "CMD":
            config.command = json.loads(rest)
        case "COPY":
            _copy(stage, rest.split(), stages)
        case "RUN":
            _run(stage, rest)
        case _:
            raise CannotMake(f"the Dockerfile says {word}, which tools/rootfs.py does not know")


def _copy(stage: Stage, words: list[str], stages: dict[str, Stage]) -> None:
    source = ROOT
    if words[0].startswith("--from="):
        source = stages[words.pop(0).removeprefix("--from=")].root
    *names, last = words
    target = stage.root / os.path.normpath(os.path.join(stage.config.work_dir, last)).lstrip("/")
    for name in names:
        found = source / name.lstrip("/")
        if found.is_dir():
            shutil.copytree(found, target, symlinks=True, dirs_exist_ok=True, ignore=_IGNORED)
        else:
            into = target / found.name if last.endswith("/") else target
            into.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(found, into)


_IGNORED = shutil.ignore_patterns("__pycache__", "*.egg-info")


def _run(stage: Stage, command: str) -> None:
    """In the stage's root, with the network and pip's settings of this machine."""
    trusted = stage.root / CERTIFICATES.lstrip("/")
    shutil.copy(os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile or os.devnull, trusted)
    variables = {**stage.config.env, "HOME": "/root", "LANG": "C.UTF-8", "PIP_BREAK_SYSTEM_PACKAGES": "1", **_pip()}
    variables["PIP_CERT"] = CERTIFICATES
    work = shlex.quote(stage.config.work_dir)
    done = subprocess.run(
        [shutil.which("chroot") or "chroot", str(stage.root), "/bin/sh", "-euc", f"cd {work}; {command}"],
        env=variables,
        capture_output=True,
        text=True,
    )
    trusted.unlink()
    if done.returncode:
        raise CannotMake(f"RUN {command[:60]}… failed in stage {stage.name}: {' '.join(done.stderr.split())[-400:]}")


def _pip() -> dict[str, str]:
    """Where this machine's pip finds packages."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    found = dict(re.findall(r"^(?:global|install|env|:env:)\.([\w-]+)='(.*)'$", listed, re.MULTILINE))
    wanted = ("index-url", "extra-index-url", "trusted-host", "proxy")
    of_file = {f"PIP_{name.upper().replace('-', '_')}": found[name] for name in wanted if name in found}
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    return {**of_file, **proxies, **{name: value for name, value in os.environ.items() if name.startswith("PIP_")}}


def debian(folder: Path) -> Path:
    """The base: packages unpacked, without the scripts that would install them."""
    for needed in ("apt-get", "apt-cache", "dpkg-deb", "chroot"):
        if shutil.which(needed) is None:
            raise CannotMake(f"{needed} is missing: the base is made from Debian packages")
    if os.geteuid():
        raise CannotMake("a root file system is made, and entered, by root alone")
    root, packages = folder / "base", folder / "packages"
    for one in (root, packages):
        one.mkdir(parents=True)
    names = sorted(_closure() - NOT_WANTED)
    fetched = subprocess.run(
        ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", *names],
        cwd=packages,
        capture_output=True,
        text=True,
    )
    if fetched.returncode:
        raise CannotMake(f"apt-get download: {' '.join(fetched.stderr.split())[-300:]}")
    for name in ("bin", "sbin", "lib", "lib64"):  # Debian's own way since 12
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    status = []
    for package in sorted(packages.glob("*.deb")):
        packed = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "--keep-directory-symlink", "-C", str(root)], stdin=packed.stdout, check=True)
        packed.wait()
        fields = ("Package", "Version", "Architecture")
        told = subprocess.run(["dpkg-deb", "-f", str(package), *fields], capture_output=True, text=True, check=True)
        status.append(f"{told.stdout.strip()}\nStatus: install ok installed\n")
    (root / "var/lib/dpkg").mkdir(parents=True, exist_ok=True)
    (root / "var/lib/dpkg/status").write_text("\n".join(status))
    _settle(root)
    return root


def _settle(root: Path) -> None:
    """What the packages' own scripts would have done, as far as a container needs it."""
    (root / "usr/bin/sh").unlink(missing_ok=True)
    (root / "usr/bin/sh").symlink_to("dash")
    (root / "usr/bin/python").symlink_to("python3")
    certificates = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    bundle = root / "etc/ssl/certs/ca-certificates.crt"
    bundle.parent.mkdir(parents=True, exist_ok=True)
    bundle.write_text("".join(one.read_text() for one in certificates))
    for name, mode in (("tmp", 0o1777), ("proc", 0o555), ("dev", 0o755), ("run", 0o755), ("root", 0o700)):
        (root / name).mkdir(exist_ok=True)
        (root / name).chmod(mode)
    (root / "dev/null").touch()
    (root / "dev/null").chmod(0o666)
    for name in ("resolv.conf", "hosts"):
        if Path("/etc", name).exists():
            shutil.copy(Path("/etc", name), root / "etc" / name)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")


def _closure() -> set[str]:
    asked = ["apt-cache", "depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks",
             "--no-replaces", "--no-enhances", *BASE_PACKAGES]  # fmt: skip
    told = subprocess.run(asked, capture_output=True, text=True)
    found = {line.strip() for line in told.stdout.splitlines() if re.match(r"^[a-z0-9]", line)}
    if not found:
        raise CannotMake("apt-cache knows no package; run apt-get update")
    native = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True).stdout.strip()
    return {one.removesuffix(f":{native}") for one in found if ":" not in one or one.endswith(f":{native}")}


if __name__ == "__main__":
    try:
        made = make(Path(sys.argv[1]))
    except CannotMake as error:
        sys.exit(f"error: {error}")
    sys.stdout.write(f"{made.root}\n{msgspec.json.encode(made.config).decode()}\n")
