"""`fedmosaic site`: one client of a federation, on its own machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedmosaic_cli.cli.common_options import (
    DebugOption,
    DeviceChoice,
    DeviceOption,
    JsonOption,
    QuietOption,
    SharingLevel,
)
from fedmosaic_cli.cli.console import print_json, print_stdout, stdout_console
from fedmosaic_cli.cli.interrupt import catch_stop_signals
from fedmosaic_cli.cli.pack import pack
from fedmosaic_cli.cli.site_log import SiteLog
from fedmosaic_cli.config.validation_errors import build_validated
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.federation.flower.flower_messages import node_name
from fedmosaic_cli.federation.site_dir import SiteFiles, SiteSettings, systemd_unit
from fedmosaic_cli.federation.site_shards import load_site_shard
from fedmosaic_cli.storage.files import make_directories, write_atomic
from fedmosaic_cli.storage.lock import directory_lock, is_locked, read_owner, require_unlocked

if TYPE_CHECKING:
    from fedmosaic_cli.federation.site_shards import SiteShard

STOP_GRACE_SECONDS = 30.0
RESTART_HINT = "start the site again, and it goes on where it was"

app = typer.Typer(no_args_is_help=False, rich_markup_mode="rich", add_completion=False)

SiteDirOption = Annotated[Path, typer.Option(help="Where the site keeps its key, settings and models.")]
SuperlinkOption = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Where the coordinator is reached.", show_default=False)
]
CaOption = Annotated[
    Path | None, typer.Option(help="The coordinator's ca.crt, which vouches for it.", show_default=False)
]
ShareOption = Annotated[
    SharingLevel | None,
    typer.Option(help="What may leave this site: labels, predictions (logits), or models.", show_default="labels"),
]
MaxEpsilonOption = Annotated[
    float | None,
    typer.Option(help="The largest total epsilon, of all data here, that one run may spend.", show_default="no limit"),
]


@app.callback(invoke_without_command=True)
def site(context: typer.Context) -> None:
    """One client of a federation on its own machine: prepare it, start it, look after it."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command()(pack)


