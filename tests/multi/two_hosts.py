"""Runs a command of mpirun on two "hosts": network namespaces of this machine, joined by a line that delays and loses packets.

two_hosts.py DELAY_MS LOSS CUT PROGRAM [ARGUMENTS]: one rank on each. When the file CUT appears, nothing passes any more.
Ends with the status of mpirun, or with 77 where namespaces are not allowed here.
"""

import ctypes
import fcntl
import heapq
import os
import random
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time

HERE, THERE = "10.77.0.1", "10.77.0.2"
CLONE_NEWNET, TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x40000000, 0x400454CA, 1, 0x1000
libc = ctypes.CDLL(None, use_errno=True)


def called(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), "a namespace is not allowed")


def enter(path):
    with open(path) as namespace:
        called(libc.setns(namespace.fileno(), CLONE_NEWNET))


def open_line(name):
    fd = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return fd


def first_child(process):
    for _ in range(100):
        with open(f"/proc/{process}/task/{process}/children") as children:
            found = children.read().split()
        if found:
            return int(found[0])
        time.sleep(0.05)
    raise OSError("no process in the namespace")


def relay(ends, delay, loss, cut):
    chance, waiting, number = random.Random(1), [], 0
    while True:
        wait = max(0, waiting[0][0] - time.monotonic()) if waiting else 1
        for fd in select.select(ends, [], [], wait)[0]:
            packet = os.read(fd, 65536)
            if chance.random() >= loss:
                number += 1
                heapq.heappush(waiting, (time.monotonic() + delay, number, ends[1 - ends.index(fd)], packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, to, packet = heapq.heappop(waiting)
            if not os.path.exists(cut):
                os.write(to, packet)


def make_hosts():
    """The process that the other host lives in, and the two ends of the line."""
    called(libc.unshare(CLONE_NEWNET))
    here = open_line("here")
    other = subprocess.Popen(["unshare", "--net", "--uts", "--pid", "--fork", "--kill-child",
                              "sh", "-c", "hostname other-host; exec sleep 600"])
    host = first_child(other.pid)
    with open("/proc/self/ns/net") as own:
        enter(f"/proc/{host}/ns/net")
        there = open_line("there")
        called(libc.setns(own.fileno(), CLONE_NEWNET))

    def ip(words, where=()):
        subprocess.run([*where, "ip", *words.split()], check=True)

    inside = ["nsenter", "-t", str(host), "-n"]
    for name, address, where in (("here", HERE, ()), ("there", THERE, inside)):
        ip("link set lo up", where)
        ip(f"addr add {address}/24 dev {name}", where)
        ip(f"link set {name} mtu 9000 up", where)
    return host, other, [here, there]


def descendants(process):
    try:
        with open(f"/proc/{process}/task/{process}/children") as children:
            below = [int(child) for child in children.read().split()]
    except OSError:
        return []
    return below + [lower for child in below for lower in descendants(child)]


def runs(process, program):
    try:
        with open(f"/proc/{process}/cmdline") as words:
            return words.read().split("\0")[0] == program
    except OSError:
        return False


def wait_for(mpirun, program, cut):
    """When the line is cut, the ranks end, and mpirun waits for its daemon on the other host: that is ended here."""
    while mpirun.poll() is None:
        time.sleep(0.1)
        if os.path.exists(cut) and not any(runs(process, program) for process in descendants(mpirun.pid)):
            mpirun.kill()
            return mpirun.wait() or 1
    return mpirun.returncode


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    delay, loss, cut, command = float(sys.argv[1]) / 1000, float(sys.argv[2]), sys.argv[3], sys.argv[4:]
    try:
        host, other, ends = make_hosts()
    except (OSError, subprocess.CalledProcessError) as error:
        print(error)
        return 77
    line = os.fork()
    if line == 0:
        relay(ends, delay, loss, cut)
    try:
        with tempfile.TemporaryDirectory() as folder:
            agent = os.path.join(folder, "agent")
            with open(agent, "w") as script:  # instead of ssh: HOST COMMAND
                script.write(f'#!/bin/sh\nshift\nexec nsenter -t {host} -n -u -p sh -c "$*"\n')
            os.chmod(agent, 0o700)
            network = "10.77.0.0/24"
            options = {"plm_rsh_agent": agent, "btl": "tcp,self", "btl_tcp_if_include": network, "oob_tcp_if_include": network}
            words = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "--host", f"{HERE}:1,{THERE}:1", "-n", "2"]
            for name, value in options.items():
                words += ["--mca", name, value]
            return wait_for(subprocess.Popen(words + command), command[0], cut)
    finally:
        os.kill(line, signal.SIGKILL)
        other.kill()
        other.wait()


if __name__ == "__main__":
    sys.exit(main())
