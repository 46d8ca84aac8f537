"""Configuration of nginx in front of a SuperLink: it forwards the sites' requests and refuses everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SUPERLINK_PORT = 9443
"""Default port of the SuperLink, on the loopback interface only."""
PUBLIC_PORT = 443
MAX_BODY_SIZE = "1g"


def nginx_config(folder: Path, host: str) -> str:
    """Return a complete configuration for `nginx -c FILE`."""
    return f"""\
# Between the sites and the SuperLink. Flower does not authenticate the clients of its control interface, who can stop
# runs and register keys: so only the path that sites need, /v1/fleet/, is forwarded. Run it with: nginx -c FILE
worker_processes auto;
pid "{folder}/nginx.pid";
error_log "{folder}/nginx-error.log";

events {{}}

http {{
    access_log off;
    # Flower reads a whole request before it authenticates the sender: limit its size.
    client_max_body_size {MAX_BODY_SIZE};

    upstream superlink {{
        server 127.0.0.1:{SUPERLINK_PORT};
        keepalive 16;
    }}

    server {{
        listen {PUBLIC_PORT} ssl;
        server_name {host};
        ssl_certificate "{folder}/server.pem";
        ssl_certificate_key "{folder}/server.key";
        ssl_protocols TLSv1.2 TLSv1.3;

        location /v1/fleet/ {{
            proxy_pass https://superlink;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_ssl_trusted_certificate "{folder}/ca.crt";
            proxy_ssl_verify on;
            proxy_ssl_name localhost;
            proxy_read_timeout 300s;
            # Do not buffer: nginx would write models to temporary files.
            proxy_request_buffering off;
            proxy_buffering off;
        }}

        location / {{
            return 403;
        }}
    }}
}}
"""
