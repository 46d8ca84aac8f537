"""What works without Flower: frames, sockets, configuration files, node names, checks, and child processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.federation import protocol
from fedmosaic_cli.federation.flower import flwr_commands, ipc, superexec
from fedmosaic_cli.federation.flower.flower_messages import (
    NO_SITE_PROCESS,
    SITE_PROCESS_ENDED,
    node_name,
    parse_node_name,
    transient_failure,
)
from fedmosaic_cli.federation.flower.flower_processes import (
    RUNTIME_DIR_VARIABLE,
    FlowerProcess,
    exit_message,
    flower_environment,
    runtime_dir_processes,
    terminate_all,
)
from fedmosaic_cli.federation.flower.flower_transport import FlowerTransport, PendingRequest
from fedmosaic_cli.federation.flower.flwr_commands import last_nonempty_line, parse_json_documents
from fedmosaic_cli.federation.flower.ipc import IpcListener, RuntimeDir, connect_socket, decode_frame, encode_frame
from fedmosaic_cli.federation.flower.superlink import (
    RELAY_PYPROJECT,
    Credentials,
    SuperLinkAddress,
    flwr_config,
    is_loopback,
)
from fedmosaic_cli.federation.transport import ClientFailure
from tests.waiting import HANG_SECONDS, wait_until

CREDENTIALS = Credentials(Path("/a b/ca.crt"), Path("/s.pem"), Path("/s.key"))


@pytest.mark.parametrize("payload", [b"", b"\n", b"\0\xff" * 1000, b'{"a": 1}\n'])
def test_a_frame_round_trips_its_header_and_any_payload(payload):
    assert decode_frame(encode_frame({"request": 3, "name": "x\ny"}, payload)) == (
        {"request": 3, "name": "x\ny"},
        payload,
    )


@pytest.mark.parametrize("frame", [b"", b"[1]\n", b"\x80\x04]\x94.\n", b"{"])
def test_decode_frame_rejects_invalid_headers(frame):
    with pytest.raises(ValueError, match=r"Expecting|header|codec|utf"):
        decode_frame(frame)


@pytest.mark.parametrize("client", [0, 7, 999, 1000, 123456])
def test_node_names_round_trip(client):
    assert parse_node_name(node_name(client)) == client


@pytest.mark.parametrize(
    "name", ["", "client-1", "client-0001", "client-01 ", "Client-001", "client--01", "client-\u0660\u0660\u0661"]
)
def test_other_node_names_are_not_clients(name):
    assert parse_node_name(name) is None


def test_a_listener_queues_connections(tmp_path):
    listener = IpcListener(tmp_path)
    assert (tmp_path / ipc.SOCKET_KEY_FILE).stat().st_mode & 0o777 == 0o600
    senders = [threading.Thread(target=send, args=(tmp_path, text)) for text in (b"one", b"two")]
    for sender in senders:
        sender.start()
    received = set()
    for _ in senders:
        with listener.next_connection(HANG_SECONDS) as connection:
            received.add(connection.recv_bytes())
            connection.send_bytes(b"yes")
    for sender in senders:
        sender.join()
    assert received == {b"one", b"two"}
    assert listener.next_connection(0) is None
    listener.close()
    with pytest.raises(ipc.DISCONNECT_ERRORS):
        connect_socket(tmp_path)


def send(folder: Path, text: bytes) -> None:
    with connect_socket(folder) as connection:
        connection.send_bytes(text)
        assert connection.recv_bytes() == b"yes"


def test_a_listener_refuses_a_wrong_key(tmp_path):
    from multiprocessing import AuthenticationError
    from multiprocessing.connection import Client

    listener = IpcListener(tmp_path)
    with pytest.raises((AuthenticationError, *ipc.DISCONNECT_ERRORS)):
        Client(str(tmp_path / ipc.SOCKET_FILE), "AF_UNIX", authkey=b"guess")
    assert listener.next_connection(0.1) is None
    threading.Thread(target=send, args=(tmp_path, b"three")).start()
    with listener.next_connection(HANG_SECONDS) as connection:  # others still connect
        assert connection.recv_bytes() == b"three"
        connection.send_bytes(b"yes")
    listener.close()


def test_flower_programs_get_no_telemetry_and_the_runtime_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("NO_PROXY", "example.org")
    environment = flower_environment(tmp_path)
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert (
        environment["FLWR_DISABLE_UPDATE_CHECK"] == environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    )
    assert environment["FLWR_HOME"] == str(tmp_path / "flwr")
    assert environment[RUNTIME_DIR_VARIABLE] == str(tmp_path)
    assert environment["NO_PROXY"] == environment["no_proxy"] == "127.0.0.1,localhost,::1,example.org"
    assert environment["PATH"].endswith(os.environ["PATH"])


def test_flwr_config_names_our_superlink():
    [(name, link)] = [
        (name, link)
        for name, link in tomllib.loads(flwr_config(SuperLinkAddress(port=1234, credentials=CREDENTIALS)))[
            "superlink"
        ].items()
        if name != "default"
    ]
    assert link == {"address": "127.0.0.1:1234", "root-certificates": "/a b/ca.crt"}
    insecure = tomllib.loads(flwr_config(SuperLinkAddress(port=1234)))["superlink"][name]
    assert insecure == {"address": "127.0.0.1:1234", "insecure": True}
    assert SuperLinkAddress("0.0.0.0", 9, CREDENTIALS).host_port == "127.0.0.1:9"
    assert SuperLinkAddress("::1", 9).host_port == "[::1]:9"


def test_the_relay_app_has_no_dependencies_and_its_components_exist():
    app = tomllib.loads(RELAY_PYPROJECT)
    assert app["project"]["dependencies"] == []
    for component in app["tool"]["flwr"]["app"]["components"].values():
        module, _, attribute = component.partition(":")
        path = Path(ipc.__file__).parents[3] / f"{module.replace('.', '/')}.py"
        assert re.search(rf"^{attribute} = ", path.read_text(), re.MULTILINE)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "hospital.example", "localhost.example"])
def test_without_credentials_only_loopback_is_allowed(host):
    with pytest.raises(RequestError, match=r"--insecure\): give certificates, or use 127\.0\.0\.1"):
        SuperLinkAddress(host)
    assert SuperLinkAddress(host, credentials=CREDENTIALS).host == host
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("code", "reason", "name"),
    [
        (5, "", "gone"),
        (2, f"<class 'ConnectionError'>:<'{NO_SITE_PROCESS}'>", "crashed"),
        (2, f"<class 'ConnectionError'>:<'{SITE_PROCESS_ENDED}'>", "crashed"),
        (2, "<class 'ZeroDivisionError'>:<'division by zero'>", None),
        (1, "", None),
        (3, "", "deadline"),
        (7, "", None),
    ],
)
def test_transient_failures_are_named(code, reason, name):
    assert transient_failure(code, reason) == name


def test_exit_message_is_what_flower_prints_below_its_exit_code():
    lines = [
        "INFO :  Starting",
        "ERROR :  Exit Code: 305",
        "Failed to connect.",
        "[code: 7] no",
        "",
        "For more information",
    ]
    assert exit_message(lines) == "Failed to connect; [code: 7] no"
    assert exit_message(["a", "", "b", ""]) == "b"
    assert exit_message([]) == ""


def test_json_documents_of_several_commands_are_split():
    assert parse_json_documents('{"a": 1}\n {"b": [2]}\n') == [{"a": 1}, {"b": [2]}]
    assert parse_json_documents('{"a": 1}\nTraceback') == [{"a": 1}]
    assert parse_json_documents("") == []
    assert last_nonempty_line("a\nb\n\n") == "b"


def test_flower_is_required_in_the_supported_version(monkeypatch):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(flwr_commands, "version", absent)
    with pytest.raises(RequestError, match=r"\(--engine flower\): python -m pip install -e '\.\[flower\]'"):
        flwr_commands.require_flower()
    for other in ("1.40.9", "1.4", "2.41.0"):
        monkeypatch.setattr(flwr_commands, "version", lambda name, found=other: found)
        with pytest.raises(RequestError, match=rf"flwr {other} is installed, and 1\.41 is needed"):
            flwr_commands.require_flower()
    monkeypatch.setattr(flwr_commands, "version", lambda name: "1.41.3")
    assert flwr_commands.require_flower() == "1.41.3"


def test_a_runtime_dir_is_private_and_stale_ones_are_removed(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine = RuntimeDir()
    assert mine.path.parent == tmp_path
    assert mine.path.stat().st_mode & 0o777 == 0o700
    script = "import os; from fedmosaic_cli.federation.flower import ipc; r = ipc.RuntimeDir(); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", script], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    assert len(list(tmp_path.iterdir())) == 2
    other = RuntimeDir()
    assert sorted(tmp_path.iterdir()) == sorted([mine.path, other.path])
    mine.close()
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_a_runtime_dir_is_not_removed_before_it_is_locked(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    flock, first = ipc.fcntl.flock, []

    def clean_up_before_locking(handle, how):
        if not first:
            first.append(handle)
            ipc.remove_stale_runtime_dirs(tmp_path)
            assert len(list(tmp_path.iterdir())) == 1
        flock(handle, how)

    monkeypatch.setattr(ipc.fcntl, "flock", clean_up_before_locking)
    mine = RuntimeDir()
    assert list(tmp_path.iterdir()) == [mine.path]
    mine.close()


def test_a_directory_with_the_prefix_and_a_file_named_lock_is_kept(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / "fedmosaic-results"
    folder.mkdir(mode=0o700)
    (folder / "lock").touch(mode=0o600)
    (folder / "thesis.tex").write_text("kept")
    RuntimeDir().close()
    assert (folder / "thesis.tex").read_text() == "kept"


def make_stale_runtime_dir(parent: Path, name: str = "fedmosaic-abcd1234") -> Path:
    """Create what a killed process leaves behind."""
    folder = parent / name
    folder.mkdir(mode=0o700)
    (folder / "work").write_text("kept")
    (folder / ipc.RUNTIME_LOCK_FILE).touch(mode=0o600)
    (folder / ipc.RUNTIME_LOCK_FILE).write_bytes(ipc.runtime_dir_marker(folder))
    return folder


def change_marker(folder: Path, content: bytes) -> Path:
    (folder / ipc.RUNTIME_LOCK_FILE).write_bytes(content)
    return folder


def link_marker(folder: Path) -> Path:
    lock = folder / ipc.RUNTIME_LOCK_FILE
    lock.rename(folder / "elsewhere")
    lock.symlink_to(folder / "elsewhere")
    return folder


def replace_by_link(folder: Path) -> Path:
    """Let a link with the right name point to a directory with the right marker."""
    target = folder.with_name("elsewhere")
    folder.rename(target)
    folder.symlink_to(target)
    return target


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: change_marker(folder, b""),
        lambda folder: change_marker(folder, b"12345"),
        lambda folder: change_marker(folder, ipc.runtime_dir_marker(folder.with_name("fedmosaic-other"))),
        lambda folder: change_marker(folder, ipc.runtime_dir_marker(folder).replace(b" of user ", b" of user 1")),
        lambda folder: change_marker(folder, ipc.runtime_dir_marker(folder) + b"more"),
        link_marker,
        replace_by_link,
        lambda folder: folder.chmod(0o755) or folder,
        lambda folder: (folder / ipc.RUNTIME_LOCK_FILE).chmod(0o644) or folder,
        lambda folder: folder.rename(folder.with_name("fedmosaic-renamed")),
    ],
    ids=[
        "empty",
        "foreign",
        "another name",
        "another user",
        "longer",
        "link",
        "folder link",
        "open",
        "readable",
        "moved",
    ],
)
def test_a_directory_that_this_tool_did_not_create_is_never_removed(tmp_path, change):
    folder = change(make_stale_runtime_dir(tmp_path))
    ipc.remove_stale_runtime_dirs(tmp_path)
    assert (folder / "work").read_text() == "kept"


def test_a_directory_of_another_user_is_never_removed(tmp_path, monkeypatch):
    folder = make_stale_runtime_dir(tmp_path)
    me = os.geteuid()
    monkeypatch.setattr(ipc.os, "geteuid", lambda: me + 1)
    change_marker(folder, ipc.runtime_dir_marker(folder))
    ipc.remove_stale_runtime_dirs(tmp_path)
    assert (folder / "work").read_text() == "kept"


def test_a_directory_with_a_valid_marker_and_a_free_lock_is_removed(tmp_path):
    make_stale_runtime_dir(tmp_path)
    ipc.remove_stale_runtime_dirs(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_failure_text_of_a_node_is_made_printable():
    pending = PendingRequest(b"")
    failure = FlowerTransport._outcome(None, 3, pending, {"error": 1, "code": 2, "reason": "a\n\x1b[2Jb"}, b"")
    assert failure == ClientFailure(3, "no response: a  [2Jb")


def test_a_client_that_stays_offline_is_given_up_before_the_deadline(monkeypatch):
    transport = object.__new__(FlowerTransport)
    now = 1000.0
    monkeypatch.setattr("fedmosaic_cli.federation.flower.flower_transport.time.monotonic", lambda: now)
    waiting = {1: PendingRequest(b""), 2: PendingRequest(b""), 3: PendingRequest(b"")}
    transport._online = {1}
    assert transport._offline_too_long(waiting) == []
    now, transport._online = 1100.0, {1, 3}
    assert transport._offline_too_long(waiting) == []
    now, transport._online = 1121.0, {1}
    assert transport._offline_too_long(waiting) == [2], "client 3 was online in between"


def test_a_runtime_dir_has_a_short_path(monkeypatch, tmp_path):
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    runtime_dir = RuntimeDir()
    assert runtime_dir.path.parent == ipc.SHORT_TEMP_DIR
    runtime_dir.close()


SHOW_TOKEN = "import sys; from pathlib import Path; print(sys.argv[1:], Path(sys.argv[3]).read_text())"


def test_the_token_of_an_app_is_not_among_its_arguments(capfd):
    """Other users can read the arguments of a process."""
    process = superexec.start_app([sys.executable, "-c", SHOW_TOKEN, "ADDRESS", "--token", "secret", "--insecure"])
    assert process.args[-2].startswith("/dev/fd/")
    assert "secret" not in process.args
    assert process.wait(HANG_SECONDS) == 0
    assert capfd.readouterr().out == f"['ADDRESS', '--token-file', '{process.args[-2]}', '--insecure'] secret\n"


def test_a_token_that_would_be_visible_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Flower passes a token as one argument"):
        superexec.start_app([sys.executable, "-c", f"open({str(tmp_path / 'ran')!r}, 'w')", "--token=secret"])
    assert not (tmp_path / "ran").exists()


def test_an_app_without_a_token_is_started_as_it_is(capfd):
    process = superexec.start_app([sys.executable, "-c", "print(1)"], stdout=subprocess.DEVNULL)
    assert process.wait(HANG_SECONDS) == 0
    assert capfd.readouterr().out == ""


IGNORES_SIGTERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(900)
"""
SLEEPER = "import subprocess, time; subprocess.Popen(['sleep', '900'], start_new_session=True); time.sleep(900)"


