"""Fixtures of the integration suites: a real control plane, fresh for each module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controlplane.plane import ControlPlane


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """kube-apiserver and etcd, nothing else. A machine that cannot build them fails here, with one clear line."""
    yield from _running(ControlPlane(tmp_path_factory.mktemp("plane") / "state"))


@pytest.fixture(scope="module")
def full_control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """With controller-manager, scheduler and three simulated nodes that run pods without kubelets."""
    folder: Path = tmp_path_factory.mktemp("plane") / "state"
    yield from _running(ControlPlane(folder, controllers=True, scheduler=True, nodes=3))


def _running(plane: ControlPlane) -> Iterator[ControlPlane]:
    plane.start()
    try:
        yield plane
    finally:
        plane.stop()
