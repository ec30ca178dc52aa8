"""What tests share: capture files, pairs of ports, network namespaces. Traffic stays in files, sockets and namespaces of theirs."""

import contextlib
import ctypes
import itertools
import os
import struct
import subprocess
import time

import pytest
import ringpass

LIMIT = 20.0
"""Seconds that a wait for something sure to come may last on a busy machine. A wait that ends early costs nothing."""


def frame(number=0, length=60):
    """Return a broadcast frame of an experimental EtherType that carries its number."""
    start = b"\xff" * 6 + bytes.fromhex("020000000001 88b5") + struct.pack(">I", number)
    return start + bytes(index & 0xFF for index in range(length - len(start)))


def receive(port, count, queue=0):
    """Receive exactly `count` packets."""
    packets, end = [], time.monotonic() + LIMIT
    while len(packets) < count:
        left = end - time.monotonic()
        assert left > 0, f"{len(packets)} of {count} packets within {LIMIT} s: {port.stats}"
        packets += port.receive(count - len(packets), wait=left, queue=queue)
    return packets


def send(port, frames):
    """Send all frames."""
    frames, end = list(frames), time.monotonic() + LIMIT
    while frames:
        assert time.monotonic() < end, f"{len(frames)} frames are left after {LIMIT} s: {port.stats}"
        del frames[: port.send(frames)]


def wait_until(what, so):
    """Poll `so` until it returns something true, and return that."""
    end = time.monotonic() + LIMIT
    while not (result := so()):
        assert time.monotonic() < end, f"gave up waiting for {what}"
        time.sleep(0.01)
    return result


@pytest.fixture
def capture(tmp_path):
    """Write a capture file with these frames, and return its path."""
    numbers = itertools.count()

    def write(frames):
        path = tmp_path / f"{next(numbers)}.pcap"
        records = (struct.pack("<IIII", 1, 0, len(each), len(each)) + bytes(each) for each in frames)
        path.write_bytes(struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1) + b"".join(records))
        return path

    return write


def read_capture(path):
    """Return the frames of a capture file that the library has written."""
    data, at, frames = path.read_bytes(), 24, []
    assert struct.unpack_from("<I", data)[0] in (0xA1B2C3D4, 0xA1B23C4D)
    while at < len(data):
        length = struct.unpack_from("<I", data, at + 8)[0]
        frames.append(data[at + 16 : at + 16 + length])
        at += 16 + length
    return frames


@pytest.fixture
def pair(tmp_path):
    """Open the two ends of a cable: a vhost-user back-end and the virtio driver of its front-end, in this process."""
    socket = tmp_path / "cable"
    with ringpass.open(f"vhost:{socket}") as left, ringpass.open(f"virtio-user:{socket}") as right:
        yield left[0], right[0]


class Namespace:
    """A network namespace that has no name, so that it ends with this process if not before, and is entered while it exists."""

    libc = ctypes.CDLL(None, use_errno=True)
    NEWNET = 0x40000000  # CLONE_NEWNET

    def call(self, function, *arguments):
        if function(*arguments):
            error = ctypes.get_errno()
            raise OSError(error, f"{function.__name__}: {os.strerror(error)}")

    def __enter__(self):
        self.outside = open("/proc/thread-self/ns/net")
        self.call(self.libc.unshare, self.NEWNET)
        # The kernel would send frames of its own.
        for which in ("all", "default"):
            with contextlib.suppress(FileNotFoundError), open(f"/proc/sys/net/ipv6/conf/{which}/disable_ipv6", "w") as file:
                file.write("1")
        return self

    def __exit__(self, *_):
        with self.outside:
            self.call(self.libc.setns, self.outside.fileno(), self.NEWNET)

    @staticmethod
    def ip(*arguments):
        """Run ip(8) in the namespace of this thread."""
        subprocess.run(["ip", *arguments], check=True, timeout=60)


@pytest.fixture
def namespace():
    """Run the test's thread, and those that it starts, in a network namespace of its own."""
    if os.geteuid() != 0:
        pytest.fail("namespaces need root; scripts/python-test runs the tests with sudo")
    with Namespace() as namespace:
        yield namespace
