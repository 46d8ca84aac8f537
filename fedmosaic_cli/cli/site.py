"""`fedmosaic site`: one client of a federation, on its own machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedmosaic_cli.cli.common_options import DebugOption, Device, DeviceOption, JsonOption, QuietOption, Sharing
from fedmosaic_cli.cli.console import out, say, say_json
from fedmosaic_cli.cli.interrupt import stop_request
from fedmosaic_cli.cli.pack import pack
from fedmosaic_cli.cli.site_log import Diary
from fedmosaic_cli.config.validation_errors import checked
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.federation.flower.node_names import node_name
from fedmosaic_cli.federation.site_dir import SiteFiles, SiteSettings, unit_text
from fedmosaic_cli.federation.site_shards import load_site_shard
from fedmosaic_cli.storage.files import make_directories, write
from fedmosaic_cli.storage.lock import check_free, is_held, locked, note

if TYPE_CHECKING:
    from fedmosaic_cli.federation.site_shards import SiteShard

GRACE_SECONDS = 30.0
GO_ON = "start the site again, and it goes on where it was"

app = typer.Typer(no_args_is_help=False, rich_markup_mode="rich", add_completion=False)

SiteDirOption = Annotated[Path, typer.Option(help="Where the site keeps its key, settings and models.")]
SuperlinkOption = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Where the coordinator is reached.", show_default=False)
]
AuthorityOption = Annotated[
    Path | None, typer.Option(help="The coordinator's ca.crt, which vouches for it.", show_default=False)
]
ShareOption = Annotated[
    Sharing | None,
    typer.Option(help="What may leave this site: labels, predictions (logits), or models.", show_default="labels"),
]
EpsilonOption = Annotated[
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
    ca: AuthorityOption = None,
    share: ShareOption = None,
    max_epsilon: EpsilonOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Check a shard, make this site's key, and write its settings and a unit file for systemd.

    \b
    [bold]Examples[/bold]
    fedmosaic site init --shard shards/ours/client-003.npz
    fedmosaic site init --shard client-003.npz --superlink fed.example.org:443 --ca ca.crt --share labels
    """
    from fedmosaic_cli.federation.flower.keys import make_node_key

    files, held = SiteFiles(site_dir), load_site_shard(shard)
    name = node_name(held.client)
    given = {"shard": shard.absolute(), "superlink": superlink, "ca": ca and ca.absolute()}
    settings = settings_of(files, {**given, "share": share and share.value, "max_epsilon": max_epsilon})
    check_free(site_dir)
    key = files.key(name)
    if not key.exists():
        make_directories(site_dir)
        make_node_key(key)
    files.save_settings(settings)
    write(files.unit, unit_text(sys.executable, site_dir.absolute(), os.getuid()).encode())
    about = facts(held)
    public = f"{key}.pub"
    if as_json:
        made = {"public_key": public, "unit": str(files.unit), "settings": settings.model_dump(mode="json")}
        say_json({"name": name, **about, **made})
        return
    for what, value in {**about, "shares": settings.share}.items():
        say(f"{what}: {value}")
    say(f"next: send {public} to the coordinator; it is no secret, {key} is")
    say(f"then: fedmosaic site start --site-dir {site_dir}{'' if superlink else ' --superlink HOST:PORT --ca ca.crt'}")
    say(f"or, to keep it running: sudo systemctl enable --now {files.unit.absolute()}")


@app.command()
def start(
    site_dir: SiteDirOption = Path("site"),
    superlink: SuperlinkOption = None,
    ca: AuthorityOption = None,
    shard: Annotated[
        Path | None, typer.Option(help="The client's file of exported shards.", show_default="as initialised")
    ] = None,
    share: ShareOption = None,
    max_epsilon: EpsilonOption = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No TLS and no key: rehearsals on this machine alone.")
    ] = False,
    device: DeviceOption = Device.auto,
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
    from fedmosaic_cli.federation.flower.flower_version import check_flower

    check_flower("site start")
    files = SiteFiles(site_dir)
    given = {"shard": shard and shard.absolute(), "superlink": superlink, "ca": ca and ca.absolute()}
    settings = settings_of(files, {**given, "share": share and share.value, "max_epsilon": max_epsilon})
    held = load_site_shard(Path(settings.shard))
    name = node_name(held.client)
    check_way(settings, files.key(name), insecure)
    with locked(site_dir):
        run_site(files, settings, held, insecure, device.value, quiet)


