"""The package on ports that need no card: models, capture files, the two ends of vhost-user, TAPs in a namespace."""

import _thread
import contextlib
import itertools
import math
import os
import pathlib
import signal
import socket
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
        assert port.name == address.replace(",device=1041", "") and repr(port) == f"<ringpass.Port {port.name}>"
        assert port.receive() == []
        send(port, map(frame, range(300)))
        wait_until("frames that are sent", lambda: port.stats.tx_packets == 300)
        stats = port.stats
        assert (stats.tx_bytes, stats.tx_drops, stats.rx_packets, stats.rx_bytes, stats.rx_drops) == (18000, 0, 0, 0, 0)
        assert "tx_packets=300" in repr(stats)
        (queue,) = port.queue_stats
        assert port.queues == 1 and queue.tx_packets == 300 and not port.finished
        if "model" in address:
            assert port.mac.startswith("02:00:00:") and port.link.up
            wait_until("the model", lambda: port.counters["model_tx_packets"] == 300)
        assert isinstance(port.link.mbps, int) and "Link(up=" in repr(port.link)
        port.set_promiscuous(False)


def test_ports_are_a_sequence_and_close_together():
    with ringpass.open("model:null", "null", queues=2) as ports:
        assert len(ports) == 2 and [port.name for port in ports] == ["model:null", "null"]
        assert ports[-1].name == "null" and ports[0].queues == 2
        assert repr(ports) == "<ringpass.Ports model:null null>"
        assert isinstance(ports.notes, list)
        for wrong in (2, -3):
            with pytest.raises(IndexError):
                ports[wrong]
        for call in (ports[0].receive, lambda queue: ports[0].send([frame()], queue=queue)):
            with pytest.raises(IndexError):
                call(queue=2)
    for port in ports:
        with pytest.raises(ringpass.ClosedError):
            port.receive()


@pytest.mark.parametrize("address", ["null", *MODELS])
def test_closed_ports_refuse_everything_but_their_counters(address):
    with ringpass.open(address) as ports:
        (port,) = ports
        send(port, map(frame, range(7)))
        wait_until("frames that are sent", lambda: port.stats.tx_packets == 7)
    uses = [
        lambda: port.receive(),
        lambda: port.receive(wait=math.inf),
        lambda: port.send([frame()]),
        lambda: port.set_promiscuous(True),
        lambda: port.mac,
        lambda: port.link,
        lambda: port.counters,
        lambda: port.finished,
    ]
    for use in uses:
        with pytest.raises(ringpass.ClosedError):
            use()
    assert port.stats.tx_packets == 7 and port.queues == 1 and len(ports) == 1
    ports.close()


def test_an_exception_in_the_block_closes_the_ports_and_passes():
    with pytest.raises(ZeroDivisionError), ringpass.open("null") as ports:
        1 / 0
    with pytest.raises(ringpass.ClosedError):
        ports[0].receive()


def test_ports_that_are_dropped_are_closed(capture, tmp_path):
    out = tmp_path / "out.pcap"
    ports = ringpass.open(f"pcap:,out={out}")
    send(ports[0], map(frame, range(3)))
    del ports
    assert read_capture(out) == [frame(number) for number in range(3)]
    # Among them the model's thread, which polls.
    run_python("import ringpass; ports = ringpass.open('model:null', poll=True); ports[0].receive(wait=0.1)")


def test_what_a_forked_child_closes_ends():
    with ringpass.open("model:null") as (port,):
        # In a child there is no thread that runs the card.
        run_python(
            """
            import os, ringpass
            ports = ringpass.open("model:null")
            if child := os.fork():
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            else:
                ports.close()
                os._exit(0)
            """
        )
        assert not port.finished


# Packets and views


def test_frames_of_a_file_are_received_in_order(capture):
    frames = [frame(number, 60 + number) for number in range(500)]
    with ringpass.open(f"pcap:{capture(frames)}") as (port,):
        assert [len(port.receive(most)) for most in (1, 32, 7)] == [1, 32, 7]
        assert [bytes(packet) for packet in receive(port, 460)] == frames[40:]
        assert port.receive(wait=math.inf) == [] and port.finished
        assert port.stats.rx_packets == 500 and port.stats.rx_bytes == sum(map(len, frames))


