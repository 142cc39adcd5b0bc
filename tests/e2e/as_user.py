"""Run a command as a user without any rights: `python -I as_user.py UID COMMAND…`, called by a test that is root.

Where the interpreter lies in a directory that only root may enter, the command sees it through a mount namespace of
its own in which that directory holds the interpreter and nothing else. Standard library only.
"""

import ctypes
import os
import sys

CLONE_NEWNS, MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 0x00020000, 4096, 8192, 16384, 1 << 18
PR_SET_NO_NEW_PRIVS = 38
libc = ctypes.CDLL(None, use_errno=True)


def mount(source, target, kind=None, flags=0, data=None):
    if libc.mount(source.encode(), target.encode(), kind and kind.encode(), ctypes.c_ulong(flags), data) != 0:
        raise OSError(ctypes.get_errno(), f"mount {target}")


def closed_parent(path):
    """The outermost directory above `path` that others may not enter."""
    parts = path.split("/")
    for depth in range(2, len(parts) + 1):
        above = "/".join(parts[:depth])
        if not os.stat(above).st_mode & 0o001:
            return above
    return None


def show(path):
    """Make `path` reachable for everyone in this mount namespace alone."""
    above = closed_parent(path)
    if above is None:
        return
    aside = f"/tmp/as-user-{os.getpid()}"
    os.mkdir(aside)
    mount(path, aside, None, MS_BIND | MS_REC)
    mount("tmpfs", above, "tmpfs", 0, b"mode=755")
    os.makedirs(path)
    mount(aside, path, None, MS_MOVE)
    os.rmdir(aside)


if __name__ == "__main__":
    user, command = int(sys.argv[1]), sys.argv[2:]
    if libc.unshare(CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    show(os.path.realpath(sys.base_prefix))
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.execvp(command[0], command)
