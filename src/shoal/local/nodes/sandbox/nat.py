"""A route out for pods in network namespaces: addresses translated at the machine's edge, where it forwards already.

Speaks to the kernel's nftables by netlink; needs a machine that forwards (net.ipv4.ip_forward), which is not changed
here. One table per cluster, removed with it. It opens nothing inwards: what comes from other networks reaches a pod
only as an answer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from shoal.local.nodes.sandbox.networks import routes

FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")

Expression = dict[str, Any]
REGISTER, VERDICT = 1, 0
EQUAL, DIFFERENT = 0, 1
DROP, ACCEPT = 0, 1
INPUT_INTERFACE, OUTPUT_INTERFACE = 6, 7
SOURCE_NAT_PRIORITY = 100
ESTABLISHED_OR_RELATED = 2 | 4


def obstacle() -> str:
    """Why pods get no route out; empty when they do."""
    try:
        if FORWARDING.read_text().strip() != "1":
            return "the machine does not forward: sysctl -w net.ipv4.ip_forward=1"
    except OSError:
        return "the machine does not say whether it forwards"
    if not any(network.prefixlen == 0 for _, network in routes()):
        return "the machine has no route to other networks"
    return ""


def open_way(mark: str, bridge: str, network: IPv4Network) -> str:
    """Let a cluster's pods out; empty, or why not. Runs in the sandbox's thread."""
    if why := obstacle():
        return why
    from pyroute2.netlink.exceptions import NetlinkError
    from pyroute2.nftables.main import NFTables

    close_way(mark)
    table = _table(mark)
    try:
        with NFTables() as nft:
            nft.table("add", name=table)
            nft.chain("add", table=table, name="out", hook="postrouting", type="nat", priority=SOURCE_NAT_PRIORITY)
            nft.chain("add", table=table, name="in", hook="forward", type="filter", priority=0)
            for chain, expressions in rules(bridge, network):
                nft.rule("add", table=table, chain=chain, expressions=(expressions,))
    except NetlinkError as error:
        close_way(mark)
        return f"the kernel refused to translate addresses: {error.args[-1]}"
    return ""


def close_way(mark: str) -> None:
    from pyroute2.netlink.exceptions import NetlinkError
    from pyroute2.nftables.main import NFTables

    try:
        with NFTables() as nft:
            nft.table("del", name=_table(mark))
    except (NetlinkError, OSError):  # there is none, or the kernel has no nftables
        return


def rules(bridge: str, network: IPv4Network) -> Iterator[tuple[str, list[Expression]]]:
    """Chain and expressions of each rule, as `nft` would compile them."""
    # ip saddr NETWORK oifname != BRIDGE masquerade
    yield "out", [*_from(network), *_interface(OUTPUT_INTERFACE, DIFFERENT, bridge), _expression("masq")]
    # oifname BRIDGE ct state established,related accept
    yield "in", [*_interface(OUTPUT_INTERFACE, EQUAL, bridge), *_answers(), _verdict(ACCEPT)]
    # oifname BRIDGE iifname != BRIDGE drop
    yield (
        "in",
        [
            *_interface(OUTPUT_INTERFACE, EQUAL, bridge),
            *_interface(INPUT_INTERFACE, DIFFERENT, bridge),
            _verdict(DROP),
        ],
    )


def _table(mark: str) -> str:
    return f"shoal-{mark}"


def _from(network: IPv4Network) -> list[Expression]:
    """The sender's address, as far as the network's prefix reaches."""
    length = network.prefixlen // 8
    return [
        _expression("payload", dreg=REGISTER, base=1, offset=12, len=length),
        _compare(EQUAL, network.network_address.packed[:length]),
    ]


def _interface(which: int, operation: int, name: str) -> list[Expression]:
    return [
        _expression("meta", key=which, dreg=REGISTER),
        _compare(operation, struct.pack("16s", name.encode())),
    ]


def _answers() -> list[Expression]:
    mask, zero = struct.pack("=I", ESTABLISHED_OR_RELATED), bytes(4)
    return [
        _expression("ct", key=0, dreg=REGISTER),
        _expression("bitwise", sreg=REGISTER, dreg=REGISTER, len=4, mask=_value(mask), xor=_value(zero)),
        _compare(DIFFERENT, zero),
    ]


def _compare(operation: int, value: bytes) -> Expression:
    return _expression("cmp", sreg=REGISTER, op=operation, data=_value(value))


def _verdict(code: int) -> Expression:
    data = {"attrs": [("NFTA_DATA_VERDICT", {"attrs": [("NFTA_VERDICT_CODE", code)]})]}
    return _expression("immediate", dreg=VERDICT, data=data)


def _value(value: bytes) -> Expression:
    return {"attrs": [("NFTA_DATA_VALUE", value)]}


def _expression(name: str, **fields: Any) -> Expression:
    attributes = [(f"NFTA_{name.upper()}_{field.upper()}", value) for field, value in fields.items()]
    return {"attrs": [("NFTA_EXPR_NAME", name), ("NFTA_EXPR_DATA", {"attrs": attributes})]}
