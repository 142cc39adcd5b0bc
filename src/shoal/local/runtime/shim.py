"""The shim: a tiny process between the node agent and one container, so that nothing a container starts outlives it.

Run by the agent as `python -I -S shim.py run DIR` with DIR/plan.json; imports nothing but the standard library, because
it must start in milliseconds and stay small. The outer half drains output into DIR/log and writes DIR/state.json and
DIR/exit.json; the inner half is a child subreaper (PID 1 where a PID namespace is allowed), starts the main process and
forwards SIGTERM to that one alone: a signal to the group would kill Ray's GCS before the process that waits for it.
It outlives the agent on purpose: a restarted agent finds it by pid *and* start time, never by pid alone.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import sys
import termios
import time
import traceback

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = (
    0x00020000,
    0x04000000,
    0x08000000,
    0x20000000,
    0x40000000,
)
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_NOATIME, MS_NODIRATIME, MS_RELATIME = 2, 4, 8, 1 << 10, 1 << 11, 1 << 21
ST_RELATIME = 4096  # the one flag that statvfs numbers otherwise than mount
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}.get(os.uname().machine, 0)

libc = ctypes.CDLL(None, use_errno=True)


class StartFailed(Exception):
    """The main process could not be started; the text is what a user reads in the container's state."""


def check(result, what):
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags):
    check(libc.unshare(flags), "unshare")


def setns(path):
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        check(libc.setns(descriptor, 0), f"enter {path}")
    finally:
        os.close(descriptor)


def mount(source, target, kind=None, flags=0, data=None):
    check(
        libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            kind and kind.encode(),
            ctypes.c_ulong(flags),
            data and data.encode(),
        ),
        f"mount {source} on {target}",
    )


def prctl(option, value):
    check(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), "prctl")


def start_time(pid):
    """Clock ticks since boot at which this process started: with the pid, its identity."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def write_json(directory, name, value):
    """Whole or not at all: written beside and renamed."""
    partial = os.path.join(directory, f".{name}.partial")
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.replace(partial, os.path.join(directory, name))


def micros():
    return time.time_ns() // 1000


# --- outer half: output, status, stopping


class Log:
    """One container's output in lines stamped as container runtimes do; capped, and never a reason to stop reading."""

    def __init__(self, path, cap):
        self.path, self.cap = path, cap
        self.rest = {"stdout": b"", "stderr": b""}
        self.file = open(path, "ab", buffering=0)  # noqa: SIM115 - stays open
        self.size = self.file.tell()

    def take(self, stream, data):
        lines = (self.rest[stream] + data).split(b"\n")
        self.rest[stream] = lines.pop()
        self.write(stream, b"F", lines)
        if len(self.rest[stream]) > 16384:  # a line without an end is written in parts
            self.write(stream, b"P", [self.rest[stream]])
            self.rest[stream] = b""

    def write(self, stream, mark, lines):
        if not lines:
            return
        now = time.time_ns()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 10**9)) + f".{now % 10**9:09d}Z"
        prefix = f"{stamp} {stream} ".encode() + mark + b" "
        text = b"".join(prefix + line + b"\n" for line in lines)
        with contextlib.suppress(OSError):  # a full disk loses output, never blocks the container
            if self.size + len(text) > self.cap:
                os.replace(self.path, self.path + ".1")
                self.file.close()
                self.file = open(self.path, "ab", buffering=0)  # noqa: SIM115
                self.size = 0
            self.size += self.file.write(text)

    def close(self):
        for stream, rest in self.rest.items():
            if rest:
                self.write(stream, b"F", [rest])