@pytest.mark.parametrize("most", [1, 256, 257, 1 << 40])
def test_a_batch_has_at_most_256_packets(capture, most):
    with ringpass.open(f"pcap:{capture(map(frame, range(600)))}") as (port,):
        assert len(port.receive(most)) == min(most, 256)


def test_what_is_sent_arrives(pair):
    left, right = pair
    for sender, receiver in ((left, right), (right, left)):
        frames = [frame(number, 60 + number % 1400) for number in range(2000)]
        for at in range(0, len(frames), 100):
            send(sender, frames[at : at + 100])
            assert [bytes(packet) for packet in receive(receiver, 100)] == frames[at : at + 100]
        assert sender.stats.tx_packets == receiver.stats.rx_packets == 2000
        assert sender.stats.tx_bytes == receiver.stats.rx_bytes == sum(map(len, frames))


def test_anything_with_a_buffer_is_sent(capture, tmp_path):
    out = tmp_path / "out.pcap"
    with ringpass.open(f"pcap:{capture([frame(0)])}", f"pcap:,out={out}") as (source, sink):
        (packet,) = source.receive(wait=LIMIT)
        frames = [packet, frame(1), bytearray(frame(2)), memoryview(frame(3)), memoryview(frame(4) + bytes(9))[:60]]
        assert sink.send(iter(frames)) == 5
        assert sink.send(()) == 0
        for wrong in ([1], ["text"], [None], [memoryview(bytes(120)).cast("I")], 5, packet):
            with pytest.raises((TypeError, BufferError)):
                sink.send(wrong)
    assert read_capture(out) == [frame(number) for number in range(5)]


def test_a_view_shows_the_frame_without_a_copy(capture):
    with ringpass.open(f"pcap:{capture([frame(0), frame(1)])}") as (port,):
        first, second = receive(port, 2)
        assert len(first) == 60 and repr(first) == "<ringpass.Packet of 60 bytes>"
        with memoryview(first) as view, memoryview(first) as other:
            assert (view.nbytes, view.format, view.readonly, view.c_contiguous) == (60, "B", False, True)
            view[14:18] = b"seen"
            assert bytes(other[14:18]) == b"seen" and bytes(first)[14:18] == b"seen"
        assert bytes(second) == frame(1)
    # The packets keep their memory when the ports are closed.
    assert bytes(first)[14:18] == b"seen" and bytes(memoryview(second)) == frame(1)


def test_a_view_keeps_its_packet(capture):
    with ringpass.open(f"pcap:{capture(map(frame, range(5000)))}") as (port,):
        view = memoryview(port.receive(1)[0])
        # Every other buffer of the pool has been used since.
        while not port.finished:
            port.receive(256, wait=LIMIT)
        assert bytes(view) == frame(0)
    assert bytes(view) == frame(0)


def test_a_packet_with_a_view_is_not_sent(capture):
    with ringpass.open(f"pcap:{capture(map(frame, range(3)))}", "null") as (source, sink):
        packets = receive(source, 3)
        view = memoryview(packets[1])
        part = view[10:20]
        assert sink.send(packets) == 1, "those before it are sent"
        with pytest.raises(BufferError, match="memoryview"):
            sink.send(packets[1:])
        view.release()
        with pytest.raises(BufferError, match="memoryview"):
            sink.send(packets[1:])
        assert bytes(part) == frame(1)[10:20], "a view of a view is one, too"
        part.release()
        assert sink.send(packets[1:]) == 2
        for released in (view, part):
            with pytest.raises(ValueError):
                bytes(released)


def test_a_sent_packet_is_used_up(capture):
    with ringpass.open(f"pcap:{capture([frame()])}", "null") as (source, sink):
        packets = receive(source, 1)
        assert sink.send(packets) == 1
        assert repr(packets[0]) == "<ringpass.Packet, sent>"
        for use in (bytes, memoryview, len, lambda packet: sink.send([packet])):
            with pytest.raises(BufferError, match="sent"):
                use(packets[0])
        assert sink.stats.tx_packets == 1


