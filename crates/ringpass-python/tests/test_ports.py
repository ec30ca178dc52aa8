"""The package on ports that need no card: models, capture files, the two ends of vhost-user, TAPs in a namespace."""

import _thread
import contextlib
import errno
import itertools
import math
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import ringpass
from conftest import LIMIT, frame, read_capture, receive, send, wait_until

MODELS = ["model:null", "model,device=1041:null"]


@contextlib.contextmanager
def later(do, after=0.3):
    """Do something on another thread while this one waits; pass on what it raises."""
    failures = []

    def run():
        try:
            do()
        except BaseException as failure:
            failures.append(failure)

    timer = threading.Timer(after, run)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.join(LIMIT)
        assert not timer.is_alive()
    if failures:
        raise failures[0]


def run_python(code, *arguments, expect=0, **options):
    """Run a program of Python to its end."""
    command = [sys.executable, "-B", "-c", textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, **options)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout


# Opening and closing


@pytest.mark.parametrize("address", ["null", *MODELS])
def test_a_port_sends_and_says_what_it_is(address):
    with ringpass.open(address) as ports:
        (port,) = ports
        # Without its wrappers, null calls itself so, as does the port of the library.
        assert port.name == address.removesuffix(",device=1041") and repr(port) == f"<ringpass.Port {port.name}>"
        assert port.receive() == []
        send(port, map(frame, range(300)))
        wait_until("frames that are sent", lambda: port.stats.tx_packets == 300)
        stats = port.stats
        assert (stats.tx_bytes, stats.tx_drops, stats.rx_packets, stats.rx_bytes, stats.rx_drops) == (18000, 0, 0, 0, 0)
        assert "tx_packets=300" in repr(stats)
        assert port.queues == 1 and not port.finished
        if "model" in address:
            assert port.mac.startswith("02:00:00:") and port.link.up
            assert port.counters["model_tx_packets"] == 300
        assert isinstance(port.link.mbps, int) and "Link(up=" in repr(port.link)
        port.set_promiscuous(False)
