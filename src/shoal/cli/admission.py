"""The admission webhooks of a real cluster: who serves them, what the API server is told, whose certificate they show.

Every replica answers, the leader keeps the certificate. Only our own kinds are selected, so that an outage refuses new
AppWrappers, and edits of what they wrap, and nothing else; stamping must not fail open, or a creator could be forged
while it is down. Metadata, deletions and finalizers of AppWrappers never depend on us.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from shoal.api import kinds
from shoal.api.gang import CREATED_BY
from shoal.api.labels import NAMESPACE_NAME
from shoal.api.meta import Json
from shoal.controllers import ray
from shoal.controllers.appwrapper.admission import webhook
from shoal.controllers.planning.questions import readers
from shoal.controllers.planning.rights import Rights, SendableKinds
from shoal.controllers.queues import QueueSettings
from shoal.controllers.queues import admission as queues
from shoal.controllers.ray import webhook as ray_webhook
from shoal.errors import BadInput
from shoal.kube.cache import Cache, Change
from shoal.kube.certificates import Rotation
from shoal.kube.client import Client
from shoal.kube.errors import KubeError
from shoal.kube.health import METRICS, HealthServer
from shoal.kube.webhook_certificates import CertificateKeeper, leaf_of
from shoal.kube.webhooks import WebhookServer

if TYPE_CHECKING:
    from shoal.cli.visibility import Visibility

log = logging.getLogger("shoal")

CONFIGURATION = "shoal"
ACCOUNT = "shoal-controller"
"""The service account of the controllers."""
SERVICE = "shoal-webhook"
VISIBILITY = "shoal-visibility"
"""The Service of the visibility API, and what is installed for it."""
SECRET = "shoal-webhook-certificate"
ISSUED_SECRET = "shoal-webhook-tls"
"""Where cert-manager keeps it; not the same, so that one can be changed for the other."""
PORT = 9443

_WRAPPER_RULES: list[Json] = [
    {
        "apiGroups": ["workload.codeflare.dev", "mcad.ibm.com"],
        "apiVersions": ["v1beta1", "v1beta2"],
        "resources": ["appwrappers"],
        "operations": ["CREATE", "UPDATE"],
        "scope": "Namespaced",
    }
]
_QUOTA_RULES: list[Json] = [
    {
        "apiGroups": ["quota.codeflare.dev", "ibm.com"],
        "apiVersions": ["v1alpha1", "v1"],
        "resources": ["quotasubtrees"],
        "operations": ["CREATE", "UPDATE"],
        "scope": "Namespaced",
    }
]


_QUESTION_RULES: list[Json] = [
    {
        "apiGroups": [kinds.QUESTION.group],
        "apiVersions": [kinds.QUESTION.version],
        "resources": [kinds.QUESTION.plural],
        "operations": ["CREATE", "UPDATE"],
        "scope": "Namespaced",
    }
]
_STAMP = "'shoal.dev/created-by'"
_STAMPED = "(has({0}.metadata.annotations) && {1} in {0}.metadata.annotations ? {0}.metadata.annotations[{1}] : '')"
_CONCERNS_US: list[Json] = [
    {"name": "is-not-being-deleted", "expression": "!has(object.metadata.deletionTimestamp)"},
    {
        "name": "changes-what-is-wrapped",
        "expression": "request.operation == 'CREATE' || object.spec != oldObject.spec || "
        + f"{_STAMPED.format('object', _STAMP)} != {_STAMPED.format('oldObject', _STAMP)}",
    },
]
"""Everything else does not even reach the webhook, so that an outage cannot hold it up."""
_NOT_DELETED = _CONCERNS_US[:1]
_LABELLED = "(has({0}.metadata.labels) && 'kueue.x-k8s.io/queue-name' in {0}.metadata.labels)"
_IS_QUEUED: list[Json] = [*_NOT_DELETED, {"name": "names-a-queue", "expression": _LABELLED.format("object")}]
_IS_OR_WAS_QUEUED: list[Json] = [
    *_NOT_DELETED,
    {
        "name": "names-a-queue",
        "expression": f"{_LABELLED.format('object')} || (oldObject != null && {_LABELLED.format('oldObject')})",
    },
]

PROBE_PAUSE = 1.0
_PROBE: Json = {
    "apiVersion": kinds.APP_WRAPPER.api_version,
    "kind": "AppWrapper",
    "metadata": {"name": "shoal-readiness"},
    "spec": {"resources": {"GenericItems": []}},
}


class WebhookReplica:
    """The server of one replica. `run` it in every replica, `keep` where the lease is held."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        hosts: tuple[str, ...],
        of_ray: ray.RaySettings | None = None,
        *,
        as_creator: bool = False,
        supply: str = "fit",
        unserved: tuple[str, ...] = (),
        health: HealthServer | None = None,
        in_queues: QueueSettings | None = None,
        secret: str = "",
        visible: Visibility | None = None,
    ) -> None:
        """`secret` names a Secret that another controller keeps; without one the leader keeps its own. `visible`: the
        visibility API, answered at the same port."""
        self._visible = visible
        self._secret = secret or SECRET
        self._client = client
        self._namespace = namespace
        shown = (f"{VISIBILITY}.{namespace}.svc",) if visible is not None else ()
        self._rotation = Rotation(SERVICE, (hosts or (f"{SERVICE}.{namespace}.svc",)) + shown)
        self._server = WebhookServer()
        self._presented = asyncio.Event()
        self._unproven = "the API server has not called it yet"
        known = SendableKinds(client, unserved)
        judge = webhook.AppWrapperJudge(Rights(client), known, as_creator=as_creator, supply=supply)
        if health is not None:  # the same metrics, where a scraper's token is not sent in the clear
            self._server.answer(METRICS, health.metrics)
        self._server.admit(webhook.STAMP_PATH, webhook.stamp)
        self._server.admit(webhook.VALIDATE_PATH, judge.validate)
        self._server.admit(readers.STAMP_PATH, readers.stamp)
        self._server.admit(ray_webhook.VALIDATE_PATH, ray_webhook.validator(of_ray or ray.RaySettings()))
        of_queues = queues.QueueAdmission(client, in_queues)
        self._server.admit(queues.PREPARE_PATH, of_queues.prepare)
        self._server.admit(queues.VALIDATE_PATH, of_queues.validate)

    async def run(self, host: str, port: int) -> None:
        """Answer calls until cancelled, with whatever certificate the Secret holds."""
        if self._visible is not None:
            await self._visible.serve(self._client, self._server)
        await self._server.start(host, port)
        secrets: Cache[Json] = Cache(
            self._client, kinds.SECRET, namespace=self._namespace, field_selector=f"metadata.name={self._secret}"
        )
        secrets.subscribe(self._changed)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(secrets.run())
                tasks.create_task(self._prove())
        finally:
            if self._presented.is_set():
                await self._server.leave()
            await self._server.stop()

    async def _prove(self) -> None:
        """A replica is ready once reached: an AppWrapper that is never stored goes by the API server back to us."""
        await self._presented.wait()
        while self._unproven:
            try:
                made = await self._client.create(kinds.APP_WRAPPER, _PROBE, self._namespace, dry_run=True)
                stamped = CREATED_BY in (made["metadata"].get("annotations") or {})
                self._unproven = "" if stamped else "the API server does not call it: shoal install sets that up"
            except KubeError as error:
                self._unproven = f"the API server cannot call it: {error}"
            if self._unproven:
                await asyncio.sleep(PROBE_PAUSE)

    def _changed(self, change: Change) -> None:
        if change.new is None:
            return
        try:
            self._server.present(leaf_of(change.new))
        except BadInput as error:  # one that is filled a moment after it is made
            log.warning("Secret %s holds no certificate for the webhooks: %s", self._secret, error)
            return
        self._presented.set()

    def trouble(self) -> str | None:
        """Why calls cannot be answered yet; None when they can."""
        if not self._presented.is_set():
            return f"the webhook has no certificate yet: Secret {self._secret} in namespace {self._namespace}"
        return self._unproven or None

    async def keep(self, client: Client) -> None:
        """Renew the certificate in time and tell the API server which CA to trust, until cancelled."""
        configurations = [(kinds.MUTATING_WEBHOOK, CONFIGURATION), (kinds.VALIDATING_WEBHOOK, CONFIGURATION)]
        if self._visible is not None:
            configurations += [(kinds.API_SERVICE, name) for name in self._visible.api_services]
        keeper = CertificateKeeper(
            client, self._rotation, namespace=self._namespace, secret=SECRET, webhooks=tuple(configurations)
        )
        await keeper.run()


