"""Fixtures of the integration suites: a real control plane for each module, whose audit log is judged after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.checker import assert_holds, from_audit
from tests.controlplane.plane import ControlPlane
from tests.resting import judged_or_marked


@pytest.fixture(autouse=True)
def _at_rest(request: pytest.FixtureRequest) -> Iterator[None]:
    """Wherever controllers that decide were at work, what they left is judged at rest."""
    yield from judged_or_marked(request)


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """kube-apiserver and etcd, nothing else. A machine that cannot build them fails here, with one clear line."""
    yield from judged(ControlPlane(tmp_path_factory.mktemp("plane") / "state", audit=True))


@pytest.fixture(scope="module")
def full_control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """With controller-manager, scheduler and three simulated nodes that run pods without kubelets."""
    folder = tmp_path_factory.mktemp("plane") / "state"
    yield from judged(ControlPlane(folder, controllers=True, scheduler=True, nodes=3, audit=True))


def judged(plane: ControlPlane) -> Iterator[ControlPlane]:
    """Run it for a module, then hold the invariants against all that was asked of it; only our manners are judged."""
    plane.start()
    try:
        yield plane
        assert_holds(from_audit(plane.audit_log, agents=("shoal",)))
    finally:
        plane.stop()
