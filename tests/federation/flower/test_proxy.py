"""The generated nginx configuration forwards the sites' requests and refuses everything else."""

from __future__ import annotations

import http.client
import os
import shutil
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("cryptography")

from fedmosaic_cli.federation.flower import nginx as proxy
from fedmosaic_cli.federation.flower.keys import create_certificate_authority
from fedmosaic_cli.federation.flower.superlink import free_port
from tests.federation.flower.commands import is_listening
from tests.waiting import HANG_SECONDS, wait_until

needs_nginx = pytest.mark.skipif(shutil.which("nginx") is None or os.geteuid() != 0, reason="needs nginx and root")
FORWARDED = ("/v1/fleet/pull-messages", "/v1/fleet/push-object")
REFUSED = (
    *("/", "/v1/control/list-nodes", "/v1/control/start-run", "/v1/runtime/acquire-task", "//v1/control/list-nodes"),
    *("/v1/fleet/../control/list-nodes", "/v1/fleet/%2e%2e/control/x", "/v1/fleet/%2e%2e%2fcontrol/x"),
)


class Echo(BaseHTTPRequestHandler):
    """Returns the body of the request."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def proxied(tmp_path, monkeypatch):
    """An echo server behind nginx with our configuration, in a directory with a space in its name."""
    monkeypatch.setattr(proxy, "SUPERLINK_PORT", free_port())
    monkeypatch.setattr(proxy, "PUBLIC_PORT", f"127.0.0.1:{free_port()}")
    folder = tmp_path / "the federation"
    credentials = create_certificate_authority(folder, ["fed.example.org", "localhost", "127.0.0.1"])
    server = ThreadingHTTPServer(("127.0.0.1", proxy.SUPERLINK_PORT), Echo)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(credentials.certificate, credentials.private_key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (folder / "nginx.conf").write_text(proxy.nginx_config(folder, "fed.example.org"))
    nginx = subprocess.Popen(["nginx", "-c", str(folder / "nginx.conf"), "-g", "daemon off;"])
    try:
        wait_until(lambda: is_listening(int(proxy.PUBLIC_PORT.rpartition(":")[2])), nginx)
        yield ssl.create_default_context(cafile=credentials.ca_certificate)
    finally:
        nginx.terminate()
        nginx.wait(timeout=HANG_SECONDS)
        server.shutdown()
        server.server_close()


def post(path: str, trust: ssl.SSLContext, body: bytes = b"x") -> tuple[int, bytes]:
    """Return status and body of a request to nginx."""
    host, _, port = proxy.PUBLIC_PORT.rpartition(":")
    connection = http.client.HTTPSConnection(host, int(port), context=trust, timeout=HANG_SECONDS)
    try:
        connection.request("POST", path, body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@needs_nginx
def test_only_the_fleet_interface_is_forwarded(proxied):
    for path in FORWARDED:
        assert post(path, proxied) == (200, b"x"), path
    for path in REFUSED:
        assert post(path, proxied)[0] == 403, path
    model = os.urandom(20 << 20)
    assert post(FORWARDED[1], proxied, model) == (200, model)
