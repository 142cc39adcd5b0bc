"""What `kubectl explain` says about the fields that every object has. Our own words; read by `documents.py` alone."""

from __future__ import annotations

EVERY_OBJECT = {
    "apiVersion": "APIVersion defines the versioned schema of this representation of an object.",
    "kind": "Kind is a string value representing the REST resource this object represents.",
    "metadata": "Standard object's metadata.",
}

OBJECT_META = {
    "annotations": "Annotations hold notes of people and tools, by name. Selectors do not match them.",
    "creationTimestamp": "CreationTimestamp is a timestamp of when the server made this object. Read-only.",
    "deletionGracePeriodSeconds": "Seconds that the object is given to end in good order. Set with deletionTimestamp.",
    "deletionTimestamp": "DeletionTimestamp is when the object will be removed, once its deletion was requested.",
    "finalizers": "Names of controllers that must finish before the object is removed; it goes with the last one.",
    "generateName": "GenerateName is a prefix, from which the server makes a unique name where none is given.",
    "generation": "A number that grows with every change of what is wanted. Read-only.",
    "labels": "Labels are names and values by which objects are organised and selected.",
    "managedFields": "Managers that last wrote each field, and how. The server keeps it for server-side apply.",
    "name": "Name is unique within a namespace, and cannot be changed.",
    "namespace": "Namespace is the space within which the name is unique. Cannot be changed.",
    "ownerReferences": "Objects that this one depends on; when all of them are gone, it is deleted.",
    "resourceVersion": "An opaque text that changes with every write: for watches and for safe updates.",
    "selfLink": "No longer filled in.",
    "uid": "UID is unique in time and space: a new object of the same name has another one. Read-only.",
}
