"""A `kind: List` goes through kubectl as on any cluster: kubectl validates it itself, by the document that we serve."""

from __future__ import annotations

import ssl

import aiohttp
import pytest
import yaml

from tests.integration.apiserver.conftest import Embedded
from tests.integration.apiserver.test_kubectl import DEFINITION, DEPLOYMENT, boat

pytestmark = pytest.mark.usefixtures("kubectl_present")

ACCEPTED = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
AWKWARD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: nets.example.com}
spec:
  group: example.com
  scope: Cluster
  names: {plural: nets, singular: net, kind: Net}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        required: [knots]
        properties:
          knots: {type: array, nullable: true, items: {type: string, default: reef}}
          catch: {type: array, items: {type: object, x-kubernetes-preserve-unknown-fields: true}}
          mesh: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}
          tags: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {a: {type: string}}}
          lid: {type: object, x-kubernetes-embedded-resource: true, properties: {spec: {type: object}}}
  - name: v2
    served: true
    storage: false
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
"""
NETS = """
- {apiVersion: example.com/v1, kind: Net, metadata: {name: fine}, knots: null, mesh: 3, catch: [{cod: 1}],
   tags: {a: "1", b: {c: [2]}}, lid: {apiVersion: v1, kind: Lid, metadata: {name: l}, spec: {}}}
- {apiVersion: example.com/v2, kind: Net, metadata: {name: loose}, anything: {goes: [1, two]}, knots: []}
"""


def listed(*documents: str) -> str:
    return yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [yaml.safe_load(one) for one in documents]})


async def test_a_list_is_created_read_and_applied_again(embedded: Embedded) -> None:
    kubectl = embedded.kubectl
    await kubectl("apply", "-f", "-", input=listed(DEFINITION, AWKWARD))
    await kubectl("wait", "--for=condition=Established", "crd/boats.example.com", "crd/nets.example.com")
    config = "{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {a: '1'}}"
    nets = [yaml.safe_dump(net) for net in yaml.safe_load(NETS)]
    made = await kubectl("create", "--save-config", "-f", "-", input=listed(DEPLOYMENT, config, boat("ida", 3), *nets))
    kinds = ["deployment.apps/web", "configmap/settings", "boat.example.com/ida", "net.example.com/fine"]
    assert [f"{name} created" for name in [*kinds, "net.example.com/loose"]] == made.splitlines()

    # What a server gave back goes in again: statuses, managed fields, definitions and all.
    everything = await kubectl(
        "get", "cm,deploy,boats,nets.v1.example.com,crd,ns,clusterroles", "-o", "yaml", "--show-managed-fields"
    )
    assert "\nkind: List\n" in everything
    again = await kubectl("apply", "--validate=strict", "--dry-run=server", "-f", "-", input=everything)
    told = [line for line in again.splitlines() if line.endswith("(server dry run)")]
    assert len(told) == len(yaml.safe_load(everything)["items"])

    changed = yaml.safe_load(await kubectl("get", "boats,deploy", "-o", "yaml"))
    for item in changed["items"]:
        item["metadata"] = {"name": item["metadata"]["name"]}
        item["spec"].update(
            {"crew": 5} if item["kind"] == "Boat" else {"replicas": 4, "strategy": {"type": "Recreate"}}
        )
    assert (await kubectl("apply", "-f", "-", input=yaml.safe_dump(changed))).count("configured") == 2
    assert await kubectl("get", "boats", "-o", "jsonpath={.items[*].spec.crew}") == "5"
    assert await kubectl("get", "deploy", "web", "-o", "jsonpath={.spec.strategy}") == '{"type":"Recreate"}'


async def test_a_misspelt_field_in_a_list_is_refused_by_kubectl(embedded: Embedded) -> None:
    kubectl = embedded.kubectl
    await kubectl("apply", "-f", "-", input=DEFINITION)
    bad = listed(DEPLOYMENT.replace("replicas: 2", "replicass: 2"), boat("ida", 3).replace("crew", "crow"))
    for arguments in (("apply",), ("create",), ("apply", "--validate=strict"), ("apply", "--validate=true")):
        said = await kubectl(*arguments, "-f", "-", input=bad, check=False)
        assert (
            'ValidationError(Deployment.spec): unknown field "replicass" in io.k8s.api.apps.v1.DeploymentSpec' in said
        )
        assert 'ValidationError(Boat.spec): unknown field "crow" in com.example.v1.Boat.spec' in said
    wrong = listed(DEPLOYMENT.replace("replicas: 2", "replicas: two").replace("selector:", "minReadySeconds: 1 #"))
    said = await kubectl("apply", "-f", "-", input=wrong, check=False)
    assert 'invalid type for io.k8s.api.apps.v1.DeploymentSpec.replicas: got "string", expected "integer"' in said
    assert 'missing required field "selector" in io.k8s.api.apps.v1.DeploymentSpec' in said
    assert await kubectl("get", "deploy,boats", "-o", "name") == ""

    said = await kubectl("apply", "--validate=warn", "-f", "-", input=bad)
    assert "cannot perform warn validation" in said and "deployment.apps/web created" in said
    assert "deployment.apps/web configured" in await kubectl("apply", "--validate=ignore", "-f", "-", input=bad)


async def test_explain_reads_the_second_version(embedded: Embedded) -> None:
    kubectl = embedded.kubectl
    if "plaintext-openapiv2" not in await kubectl("explain", "--help"):
        pytest.skip("this kubectl explains by version 3 alone")
    await kubectl("apply", "-f", "-", input=DEFINITION)
    assert "containers\t<[]Object> -required-" in await kubectl("explain", "--output=plaintext-openapiv2", "pods.spec")
    crew = await kubectl("explain", "--output=plaintext-openapiv2", "boats.spec")
    assert "What the boat should be." in crew and "crew\t<integer>\n     How many people sail her." in crew


async def test_the_document_is_compressed_tagged_and_named_as_by_kubernetes(embedded: Embedded) -> None:
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    config = yaml.safe_load(embedded.kubeconfig.read_text())
    headers = {"Accept": ACCEPTED, "Authorization": f"Bearer {config['users'][0]['user']['token']}"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust), headers=headers) as session:
        async with session.get(f"{embedded.url}/openapi/v2") as answer:
            body, told = await answer.read(), answer.headers
            assert answer.status == 200 and body.startswith(b"\x0a\x032.0")
        assert told["Content-Type"] == ACCEPTED.replace("@", ".")
        assert told["Content-Encoding"] == "gzip" and int(told["Content-Length"]) < len(body) / 2
        assert {"Accept", "Accept-Encoding"} == set(told.getall("Vary"))
        async with session.get(f"{embedded.url}/openapi/v2", headers={"If-None-Match": told["ETag"]}) as answer:
            assert answer.status == 304 and await answer.read() == b""
        async with session.get(f"{embedded.url}/openapi/v2", headers={"Accept": "text/html"}) as answer:
            assert answer.status == 406 and ACCEPTED.replace("@", ".") in (await answer.json())["message"]
