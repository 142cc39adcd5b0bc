"""Two replicas of a release under load: the leader is killed or stopped, and the other one goes on within 20 s."""

from __future__ import annotations

import os
import signal
import time
from datetime import datetime

import pytest

from tests.controlplane.plane import ControlPlane
from tests.faults import proven
from tests.integration.release import conftest
from tests.integration.release.release import CONTROLLER, NAMESPACE, Release, Replica, until
from tests.integration.release.users import LAB, Eve, Load, created

plane, release = conftest.plane, conftest.release  # fixtures
PROMISED = 20.0
"""Seconds from the death of the leader until another replica leads."""


def holder(release: Release) -> tuple[int, float]:
    """Process and moment of the last take-over, as the lease has them."""
    spec = release.get("-n", NAMESPACE, "lease", CONTROLLER)["spec"]
    taken = datetime.fromisoformat(spec["acquireTime"].replace("Z", "+00:00")).timestamp()
    return int((spec["holderIdentity"] or "_0").rpartition("_")[2]), taken


def leader(release: Release) -> Replica:
    (found,) = (one for one in release.replicas if one.process.pid == holder(release)[0])
    return found


def _stands_by_nowhere(patch: pytest.MonkeyPatch) -> None:
    """One replica, whatever is asked for."""
    whole = Release.begin

    def begin(self: Release) -> Replica:
        return self.replicas[0] if self.replicas else whole(self)

    patch.setattr(Release, "begin", begin)


@proven(without=_stands_by_nowhere)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_f443_another_replica_leads_within_20_seconds_and_nothing_starts_twice(
    release: Release, plane: ControlPlane, how: signal.Signals
) -> None:
    """F443: the leading replica dies, or is stopped, while users submit. Holds: the other one leads within 20 s, no
    submission is refused, and every gang is started, once."""
    plane.add_node(f"node-{how.name.lower()}", cpu="64", memory="64Gi")
    release.install("install", {})
    for replica in (release.begin(), release.begin()):
        replica.until_ready()
    eve = Eve(release)
    eve.until_may("appwrappers.workload.codeflare.dev", "pods")
    dying = leader(release)
    with Load(eve, how.name.lower()) as load:
        until(lambda: len(load.submitted) >= 5, "no load")
        killed = time.time()
        os.kill(dying.process.pid, how)
        dying.process.wait(60)
        release.relay.targets.remove(dying.webhook_port)
        release.replicas.remove(dying)
        until(lambda: holder(release)[0] not in (0, dying.process.pid), "no other replica leads")
        took = holder(release)[1] - killed
        count = len(load.submitted)
        until(lambda: len(load.submitted) >= count + 5 or bool(load.refused), "no load after the death")
    assert load.refused == []
    eve.until_running(load.submitted)
    assert {created(plane, "pods")[name] for name in load.submitted} == {1}
    assert took < PROMISED, took
    print(f"{how.name}: another replica led after {took:.1f} s, {len(load.submitted)} gangs")
    release.uninstall()
    plane.kubectl("delete", "namespace", LAB)