def run(directory, notify):
    os.chdir(directory)
    write_json(directory, "shim.json", {"pid": os.getpid(), "start": start_time(os.getpid())})
    with open("plan.json", encoding="utf-8") as file:
        plan = json.load(file)
    with open("reserve", "wb") as file:
        file.write(bytes(8192))
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    for path in plan.get("cgroups", ()):
        with contextlib.suppress(OSError), open(path, "w") as file:
            file.write(str(os.getpid()))
    set_oom_score(-900)  # when memory runs out, the container's own processes go first
    wake_read, wake_write = os.pipe()
    for descriptor in (wake_read, wake_write):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    wanted = {"stop": False}
    signal.signal(signal.SIGTERM, lambda *_: wanted.update(stop=True))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    report_read, report_write = os.pipe()
    if plan.get("pid_namespace"):
        unshare(CLONE_NEWPID)
    parent = os.getpid()
    inner = os.fork()
    if inner == 0:
        for descriptor in (out_read, err_read, report_read, wake_read, wake_write):
            os.close(descriptor)
        signal.set_wakeup_fd(-1)
        be_inner(plan, parent, out_write, err_write, report_write)
    for descriptor in (out_write, err_write, report_write):
        os.close(descriptor)
    identity = {"pid": os.getpid(), "start": start_time(os.getpid()), "inner": inner, "innerStart": start_time(inner)}
    log = Log(os.path.join(directory, "log"), plan.get("log_cap", 10 << 20))
    streams = {out_read: "stdout", err_read: "stderr", report_read: "report"}
    for descriptor in streams:
        os.set_blocking(descriptor, False)
    report, deadline, inner_status, stopping = b"", None, None, False
    result = {}
    while inner_status is None or streams:
        timeout = None
        if deadline is not None:
            timeout = max(0.0, deadline - time.monotonic())
        if inner_status is not None:
            timeout = 0.5  # what is left in the pipes, and no longer: a stranger may hold the other end
        ready, _, _ = select.select([wake_read, *streams], [], [], timeout)
        if inner_status is not None and not ready:
            break
        for descriptor in ready:
            if descriptor == wake_read:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, 512)
                continue
            try:
                data = os.read(descriptor, 65536)
            except BlockingIOError:
                continue
            if not data:
                del streams[descriptor]
                os.close(descriptor)
            elif streams[descriptor] == "report":
                report += data
                *whole, report = report.split(b"\n")
                for line in whole:
                    fact = json.loads(line)
                    result.update(fact)
                    if "started" in fact:
                        identity["started"] = fact["started"]
                        write_json(directory, "state.json", identity)
                        tell(notify, "started")
            else:
                log.take(streams[descriptor], data)
        if wanted["stop"] and not stopping:
            stopping = True
            deadline = time.monotonic() + read_grace(directory, plan)
            with contextlib.suppress(ProcessLookupError):
                os.kill(inner, signal.SIGTERM)
        if deadline is not None and time.monotonic() >= deadline and inner_status is None:
            kill_descendants(inner)
            deadline = None
        if inner_status is None and (inner_status := reap(inner)) is not None:
            kill_descendants(None)  # before the rest of the output: whoever floods the pipe must not keep us here
    log.close()
    if "exitCode" not in result and "error" not in result:
        result.update(exitCode=137, signal=9)
    result["finished"] = micros()
    write_last(directory, result)
    tell(notify, "exited")


def write_last(directory, result):
    """How it ended matters more than what it said: on a full disk the reserve goes for it, then the older log."""
    for given_up in (None, "reserve", "log.1", "log"):
        with contextlib.suppress(OSError):
            if given_up:
                os.unlink(os.path.join(directory, given_up))
            write_json(directory, "exit.json", result)
            break
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(directory, "reserve"))


def set_oom_score(value):
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(value))


def tell(notify, word):
    with contextlib.suppress(OSError):  # the agent may be gone; the files say the same
        os.write(notify, word.encode() + b"\n")


def read_grace(directory, plan):
    try:
        with open(os.path.join(directory, "stop"), encoding="utf-8") as file:
            return float(file.read())
    except (OSError, ValueError):
        return float(plan.get("grace", 30))


