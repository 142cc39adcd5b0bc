"""First on the PYTHONPATH of Ray's processes for which `sitecustomize` beside this file changes something: in the
loopback sandbox, and where their cluster has a token."""

from pathlib import Path

DIRECTORY = str(Path(__file__).parent)


def put_first(environment: dict[str, str]) -> None:
    """On the PYTHONPATH, once."""
    others = [one for one in environment.get("PYTHONPATH", "").split(":") if one and one != DIRECTORY]
    environment["PYTHONPATH"] = ":".join((DIRECTORY, *others))
