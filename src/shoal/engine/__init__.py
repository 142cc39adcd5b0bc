"""The decisions: which gang starts, which waits and why, which is taken back, and where its pods go.

`Engine` takes facts and gives plans. `model` has the words for both, `facts` reads them from Kubernetes objects, `fit`
places gangs and pods on nodes. Nothing here does I/O, reads a clock or logs.
"""

from shoal.engine.engine import Engine
from shoal.engine.settings import EngineSettings

__all__ = ["Engine", "EngineSettings"]