def test_a_packet_twice_in_a_list_is_sent_once(capture):
    with ringpass.open(f"pcap:{capture([frame()])}", "null") as (source, sink):
        packets = receive(source, 1)
        assert sink.send(packets * 2) == 1
        assert sink.stats.tx_packets == 1


@pytest.mark.parametrize("address", ["null", *MODELS])
def test_packets_of_other_ports_are_copied(capture, address):
    """A card cannot reach another pool's memory: virtio's fails at such an address."""
    with ringpass.open(f"pcap:{capture(map(frame, range(50)))}") as (source,):
        with ringpass.open(address) as (sink,):
            send(sink, receive(source, 50))
            wait_until("frames that are sent", lambda: sink.stats.tx_packets == 50)
            wait_until("the model", lambda: sink.counters.get("model_tx_packets", 50) == 50)
            assert sink.counters.get("model_dma_faults", 0) == 0 and not sink.finished


def test_packets_that_are_not_taken_can_be_sent_again(capture, tmp_path):
    # Nobody is at the other end, so nothing is taken.
    with ringpass.open(f"pcap:{capture(map(frame, range(9)))}", f"vhost:{tmp_path / 'socket'}") as (source, sink):
        packets = receive(source, 9)
        assert sink.send(packets) == 0
        assert [bytes(packet) for packet in packets] == [frame(number) for number in range(9)]
    with ringpass.open("null") as (sink,):
        assert sink.send(packets) == 9


def test_a_program_that_keeps_all_packets_receives_all(capture):
    """More than the pool has: those beyond a limit are copied, or the wait for the rest would never end."""
    frames = [frame(number) for number in range(6000)]
    with ringpass.open(f"pcap:{capture(frames)}") as (port,):
        kept = []
        while packets := port.receive(256, wait=LIMIT):
            kept += packets
        assert port.finished
    assert [bytes(packet) for packet in kept] == frames
    for packet, sent in zip(kept[::500], frames[::500]):
        with memoryview(packet) as view:
            assert view == sent


@pytest.mark.parametrize("address", ["null", *MODELS])
def test_frames_of_any_length_are_sent_dropped_or_refused(address):
    """Those that no port can send are never left to a caller who would try again forever."""
    with ringpass.open(address) as (port,):
        for number, length in enumerate((0, 1, 13, 1600 * 4, 65557), 1):
            assert port.send([bytes(length)]) == 1, length
            wait_until("the drop", lambda: port.stats.tx_drops == number)
        for length in (65558, 10_000_000):
            with pytest.raises(ringpass.InvalidError, match=f"{length} bytes"):
                port.send([frame(), bytes(length)])
        send(port, [frame(0, 1514)])
        wait_until("the frame that fits", lambda: port.stats.tx_packets == 1)


def test_long_frames_lie_in_several_buffers(tmp_path):
    socket = tmp_path / "cable"
    with ringpass.open(f"vhost:{socket}", mtu=9000) as (left,), ringpass.open(f"virtio-user:{socket}", mtu=9000) as (right,):
        for length in (60, 2048, 2049, 9014):
            send(left, [frame(length, length)])
            (packet,) = receive(right, 1)
            assert len(packet) == length and bytes(packet) == frame(length, length)
            with memoryview(packet) as view:
                assert view == frame(length, length)
            send(right, [packet])
            assert bytes(receive(left, 1)[0]) == frame(length, length)


# Waiting


@pytest.mark.parametrize("address", ["null", *MODELS])
@pytest.mark.parametrize("poll", [False, True])
def test_a_wait_lasts_as_long_as_it_says(address, poll):
    with ringpass.open(address, poll=poll) as (port,):
        for wait in (0, 1e-9, 0.2):
            start = time.monotonic()
            assert port.receive(wait=wait) == []
            assert time.monotonic() - start >= wait
        for wrong in (-1, math.nan, -math.inf):
            with pytest.raises(ringpass.InvalidError):
                port.receive(wait=wrong)
        with pytest.raises(ringpass.InvalidError):
            port.receive(0)
        with pytest.raises((OverflowError, TypeError)):
            port.receive(-1)


