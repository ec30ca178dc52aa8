"""Scapy and the kernel talk through the driver: a model card whose wire is a TAP interface in a network namespace."""

import subprocess
import time

import pytest
import ringpass
from conftest import LIMIT, wait_until
from scapy.layers.inet import ICMP, IP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

KERNEL, SCAPY = "198.18.0.1", "198.18.0.2"


class Host:
    """A host made of a port and scapy."""

    def __init__(self, port):
        self.port = port

    def send(self, packet):
        assert self.port.send([bytes(packet)]) == 1

    def receive(self, wanted):
        """Answer ARP until a frame comes that `wanted` accepts, and return that."""
        end = time.monotonic() + LIMIT
        while (left := end - time.monotonic()) > 0:
            for packet in self.port.receive(wait=left):
                with memoryview(packet) as view:
                    frame = Ether(bytes(view))
                if wanted(frame):
                    return frame
                if ARP in frame and frame[ARP].op == 1 and frame[ARP].pdst == SCAPY:
                    self.send(
                        Ether(src=self.port.mac, dst=frame.src)
                        / ARP(op=2, hwsrc=self.port.mac, psrc=SCAPY, hwdst=frame[ARP].hwsrc, pdst=frame[ARP].psrc)
                    )
        pytest.fail(f"no answer within {LIMIT} s: {self.port.stats} {self.port.counters}")

    def ask_mac(self):
        """Ask for the kernel's MAC address by ARP."""
        self.send(Ether(src=self.port.mac, dst="ff:ff:ff:ff:ff:ff") / ARP(hwsrc=self.port.mac, psrc=SCAPY, pdst=KERNEL))
        return self.receive(lambda frame: ARP in frame and frame[ARP].op == 2 and frame[ARP].psrc == KERNEL)[ARP].hwsrc


def echoes():
    """Return how many echo requests the kernel of this namespace has counted."""
    lines = [line.split() for line in open("/proc/thread-self/net/snmp") if line.startswith("Icmp:")]
    return int(dict(zip(*lines))["InEchos"])


@pytest.mark.parametrize("card", ["model", "model,device=1041"], ids=["82599", "virtio"])
def test_the_kernel_answers_pings_of_scapy(namespace, card):
    with ringpass.open(f"{card}:tap:wire") as (port,):
        namespace.ip("address", "add", f"{KERNEL}/24", "dev", "wire")
        namespace.ip("link", "set", "wire", "up")
        host = Host(port)
        mac = host.ask_mac()
        before = echoes()
        # Even and odd numbers of bytes, for the checksum, up to the longest packet.
        sizes = [0, 1, 56, 57, 1471, 1472]
        for number, size in enumerate(sizes, 1):
            data = bytes(index * number & 0xFF for index in range(size))
            request = Ether(src=port.mac, dst=mac) / IP(src=SCAPY, dst=KERNEL) / ICMP(id=7, seq=number) / Raw(data)
            host.send(request)
            answer = host.receive(lambda frame: ICMP in frame and frame[ICMP].type == 0 and frame[ICMP].seq == number)
            assert (answer.src, answer.dst, answer[IP].src, answer[IP].dst) == (mac, port.mac, KERNEL, SCAPY)
            assert answer[ICMP].id == 7
            # The rest is what fills a frame to 60 bytes.
            assert bytes(answer[ICMP].payload)[:size] == data
            # Scapy computes the checksums again.
            again = IP(bytes(answer[IP])[: answer[IP].len])
            sums = again.chksum, again[ICMP].chksum
            del again.chksum, again[ICMP].chksum
            again = IP(bytes(again))
            assert sums == (again.chksum, again[ICMP].chksum)
        assert echoes() - before == len(sizes)
        stats = port.stats
        assert stats.tx_packets > len(sizes) and stats.rx_packets > len(sizes) and stats.tx_drops == 0
        wait_until("all to be sent", lambda: port.counters["model_tx_packets"] == stats.tx_packets)


def test_scapy_answers_pings_of_the_kernel(namespace):
    with ringpass.open("model:tap:wire") as (port,):
        namespace.ip("address", "add", f"{KERNEL}/24", "dev", "wire")
        namespace.ip("link", "set", "wire", "up")
        host = Host(port)
        command = ["ping", "-c", "3", "-i", "0.2", "-W", "20", SCAPY]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as ping:
            try:
                for _ in range(3):
                    request = host.receive(lambda frame: ICMP in frame and frame[ICMP].type == 8)
                    host.send(
                        Ether(src=port.mac, dst=request.src)
                        / IP(src=SCAPY, dst=KERNEL)
                        / ICMP(type=0, id=request[ICMP].id, seq=request[ICMP].seq)
                        / request[ICMP].payload
                    )
                out, _ = ping.communicate(timeout=LIMIT)
            finally:
                ping.kill()
        assert ", 0% packet loss" in out, out
