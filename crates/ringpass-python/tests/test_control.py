"""Control of a running program: a service in a namespace of its own."""

import os
import subprocess

import pytest
import ringpass
from conftest import LIMIT, wait_until

PROGRAM = os.environ["RINGPASS"]

SERVICE = """
[options]
hugepages = "off"
[control]
socket = "{0}/control"
read-only = "{0}/status"
[[switch]]
name = "lan"
[[switch.port]]
address = "tap:ta"
[[switch.port]]
address = "null"
"""


@pytest.fixture
def service(tmp_path, namespace):
    """Run a service; return the folder of its sockets."""
    file = tmp_path / "service.toml"
    file.write_text(SERVICE.format(tmp_path))
    with subprocess.Popen([PROGRAM, "run", file, "--json"], stdout=subprocess.DEVNULL) as program:
        try:
            wait_until("the service", (tmp_path / "status").exists)
            yield tmp_path
        finally:
            program.terminate()
            assert program.wait(LIMIT) == 0


def test_ports_come_and_go(service):
    control = ringpass.Control(service / "control")
    assert (control.program, control.changes) == ("ringpass run", True)
    watching = ringpass.Control(os.fspath(service / "status"))
    watching.listen()
    assert watching.event() is None

    def names():
        return [port["name"] for port in watching.status()["ports"]]

    control.add("lan", "tap:tc", name="c", vlan=10)
    assert names() == ["tap:ta", "null", "c"]
    event = wait_until("the event", lambda: watching.event(0.1))
    assert (event["event"], event["port"]) == ("added", "c")
    assert watching.stations("lan") == watching.stations()
    control.remove("c")
    assert names() == ["tap:ta", "null"]


def test_what_is_wrong_is_raised(service):
    control = ringpass.Control(service / "control")
    for switch, address, keys, why in [
        ("lna", "null", {"name": "x"}, "there is no switch 'lna'"),
        ("lan", "tpa:x", {}, "tpa:x"),
        ("lan", "null", {"name": "x", "colour": 1}, "colour"),
        ("lan", "null", {}, "there is a port 'null' already"),
    ]:
        with pytest.raises(ringpass.InvalidError, match=why):
            control.add(switch, address, **keys)
    with pytest.raises(ringpass.InvalidError, match="for looking only"):
        ringpass.Control(service / "status").remove("null")
    with pytest.raises(ringpass.NotFoundError, match="no program is controlled there"):
        ringpass.Control(service / "nothing")
    with pytest.raises(ringpass.InvalidError, match="seconds"):
        control.event(-1)