def test_a_frame_ends_a_wait(pair):
    left, right = pair
    with later(lambda: send(left, [frame(5)])):
        assert [bytes(packet) for packet in right.receive(wait=math.inf)] == [frame(5)]


@pytest.mark.parametrize("address", ["null", *MODELS])
@pytest.mark.parametrize("poll", [False, True])
def test_closing_ends_a_wait(address, poll):
    """It once made the receiver spin forever, with the lock for which close waited."""
    ports = ringpass.open(address, poll=poll)
    with later(ports.close), pytest.raises(ringpass.ClosedError):
        ports[0].receive(wait=math.inf)


def test_closing_ends_many_waits():
    for _ in range(20):
        ports = ringpass.open("null", queues=4)
        ended = []

        def wait(queue):
            with pytest.raises(ringpass.ClosedError):
                ports[0].receive(wait=math.inf, queue=queue)
            ended.append(queue)

        threads = [threading.Thread(target=wait, args=[queue], daemon=True) for queue in range(4)]
        for thread in threads:
            thread.start()
        ports.close()
        for thread in threads:
            thread.join(LIMIT)
        assert sorted(ended) == [0, 1, 2, 3]


@pytest.mark.parametrize("poll", [False, True])
def test_a_wait_lets_other_threads_run(poll):
    with ringpass.open("null", poll=poll) as (port,):
        thread = threading.Thread(target=port.receive, kwargs={"wait": 0.5}, daemon=True)
        thread.start()
        count = 0
        while thread.is_alive():
            count += 1
        assert count > 1000


def test_a_card_that_keeps_a_call_waiting_lets_other_threads_run(tmp_path):
    path = tmp_path / "card"
    model = [os.environ["RINGPASS"], "model", "82599", "--socket", path, "--wire", "null", "--no-sandbox", "-q"]
    with subprocess.Popen(model, stdout=subprocess.DEVNULL) as server:
        try:
            wait_until("the card's socket", path.exists)
            with ringpass.open(f"vfio-user:{path}") as (port,):
                for call in (lambda: port.link, lambda: port.stats, lambda: port.counters):
                    thread = threading.Thread(target=call, daemon=True)
                    os.kill(server.pid, signal.SIGSTOP)
                    thread.start()
                    # With the GIL held, this would not go on before the card answers.
                    time.sleep(0.2)
                    assert thread.is_alive(), "the card answered, though its server is stopped"
                    os.kill(server.pid, signal.SIGCONT)
                    thread.join(LIMIT)
                    assert not thread.is_alive()
        finally:
            server.kill()


def test_one_thread_at_a_time_receives_from_a_queue():
    with ringpass.open("null", queues=2) as (port,):
        started = threading.Event()

        def wait():
            started.set()
            with pytest.raises(ringpass.ClosedError):
                port.receive(wait=math.inf)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        assert started.wait(LIMIT)
        with contextlib.suppress(ringpass.ClosedError):
            # Once the other one waits.
            while True:
                try:
                    assert port.receive() == []
                except ringpass.BusyError:
                    break
        # Longer than a slice of its wait.
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            with pytest.raises(ringpass.BusyError, match="another thread"):
                port.receive(wait=math.inf)
        assert port.receive(queue=1) == [] and port.send([frame()]) == 1
    thread.join(LIMIT)
    assert not thread.is_alive()


def test_threads_receive_and_send_at_the_same_time(pair):
    left, right = pair
    count = 3000

    def echo():
        for _ in range(count):
            send(right, receive(right, 1))

    thread = threading.Thread(target=echo, daemon=True)
    thread.start()
    for number in range(count):
        send(left, [frame(number)])
        assert bytes(receive(left, 1)[0]) == frame(number)
    thread.join(LIMIT)
    assert left.stats.rx_packets == right.stats.rx_packets == count


