"""`fedmosaic federation`: prepare the coordinator of a federation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from fedmosaic_cli.cli.common_options import DebugOption, JsonOption
from fedmosaic_cli.cli.console import print_command, print_json, print_text
from fedmosaic_cli.cli.pack import gather, public
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.federation.flower.nginx import nginx_config
from fedmosaic_cli.federation.flower_options import KEYS_DIR
from fedmosaic_cli.storage.files import make_directories, write_atomic

app = typer.Typer(no_args_is_help=False, rich_markup_mode="rich", add_completion=False)

HOST_PATTERN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|[0-9a-fA-F:]{2,39}")
NGINX_CONFIG_FILE = "nginx.conf"


@app.callback(invoke_without_command=True)
def federation(context: typer.Context) -> None:
    """Prepare the coordinator of a federation: certificates, the sites' keys, shared shards."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command()(public)
app.command()(gather)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Directory for certificates and keys.")] = Path(
        "federation"
    ),
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host", metavar="HOST", help="A name or address under which sites reach this machine. Repeatable."
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, metavar="N", help="Days until the certificate expires.")] = 365,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Create a certificate authority, a certificate for this machine, a directory for the sites' keys, and nginx.conf.

    \b
    [bold]Examples[/bold]
    fedmosaic federation init --host fed.example.org
    fedmosaic federation init federation --host 192.0.2.7 --host fed.example.org --days 90
    """
    from fedmosaic_cli.federation.flower.keys import create_certificate_authority

    for host in hosts or []:
        if not HOST_PATTERN.fullmatch(host):
            raise RequestError(f"'{host}' is not a name or address (--host): write one such as fed.example.org")
    names = list(dict.fromkeys([*(hosts or []), "localhost", "127.0.0.1"]))
    credentials = create_certificate_authority(folder, names, days)
    make_directories(folder / KEYS_DIR)
    write_atomic(folder / NGINX_CONFIG_FILE, nginx_config(folder.absolute(), names[0]).encode())
    if as_json:
        paths = {"ca": credentials.ca_certificate, "keys": folder / KEYS_DIR, "proxy": folder / NGINX_CONFIG_FILE}
        print_json({**{name: str(path) for name, path in paths.items()}, "hosts": names})
        return
    print_text(f"certificate for {', '.join(names)}, valid for {days} days")
    print_text(
        f"next: send {credentials.ca_certificate} to every site, put their client-*.pub into {folder / KEYS_DIR}"
    )
    print_command(f"fedmosaic train --engine flower --federation {folder} --shards DIR", "then:")
    print_text(
        f"for sites on other machines, use a proxy that forwards only their requests: {folder / NGINX_CONFIG_FILE}"
    )