@app.command()
def init(
    shard: Annotated[
        Path, typer.Option(help="The client's file of exported shards; manifest.json and public.npz lie beside it.")
    ],
    site_dir: SiteDirOption = Path("site"),
    superlink: SuperlinkOption = None,
    ca: CaOption = None,
    share: ShareOption = None,
    max_epsilon: MaxEpsilonOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Check a shard, make this site's key, and write its settings and a unit file for systemd.

    \b
    [bold]Examples[/bold]
    fedmosaic site init --shard shards/ours/client-003.npz
    fedmosaic site init --shard client-003.npz --superlink fed.example.org:443 --ca ca.crt --share labels
    """
    from fedmosaic_cli.federation.flower.keys import create_node_key

    files, held = SiteFiles(site_dir), load_site_shard(shard)
    name = node_name(held.client_id)
    given = {"shard": shard.absolute(), "superlink": superlink, "ca": ca and ca.absolute()}
    settings = merge_site_settings(files, {**given, "share": share and share.value, "max_epsilon": max_epsilon})
    require_unlocked(site_dir)
    key = files.private_key_path(name)
    if not key.exists():
        make_directories(site_dir)
        create_node_key(key)
    files.save_settings(settings)
    write_atomic(files.unit_path, systemd_unit(sys.executable, site_dir.absolute(), os.getuid()).encode())
    about = shard_facts(held)
    public = f"{key}.pub"
    if as_json:
        made = {"public_key": public, "unit": str(files.unit_path), "settings": settings.model_dump(mode="json")}
        print_json({"name": name, **about, **made})
        return
    for what, value in {**about, "shares": settings.share}.items():
        print_stdout(f"{what}: {value}")
    print_stdout(f"next: send {public} to the coordinator; it is no secret, {key} is")
    print_stdout(
        f"then: fedmosaic site start --site-dir {site_dir}{'' if superlink else ' --superlink HOST:PORT --ca ca.crt'}"
    )
    print_stdout(f"or, to keep it running: sudo systemctl enable --now {files.unit_path.absolute()}")


@app.command()
def start(
    site_dir: SiteDirOption = Path("site"),
    superlink: SuperlinkOption = None,
    ca: CaOption = None,
    shard: Annotated[
        Path | None, typer.Option(help="The client's file of exported shards.", show_default="as initialised")
    ] = None,
    share: ShareOption = None,
    max_epsilon: MaxEpsilonOption = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No TLS and no key: rehearsals on this machine alone.")
    ] = False,
    device: DeviceOption = DeviceChoice.auto,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Take part in whatever the coordinator plans and this site allows, until it is stopped.

    Ctrl-C ends it after the letter at hand. Whatever ends it, it goes on where it was when it is started again.

    \b
    [bold]Examples[/bold]
    fedmosaic site start
    fedmosaic site start --superlink fed.example.org:443 --ca ca.crt --shard client-003.npz
    fedmosaic site start --site-dir site-3 --share predictions --device cuda
    """
    from fedmosaic_cli.federation.flower.flwr_commands import require_flower

    require_flower("site start")
    files = SiteFiles(site_dir)
    given = {"shard": shard and shard.absolute(), "superlink": superlink, "ca": ca and ca.absolute()}
    settings = merge_site_settings(files, {**given, "share": share and share.value, "max_epsilon": max_epsilon})
    held = load_site_shard(Path(settings.shard))
    name = node_name(held.client_id)
    check_connection_settings(settings, files.private_key_path(name), insecure)
    with directory_lock(site_dir):
        run_site(files, settings, held, insecure, device.value, quiet)


@app.command()
def status(site_dir: SiteDirOption = Path("site"), as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """Whether a site runs, how it is connected, and how far it is in each run. Example: fedmosaic site status"""
    if not site_dir.is_dir():
        raise RequestError(f"no site here ({site_dir}): make one with 'fedmosaic site init', or name its --site-dir")
    files = SiteFiles(site_dir)
    running = is_locked(site_dir)
    found = {
        "running": running,
        **({"process": read_owner(site_dir)} if running else {}),
        **files.read_status(),
        "settings": files.read_settings(),
        "runs": files.list_runs(),
    }
    if as_json:
        print_json(found)
        return
    holder = read_owner(site_dir)
    print_stdout(f"running, process {holder.get('pid')} on {holder.get('host')}" if running else "not running")
    for key in ("connection", "since", "last"):
        if key in found:
            print_stdout(f"{key}: {found[key]}")
    for key, value in found["settings"].items():
        print_stdout(f"{key}: {value}")
    if found["runs"]:
        table = Table("run", "round", "final model", box=None, pad_edge=False)
        for run in found["runs"]:
            table.add_row(run["run"], str(run["round"]), run["model"] or "-")
        stdout_console().print(table)


def merge_site_settings(files: SiteFiles, overrides: dict[str, Any]) -> SiteSettings:
    """What was said when the site was made, with what is said now on top of it."""
    now = {
        key: str(value) if isinstance(value, Path) else value for key, value in overrides.items() if value is not None
    }
    content = {**files.read_settings(), **now}
    if "shard" not in content:
        raise RequestError(f"no shard is named ({files.path}): add --shard client-003.npz, or run 'site init' first")
    names = tuple(SiteSettings.model_fields)
    return build_validated(SiteSettings, content, names, "site", dict.fromkeys(names, "site"))


def shard_facts(shard: SiteShard) -> dict[str, Any]:
    """What a shard holds, for people to compare with what they think it does."""
    [own] = shard.partition.shards
    sizes = {name: len(index) for name, index in own.splits().items()}
    return {
        "client": shard.client_id,
        "examples": ", ".join(f"{size} {part}" for part, size in sizes.items()),
        "classes": len(shard.dataset.class_names),
        "public examples": len(shard.partition.public),
        "shards": shard.shards.digest,
    }


def check_connection_settings(settings: SiteSettings, private_key: Path, insecure: bool) -> None:
    """Refuse to go out without knowing where to, and whom to believe."""
    from fedmosaic_cli.federation.flower.keys import check_certificate, check_private_key
    from fedmosaic_cli.federation.flower.superlink import is_loopback, parse_address

    host, _ = parse_address(settings.superlink or "")
    if insecure:
        if not is_loopback(host):
            raise RequestError(f"{host} is another machine (--insecure): use TLS there, with --ca ca.crt")
        return
    if settings.ca is None:
        raise RequestError("nobody vouches for the coordinator (--ca): give the ca.crt that it sent you")
    check_certificate(Path(settings.ca))
    if not private_key.exists():
        raise RequestError(f"this site has no key yet ({private_key}): make one with 'fedmosaic site init'")
    check_private_key(private_key)


def run_site(
    files: SiteFiles, settings: SiteSettings, shard: SiteShard, insecure: bool, device: str, quiet: bool
) -> None:
    """Answer the coordinator's letters until somebody says stop."""
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.engine.execution.worker_pool import use_single_thread
    from fedmosaic_cli.federation.flower.supernode import SuperNode
    from fedmosaic_cli.federation.policy import SitePolicy
    from fedmosaic_cli.federation.site import Site
    from fedmosaic_cli.machine import tune_malloc
    from fedmosaic_cli.runner.build import find_devices

    use_single_thread()
    tune_malloc()
    diary = SiteLog(files, quiet)
    policy = SitePolicy(settings.share, settings.max_epsilon)
    home = Site(shard, files.path, find_devices(device)[0], DataDirs(files.path), policy, diary.on_request)
    papers = (
        {} if insecure else {"root": Path(settings.ca or ""), "key": files.private_key_path(node_name(shard.client_id))}
    )
    diary.print_line(f"{node_name(shard.client_id)}: {shard_facts(shard)['examples']}, shares {settings.share}")
    with (
        catch_stop_signals(STOP_GRACE_SECONDS, RESTART_HINT, "the letter at hand") as asked_to_stop,
        SuperNode(
            shard.client_id, settings.superlink or "", home.handle_request, on_event=diary.on_connection_event, **papers
        ) as node,
    ):
        node.serve(asked_to_stop)
        diary.on_stop()
        raise typer.Exit(asked_to_stop.exit_code)