@pytest.mark.parametrize("address", ["null", *MODELS])
def test_an_interrupt_ends_a_wait(address):
    # Programs that a shell starts in the background inherit that SIGINT is ignored.
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with ringpass.open(address) as (port,):
            with later(lambda: os.kill(os.getpid(), signal.SIGINT)), pytest.raises(KeyboardInterrupt):
                port.receive(wait=math.inf)
            with later(_thread.interrupt_main), pytest.raises(KeyboardInterrupt):
                port.receive(wait=math.inf)
            # The queue is free again.
            assert port.receive() == []
    finally:
        signal.signal(signal.SIGINT, old)


def test_an_interrupt_ends_a_list_of_frames_without_end():
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with ringpass.open("null") as (port,):
            # Also threads of Python run meanwhile, such as the one that interrupts.
            with later(_thread.interrupt_main, after=0.1), pytest.raises(KeyboardInterrupt):
                port.send(itertools.repeat(b""))
            assert port.stats.tx_packets == 0
    finally:
        signal.signal(signal.SIGINT, old)


@pytest.mark.parametrize("do", ["close", "receive", "raise"])
def test_a_signal_handler_may_use_the_ports(do):
    ports = ringpass.open("model:null")
    (port,) = ports
    calls = []

    def handle(*_):
        calls.append(1)
        if do == "raise":
            raise LookupError
        elif do == "close":
            ports.close()
        else:
            with pytest.raises(ringpass.BusyError):
                port.receive()
            assert port.send([frame()]) == 1

    old = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        if do == "receive":
            assert port.receive(wait=0.5) == []
        else:
            with pytest.raises({"close": ringpass.ClosedError, "raise": LookupError}[do]):
                port.receive(wait=math.inf)
    finally:
        signal.signal(signal.SIGALRM, old)
        ports.close()
    assert calls == [1]


# Errors


def test_errors_are_exceptions_of_one_family():
    names = [name for name in dir(ringpass) if name.endswith("Error")]
    assert len(names) == 10
    assert all(issubclass(getattr(ringpass, name), ringpass.Error) for name in names)
    assert issubclass(ringpass.Error, Exception)


@pytest.mark.parametrize(
    ("address", "options", "text"),
    [
        ("", {}, "''"),
        ("tapp:x", {}, "no such kind of port"),
        ("model", {}, "model"),
        ("model,device=1234:null", {}, "no model of the device 1234"),
        ("pcap:x,speed=never", {}, "never"),
        ("null", {"queues": 0}, "1 to 64"),
        ("null", {"rx_ring": 100}, "power of two"),
        ("null", {"mtu": 67}, "68 to 9710"),
    ],
)
def test_malformed_addresses_and_values(address, options, text):
    with pytest.raises(ringpass.InvalidError, match=text) as error:
        ringpass.open(address, **options)
    assert "\n" not in str(error.value)


def test_no_address_and_wrong_types():
    with pytest.raises(ringpass.InvalidError):
        ringpass.open()
    for wrong in (lambda: ringpass.open(1), lambda: ringpass.open("null", nothing=1), lambda: ringpass.open("null", queues="1")):
        with pytest.raises(TypeError):
            wrong()
    for kind in (ringpass.Port, ringpass.Ports, ringpass.Packet, ringpass.Stats, ringpass.Link):
        with pytest.raises(TypeError):
            kind()


@pytest.mark.parametrize(
    "address",
    [
        "pcap:{}/none.pcap",
        "packet:rpy-none",
        "ffff:ff:1f.7",
    ],
)
def test_what_does_not_exist(tmp_path, address):
    with pytest.raises(ringpass.NotFoundError) as error:
        ringpass.open(address.format(tmp_path))
    assert "\n" not in str(error.value)


