"""What an AppWrapper asks for: pod sets with exact amounts.

Declared `custompodresources` win over the template, as MCAD promises, even where they contradict it; without them
the template says. Where both exist, the amounts are the declared ones and the placement rules (selectors,
tolerations, affinity) are the template's, so that fit still knows where the pods may go.
"""

from __future__ import annotations

import msgspec

from shoal.api.appwrapper import AppWrapper, Component, CustomPodResource, GenericItem, wrapped_items
from shoal.api.appwrapper_paths import resolve, steps, written
from shoal.api.codec import opened
from shoal.api.meta import Json
from shoal.api.quantity import amounts
from shoal.controllers.demand.pod_defaults import NOTHING, Defaults, completed, in_its_class
from shoal.controllers.demand.ray import Workers
from shoal.controllers.demand.templates import (
    LAUNCHER,
    SUBMITTER,
    Template,
    as_made,
    is_known,
    pods_at_start,
    templates,
)
from shoal.engine.facts import pod_set
from shoal.engine.model import Amounts, PodSet
from shoal.errors import BadInput

UNREADABLE = (BadInput, msgspec.DecodeError, AttributeError, TypeError, ValueError)
"""What a demand that makes no sense may raise: templates hold whatever a user wrote."""


def unreadable(wrapper: AppWrapper) -> str:
    """Why what this AppWrapper asks for cannot be read, with the place; empty when it can."""
    try:
        component_pod_sets(wrapper) if wrapper.spec.components is not None else pod_sets(wrapper)
    except UNREADABLE as error:
        return str(error)
    return ""


def pod_sets(wrapper: AppWrapper, workers: Workers = "replicas", defaults: Defaults = NOTHING) -> tuple[PodSet, ...]:
    """All pod sets of a v1beta1 AppWrapper. Raises BadInput naming the item whose amounts cannot be read.

    `defaults` are what the namespace gives to containers that do not say what they need.
    """
    found: list[PodSet] = []
    for index, item in enumerate(wrapped_items(wrapper)):
        try:
            found += _item(index, item, workers, defaults)
        except BadInput as error:
            raise BadInput(f"spec.resources.GenericItems[{index}]: {error}") from error
    return tuple(found)


def gang_size(wrapper: AppWrapper) -> int:
    """How many pods the wrapped objects will make at the start, by their templates: what the scheduler waits for."""
    if wrapper.spec.components is not None:
        return sum(_component_start(component) for component in wrapper.spec.components)
    return sum(pods_at_start(opened(item.generic_template)) for item in wrapped_items(wrapper))


def _component_start(component: Component) -> int:
    """Of a kind that we know its own way to start; else every pod that was declared."""
    template = opened(component.template)
    if templates(template):
        return pods_at_start(template)
    return sum(one.count for one in component_templates(component))


def component_pod_sets(wrapper: AppWrapper, defaults: Defaults = NOTHING) -> tuple[PodSet, ...]:
    """All pod sets of a v1beta2 AppWrapper: as declared by path, else as the template says."""
    found: list[PodSet] = []
    for index, component in enumerate(wrapper.spec.components or ()):
        try:
            _check_declared(component)
            for template in (*component_templates(component), *_beside(component)):
                if template.count:
                    content = completed(as_made(template, defaults.sidecars), defaults)
                    found.append(pod_set(f"{index}.{template.name}", template.count, content))
        except BadInput as error:
            raise BadInput(f"spec.components[{index}]: {error}") from error
    return tuple(found)


def component_templates(component: Component) -> list[Template]:
    """Where a component's pods are described. Raises BadInput for a path that leads nowhere."""
    template = opened(component.template)
    if not component.pod_sets:
        return queued_templates(template)
    found = []
    roles = {one.path: one.role for one in templates(template)}
    for declared in component.pod_sets:
        content = resolve(template, declared.path)
        if not isinstance(content, dict):
            raise BadInput(f"{declared.path!r} does not point at a pod template")
        count = 1 if declared.replicas is None else declared.replicas
        path = tuple(steps(declared.path))
        found.append(Template(path, count, content, role=roles.get(path, "")))
    return found


