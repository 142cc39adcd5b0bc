"""Run a command on a machine that gives less: `python -I deprived.py WHAT… -- COMMAND…`, called by tests.

`networks`, `mounts` and `users` refuse namespaces of that kind (a seccomp filter on `unshare`); a number takes a
capability from root; `programs` leaves nothing on the PATH. Standard library only.
"""

import ctypes
import os
import struct
import sys

NAMESPACES = {"networks": 0x40000000, "mounts": 0x00020000, "users": 0x10000000}
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER_MODE = 24, 38, 22, 2
LOAD, EQUAL, ANY_BIT, ANSWER = 0x20, 0x15, 0x45, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | 1  # the latter with EPERM
UNSHARE = {"x86_64": 272, "aarch64": 97}[os.uname().machine]
NUMBER, FIRST_ARGUMENT = 0, 16
libc = ctypes.CDLL(None, use_errno=True)


def refuse_unshare(flags):
    """From now on, for this process and its children, `unshare` with any of these flags is not permitted."""
    steps = [
        (LOAD, 0, 0, NUMBER),
        (EQUAL, 0, 3, UNSHARE),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (ANY_BIT, 0, 1, flags),
        (ANSWER, 0, 0, REFUSE),
        (ANSWER, 0, 0, ALLOW),
    ]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    described = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program))
    if libc.prctl(PR_SET_SECCOMP, FILTER_MODE, described, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


if __name__ == "__main__":
    end = sys.argv.index("--")
    taken, command = sys.argv[1:end], sys.argv[end + 1 :]
    for one in taken:
        if one.isdigit() and libc.prctl(PR_CAPBSET_DROP, int(one), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"capability {one}")
    if "programs" in taken:
        os.environ["PATH"] = "/nowhere"
    refused = sum(NAMESPACES.get(one, 0) for one in taken)
    if refused:
        if os.geteuid() != 0:
            libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        refuse_unshare(refused)
    os.execv(command[0], command)