@contextlib.contextmanager
def another_user():
    """Without root's privileges."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("address", ["pcap:{}", "packet:lo"])
def test_what_is_not_permitted(capture, address):
    path = capture([frame()])
    path.chmod(0)
    with another_user(), pytest.raises(ringpass.NotPermittedError):
        ringpass.open(address.format(path))


@pytest.mark.parametrize("address", ["vhost:{}/socket", "tap:rpy0"])
def test_what_somebody_else_uses(namespace, tmp_path, address):
    address = address.format(tmp_path)
    with ringpass.open(address):
        with pytest.raises(ringpass.BusyError):
            ringpass.open(address)


def test_what_was_closed_can_be_opened_again(namespace, tmp_path):
    for address in (f"vhost:{tmp_path}/socket", "tap:rpy0", "model:tap:rpy0"):
        for _ in range(3):
            ringpass.open(address).close()


def test_too_little_memory():
    run_python(
        """
        import resource, ringpass
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + (16 << 20), -1))
        for huge in (True, False):
            try:
                ringpass.open("null", huge_pages=huge, queues=64)
            except ringpass.OutOfMemoryError as error:
                assert "\\n" not in str(error)
            else:
                assert False, huge
        ringpass.open("null", huge_pages=False).close()
        """
    )


def test_a_damaged_file_is_gone_once_its_frames_are_received(capture):
    path = capture(map(frame, range(3)))
    path.write_bytes(path.read_bytes()[:-5])
    with ringpass.open(f"pcap:{path}") as ports:
        (port,) = ports
        assert len(receive(port, 2)) == 2
        with pytest.raises(ringpass.GoneError):
            port.receive(wait=math.inf)
        with pytest.raises(ringpass.GoneError):
            port.finished
        # Also a loop that never waits ends.
        with pytest.raises(ringpass.GoneError):
            wait_until("the end", port.receive)
        with pytest.raises(ringpass.Error):
            ports.close()
    with pytest.raises(ringpass.ClosedError):
        port.receive()


@pytest.mark.parametrize("address", ["tap:rpy0", "model:tap:rpy0"])
def test_an_interface_that_is_deleted_is_gone(namespace, address):
    with ringpass.open(address) as (port,):
        with later(lambda: namespace.ip("link", "del", "rpy0")):
            with pytest.raises(ringpass.GoneError, match="rpy0"):
                port.receive(wait=math.inf)


def test_a_silent_server_is_given_up(tmp_path):
    path = tmp_path / "silent"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        for kind in ("virtio-user", "vfio-user"):
            with pytest.raises(ringpass.Error) as error:
                ringpass.open(f"{kind}:{path}")
            assert "\n" not in str(error.value)


# Ports that other threads open, and traffic through the kernel


def test_frames_pass_through_the_kernel(namespace):
    namespace.ip("link", "add", "rpy0", "type", "veth", "peer", "name", "rpy1")
    for name in ("rpy0", "rpy1"):
        namespace.ip("link", "set", name, "up")
    with ringpass.open("packet:rpy0", "packet:rpy1", queues=1) as (a, b):
        frames = [frame(number, 60 + number) for number in range(100)]
        send(a, frames)
        assert [bytes(packet) for packet in receive(b, 100)] == frames
        send(b, map(frame, range(100, 200)))
        assert [bytes(packet) for packet in receive(a, 100)] == [frame(number) for number in range(100, 200)]


# The stubs


def test_the_stubs_describe_the_module(tmp_path):
    package = pathlib.Path(ringpass.__file__).parent
    assert (package / "py.typed").exists()
    # The classes of a package and of its extension module are the same; the extension module has no stub of its own.
    allowed = tmp_path / "allowed"
    # Python shows these methods since 3.12.
    buffers = "ringpass\\.Packet\\.__(release_)?buffer__\n" if sys.version_info < (3, 12) else ""
    allowed.write_text(f"ringpass\\.ringpass\n{buffers}")
    command = [sys.executable, "-B", "-m", "mypy.stubtest", "ringpass", "--allowlist", allowed, "--ignore-unused-allowlist"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_programs_with_types_pass_mypy(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import ringpass

            with ringpass.open("tap:a", "model:null", queues=2) as ports:
                for port in ports:
                    frames: list[ringpass.Packet] = port.receive(wait=1)
                    port.send([bytes(frames[0]), bytearray(60), memoryview(frames[0]), frames[0]])
                    count: int = port.stats.rx_packets + len(frames[0])
            """
        )
    )
    command = [sys.executable, "-B", "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
