"""How long a test waits for what has to come, in seconds: on a machine that others load, too.

Under `--faults-proof` most waits are in vain, and shorter. A test that waits for anything outside its own process, or
by the clock on the wall, waits this long and never less.
"""

from __future__ import annotations

PATIENCE = 60.0
IN_VAIN = 20.0
