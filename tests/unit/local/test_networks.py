"""Networks of clusters that run side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.local.nodes.sandbox import networks
from tests.faults import proven

HEADING = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"


def table(path: Path, *routes: tuple[str, str, str]) -> Path:
    """A route table as the kernel prints it: interface, destination and mask, in little-endian hexadecimal."""
    lines = [f"{interface}\t{to}\t00000000\t0001\t0\t0\t0\t{mask}\t0\t0\t0\n" for interface, to, mask in routes]
    path.write_text(HEADING + "".join(lines))
    return path


def _looks_at_no_route(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(networks, "routes", list)


@proven(without=_looks_at_no_route)
def test_f105_two_clusters_never_share_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F105: two clusters' names lead to the same private network. Holds: the second takes another one."""
    monkeypatch.setattr(networks, "ROUTES", table(tmp_path / "route", ("shoalother", "0000AA0A", "0000FFFF")))
    assert str(networks.choose_network(106, "shoalmine")) == "10.171.0.0/16"  # 10.170 is the other's


def test_a_bridge_keeps_the_network_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "ROUTES", table(tmp_path / "route", ("shoalmine", "0000AA0A", "0000FFFF")))
    assert str(networks.choose_network(3, "shoalmine")) == "10.170.0.0/16"


def test_wide_routes_take_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    routes = (("eth0", "00000000", "00000000"), ("vpn0", "0000000A", "000000FF"))
    monkeypatch.setattr(networks, "ROUTES", table(tmp_path / "route", *routes))
    assert str(networks.choose_network(0, "shoalmine")) == "10.64.0.0/16"


def test_when_all_are_taken_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = [("x", f"0000{octet:02X}0A", "0000FFFF") for octet in range(64, 192)]
    monkeypatch.setattr(networks, "ROUTES", table(tmp_path / "route", *everything))
    with pytest.raises(networks.NoNetwork, match="stop a cluster"):
        networks.choose_network(0, "shoalmine")


def _thinks_of_pods_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(networks, "SERVICES", networks.Network("192.0.2.0/24"))


@proven(without=_thinks_of_pods_only)
def test_f105_no_pod_gets_the_address_of_a_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F105: a cluster's name leads to the network of Services. Holds: its pods live in another one."""
    monkeypatch.setattr(networks, "ROUTES", table(tmp_path / "route"))
    assert str(networks.choose_network(96 - 64, "shoalmine")) == "10.112.0.0/16"
