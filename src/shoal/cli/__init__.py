"""The `shoal` command.

A command lives for a moment and makes no cycles worth looking for, so the collector is told to wait before anything
else is imported; what lives long sets its own pace (`shoal.kube.collector`).
"""

import gc

gc.set_threshold(100_000, 20, 20)
