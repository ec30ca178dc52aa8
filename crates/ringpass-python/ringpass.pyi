"""Packet I/O in user space: network cards, virtual machines, netmap and the kernel as ports.

Packets are received into one pool of buffers and stay there without being copied, up to 256 of them for each queue pair; if a
program holds more, further ones are copied, so that the ports do not run out of buffers.
"""

from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Self, final

from typing_extensions import Buffer

__all__ = [
    "BusyError",
    "ClosedError",
    "Control",
    "Error",
    "FaultError",
    "GoneError",
    "InvalidError",
    "Link",
    "NotFoundError",
    "NotPermittedError",
    "OutOfMemoryError",
    "Packet",
    "Port",
    "Ports",
    "Stats",
    "UnsupportedError",
    "open",
]

class Error(Exception):
    """Base of all errors of this module: one line, with cause and remedy."""

class InvalidError(Error):
    """A malformed address, or a value out of its range."""

class NotFoundError(Error):
    """There is no such device, interface, file or peer."""

class NotPermittedError(Error):
    """This user may not do that."""

class BusyError(Error):
    """Somebody else uses it: the kernel, a process, another thread."""

class OutOfMemoryError(Error):
    """Too little memory, or too few huge pages."""

class UnsupportedError(Error):
    """The device, port or kernel cannot do that."""

class FaultError(Error):
    """A device or peer breaks its protocol, or a part of the library has failed."""

class GoneError(Error):
    """The device, interface or peer behind a port has disappeared."""

class ClosedError(Error):
    """The ports were closed."""

@final
class Packet:
    """A received Ethernet frame, without its CRC.

    bytes(packet) copies the frame; memoryview(packet) does not, can be written to, and stays valid when the ports are closed.
    Where another process shares the pool (vfio-user:, virtio-user:, vale0:, netmap:), the frame was copied when it was
    received, so that nobody changes it while it is read.

    Sending a packet uses it up: BufferError is raised if it is used afterwards. It is also raised if a packet is sent while it
    has a memoryview, so no view ever shows a buffer that is somebody else's. Ports that were opened by another call of open()
    send a copy.
    """

    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...

@final
class Stats:
    """Counters of a port since it was opened. Bytes are those of the frames, without CRC."""

    @property
    def rx_packets(self) -> int: ...
    @property
    def rx_bytes(self) -> int: ...
    @property
    def rx_drops(self) -> int:
        """Frames that arrived and were lost: no descriptor or buffer was free, or the frame was faulty."""
    @property
    def tx_packets(self) -> int: ...
    @property
    def tx_bytes(self) -> int: ...
    @property
    def tx_drops(self) -> int:
        """Frames that were taken for sending and not sent."""

@final
class Link:
    """State of a port's link."""

    @property
    def up(self) -> bool: ...
    @property
    def mbps(self) -> int:
        """Speed in Mbit/s; 0 where that is meaningless."""

@final
class Port:
    """A port.

    Different threads may receive and send at the same time. If a thread receives from a queue while another one waits for
    it, BusyError is raised.
    """

    @property
    def name(self) -> str:
        """Address that the port was opened by."""
    @property
    def mac(self) -> str:
        """MAC address, as "02:00:00:00:00:01"; zeros where the port has none."""
    @property
    def link(self) -> Link: ...
    @property
    def stats(self) -> Stats:
        """Counters; once the ports are closed, the final ones."""
    @property
    def queue_stats(self) -> list[Stats]:
        """Counters of each queue pair; empty where the port does not count by queue."""
    @property
    def counters(self) -> dict[str, int]:
        """Further counters of this kind of port, by name."""
    @property
    def queues(self) -> int:
        """Number of queue pairs."""
    @property
    def finished(self) -> bool:
        """Whether the port has delivered all of its input (the end of a capture file).

        Raises GoneError if the device, interface or peer behind it has disappeared.
        """

    def receive(self, max: int = 32, wait: float = 0.0, queue: int = 0) -> list[Packet]:
        """Receive up to `max` packets, of which at most 256 come at a time.

        If there are none, waits up to `wait` seconds (which may be math.inf) without the GIL. The wait ends early at the end
        of a capture file, with what a signal handler raises (KeyboardInterrupt), and with ClosedError or GoneError.
        """

    def send(self, frames: Iterable[Buffer], queue: int = 0) -> int:
        """Send frames (bytes, Packet, anything with a buffer) from the front of the list, without waiting.

        Returns how many were taken. The others were not sent; a Packet among them can be sent again. Frames that the port can
        never send, such as those longer than its MTU allows, are taken and counted in `stats.tx_drops`. If a frame has more than
        65,557 bytes, which no port sends, InvalidError is raised and nothing is sent.
        """

    def set_promiscuous(self, on: bool) -> None:
        """Set whether the port receives frames for any MAC address, or only for its own, broadcast and multicast."""

