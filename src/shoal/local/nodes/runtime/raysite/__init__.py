"""First on the PYTHONPATH of Ray's processes in the loopback sandbox; see `sitecustomize` beside this file."""

from pathlib import Path

DIRECTORY = str(Path(__file__).parent)