def reap(inner):
    """Reap whatever is there to reap; the inner's status once it came."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found if found is not None else 0
        if pid == 0:
            return found
        if pid == inner:
            found = status


def kill_descendants(first):
    """SIGKILL all that descends from this process until nothing is left.

    `first`, where given, is signalled alone: PID 1 of a namespace takes its own along, and we adopt what it leaves.
    """
    if first is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(first, signal.SIGKILL)
        return
    while left := descendants(os.getpid()):  # again and again: some may have forked between the listing and the signal
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.002)


def descendants(root):
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(name))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


# --- inner half: namespaces, the main process, its orphans


def be_inner(plan, parent, out, err, report):
    status = 0
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL if plan.get("pid_namespace") else signal.SIGTERM)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        main_code(plan, parent, out, err, report)
    except StartFailed as failure:
        say(report, {"error": str(failure)})
    except BaseException:
        say(report, {"error": traceback.format_exc(limit=3).strip().splitlines()[-1]})
        status = 1
    finally:
        os._exit(status)


def say(report, fact):
    os.write(report, json.dumps(fact).encode() + b"\n")


def main_code(plan, parent, out, err, report):
    enter_namespaces(plan)
    failed_read, failed_write = os.pipe()
    main = os.fork()
    if main == 0:
        os.close(failed_read)
        become_main(plan, out, err, failed_write)
    for descriptor in (out, err, failed_write):
        os.close(descriptor)

    def forward(*_):
        if os.getppid() not in (0, parent):  # the outer half was killed: nobody is left to report to
            kill_descendants(None)
            os._exit(0)
        with contextlib.suppress(ProcessLookupError):
            os.kill(main, signal.SIGTERM)

    signal.signal(signal.SIGTERM, forward)
    failure = os.read(failed_read, 4096)  # empty when exec closed it
    os.close(failed_read)
    if failure:
        os.waitpid(main, 0)
        raise StartFailed(failure.decode())
    say(report, {"started": micros()})
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == main:
            break
    code = os.waitstatus_to_exitcode(status)
    say(report, {"exitCode": 128 - code if code < 0 else code, "signal": -code if code < 0 else 0})
    if os.getpid() != 1:  # PID 1 takes its namespace along when it exits
        kill_descendants(None)


def become_main(plan, out, err, failed):
    try:
        os.setsid()
        set_oom_score(0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.set_inheritable(failed, False)
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) != failed:
                with contextlib.suppress(OSError):
                    os.close(int(name))
        where = plan.get("cwd") or "/"
        os.makedirs(where, exist_ok=True)
        os.chdir(where)
        os.umask(0o022)
        take_identity(plan)
        execute(plan["argv"], plan["env"])
    except BaseException as error:
        os.write(failed, str(error).encode()[:4000] or b"cannot start")
    finally:
        os._exit(127)


def take_identity(plan):
    """Become the user that the security context names; gaining rights afterwards may be forbidden."""
    user, group, groups = plan.get("user"), plan.get("group"), plan.get("groups") or []
    if groups or user is not None or group is not None:
        os.setgroups(groups)
    if group is not None:
        os.setresgid(group, group, group)
    if user is not None:
        os.setresuid(user, user, user)
    if plan.get("no_new_privileges"):
        prctl(PR_SET_NO_NEW_PRIVS, 1)


def execute(argv, env):
    """Become argv, or raise with the words that users know from container runtimes."""
    name = argv[0]
    candidates = (
        [name] if "/" in name else [os.path.join(d or ".", name) for d in env.get("PATH", "/usr/bin:/bin").split(":")]
    )
    refusal = None
    for path in candidates:
        try:
            os.execve(path, argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            refusal = refusal or error
    if refusal is not None:
        raise StartFailed(f'unable to start container process: exec: "{name}": {os.strerror(refusal.errno).lower()}')
    where = "no such file or directory" if "/" in name else "executable file not found in $PATH"
    raise StartFailed(f'unable to start container process: exec: "{name}": {where}')


def enter_namespaces(plan):
    if plan.get("net_namespace"):
        setns(plan["net_namespace"])
    if plan.get("root"):
        unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC)
        name = plan["hostname"].encode()
        check(libc.sethostname(name, len(name)), "sethostname")
        build_root(plan["root"], plan.get("mounts", []), plan)


# --- the container's view of the file system


def build_root(work, mounts, plan):
    """The machine's own root, every write kept apart, with the pod's volumes at their paths.

    Each top-level directory is an overlay whose upper half lies in the container's directory; where that cannot be (the
    state itself lies below it) it is bound read-only, and missing mount points are made by mirroring their parents.
    """
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    root = os.path.join(work, "root")
    os.makedirs(root, exist_ok=True)
    sources = [open_beneath(item["source"], item.get("subPath", "")) for item in mounts]
    mount("tmpfs", root, "tmpfs", 0, "mode=755,size=64m")
    targets = [os.path.realpath(item["target"]) for item in mounts]
    nested = mount_points()
    for entry in os.scandir("/"):
        inside = os.path.join(root, entry.name)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), inside)
        elif not entry.is_dir():
            bind_file(entry.path, inside)
        elif entry.name == "dev":
            os.mkdir(inside)
            bind_devices(inside)
        elif entry.name == "sys":
            os.mkdir(inside)
            mount(entry.path, inside, None, MS_BIND | MS_REC)
        elif entry.name in ("proc", "tmp", "run", "lost+found"):
            os.mkdir(inside, 0o1777 if entry.name == "tmp" else 0o755)
        else:
            lay_over(work, entry.path, inside, nested, targets)
    for item, source, target in zip(mounts, sources, targets, strict=True):
        place(source, root + target, item.get("readonly", False))
        os.close(source)
    mount("proc", os.path.join(root, "proc"), "proc")
    if plan.get("read_only_root"):
        os.makedirs(root + (plan.get("cwd") or "/"), exist_ok=True)
        for name in [*os.listdir(root), ""]:
            path = os.path.join(root, name)
            kept = name in ("dev", "sys", "proc", "tmp", "run") or f"/{name}" in targets
            if not kept and os.path.ismount(path) and os.path.isdir(path):
                make_readonly(path)
    os.chdir(root)
    check(libc.syscall(SYS_PIVOT_ROOT, b".", b"."), "pivot_root")
    check(libc.umount2(b".", MNT_DETACH), "leave the old root")
    os.chdir("/")


def bind_devices(inside):
    """The devices that containers may expect, and the machine's shared memory; what a pod makes here stays here."""
    wanted = (
        "null",
        "zero",
        "full",
        "random",
        "urandom",
        "tty",
        "fd",
        "stdin",
        "stdout",
        "stderr",
        "ptmx",
        "pts",
        "shm",
        "mqueue",
        "dri",
        "kfd",
        "fuse",
    )
    for entry in os.scandir("/dev"):
        if entry.name not in wanted and not entry.name.startswith("nvidia"):
            continue
        copy = os.path.join(inside, entry.name)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), copy)
        elif entry.is_dir():
            os.mkdir(copy)
            mount(entry.path, copy, None, MS_BIND | MS_REC)
        else:
            bind_file(entry.path, copy)


