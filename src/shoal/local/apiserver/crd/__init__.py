"""CustomResourceDefinitions: checked when written, served at once, converted between versions."""

from shoal.local.apiserver.crd.conversion import Converter
from shoal.local.apiserver.crd.definitions import validate_crd
from shoal.local.apiserver.crd.serving import CustomKinds

__all__ = ["Converter", "CustomKinds", "validate_crd"]
