"""The page: what runs, what waits and why, in a browser. It reads with the visitor's rights and decides nothing.

`shoal up`, `shoal controller` and `shoal open` each put a `PageServer` together; below it every request is made as the
visitor, through a client that was given at login. Nothing here has rights of its own.
"""

from shoal.web.server import PageServer, PageSettings

__all__ = ["PageServer", "PageSettings"]
