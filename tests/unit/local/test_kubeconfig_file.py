"""The user's own kubeconfig, once it holds the credentials of a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from shoal.local import kubeconfigs
from tests.faults import proven

OWN = {
    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {"token": "secret"}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
}


@proven(without=lambda patch: patch.setattr(kubeconfigs, "private", lambda mode: mode & 0o777))
@pytest.mark.parametrize("mode", [0o644, 0o664, 0o640, 0o777])
def test_f199_no_other_user_reads_a_kubeconfig_with_our_credentials(tmp_path: Path, mode: int) -> None:
    """F199: the user's kubeconfig is readable by others, and the administrator's token is added to it. Holds: from then
    on it is its owner's alone, and what was in it is still there."""
    source, target = tmp_path / "own", tmp_path / "config"
    source.write_text(yaml.safe_dump(OWN))
    target.write_text(yaml.safe_dump({"users": [{"name": "other", "user": {}}]}))
    target.chmod(mode)
    assert kubeconfigs.shared(target)
    (tmp_path / ".config.shoal").symlink_to(tmp_path / "elsewhere")  # of someone who hopes that we write through it
    kubeconfigs.add(source, "shoal", target)
    assert target.stat().st_mode & 0o677 == 0o600 and not (tmp_path / "elsewhere").exists()
    assert {one["name"] for one in yaml.safe_load(target.read_text())["users"]} == {"other", "shoal"}
    kubeconfigs.remove("shoal", target)
    assert target.stat().st_mode & 0o077 == 0


def test_a_private_kubeconfig_stays_as_it_is(tmp_path: Path) -> None:
    source, target = tmp_path / "own", tmp_path / "config"
    source.write_text(yaml.safe_dump(OWN))
    target.write_text("{}")
    target.chmod(0o600)
    assert not kubeconfigs.shared(target) and not kubeconfigs.shared(tmp_path / "none")
    kubeconfigs.add(source, "shoal", target)
    assert target.stat().st_mode & 0o777 == 0o600
