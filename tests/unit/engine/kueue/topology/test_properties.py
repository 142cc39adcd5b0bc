"""What holds of every placement, whatever the racks look like."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine.kueue.topology import Placer, TopologySettings, TopologyWish, read_placement, stored_placement
from shoal.engine.kueue.topology.request import SliceLayer
from shoal.engine.model import DomainShare, TopologyPlacement
from tests.unit.engine.kueue.topology.build import CPU, RACK, cluster, pods

MANY = settings(max_examples=200, deadline=None)
RACKS = st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(0, 6), min_size=1, max_size=4), min_size=1)
WISHES = st.sampled_from(
    [
        TopologyWish(required=RACK),
        TopologyWish(preferred=RACK),
        TopologyWish(unconstrained=True),
        TopologyWish(preferred=RACK, layers=(SliceLayer(RACK, 2),)),
        TopologyWish(required=RACK, layers=(SliceLayer("kubernetes.io/hostname", 2),)),
        TopologyWish(layers=(SliceLayer(RACK, 4), SliceLayer("kubernetes.io/hostname", 2))),
    ]
)


def named(racks: dict[str, list[int]]) -> dict[str, dict[str, int]]:
    return {rack: {f"{rack}{index}": cpus for index, cpus in enumerate(sizes)} for rack, sizes in racks.items()}


@MANY
@given(RACKS, WISHES, st.integers(1, 6), st.booleans(), st.booleans())
def test_a_placement_is_whole_fits_and_is_as_wished(racks, wish, slices, balanced, with_head):
    count = slices * (wish.layers[0].size if wish.layers else 1)
    tree = cluster(named(racks))
    workers = pods(count, wish, name="work", group="ray" if with_head else "")
    head = [pods(1, wish, name="head", group="ray", cpus=2)] if with_head and count > 1 else []
    found = Placer(tree, TopologySettings(balanced=balanced)).place([*head, workers])
    if found["work"].placement is None:
        assert found["work"].failure
        return
    for wanted in (*head, workers):
        placement = found[wanted.name].placement
        assert placement is not None and placement.count == wanted.count
        tree.use(placement, wanted.requests)
    assert all(leaf.used.get("cpu", 0) <= leaf.capacity["cpu"] for leaf in tree.leaves.values())
    by_rack: Counter[str] = Counter()
    for domain in found["work"].placement.domains:
        by_rack[domain.values[-1][0]] += domain.count
    if wish.required:
        assert len(by_rack) == 1
    for layer in wish.layers:
        groups = by_rack if layer.topology == RACK else {d.values: d.count for d in found["work"].placement.domains}
        assert all(number % layer.size == 0 for number in groups.values())


@MANY
@given(RACKS, st.integers(1, 12))
def test_what_fits_by_sums_is_found_without_constraints(racks, count):
    tree = cluster(named(racks))
    found = Placer(tree).place([pods(count, TopologyWish(unconstrained=True))])["main"]
    room = sum(leaf.capacity["cpu"] // CPU for leaf in tree.leaves.values())
    assert (found.placement is not None) == (count <= room)


@MANY
@given(st.lists(st.tuples(st.text("ab-x1", min_size=1, max_size=6), st.integers(1, 5)), min_size=1, max_size=8))
def test_the_stored_form_says_the_same(domains):
    placement = TopologyPlacement(("host",), tuple(DomainShare((name,), count) for name, count in domains))
    assert read_placement(stored_placement(placement)) == placement
