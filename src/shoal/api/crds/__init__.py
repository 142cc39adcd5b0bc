"""The CRDs of every custom kind, made from the types in `shoal.api`.

`load_crds()` builds them in memory for the embedded server and `shoal install`; `python -m shoal.api.crds` writes the
YAML beside this file for `kubectl apply -f`. Each stays under 100 KB, because plain apply keeps a copy of
it in an annotation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from shoal.api.crds.catalogue import DEFINITIONS, Definition
from shoal.api.crds.schema import object_schema, settled, union
from shoal.api.meta import Json

DIRECTORY = Path(__file__).parent
Conversion = Literal["union", "webhook"]

__all__ = ["DEFINITIONS", "DIRECTORY", "Conversion", "Definition", "load_crds", "render", "yaml_text"]


def load_crds(
    conversion: Conversion = "union", client_config: Json | None = None, *, legacy: bool = True
) -> list[Json]:
    """Every CRD as a new dictionary, ready to be created; see `render` for the choice of conversion.

    Without `legacy` the groups of old MCAD releases are left out, for clusters that do not use them: with both groups
    there, `kubectl get appwrapper` without a group finds the one that the server lists first.
    """
    chosen = [definition for definition in DEFINITIONS if legacy or not definition.legacy]
    return [render(definition, conversion, client_config) for definition in chosen]


def render(definition: Definition, conversion: Conversion = "union", client_config: Json | None = None) -> Json:
    """One CRD.

    Kueue's v1beta1 and v1beta2 differ in shape. With `webhook` each version has its own schema and `client_config` says
    who converts. With `union` no webhook is needed: both versions take the fields of both, what was written is what is
    stored, and readers bring it to v1beta2 (`kueue_convert.upgrade`).
    """
    convert = definition.converts and conversion == "webhook"
    names: Json = {
        "kind": definition.kind,
        "listKind": f"{definition.kind}List",
        "plural": definition.plural,
        "singular": definition.kind.lower(),
    }
    if definition.short_names:
        names["shortNames"] = list(definition.short_names)
    if definition.categories:
        names["categories"] = list(definition.categories)
    spec: Json = {
        "group": definition.group,
        "names": names,
        "scope": "Namespaced" if definition.namespaced else "Cluster",
        "versions": _versions(definition, own_schemas=convert),
        "conversion": _webhook(client_config) if convert else {"strategy": "None"},
    }
    metadata: Json = {"name": definition.name}
    if definition.annotations:
        metadata["annotations"] = dict(definition.annotations)
    whole = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": spec,
    }
    fresh: Json = msgspec.json.decode(msgspec.json.encode(whole))  # nothing shared between versions or calls
    return fresh


def yaml_text(definition: Definition) -> str:
    """The file that is kept in the repository."""
    body = msgspec.yaml.encode(render(definition)).decode()
    return f"# Made by `python -m shoal.api.crds` from the types in shoal.api; do not edit.\n{body}"


def _versions(definition: Definition, *, own_schemas: bool) -> list[Json]:
    schemas = [object_schema(version.type) for version in definition.versions]
    if definition.converts and not own_schemas:
        whole = schemas[0]
        for schema in schemas[1:]:
            whole = union(whole, schema)
        schemas = [whole] * len(schemas)
    united = definition.converts and not own_schemas
    schemas = [settled(schema, united=united) for schema in schemas]
    versions = []
    for version, schema in zip(definition.versions, schemas, strict=True):
        entry: Json = {"name": version.name, "served": True, "storage": version.storage}
        if version.deprecation:
            entry.update(deprecated=True, deprecationWarning=version.deprecation)
        entry["schema"] = {"openAPIV3Schema": schema}
        subresources: Json = {}
        if definition.status:
            subresources["status"] = {}
        if definition.scale:
            wanted, actual = definition.scale
            subresources["scale"] = {"specReplicasPath": wanted, "statusReplicasPath": actual}
        if subresources:
            entry["subresources"] = subresources
        if definition.columns:
            entry["additionalPrinterColumns"] = [
                {"name": column.name, "type": column.type, "jsonPath": column.json_path}
                | ({"priority": column.priority} if column.priority else {})
                for column in definition.columns
            ]
        # API servers (1.36) refuse selectable fields that are alike on versions whose schemas differ, and the reverse.
        if definition.selectable and (version.storage or not own_schemas):
            entry["selectableFields"] = [{"jsonPath": path} for path in definition.selectable]
        versions.append(entry)
    return versions


def _webhook(client_config: Json | None) -> Json:
    if client_config is None:
        raise ValueError("a conversion webhook needs its clientConfig: pass client_config, or render with union")
    return {
        "strategy": "Webhook",
        "webhook": {"clientConfig": client_config, "conversionReviewVersions": ["v1"]},
    }