def lay_over(work, source, inside, nested, targets):
    os.mkdir(inside)
    upper, scratch = (os.path.join(work, part, os.path.basename(source)) for part in ("upper", "scratch"))
    os.makedirs(upper, exist_ok=True)
    os.makedirs(scratch, exist_ok=True)
    with contextlib.suppress(OSError):
        os.chmod(upper, os.stat(source).st_mode & 0o7777)
    below = [point for point in nested if point.startswith(source + "/")]
    try:
        mount("overlay", inside, "overlay", 0, f"lowerdir={source},upperdir={upper},workdir={scratch}")
        for point in below:
            with contextlib.suppress(OSError):
                mount(point, inside + point[len(source) :], None, MS_BIND)
    except OSError:
        mirror(source, inside, [target for target in targets if target.startswith(source + "/")])


def mirror(source, inside, targets):
    """Bind a directory read-only; one in which a mount point is missing is rebuilt entry by entry around it."""
    if all(os.path.exists(target) for target in targets):
        mount(source, inside, None, MS_BIND | MS_REC)
        with contextlib.suppress(OSError):
            make_readonly(inside)
        return
    for entry in os.scandir(source):
        copy = os.path.join(inside, entry.name)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), copy)
        elif entry.is_dir():
            os.mkdir(copy)
            mirror(entry.path, copy, [target for target in targets if target.startswith(entry.path + "/")])
        else:
            bind_file(entry.path, copy)


