"""No code that Flower transmits is executed: not at a site, and not beside the coordinator's SuperLink."""

from __future__ import annotations

import ssl
import subprocess
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from fedmosaic_cli.federation.flower.flower_processes import FlowerProcess, terminate_all
from fedmosaic_cli.federation.flower.flwr_commands import run_flwr
from fedmosaic_cli.federation.flower.ipc import RuntimeDir
from fedmosaic_cli.federation.flower.keys import create_node_key
from fedmosaic_cli.federation.flower.superlink import (
    CONNECTION_NAME,
    LISTENING_TEXT,
    SuperLinkAddress,
    flwr_config,
    free_port,
)
from tests.federation.flower.federation import Federation, start_site
from tests.waiting import HANG_SECONDS, wait_until

pytestmark = pytest.mark.flower

PYPROJECT = """\
[project]
name = "hostile"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "hostile"

[tool.flwr.app.components]
serverapp = "hostile.server:app"
clientapp = "hostile.client:app"
"""
SERVER = """\
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

Path({folder!r}, "server-executed").touch()
app = ServerApp()


@app.main()
def main(grid, context):
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.2)
    content = RecordDict({{"r": ConfigRecord({{"v": b"echo hello"}})}})
    messages = [Message(content, dst_node_id=node, message_type="query") for node in nodes]
    for reply in grid.send_and_receive(messages, timeout=900):
        text = repr(reply.error) if reply.has_error() else repr(reply.content["r"]["v"])
        Path({folder!r}, "reply").write_text(text)
"""
CLIENT = """\
from pathlib import Path
from flwr.clientapp import ClientApp

Path({folder!r}, "client-executed").touch()
app = ClientApp()


@app.query()
def answer(message, context):
    from flwr.app import Message
    return Message(message.content, reply_to=message)
"""


def write_app(folder: Path) -> Path:
    """Write an app whose modules leave a file in `folder` when they are executed."""
    app = folder / "app"
    (app / "hostile").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PYPROJECT)
    (app / "hostile" / "__init__.py").touch()
    (app / "hostile" / "server.py").write_text(SERVER.format(folder=str(folder)))
    (app / "hostile" / "client.py").write_text(CLIENT.format(folder=str(folder)))
    return app


class HostileCoordinator:
    """A SuperLink as Flower delivers it, which executes every app, and its app."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        runtime = RuntimeDir()
        stack.callback(runtime.close)
        stack.callback(terminate_all, runtime.path)
        self.runtime_dir = runtime.path
        address = SuperLinkAddress(port=free_port())
        self.address = address.host_port
        (self.runtime_dir / "flwr").mkdir()
        (self.runtime_dir / "flwr" / "config.toml").write_text(flwr_config(address))
        command = ["flower-superlink", "--host", address.host, "--port", str(address.port), "--insecure"]
        self.superlink = FlowerProcess([*command, "--disable-runtime-dependency-installation"], self.runtime_dir)
        wait_until(lambda: self.superlink.has_output(LISTENING_TEXT))

    def run_app(self) -> str:
        """Run the hostile app, and return the reply of its node."""
        run_flwr(self.runtime_dir, ("run", str(write_app(self.folder)), CONNECTION_NAME))
        wait_until((self.folder / "reply").exists)
        return (self.folder / "reply").read_text()


def test_a_site_answers_the_message_of_a_hostile_app_and_executes_nothing_of_it(tmp_path):
    with ExitStack() as stack:
        coordinator = HostileCoordinator(tmp_path, stack)
        site = start_site("0", coordinator.address, "-", "-", str(tmp_path))
        stack.callback(site.wait, HANG_SECONDS)
        stack.callback(site.terminate)
        assert coordinator.run_app() == repr(b"0:echo hello")
        assert (tmp_path / "server-executed").exists()
        assert not (tmp_path / "client-executed").exists()
        processes = site_processes(site)
        assert any("node_program" in argument for process in processes for argument in process.cmdline())
        assert [process for process in processes if listening_sockets(process)] == [], "a site opens no port"
        assert not [argument for process in processes for argument in process.cmdline() if "token" in argument]


def site_processes(site: subprocess.Popen[bytes]) -> list[psutil.Process]:
    process = psutil.Process(site.pid)
    return [process, *process.children(recursive=True)]


def listening_sockets(process: psutil.Process) -> list[object]:
    """Return the sockets on which a process accepts connections from other machines or users."""
    sockets = process.net_connections(kind="inet")
    return [socket for socket in sockets if socket.status in (psutil.CONN_LISTEN, psutil.CONN_NONE)]


def test_the_same_app_is_executed_by_a_supernode_of_flower(tmp_path):
    """The counterpart, which shows that the test above can fail."""
    with ExitStack() as stack:
        coordinator = HostileCoordinator(tmp_path, stack)
        runtime = RuntimeDir()
        stack.callback(runtime.close)
        stack.callback(terminate_all, runtime.path)
        (runtime.path / "flwr").mkdir()
        command = ["flower-supernode", "--insecure", "--superlink", coordinator.address]
        FlowerProcess([*command, "--host", "127.0.0.1", "--port", str(free_port())], runtime.path)
        assert coordinator.run_app() == repr(b"echo hello")
        assert (tmp_path / "client-executed").exists()


def test_the_coordinator_starts_no_app_but_its_relay(tmp_path):
    (tmp_path / "federation").mkdir()
    federation = Federation(tmp_path / "federation", clients=1)
    try:
        federation.wait_for_all()
        runtime_dir = federation.transport._runtime_dir.path
        run_flwr(runtime_dir, ("run", str(write_app(tmp_path)), CONNECTION_NAME))
        wait_until(lambda: "only the relay" in (runtime_dir / "superexec-output").read_text())
        assert federation.send() == federation.echoes()
        assert not (tmp_path / "server-executed").exists()
        assert not (tmp_path / "client-executed").exists()
    finally:
        federation.close()


def test_a_node_that_is_registered_under_the_name_of_a_client_gets_no_requests(tmp_path):
    federation = Federation(tmp_path, clients=1)
    try:
        federation.wait_for_all()
        key = create_node_key(tmp_path / "impostor")
        register = ("supernode", "register", str(key), CONNECTION_NAME, "--name", "client-000")
        run_flwr(federation.transport._runtime_dir.path, register)
        federation.start(0, key=tmp_path / "impostor", name="impostor-site")
        wait_until(lambda: any(event["kind"] == "connected" for event in federation.log(0, "impostor-site")))
        for number in range(10):
            assert federation.send(f"echo {number}") == federation.echoes(f"echo {number}")
        assert not any(event["kind"] == "asked" for event in federation.log(0, "impostor-site"))
    finally:
        federation.close()


def test_the_superlink_gives_no_task_to_a_process_without_the_secret(tmp_path):
    """Another user of the machine could otherwise act as the coordinator."""
    federation = Federation(tmp_path, clients=0)
    try:
        headers = {"Content-Type": "application/protobuf"}
        url = f"https://{federation.transport.address}/v1/runtime/acquire-task"
        request = urllib.request.Request(url, data=b"", headers=headers, method="POST")
        trust = ssl.create_default_context(cafile=str(federation.credentials.ca_certificate))
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(request, context=trust, timeout=HANG_SECONDS)
        raised.value.close()
        assert raised.value.code == 401
    finally:
        federation.close()
