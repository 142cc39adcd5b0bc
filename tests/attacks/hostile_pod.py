"""What a hostile container tries on its machine. Runs inside a pod, with nothing but the standard library.

Told by its environment what to look for; prints one JSON line per attempt that got somewhere, and `done` at its end.
"""

import ctypes
import glob
import json
import os
import stat

MARK = os.environ["LOOK_FOR"].encode()[::-1]  # reversed: its own environment must not count as found
STATE = os.environ["LOOK_IN"]
libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWUSER, CLONE_NEWNS, MNT_DETACH, MS_BIND = 0x10000000, 0x00020000, 2, 4096


def said(what, how):
    print(json.dumps({"what": what, "how": how}), flush=True)


def holds(path):
    """Whether this file can be opened and has the secret."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return stat.S_ISREG(os.fstat(descriptor).st_mode) and MARK in os.read(descriptor, 1 << 20)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def search(what, root, limit=5000):
    for directory, _, names in os.walk(root):
        for name in names:
            limit -= 1
            path = os.path.join(directory, name)
            if holds(path):
                said(what, path)
                return True
            if limit < 0:
                return False
    return False


def secrets_anywhere(what):
    """By walking, and by names that are known, where directories cannot be listed."""
    if not search(what, STATE):
        for name in ("api/ca.key", "kubeconfig", "running.json"):
            if holds(os.path.join(STATE, name)):
                said(what, name)


def read_files():
    secrets_anywhere("read")
    for place in ("/proc/self/root", "/proc/thread-self/root", "/proc/self/cwd/.." + "/.." * 20):
        search("read by another way", place + STATE)
    for link in ("./link", "/tmp/link-of-a-hostile-pod"):
        try:
            os.symlink(STATE, link)
            search("read by a link", link + "/")
        except OSError:
            pass
    for name in ("api/ca.key", "kubeconfig"):
        try:
            os.link(os.path.join(STATE, name), "./hard")
            if holds("./hard"):
                said("linked", name)
        except OSError:
            pass
    for place in ("/dev/shm",):
        search("read in shared memory", place, 500)


def read_processes():
    for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
        if pid == str(os.getpid()):
            continue
        for part in ("root", "cwd"):
            search("read through a process", f"/proc/{pid}/{part}{STATE}")
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if MARK in file.read():
                    said("read a process's environment", pid)
        except OSError:
            pass
        try:
            os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if b"tests.attacks" in file.read():
                    said("opened the agent's memory", pid)
        except OSError:
            pass
        if not os.fork():
            for space in ("user", "mnt"):
                try:
                    held = os.open(f"/proc/{pid}/ns/{space}", os.O_RDONLY)
                    libc.setns(held, 0)
                except OSError:
                    pass
            secrets_anywhere("entered namespaces")
            os._exit(0)
        os.wait()


def uncover():
    for unshared in (0, CLONE_NEWNS, CLONE_NEWUSER | CLONE_NEWNS):
        if not os.fork():
            if not unshared or libc.unshare(unshared) == 0:
                for path in (STATE, os.path.dirname(STATE), "/"):
                    libc.umount2(path.encode(), 0)
                    libc.umount2(path.encode(), MNT_DETACH)
                secrets_anywhere("took the cover away")
                os.makedirs("./under", exist_ok=True)
                if libc.mount(b"/", b"./under", None, ctypes.c_ulong(MS_BIND), None) == 0:
                    search("mounted the root elsewhere", "./under" + STATE)
                with open("/proc/self/mountinfo") as file:
                    lines = file.readlines()
                for line in lines:
                    device, kind = line.split(" - ")[1].split()[1], line.split(" - ")[1].split()[0]
                    if device.startswith("/dev/") and not libc.mount(
                        device.encode(), b"./under", kind.encode(), 1, None
                    ):
                        said("mounted a disk", device)
            os._exit(0)
        os.wait()


def disks():
    for entry in glob.glob("/sys/class/block/*/dev"):
        with open(entry) as file:
            major, minor = (int(part) for part in file.read().split(":"))
        name = os.path.basename(os.path.dirname(entry))
        for path in (f"/dev/{name}", f"./disk-{name}", f"/tmp/disk-{name}", f"/dev/shm/disk-{name}"):
            try:
                if not path.startswith("/dev/" + name):
                    os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(major, minor))
                held = os.open(path, os.O_RDONLY)
                if stat.S_ISBLK(os.fstat(held).st_mode):
                    os.read(held, 512)
                    said("read a disk", path)
            except OSError:
                pass


def change():
    """Its own record, which decides how the agent enters it; the cluster's files; settings of the kernel."""
    for pattern in ("/run/pods/*/containers/*/*/plan.json", "/run/pods/*/containers/*/*/state.json", "/running.json"):
        for path in glob.glob(STATE + pattern):
            try:
                os.close(os.open(path, os.O_WRONLY))
                said("could change", path)
            except OSError:
                pass
    for path in (STATE + "/api/planted", STATE + "/run/peers/peers.json", STATE + "/run/pods/planted"):
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
            if os.path.exists("/proc/self/root" + path):
                said("could write", path)
        except OSError:
            pass
    if os.environ.get("OWN_ROOT"):  # where it has a root of its own, as a container has
        for path in (
            "/proc/sys/kernel/core_pattern",
            "/proc/sysrq-trigger",
            "/sys/kernel/uevent_helper",
            "/proc/kcore",
        ):
            try:
                os.close(os.open(path, os.O_RDONLY if path == "/proc/kcore" else os.O_WRONLY))
                if os.stat(path).st_rdev != os.makedev(1, 3):
                    said("could open", path)
            except OSError:
                pass


for attempt in (read_files, read_processes, uncover, disks, change):
    try:
        attempt()
    except Exception as error:
        print(json.dumps({"note": f"{attempt.__name__} ended: {error!r}"}), flush=True)
print(json.dumps({"done": True, "uid": os.getuid()}), flush=True)