def queued_templates(obj: Json) -> list[Template]:
    """Pod templates of an object that a v1beta1 AppWrapper wraps, as a queue counts them: as those of a component that
    declares none."""
    return [found for found in templates(obj) if not _is_beside(found)]


def _check_declared(component: Component) -> None:
    """Where the kind itself says how many pods it makes from which template, declared pod sets must say the same: else
    a gang would run outside what it was given."""
    template = opened(component.template)
    if not component.pod_sets or not is_known(template):
        return
    made = {one.path: one for one in templates(template) if not _is_beside(one) and one.is_inside}
    declared = {tuple(steps(one.path)): 1 if one.replicas is None else one.replicas for one in component.pod_sets}
    for path, one in made.items():
        if one.count and path not in declared:
            raise BadInput(f"podSets: template.{one.name} makes pods, too, and is not declared")
    for path, count in declared.items():
        in_ray_group = "workerGroupSpecs" in path
        if path not in made and not in_ray_group:
            raise BadInput(f"podSets: {written(path)} is no pod template of a {template['kind']}")
        right = [made[path].count] if path in made else []
        if in_ray_group:  # as published, the number that is written there, or one
            right.append(_stated(template, path))
        if count not in right:
            raise BadInput(f"podSets: {written(path)} has {count} replicas here and {right[0]} in the template")


def _stated(template: Json, path: tuple[str | int, ...]) -> int:
    group = resolve(template, written(path[:-1]))
    stated = group.get("replicas") if isinstance(group, dict) else None
    return stated if isinstance(stated, int) else 1


def _beside(component: Component) -> list[Template]:
    """Pods that an operator adds, and that are no pod set of the component: they need room all the same."""
    return [found for found in templates(opened(component.template)) if _is_beside(found)]


def _is_beside(template: Template) -> bool:
    return not template.is_inside and template.path[-1:] in ((SUBMITTER,), (LAUNCHER,))


def _item(index: int, item: GenericItem, workers: Workers, defaults: Defaults) -> list[PodSet]:
    found = templates(opened(item.generic_template), workers)
    if item.custom_pod_resources:
        return [
            _declared(f"{index}.{number}", declared, found[number] if number < len(found) else None, defaults)
            for number, declared in enumerate(item.custom_pod_resources)
            if declared.replicas > 0
        ]
    return [
        pod_set(f"{index}.{template.name}", template.count, completed(as_made(template, defaults.sidecars), defaults))
        for template in found
        if template.count
    ]


def _declared(name: str, declared: CustomPodResource, template: Template | None, defaults: Defaults) -> PodSet:
    wanted = _effective(amounts(declared.requests), amounts(declared.limits))
    if template is None:
        return PodSet(name=name, count=declared.replicas, requests=wanted, opaque=True)
    spec = template.content.get("spec")
    stored = in_its_class(spec, defaults.classes) if isinstance(spec, dict) else {}
    placed = pod_set(name, declared.replicas, {**template.content, "spec": _without_amounts(stored)})
    return PodSet(
        name=name,
        count=declared.replicas,
        requests=wanted,
        labels=placed.labels,
        node_selector=placed.node_selector,
        affinity=placed.affinity,
        tolerations=placed.tolerations,
        host_ports=placed.host_ports,
    )


def _effective(requests: Amounts, limits: Amounts) -> Amounts:
    """Per resource the request, or the limit where no request is stated. Zero asks for nothing."""
    names = {**limits, **requests}
    chosen = {name: requests.get(name) or limits.get(name, 0) for name in names}
    for name, value in chosen.items():
        if value < 0:
            raise BadInput(f"{name} is negative; amounts of custompodresources start at 0")
    return {name: value for name, value in chosen.items() if value}


def _without_amounts(spec: Json) -> Json:
    return {
        name: value
        for name, value in spec.items()
        if name in ("nodeSelector", "affinity", "tolerations", "hostNetwork", "schedulingGates")
    }