def configurations(
    namespace: str, url: str = "", *, queues: bool = True, unnamed: bool = False, namespaces: tuple[str, ...] = ()
) -> list[Json]:
    """What the API server is told. Without `url` it calls the Service. `queues`: also about jobs that name one;
    `unnamed`: and about jobs that name none. `namespaces`: of these alone."""
    chosen = _queue_webhooks(namespace, url, unnamed) if queues else {"Mutating": [], "Validating": []}
    made = [
        _configuration(
            "MutatingWebhookConfiguration",
            [
                _webhook("stamp.shoal.dev", webhook.STAMP_PATH, _WRAPPER_RULES, namespace, url, _CONCERNS_US),
                # The asker is recorded or not heard: a record that anyone could have made would open every name.
                _webhook(readers.STAMPING, readers.STAMP_PATH, _QUESTION_RULES, namespace, url, _NOT_DELETED),
                *chosen["Mutating"],
            ],
        ),
        _configuration(
            "ValidatingWebhookConfiguration",
            [
                _webhook("appwrapper.shoal.dev", webhook.VALIDATE_PATH, _WRAPPER_RULES, namespace, url, _CONCERNS_US),
                # What only says early that something cannot work may be missed: the controllers say it later.
                _webhook("quota.shoal.dev", webhook.VALIDATE_PATH, _QUOTA_RULES, namespace, url, needed=False),
                _webhook("ray.shoal.dev", ray_webhook.VALIDATE_PATH, ray_webhook.RULES, namespace, url, needed=False),
                *chosen["Validating"],
            ],
        ),
    ]
    return [_limited(one, (*namespaces, namespace)) for one in made] if namespaces else made


