"""Tables: the cells that kubectl prints for built-in and custom kinds."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from shoal.api import kinds
from shoal.api.kind import Kind
from shoal.api.times import parse_time
from shoal.errors import BadInput
from shoal.local.apiserver.kinds.resources import PrinterColumn, ServedVersion
from shoal.local.apiserver.primitives import jsonpath
from shoal.local.apiserver.tables.cells import duration
from shoal.local.apiserver.tables.table import columns_of, row_of

BORN = "2024-01-01T00:00:00Z"
NOW = parse_time("2024-01-01T00:05:00Z")
CUSTOM = Kind("ray.io", "v1", "RayJob", "rayjobs")


def cells(kind, item, columns=None):
    call = SimpleNamespace(version=ServedVersion(kind, columns=columns))
    names = [column["name"] for column in columns_of(call)]
    return dict(zip(names, row_of(call, item, NOW), strict=True))


def thing(spec=None, status=None, **more):
    return {"metadata": {"name": "x", "creationTimestamp": BORN}, "spec": spec or {}, "status": status or {}, **more}


def running(name="c", **more):
    return {"name": name, "ready": True, "restartCount": 0, "state": {"running": {}}, **more}


def ended(reason, **more):
    return {"name": "c", "ready": False, "restartCount": 0, "state": {"terminated": {"reason": reason, **more}}}


@pytest.mark.parametrize(
    "statuses, phase, ready, word",
    [
        ([running()], "Running", "1/1", "Running"),
        ([{"name": "c", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}], "Running", "0/1", "CrashLoopBackOff"),
        ([ended("Completed")], "Succeeded", "0/1", "Completed"),
        ([ended("", exitCode=3)], "Failed", "0/1", "ExitCode:3"),
        ([ended("OOMKilled")], "Failed", "0/1", "OOMKilled"),
        ([], "Pending", "0/1", "Pending"),
    ],
)
def test_pod_status(statuses, phase, ready, word):
    pod = thing({"containers": [{"name": "c"}]}, {"phase": phase, "containerStatuses": statuses})
    found = cells(kinds.POD, pod)
    assert (found["Ready"], found["Status"]) == (ready, word)


def test_pod_restarts_init_containers_and_wide_columns():
    pod = thing(
        {"containers": [{"name": "c"}], "nodeName": "n1"},
        {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "containerStatuses": [
                running(restartCount=2, lastState={"terminated": {"finishedAt": "2024-01-01T00:04:00Z"}})
            ],
        },
    )
    found = cells(kinds.POD, pod)
    assert found["Restarts"] == "2 (60s ago)"
    assert (found["Age"], found["IP"], found["Node"], found["Nominated Node"]) == ("5m", "10.0.0.1", "n1", "<none>")
    pod = thing(
        {"containers": [{}], "initContainers": [{}, {}]},
        {
            "phase": "Pending",
            "initContainerStatuses": [{"state": {"terminated": {"exitCode": 0}}}, {"state": {"running": {}}}],
        },
    )
    assert cells(kinds.POD, pod)["Status"] == "Init:1/2"
    pod["metadata"] = {**pod["metadata"], "deletionTimestamp": BORN}
    assert cells(kinds.POD, pod)["Status"] == "Terminating"
    gated = thing(
        {"containers": [{}]},
        {"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated", "status": "False"}]},
    )
    assert cells(kinds.POD, gated)["Status"] == "SchedulingGated"


@pytest.mark.parametrize(
    "kind, item, expected",
    [
        (
            kinds.NODE,
            thing({"unschedulable": True}, {"conditions": [{"type": "Ready", "status": "True"}]}),
            {"Status": "Ready,SchedulingDisabled", "Roles": "<none>", "Age": "5m"},
        ),
        (
            kinds.SERVICE,
            thing(
                {
                    "type": "NodePort",
                    "clusterIP": "10.0.0.2",
                    "selector": {"a": "b"},
                    "ports": [{"port": 80, "nodePort": 30080}],
                }
            ),
            {"Type": "NodePort", "Cluster-IP": "10.0.0.2", "Port(s)": "80:30080/TCP", "Selector": "a=b"},
        ),
        (
            kinds.DEPLOYMENT,
            thing({"replicas": 3, "selector": {"matchLabels": {"a": "b"}}}, {"readyReplicas": 2}),
            {"Ready": "2/3", "Up-to-date": 0, "Selector": "a=b"},
        ),
        (kinds.REPLICA_SET, thing({"replicas": 3}, {"replicas": 2}), {"Desired": 3, "Current": 2, "Ready": 0}),
        (kinds.STATEFUL_SET, thing({"replicas": 1}, {"readyReplicas": 1}), {"Ready": "1/1"}),
        (
            kinds.JOB,
            thing({"completions": 2, "parallelism": 1}, {"succeeded": 1, "startTime": BORN}),
            {"Completions": "1/2", "Status": "Running", "Duration": "5m"},
        ),
        (
            kinds.JOB,
            thing(
                {"completions": 1},
                {
                    "succeeded": 1,
                    "startTime": BORN,
                    "completionTime": "2024-01-01T00:00:09Z",
                    "conditions": [{"type": "Complete", "status": "True"}],
                },
            ),
            {"Status": "Complete", "Duration": "9s"},
        ),
        (kinds.NAMESPACE, thing(status={"phase": "Active"}), {"Status": "Active"}),
        (kinds.CONFIG_MAP, thing(data={"a": "", "b": ""}), {"Data": 2}),
        (kinds.SECRET, thing(type="Opaque", data={"a": ""}), {"Type": "Opaque", "Data": 1}),
        (kinds.LEASE, thing({"holderIdentity": "me"}), {"Holder": "me"}),
        (kinds.PRIORITY_CLASS, thing(value=100), {"Value": 100, "Global-Default": False}),
        (kinds.CRD, thing(), {"Created At": BORN}),
        (
            kinds.EVENT,
            thing(
                type="Normal",
                reason="Started",
                message="m",
                lastTimestamp=BORN,
                involvedObject={"kind": "Pod", "name": "p"},
            ),
            {"Last Seen": "5m", "Object": "pod/p", "Reason": "Started", "Message": "m"},
        ),
        (
            kinds.ROLE_BINDING,
            thing(
                roleRef={"kind": "Role", "name": "r"},
                subjects=[{"kind": "ServiceAccount", "namespace": "n", "name": "s"}],
            ),
            {"Role": "Role/r", "ServiceAccounts": "n/s"},
        ),
        (
            kinds.ENDPOINTS,
            thing(subsets=[{"addresses": [{"ip": "1.1.1.1"}], "ports": [{"port": 80}]}]),
            {"Endpoints": "1.1.1.1:80"},
        ),
        (kinds.RESOURCE_QUOTA, thing(status={"hard": {"pods": "2"}, "used": {"pods": "1"}}), {"Request": "pods: 1/2"}),
    ],
)
def test_built_in_columns(kind, item, expected):
    found = cells(kind, item)
    assert {name: found[name] for name in expected} == expected


def test_printer_columns():
    columns = [
        PrinterColumn("Status", "string", ".status.phase"),
        PrinterColumn("Ready", "string", '.status.conditions[?(@.type=="Ready")].status'),
        PrinterColumn("Replicas", "integer", ".spec.replicas"),
        PrinterColumn("Since", "date", ".metadata.creationTimestamp"),
        PrinterColumn("Absent", "string", ".status.absent[0]"),
        PrinterColumn("Broken", "string", "[["),
        PrinterColumn("Flag", "boolean", ".spec.flag"),
        PrinterColumn("Tree", "string", ".spec.tree"),
    ]
    item = thing(
        {"replicas": 3, "flag": True, "tree": {"a": [1]}},
        {"phase": "Up", "conditions": [{"type": "Other", "status": "False"}, {"type": "Ready", "status": "True"}]},
    )
    assert cells(CUSTOM, item, tuple(columns)) == {
        "Name": "x",
        "Status": "Up",
        "Ready": "True",
        "Replicas": 3,
        "Since": "5m",
        "Absent": None,
        "Broken": None,
        "Flag": True,
        "Tree": '{"a":[1]}',
    }


def test_a_custom_kind_without_columns_shows_name_and_age():
    assert cells(CUSTOM, thing()) == {"Name": "x", "Age": "5m"}


def test_an_odd_object_shows_its_name():
    found = cells(kinds.POD, {"metadata": {"name": "odd"}, "spec": [1], "status": "?"})
    assert found["Name"] == "odd"


def test_wide_columns_are_marked():
    wide = {c["name"]: c["priority"] for c in columns_of(SimpleNamespace(version=ServedVersion(kinds.POD)))}
    assert (wide["Status"], wide["Node"]) == (0, 1)


@pytest.mark.parametrize(
    "seconds, shown",
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (600, "10m"),
        (10799, "179m"),
        (10800, "3h"),
        (11100, "3h5m"),
        (8 * 3600, "8h"),
        (48 * 3600, "2d"),
        (50 * 3600, "2d2h"),
        (200 * 3600, "8d"),
        (800 * 86400, "2y70d"),
        (3000 * 86400, "8y"),
        (-5, "<invalid>"),
    ],
)
def test_spans(seconds, shown):
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    "path, found",
    [
        (".a.b", [1]),
        ("{.a.b}", [1]),
        ("$.a['b']", [1]),
        (".l[0].n", ["x"]),
        (".l[-1].n", ["y"]),
        (".l[*].n", ["x", "y"]),
        (".l[0:1].n", ["x"]),
        (".l[?(@.n=='y')].v", [2]),
        (".l[?(@.v>1)].n", ["y"]),
        (".l[?(@.v)].n", ["x", "y"]),
        ("..n", ["x", "y"]),
        (".nothing.here", []),
        (".l[9]", []),
        (r".dotted\.name", [5]),
        (".l[?(@.n!='x')].n", ["y"]),
    ],
)
def test_json_paths(path, found):
    obj = {"a": {"b": 1}, "l": [{"n": "x", "v": 1}, {"n": "y", "v": 2}], "dotted.name": 5}
    assert jsonpath.compiled(path)(obj) == found


@pytest.mark.parametrize("path", ["[[", ".a[?(@.x==y)]", ".a[", ".a[?(1==1)]"])
def test_what_is_no_path_is_said(path):
    with pytest.raises(BadInput, match="is not a JSONPath"):
        jsonpath.compiled(path)