@final
class Ports:
    """Ports that were opened together, in the order of their addresses. As a context manager, closes them at the end."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Port: ...
    def __iter__(self) -> Iterator[Port]: ...
    def __enter__(self) -> Ports: ...
    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...
    def close(self) -> None:
        """Close the ports, stop their devices and complete capture files. Waits end with ClosedError; packets stay valid."""
    @property
    def notes(self) -> list[str]:
        """Choices that were made as the ports were opened, such as ordinary pages in place of huge ones."""

def open(
    *addresses: str,
    queues: int = 1,
    rx_ring: int = 512,
    tx_ring: int = 512,
    mtu: int = 1500,
    promiscuous: bool = True,
    rejoin: bool = False,
    huge_pages: bool | None = None,
    poll: bool = False,
    latency_budget: float = 50e-6,
    take_over: Sequence[str] = ...,
) -> Ports:
    """Open ports at addresses such as "0000:01:00.0", "tap:a" or "model:null".

    Waits for other processes at those addresses, each for 30 s at most; signals are handled afterwards.

    queues: queue pairs of each port, 1 to 64. rx_ring, tx_ring: descriptors, powers of two from 64 to 4096. mtu: 68 to 9710.
    rejoin: when the interface of a TAP or packet socket is deleted, wait for one of the same name. huge_pages: None for huge
    pages if enough are free. poll: waits never sleep. latency_budget: seconds that a wait may add so that packets collect while it
    sleeps, none below 30e-6. take_over: cards that are taken even if their kernel interface is in use.
    """

@final
class Control:
    """A connection to a running program, such as 'ringpass run', over its control socket. Threads may share it; each waits for the others."""

    def __new__(cls, socket: str | PathLike[str] = ...) -> Self:
        """Connect, to /run/ringpass/control if not told otherwise. Raises NotFoundError if no program is there, NotPermittedError if it is for others."""

    program: str
    """What runs, such as "ringpass run"."""
    changes: bool
    """Whether this connection may change anything."""

    def status(self) -> dict[str, Any]:
        """Return state and counters: 'ports', 'switches' and 'workers' among others, as in 'ringpass ctl stats --json'."""

    def stations(self, switch: str | None = None) -> list[dict[str, Any]]:
        """Return the stations of a switch, or of all: 'mac', 'vlan', 'port', 'switch', and 'seconds' since each was heard."""

    def add(self, switch: str, address: str, **keys: Any) -> None:
        """Open a port and add it to a switch; the program is in its sandbox and opens nothing itself.

        The keys are those of [[switch.port]] in the configuration file, such as name="c" and vlan=10.
        """

    def remove(self, port: str) -> None:
        """Take a port out of its switch and close it."""

    def listen(self) -> None:
        """Ask for events from now on."""

    def event(self, wait: float = 0.0) -> dict[str, Any] | None:
        """Return the next event, or None if there is none within this many seconds. `listen` asks for events."""
