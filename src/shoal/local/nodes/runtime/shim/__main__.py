"""The command line of the shim. Run as a directory, so that nothing else of the package is loaded."""

import os
import sys

sys.path.append(os.path.dirname(sys.path.pop(0)))  # where `shim` itself is found; last, so that it hides nothing

if sys.argv[1] == "run":
    from shim.outer import run  # type: ignore[import-not-found]  # found by the path above

    run(sys.argv[2], int(sys.argv[3]))
elif sys.argv[1] == "enter":
    from shim.entering import enter  # type: ignore[import-not-found]  # found by the path above

    enter(sys.argv[2], sys.argv[3:])
