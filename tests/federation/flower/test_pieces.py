"""What can be known without Flower: frames, sockets, settings, names, refusals, children and their ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.federation.flower import flower_version, ipc, runtime_dir
from fedmosaic_cli.federation.flower.flower_messages import NO_SITE_PROCESS, SITE_PROCESS_ENDED, transient_failure
from fedmosaic_cli.federation.flower.flower_processes import (
    FlowerProcess,
    exit_message,
    flower_environment,
    marked_processes,
    terminate_all,
)
from fedmosaic_cli.federation.flower.flower_transport import FlowerTransport, PendingRequest
from fedmosaic_cli.federation.flower.flwr_commands import last_nonempty_line, parse_json_documents
from fedmosaic_cli.federation.flower.ipc import IpcListener, connect_socket, decode_frame, encode_frame
from fedmosaic_cli.federation.flower.flower_messages import node_name, parse_node_name
from fedmosaic_cli.federation.flower.ipc import RuntimeDir
from fedmosaic_cli.federation.flower.superlink import (
    RELAY_PYPROJECT,
    Credentials,
    SuperLinkAddress,
    flwr_config,
    is_loopback,
)
from fedmosaic_cli.federation.flower.flower_processes import MARKER_VARIABLE
from fedmosaic_cli.federation.transport import ClientFailure

PAPERS = Credentials(Path("/a b/ca.crt"), Path("/s.pem"), Path("/s.key"))


@pytest.mark.parametrize("payload", [b"", b"\n", b"\0\xff" * 1000, b'{"a": 1}\n'])
def test_a_frame_holds_a_header_and_any_bytes(payload):
    assert decode_frame(encode_frame({"ask": 3, "name": "x\ny"}, payload)) == ({"ask": 3, "name": "x\ny"}, payload)


@pytest.mark.parametrize("frame", [b"", b"[1]\n", b"\x80\x04]\x94.\n", b"{"])
def test_what_is_no_frame_is_not_read(frame):
    with pytest.raises(ValueError, match=r"Expecting|header|codec|utf"):
        decode_frame(frame)


@pytest.mark.parametrize("client", [0, 7, 999, 1000, 123456])
def test_a_name_stands_for_one_client(client):
    assert parse_node_name(node_name(client)) == client


@pytest.mark.parametrize(
    "name", ["", "client-1", "client-0001", "client-01 ", "Client-001", "client--01", "client-\u0660\u0660\u0661"]
)
def test_other_names_stand_for_nobody(name):
    assert parse_node_name(name) is None


def test_a_door_lets_guests_in_one_after_another(tmp_path):
    door = IpcListener(tmp_path)
    assert (tmp_path / ipc.SOCKET_KEY_FILE).stat().st_mode & 0o777 == 0o600
    guests = [threading.Thread(target=speak, args=(tmp_path, word)) for word in (b"one", b"two")]
    for guest in guests:
        guest.start()
    heard = set()
    for _ in guests:
        with door.next_connection(5) as guest:
            heard.add(guest.recv_bytes())
            guest.send_bytes(b"yes")
    for guest in guests:
        guest.join()
    assert heard == {b"one", b"two"}
    assert door.next_connection(0) is None
    door.close()
    with pytest.raises(ipc.DISCONNECT_ERRORS):
        connect_socket(tmp_path)


def speak(folder: Path, word: bytes) -> None:
    with connect_socket(folder) as door:
        door.send_bytes(word)
        assert door.recv_bytes() == b"yes"


def test_who_does_not_know_the_key_is_not_let_in(tmp_path):
    from multiprocessing import AuthenticationError
    from multiprocessing.connection import Client

    door = IpcListener(tmp_path)
    with pytest.raises((AuthenticationError, *ipc.DISCONNECT_ERRORS)):
        Client(str(tmp_path / ipc.SOCKET_FILE), "AF_UNIX", authkey=b"guess")
    assert door.next_connection(0.1) is None
    threading.Thread(target=speak, args=(tmp_path, b"three")).start()
    with door.next_connection(5) as guest:  # others still are
        assert guest.recv_bytes() == b"three"
        guest.send_bytes(b"yes")
    door.close()


def test_nothing_leaves_the_machine_and_everybody_is_marked(monkeypatch, tmp_path):
    monkeypatch.setenv("NO_PROXY", "example.org")
    told = flower_environment(tmp_path)
    assert told["FLWR_TELEMETRY_ENABLED"] == "0"
    assert told["FLWR_DISABLE_UPDATE_CHECK"] == told["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert told["FLWR_HOME"] == str(tmp_path / "flwr")
    assert told[MARKER_VARIABLE] == str(tmp_path)
    assert told["NO_PROXY"] == told["no_proxy"] == "127.0.0.1,localhost,::1,example.org"
    assert told["PATH"].endswith(os.environ["PATH"])


def test_flower_is_told_how_to_reach_our_superlink():
    [(name, link)] = [
        (name, link)
        for name, link in tomllib.loads(flwr_config(SuperLinkAddress(port=1234, credentials=PAPERS)))[
            "superlink"
        ].items()
        if name != "default"
    ]
    assert link == {"address": "127.0.0.1:1234", "root-certificates": "/a b/ca.crt"}
    insecure = tomllib.loads(flwr_config(SuperLinkAddress(port=1234)))["superlink"][name]
    assert insecure == {"address": "127.0.0.1:1234", "insecure": True}
    assert SuperLinkAddress("0.0.0.0", 9, PAPERS).host_port == "127.0.0.1:9"
    assert SuperLinkAddress("::1", 9).host_port == "[::1]:9"


def test_the_app_holds_no_code_and_needs_nothing():
    app = tomllib.loads(RELAY_PYPROJECT.format(claims="false"))
    assert app["project"]["dependencies"] == []
    for component in app["tool"]["flwr"]["app"]["components"].values():
        module, _, attribute = component.partition(":")
        path = Path(runtime_dir.__file__).parents[3] / f"{module.replace('.', '/')}.py"
        assert re.search(rf"^{attribute} = ", path.read_text(), re.MULTILINE)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "hospital.example", "localhost.example"])
def test_without_papers_nobody_else_may_reach_us(host):
    with pytest.raises(RequestError, match=r"--insecure\): give certificates, or stay on 127\.0\.0\.1"):
        SuperLinkAddress(host)
    assert SuperLinkAddress(host, credentials=PAPERS).host == host
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("code", "reason", "called"),
    [
        (5, "", "gone"),
        (8, "", "crashed"),
        (2, f"<class 'ConnectionError'>:<'{NO_SITE_PROCESS}'>", "crashed"),
        (2, f"<class 'ConnectionError'>:<'{SITE_PROCESS_ENDED}'>", "crashed"),
        (2, "<class 'ZeroDivisionError'>:<'division by zero'>", None),
        (1, "", None),
        (3, "", "deadline"),
        (7, "", None),
    ],
)
def test_errors_that_pass_and_others(code, reason, called):
    assert transient_failure(code, reason) == called


def test_what_flower_says_of_its_end():
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


def test_answers_of_several_commands():
    assert parse_json_documents('{"a": 1}\n {"b": [2]}\n') == [{"a": 1}, {"b": [2]}]
    assert parse_json_documents('{"a": 1}\nTraceback') == [{"a": 1}]
    assert parse_json_documents("") == []
    assert last_nonempty_line("a\nb\n\n") == "b"


def test_flower_that_is_not_there_and_flower_of_another_kind(monkeypatch):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(flower_version, "version", absent)
    with pytest.raises(RequestError, match=r"\(--engine flower\): pip install 'fedmosaic\[flower\]'"):
        flower_version.require_flower()
    for other in ("1.40.9", "1.4", "2.41.0"):
        monkeypatch.setattr(flower_version, "version", lambda name, found=other: found)
        with pytest.raises(RequestError, match=rf"flwr {other} is installed, and 1\.41 is needed"):
            flower_version.require_flower()
    monkeypatch.setattr(flower_version, "version", lambda name: "1.41.3")
    assert flower_version.require_flower() == "1.41.3"


def test_a_room_is_private_and_removed_and_those_of_the_dead_are_swept(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine = RuntimeDir()
    assert mine.path.parent == tmp_path
    assert mine.path.stat().st_mode & 0o777 == 0o700
    script = "import os, signal; from fedmosaic_cli.federation.flower.ipc import RuntimeDir; r = RuntimeDir(); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", script], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    assert len(list(tmp_path.iterdir())) == 2
    other = RuntimeDir()
    assert sorted(tmp_path.iterdir()) == sorted([mine.path, other.path])
    mine.close()
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_a_room_that_others_sweep_before_it_is_locked_is_made_again(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    flock, first = runtime_dir.fcntl.flock, []

    def hasty(handle, how):
        if not first:
            first.append(handle)
            runtime_dir.remove_stale_runtime_dirs(tmp_path)
            assert list(tmp_path.iterdir()) == []
        flock(handle, how)

    monkeypatch.setattr(runtime_dir.fcntl, "flock", hasty)
    mine = RuntimeDir()
    assert list(tmp_path.iterdir()) == [mine.path]
    mine.close()


def test_what_a_node_says_of_its_failure_is_shown_in_a_line():
    pending = PendingRequest(b"")
    loss = FlowerTransport._outcome(None, 3, pending, {"error": 1, "code": 2, "reason": "a\n\x1b[2Jb"}, b"")
    assert loss == ClientFailure(3, "no answer: a  [2Jb")


def test_who_stays_away_is_not_waited_for_to_the_end(monkeypatch):
    carrier = object.__new__(FlowerTransport)
    now = 1000.0
    monkeypatch.setattr("fedmosaic_cli.federation.flower.flower_transport.time.monotonic", lambda: now)
    waiting = {1: PendingRequest(b""), 2: PendingRequest(b""), 3: PendingRequest(b"")}
    carrier._online = {1}
    assert carrier._offline_too_long(waiting) == []
    now, carrier._online = 1100.0, {1, 3}
    assert carrier._offline_too_long(waiting) == []
    now, carrier._online = 1121.0, {1}
    assert carrier._offline_too_long(waiting) == [2], "the third was back in between"


def test_a_room_has_a_short_name(monkeypatch, tmp_path):
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    here = RuntimeDir()
    assert here.path.parent == runtime_dir.SHORT_TEMP_DIR
    here.close()


SLEEPER = "import os, subprocess, sys, time; subprocess.Popen(['sleep', '60'], start_new_session=True); time.sleep(60)"


def test_a_child_and_all_that_it_started_end_when_they_are_told(tmp_path):
    child = FlowerProcess([sys.executable, "-c", SLEEPER], tmp_path)
    until(lambda: len(marked_processes(tmp_path)) == 2)
    terminate_all(tmp_path)
    assert marked_processes(tmp_path) == []
    assert child.process.wait() == -signal.SIGTERM


def test_a_child_that_does_not_listen_is_made_to_end(tmp_path):
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    child = FlowerProcess([sys.executable, "-c", deaf], tmp_path)
    until(lambda: child.has_output("deaf"))
    terminate_all(tmp_path, grace_seconds=0.5)
    assert child.process.wait() == -signal.SIGKILL


def test_a_child_hears_of_our_death_once(tmp_path):
    """Whoever has threads dies several times over."""
    child = (
        "import signal, sys, time\n"
        "def hear(*_):\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"
        "    time.sleep(1)\n"
        "    open('heard', 'w').close()\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, hear)\n"
        "open('ready', 'w').close()\n"
        "time.sleep(60)\n"
    )
    parent = (
        "import os, signal, sys, threading, time\n"
        "from pathlib import Path\n"
        "from fedmosaic_cli.federation.flower.flower_processes import FlowerProcess\n"
        "for _ in range(20):\n"
        "    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        f"start = lambda: FlowerProcess([sys.executable, '-c', {child!r}], Path({str(tmp_path)!r}), graceful=True)\n"
        "threading.Thread(target=lambda: (start(), time.sleep(60)), daemon=True).start()\n"
        "while not Path('ready').exists(): time.sleep(0.05)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", parent], cwd=tmp_path, check=False, timeout=30)
    until(lambda: marked_processes(tmp_path) == [])
    assert (tmp_path / "heard").exists()


def test_what_a_child_says_last(tmp_path):
    heard: list[str] = []
    child = FlowerProcess(
        [sys.executable, "-c", "print('one'); print('\\x1b[31mtwo\\x1b[0m')"], tmp_path, on_line=heard.append
    )
    child.process.wait()
    assert child.exit_reason() == "two"
    assert heard == ["one", "two"]
    assert child.exit_code() is None
    silent = FlowerProcess([sys.executable, "-c", "raise SystemExit(3)"], tmp_path)
    silent.process.wait()
    assert silent.exit_reason() == "it ended with code 3 and said nothing"


def until(condition, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_full_disk_does_not_keep_a_site_from_answering(tmp_path):
    from fedmosaic_cli.cli.site_log import SiteLog
    from fedmosaic_cli.federation.site import HandledRequest
    from fedmosaic_cli.federation.site_dir import SiteFiles

    diary = SiteLog(SiteFiles(tmp_path / "not there"), quiet=True)
    diary.on_request(HandledRequest("turn", "a/b/seed-0/01234567", 1, 0.1, 10))
    diary.on_stop()
