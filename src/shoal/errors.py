"""The root of every error that Shoal raises on purpose.

Messages say what was wrong, where, and what to do; the command line prints them as they are and exits 1.
"""


class ShoalError(Exception):
    """Something a user or operator can act on."""


class BadInput(ShoalError):
    """A manifest, flag or file that can never work as written."""