def test_terminate_all_ends_a_process_and_its_descendants(tmp_path):
    child = FlowerProcess([sys.executable, "-c", SLEEPER], tmp_path)
    wait_until(lambda: len(runtime_dir_processes(tmp_path)) == 2)
    terminate_all(tmp_path)
    assert runtime_dir_processes(tmp_path) == []
    assert child.process.wait() == -signal.SIGTERM


def test_terminate_all_kills_a_process_that_ignores_sigterm(tmp_path):
    child = FlowerProcess([sys.executable, "-c", IGNORES_SIGTERM], tmp_path)
    wait_until(lambda: child.has_output("ready"))
    terminate_all(tmp_path, grace_seconds=0.5)
    assert child.process.wait() == -signal.SIGKILL


def test_a_child_receives_one_sigterm_when_its_parent_dies(tmp_path):
    """Each thread of a dying parent sends a signal."""
    child = (
        "import signal, sys, time\n"
        "def on_sigterm(*_):\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"
        "    time.sleep(1)\n"
        "    open('terminated', 'w').close()\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, on_sigterm)\n"
        "open('ready', 'w').close()\n"
        "time.sleep(900)\n"
    )
    parent = (
        "import os, signal, sys, threading, time\n"
        "from pathlib import Path\n"
        "from fedmosaic_cli.federation.flower.flower_processes import FlowerProcess\n"
        "for _ in range(20):\n"
        "    threading.Thread(target=time.sleep, args=(900,), daemon=True).start()\n"
        f"start = lambda: FlowerProcess([sys.executable, '-c', {child!r}], Path({str(tmp_path)!r}), graceful=True)\n"
        "threading.Thread(target=lambda: (start(), time.sleep(900)), daemon=True).start()\n"
        "while not Path('ready').exists(): time.sleep(0.05)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", parent], cwd=tmp_path, check=False, timeout=HANG_SECONDS)
    wait_until(lambda: runtime_dir_processes(tmp_path) == [])
    assert (tmp_path / "terminated").exists()


def test_exit_reason_is_the_last_line_of_output(tmp_path):
    lines: list[str] = []
    child = FlowerProcess(
        [sys.executable, "-c", "print('one'); print('\\x1b[31mtwo\\x1b[0m')"], tmp_path, on_line=lines.append
    )
    child.process.wait()
    child._reader_thread.join(HANG_SECONDS)
    assert child.exit_reason() == "two"
    assert lines == ["one", "two"]
    assert child.exit_code() is None
    silent = FlowerProcess([sys.executable, "-c", "raise SystemExit(3)"], tmp_path)
    silent.process.wait()
    silent._reader_thread.join(HANG_SECONDS)
    assert silent.exit_reason() == "it ended with code 3 without output"


def test_a_missing_directory_does_not_keep_a_site_from_responding(tmp_path):

    from fedmosaic_cli.federation.site import HandledRequest
    from fedmosaic_cli.federation.site_dir import SiteFiles, SiteLog

    log = SiteLog(SiteFiles(tmp_path / "missing"), print_line=lambda line: None)
    log.on_request(HandledRequest(protocol.LOCAL_ROUND, "a/b/seed-0/01234567", 1, 0.1, 10))
    log.on_stop()