@app.command()
def status(site_dir: SiteDirOption = Path("site"), as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """Whether a site runs, how it is connected, and how far it is in each run. Example: fedmosaic site status"""
    if not site_dir.is_dir():
        raise RequestError(f"no site here ({site_dir}): make one with 'fedmosaic site init', or name its --site-dir")
    files = SiteFiles(site_dir)
    running = is_held(site_dir)
    found = {
        "running": running,
        **({"process": note(site_dir)} if running else {}),
        **files.status(),
        "settings": files.settings(),
        "runs": files.runs(),
    }
    if as_json:
        say_json(found)
        return
    holder = note(site_dir)
    say(f"running, process {holder.get('pid')} on {holder.get('host')}" if running else "not running")
    for key in ("connection", "since", "last"):
        if key in found:
            say(f"{key}: {found[key]}")
    for key, value in found["settings"].items():
        say(f"{key}: {value}")
    if found["runs"]:
        table = Table("run", "round", "final model", box=None, pad_edge=False)
        for run in found["runs"]:
            table.add_row(run["run"], str(run["round"]), run["model"] or "-")
        out().print(table)


def settings_of(files: SiteFiles, given: dict[str, Any]) -> SiteSettings:
    """What was said when the site was made, with what is said now on top of it."""
    now = {key: str(value) if isinstance(value, Path) else value for key, value in given.items() if value is not None}
    content = {**files.settings(), **now}
    if "shard" not in content:
        raise RequestError(f"no shard is named ({files.path}): add --shard client-003.npz, or run 'site init' first")
    names = tuple(SiteSettings.model_fields)
    return checked(SiteSettings, content, names, "site", dict.fromkeys(names, "site"))


def facts(held: SiteShard) -> dict[str, Any]:
    """What a shard holds, for people to compare with what they think it does."""
    [own] = held.partition.shards
    sizes = {name: len(index) for name, index in own.parts().items()}
    return {
        "client": held.client,
        "examples": ", ".join(f"{size} {part}" for part, size in sizes.items()),
        "classes": len(held.dataset.class_names),
        "public examples": len(held.partition.public),
        "shards": held.shards.digest,
    }


def check_way(settings: SiteSettings, key: Path, insecure: bool) -> None:
    """Refuse to go out without knowing where to, and whom to believe."""
    from fedmosaic_cli.federation.flower.keys import check_certificate, check_key
    from fedmosaic_cli.federation.flower.superlink import is_loopback, parse_address

    host, _ = parse_address(settings.superlink or "")
    if insecure:
        if not is_loopback(host):
            raise RequestError(f"{host} is another machine (--insecure): use TLS there, with --ca ca.crt")
        return
    if settings.ca is None:
        raise RequestError("nobody vouches for the coordinator (--ca): give the ca.crt that it sent you")
    check_certificate(Path(settings.ca))
    if not key.exists():
        raise RequestError(f"this site has no key yet ({key}): make one with 'fedmosaic site init'")
    check_key(key)


def run_site(
    files: SiteFiles, settings: SiteSettings, held: SiteShard, insecure: bool, device: str, quiet: bool
) -> None:
    """Answer the coordinator's letters until somebody says stop."""
    from fedmosaic_cli.data.data_dirs import Place
    from fedmosaic_cli.engine.execution.worker_pool import one_core
    from fedmosaic_cli.federation.flower.supernode import Node
    from fedmosaic_cli.federation.policy import Policy
    from fedmosaic_cli.federation.site import Site
    from fedmosaic_cli.machine import keep_freed_memory
    from fedmosaic_cli.runner.build import find_devices

    one_core()
    keep_freed_memory()
    diary = Diary(files, quiet)
    policy = Policy(settings.share, settings.max_epsilon)
    home = Site(held, files.path, find_devices(device)[0], Place(files.path), policy, diary.answered)
    papers = {} if insecure else {"root": Path(settings.ca or ""), "key": files.key(node_name(held.client))}
    diary.say(f"{node_name(held.client)}: {facts(held)['examples']}, shares {settings.share}")
    with (
        stop_request(GRACE_SECONDS, GO_ON, "the letter at hand") as asked_to_stop,
        Node(held.client, settings.superlink or "", home.answer, tell=diary.connection, **papers) as node,
    ):
        node.serve(asked_to_stop)
        diary.ended()
        raise typer.Exit(asked_to_stop.code)
