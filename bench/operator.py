"""`python bench/operator.py [embedded|plane] [--clusters 200]`: the Ray operator's bench, which is in ray_operator.py.

Scripts of this folder have the folder first on their path, where this file hides the standard library's `operator`.
A module that imports that is given the real one.
"""

import sys

if __name__ == "__main__":
    from ray_operator import main

    main()
else:
    path = sys.path
    sys.path = [folder for folder in path if not __file__.startswith(f"{folder or '.'}/operator.")]
    del sys.modules[__name__]
    try:
        import operator  # noqa: F401  # takes the place of this module in sys.modules
    finally:
        sys.path = path