def _limited(configuration: Json, namespaces: tuple[str, ...]) -> Json:
    """Heard of in these namespaces only; ours is among them, for what a replica asks to see whether it is reached."""
    name = {"key": NAMESPACE_NAME, "operator": "In", "values": list(dict.fromkeys(namespaces))}
    selector = {"namespaceSelector": {"matchExpressions": [name]}}
    return {**configuration, "webhooks": [{**one, **selector} for one in configuration["webhooks"]]}


def _queue_webhooks(namespace: str, url: str, unnamed: bool) -> dict[str, list[Json]]:
    """None of them must answer: a job that slips through while none does is stopped by the controller. Every new job
    is shown: its namespace may have a default queue."""

    def one(name: str, path: str, rules: list[Json], conditions: list[Json] | None = None) -> Json:
        return _webhook(f"{name}.shoal.dev", path, rules, namespace, url, conditions, needed=False)

    return {
        "Mutating": [
            one("jobs", queues.PREPARE_PATH, _new(queues.job_rules()), _NOT_DELETED),
            one("pods", queues.PREPARE_PATH, queues.pod_rules(), _IS_QUEUED),
            one("queues", queues.PREPARE_PATH, _new(queues.QUEUE_RULES)),
            # Only what comes in v1beta1: the API server must not bring anything else into that shape first.
            {**one("workloads", queues.PREPARE_PATH, queues.OLD_WORKLOAD_RULES, _NOT_DELETED), "matchPolicy": "Exact"},
        ],
        "Validating": [
            one("jobs", queues.VALIDATE_PATH, queues.job_rules(), _NOT_DELETED if unnamed else _IS_OR_WAS_QUEUED),
            one("pods", queues.VALIDATE_PATH, _new(queues.pod_rules()), _IS_QUEUED),
            one("queues", queues.VALIDATE_PATH, queues.QUEUE_RULES, _NOT_DELETED),
            one("status", queues.VALIDATE_PATH, queues.STATUS_RULES, [*_NOT_DELETED, _not_ours(namespace)]),
        ],
    }


def _not_ours(namespace: str) -> Json:
    """What the controllers write as their service account needs no question back to them."""
    return {
        "name": "is-written-by-others",
        "expression": f"request.userInfo.username != 'system:serviceaccount:{namespace}:{ACCOUNT}'",
    }


def _new(rules: list[Json]) -> list[Json]:
    """The same rules, for creations only."""
    return [{**one, "operations": ["CREATE"]} for one in rules]


def certificate_hosts(url: str) -> tuple[str, ...]:
    """The name that the certificate must carry when the API server calls a URL."""
    host = urlsplit(url).hostname
    return (host,) if host else ()


def _configuration(kind: str, webhooks: list[Json]) -> Json:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": CONFIGURATION},
        "webhooks": webhooks,
    }


def _webhook(
    name: str,
    path: str,
    rules: list[Json],
    namespace: str,
    url: str,
    conditions: list[Json] | None = None,
    *,
    needed: bool = True,
) -> Json:
    service = {"name": SERVICE, "namespace": namespace, "path": path, "port": 443}
    made: Json = {
        "name": name,
        "clientConfig": {"url": url.rstrip("/") + path} if url else {"service": service},
        "rules": rules,
        "failurePolicy": "Fail" if needed else "Ignore",
        "sideEffects": "None",
        "timeoutSeconds": 10,
        "admissionReviewVersions": ["v1"],
        "matchPolicy": "Equivalent",
    }
    return {**made, "matchConditions": conditions} if conditions else made
