"""Settings for nginx in front of a SuperLink: letters may pass, everything else that Flower offers there may not."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SUPERLINK_PORT = 9443
"""Where the SuperLink listens, on this machine alone, unless somebody chooses otherwise."""
PUBLIC_PORT = 443
MAX_BODY_SIZE = "1g"


def nginx_config(folder: Path, host: str) -> str:
    """A whole configuration: `nginx -c FILE` runs it as it stands."""
    return f"""\
# Between the sites and the SuperLink. Whoever reaches Flower's control interface can run code at every site, and Flower
# asks nobody there for a password: so only what sites need, /v1/fleet/, is let through. Run it with: nginx -c FILE
worker_processes auto;
pid "{folder}/nginx.pid";
error_log "{folder}/nginx-error.log";

events {{}}

http {{
    access_log off;
    # Flower reads a request to its end before it asks whose it is: no letter is larger than this, nor need be.
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
            # Letters pass through and are not kept: models would else lie about in files.
            proxy_request_buffering off;
            proxy_buffering off;
        }}

        location / {{
            return 403;
        }}
    }}
}}
"""