def bind_file(source, target):
    with contextlib.suppress(OSError):
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        mount(source, target, None, MS_BIND)


def place(source, target, readonly):
    """Bind what the descriptor `source` holds at `target`, creating the mount point inside the new root."""
    held = f"/proc/self/fd/{source}"
    if os.path.isdir(held):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.exists(target):
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    mount(held, target, None, MS_BIND | MS_REC)
    if readonly:
        make_readonly(target)


def make_readonly(target):
    """Flags such as nosuid must be named again: in a user namespace they may not be taken away."""
    flags = os.statvfs(target).f_flag
    kept = flags & (MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME | MS_NODIRATIME)
    kept |= MS_RELATIME if flags & ST_RELATIME else 0
    mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def open_beneath(source, sub_path):
    """Open `sub_path` below a volume without following a single link, so that a swap in between leads nowhere."""
    held = os.open(source, os.O_PATH | os.O_CLOEXEC)
    for part in [part for part in sub_path.split("/") if part and part != "."]:
        if part == "..":
            raise StartFailed(f"subPath {sub_path!r} leaves its volume")
        try:
            inner = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held)
        except FileNotFoundError:
            os.mkdir(part, 0o755, dir_fd=held)
            inner = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held)
        if os.path.islink(f"/proc/self/fd/{inner}") and (os.fstat(inner).st_mode & 0o170000) == 0o120000:
            raise StartFailed(f"subPath {sub_path!r} is a link; links inside a volume are not followed")
        os.close(held)
        held = inner
    return held


def mount_points():
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return [line.split()[4].replace("\\040", " ") for line in file]


# --- a command inside a running container: probes, hooks, kubectl exec


def enter(directory, argv):
    """Run argv where the container of DIR runs, with its environment; stdin, stdout and stderr are the caller's."""
    with open(os.path.join(directory, "plan.json"), encoding="utf-8") as file:
        plan = json.load(file)
    with open(os.path.join(directory, "state.json"), encoding="utf-8") as file:
        state = json.load(file)
    inner = state["inner"]
    if start_time(inner) != state["innerStart"]:
        raise StartFailed("the container is not running")
    spaces = [
        s
        for s, on in (
            ("net", plan.get("net_namespace")),
            ("uts", plan.get("root")),
            ("ipc", plan.get("root")),
            ("pid", plan.get("pid_namespace")),
            ("mnt", plan.get("root")),
        )
        if on
    ]
    held = [os.open(f"/proc/{inner}/ns/{space}", os.O_RDONLY) for space in spaces]
    for descriptor in held:
        check(libc.setns(descriptor, 0), "enter the container")
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        try:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            for descriptor in held:
                os.close(descriptor)
            if os.isatty(0):  # a session of its own, with this terminal
                os.setsid()
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            os.chdir(plan.get("cwd") or "/")
            take_identity(plan)
            execute(argv, plan["env"])
        except BaseException as error:
            os.write(2, (str(error) + "\n").encode())
        finally:
            os._exit(126)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            sys.exit(128 - code if code < 0 else code)


if __name__ == "__main__":
    if sys.argv[1] == "run":
        run(sys.argv[2], int(sys.argv[3]))
    elif sys.argv[1] == "enter":
        enter(sys.argv[2], sys.argv[3:])
