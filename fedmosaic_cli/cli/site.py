"""`fedmosaic site`: one client of a federation, on its own machine."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

import fedmosaic_cli
from fedmosaic_cli.cli.common_options import (
    UNPROTECTED_SUFFIX,
    DebugOption,
    DeviceChoice,
    DeviceOption,
    JsonOption,
    PluginOption,
    QuietOption,
    UploadLevelChoice,
    deprecated_aliases,
)
from fedmosaic_cli.cli.console import print_command, print_json, print_stderr, print_stdout, print_text, stdout_console
from fedmosaic_cli.cli.help import choices
from fedmosaic_cli.cli.interrupt import catch_stop_signals
from fedmosaic_cli.cli.pack import pack
from fedmosaic_cli.config.validation_errors import build_validated
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.federation.flower.flower_messages import node_name
from fedmosaic_cli.federation.privacy_ledger import default_anchor_dir, user_state_dir
from fedmosaic_cli.federation.site_dir import SiteFiles, SiteLog, SiteSettings
from fedmosaic_cli.federation.site_shards import load_site_shard
from fedmosaic_cli.federation.systemd_unit import systemd_unit
from fedmosaic_cli.machine import collect_as_usual
from fedmosaic_cli.plugins import register_named
from fedmosaic_cli.storage.files import make_directories, write_atomic
from fedmosaic_cli.storage.lock import directory_lock, is_locked, read_owner, require_unlocked
from fedmosaic_cli.storage.shards import PUBLIC_FILE, SHARD_MANIFEST_FILE
from fedmosaic_cli.storage.syscalls import private_files

if TYPE_CHECKING:
    from fedmosaic_cli.federation.site_shards import SiteShard

STOP_GRACE_SECONDS = 30.0
RESTART_HINT = "start the site again, and it continues where it stopped"
RENAMED_OPTIONS = {"--share": "--allow-upload"}


class MetricsChoice(StrEnum):
    withheld = "withheld"
    rounded = "rounded"
    exact_unprotected = "exact-unprotected"


app = typer.Typer(no_args_is_help=False, rich_markup_mode="rich", add_completion=False)

SiteDirOption = Annotated[Path, typer.Option(metavar="DIR", help="The site's directory: key, settings and models.")]
SuperlinkOption = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="The coordinator's address.", show_default=False)
]
CaOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The coordinator's ca.crt, which authenticates it.", show_default=False),
]
AllowUploadOption = Annotated[
    UploadLevelChoice | None,
    typer.Option(
        metavar="LEVEL",
        help="What may leave this site: labels, predictions-unprotected (logits), or models-unprotected. A coordinator "
        "that receives logits or models can reconstruct examples.",
        show_default="labels",
    ),
]
MetricsOption = Annotated[
    MetricsChoice | None,
    typer.Option(
        metavar=choices(MetricsChoice),
        help="Losses and accuracies that this site sends: withheld, rounded, or exact-unprotected, from which a "
        "coordinator can reconstruct examples. With --max-epsilon they are withheld.",
        show_default="rounded",
    ),
]
MaxEpsilonOption = Annotated[
    float | None,
    typer.Option(
        metavar="EPSILON",
        help="The largest total epsilon of all runs on the data here, together.",
        show_default="no limit",
    ),
]

AllowRootOption = Annotated[
    bool,
    typer.Option(
        "--allow-root", help="Run as root, although the coordinator controls what the site computes. Not recommended."
    ),
]
GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd")


@app.callback(invoke_without_command=True)
def site(context: typer.Context) -> None:
    """One client of a federation on its own machine: set it up, start it, and show its status."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command()(pack)


@app.command()
@deprecated_aliases(RENAMED_OPTIONS)
def init(
    shard: Annotated[
        Path,
        typer.Option(metavar="FILE", help="The client's exported shard, next to manifest.json and public.npz."),
    ],
    site_dir: SiteDirOption = Path("site"),
    superlink: SuperlinkOption = None,
    ca: CaOption = None,
    allow_upload: AllowUploadOption = None,
    max_epsilon: MaxEpsilonOption = None,
    metrics: MetricsOption = None,
    allow_root: AllowRootOption = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Check a shard, create this site's key, and write its settings and a systemd unit.

    site.json in the site's directory also contains the minima of plans and the limits per day. They can be changed
    there.

    \b
    [bold]Examples[/bold]
    fedmosaic site init --shard shards/ours/client-003.npz
    fedmosaic site init --shard client-003.npz --superlink fed.example.org:443 --ca ca.crt --allow-upload labels
    fedmosaic site init --shard client-003.npz --max-epsilon 8
    """
    from fedmosaic_cli.federation.flower.keys import create_node_key

    files, site_shard = SiteFiles(site_dir), load_site_shard(shard)
    name = node_name(site_shard.client_id)
    settings = merge_site_settings(files, shard, superlink, ca, allow_upload, max_epsilon, metrics)
    require_unprivileged_user(allow_root)
    require_unlocked(site_dir)
    key = files.private_key_path(name)
    with private_files():
        if not key.exists():
            make_directories(site_dir)
            create_node_key(key)
        files.save_settings(settings)
        make_directories(default_anchor_dir())  # the unit gives the site access to it
        write_atomic(files.unit_path, site_unit(settings, site_dir).encode())
    warn_if_readable(site_dir)
    facts, public_key = shard_facts(site_shard), f"{key}.pub"
    if as_json:
        paths = {"public_key": public_key, "unit": str(files.unit_path)}
        print_json({"name": name, **facts, **paths, "settings": settings.model_dump(mode="json")})
        return
    for fact, value in {**facts, "shares": settings.share}.items():
        print_stdout(f"{fact}: {value}")
    print_text(f"next: send {public_key} to the coordinator, and keep {key} secret")
    connection = "" if superlink else " --superlink HOST:PORT --ca ca.crt"
    print_command(f"fedmosaic site start --site-dir {site_dir}{connection}", "then:")
    print_command(f"sudo systemctl enable --now {files.unit_path.absolute()}", "or, to keep it running:")


@app.command()
@deprecated_aliases(RENAMED_OPTIONS)
def start(
    site_dir: SiteDirOption = Path("site"),
    superlink: SuperlinkOption = None,
    ca: CaOption = None,
    shard: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The client's file of exported shards.", show_default="as in 'site init'"),
    ] = None,
    allow_upload: AllowUploadOption = None,
    max_epsilon: MaxEpsilonOption = None,
    metrics: MetricsOption = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Use neither TLS nor keys; only for a coordinator on this machine.")
    ] = False,
    method: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE.py:NAME", help="A plug-in method that runs may use.", show_default=False),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE.py:NAME", help="A plug-in model that runs may use.", show_default=False),
    ] = None,
    plugin: PluginOption = None,
    device: DeviceOption = DeviceChoice.auto,
    allow_root: AllowRootOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Take part in the runs that the coordinator plans and this site allows, until it is stopped.

    Ctrl-C stops it after the current request. When it is started again, it continues where it stopped.

    \b
    [bold]Examples[/bold]
    fedmosaic site start
    fedmosaic site start --superlink fed.example.org:443 --ca ca.crt --shard client-003.npz
    fedmosaic site start --site-dir site-3 --allow-upload predictions-unprotected --device cuda
    fedmosaic site start --metrics withheld
    """
    from fedmosaic_cli.federation.flower.flwr_commands import require_flower

    require_flower("site start")
    register_named(method, model, None, plugin)
    files = SiteFiles(site_dir)
    settings = merge_site_settings(files, shard, superlink, ca, allow_upload, max_epsilon, metrics)
    site_shard = load_site_shard(Path(settings.shard))
    check_connection_settings(settings, files.private_key_path(node_name(site_shard.client_id)), insecure)
    require_unprivileged_user(allow_root)
    with private_files(), directory_lock(site_dir):
        warn_if_readable(site_dir)
        run_site(files, settings, site_shard, insecure, device.value, quiet)


@app.command()
def status(site_dir: SiteDirOption = Path("site"), as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """Show whether a site runs, its policy, its use and limits, the spent epsilon, and its progress in each run.

    It only reads the site's files, so it can be used at any time.

    \b
    [bold]Examples[/bold]
    fedmosaic site status
    fedmosaic site status --site-dir site-3 --json
    """
    if not site_dir.is_dir():
        raise RequestError(f"no site here ({site_dir}): make one with 'fedmosaic site init', or give its --site-dir")
    files, running = SiteFiles(site_dir), is_locked(site_dir)
    owner = read_owner(site_dir) if running else {}
    last_status = files.read_status()
    # A running site may have other settings than site.json, through options of `site start`.
    started_with = last_status.pop("settings", None)
    stored = started_with if running and started_with else files.read_settings()
    settings = validate_settings({"shard": "", **stored})
    document = {
        "running": running,
        **({"process": owner} if running else {}),
        **last_status,
        "settings": settings.model_dump(mode="json"),
        "usage": files.read_usage(settings),
        "privacy": files.read_privacy(settings),
        "runs": files.list_runs(),
    }
    if as_json:
        print_json(document)
        return
    print_stdout(f"running, process {owner.get('pid')} on {owner.get('host')}" if running else "not running")
    for key in ("connection", "since", "last"):
        if key in document:
            print_stdout(f"{key}: {document[key]}")
    for line in [*policy_lines(settings), *usage_lines(settings, document["usage"]), privacy_line(document["privacy"])]:
        print_stdout(line)
    if document["runs"]:
        table = Table("run", "round", "final model", box=None, pad_edge=False)
        for run in document["runs"]:
            table.add_row(run["run"], str(run["round"]), run["model"] or "-")
        stdout_console().print(table)


def policy_lines(settings: SiteSettings) -> list[str]:
    """Return what a site allows, as lines of its status."""
    level = settings.policy.metrics_level
    because = " (because of --max-epsilon)" if level != settings.metrics else ""
    return [
        f"shard: {settings.shard or '-'}",
        f"coordinator: {settings.superlink or '-'}, authority {settings.ca or '-'}",
        f"may upload: {settings.share}",
        f"metrics: {level}{because}",
        f"minima: batch size {settings.min_batch_size}, learning rate {settings.min_lr:g}, "
        f"{settings.min_examples} examples per metric",
    ]


def usage_lines(settings: SiteSettings, usage: dict[str, Any]) -> list[str]:
    """Return today's use of each coordinator and the disk space, with their limits."""
    limits = settings.limits
    lines = [
        f"{name or 'any coordinator'}: runs today {used['runs']} of {limits.max_runs}, "
        f"steps today {used['steps']:,} of {limits.max_steps:,}, "
        f"hours today {used['hours']:.2f} of {limits.max_hours:g}"
        for name, used in usage["today"].items()
    ]
    return [*lines, f"disk: {usage['disk_gb']:.3f} of {limits.max_disk_gb:g} GB"]


def privacy_line(privacy: dict[str, Any]) -> str:
    """Return the spent epsilon and its limit."""
    limit = " (no limit)" if privacy["max_epsilon"] is None else f" of {privacy['max_epsilon']:g}"
    spent, delta = float(privacy["epsilon"]), privacy["delta"]
    unprotected = privacy["runs_without_noise"]
    runs = "1 run" if unprotected == 1 else f"{unprotected} runs"
    more = f"; {runs} without noise, for which there is no epsilon" if unprotected else ""
    return f"epsilon spent: {spent:.6g}{limit} at delta {delta:g}, {privacy['releases']} releases{more}"


def validate_settings(content: dict[str, Any]) -> SiteSettings:
    """Return settings. Raise `RequestError` if one is unknown or invalid."""
    names = tuple(SiteSettings.model_fields)
    return build_validated(SiteSettings, content, names, "site", dict.fromkeys(names, "site"))


def merge_site_settings(
    files: SiteFiles,
    shard: Path | None,
    superlink: str | None,
    ca: Path | None,
    allow_upload: UploadLevelChoice | None,
    max_epsilon: float | None,
    metrics: MetricsChoice | None,
) -> SiteSettings:
    """Return the stored settings, overridden by the given options."""
    if allow_upload in (UploadLevelChoice.old_predictions, UploadLevelChoice.old_models):
        print_stderr(f"note: --allow-upload {allow_upload} is now {allow_upload}{UNPROTECTED_SUFFIX}")
    options = {
        "shard": shard and str(shard.absolute()),
        "superlink": superlink,
        "ca": ca and str(ca.absolute()),
        "share": allow_upload and allow_upload.upload_level,
        "max_epsilon": max_epsilon,
        "metrics": metrics and metrics.value,
    }
    content = {**files.read_settings(), **{key: value for key, value in options.items() if value is not None}}
    if "shard" not in content:
        raise RequestError(f"no shard is given ({files.path}): add --shard client-003.npz, or run 'site init' first")
    return validate_settings(content)


def require_unprivileged_user(allow_root: bool) -> None:
    """Raise `RequestError` if this process belongs to root, unless that is allowed."""
    if os.geteuid() == 0 and not allow_root:
        raise RequestError(
            "a site executes its coordinator's plans and must not run as root (uid 0): use another user, "
            "or add --allow-root"
        )


def warn_if_readable(site_dir: Path) -> None:
    """Print a note if other users can read a directory that existed before."""
    if site_dir.stat().st_mode & 0o077:
        print_stderr(f"note: other users can read this directory ({site_dir}): chmod -R go-rwx {site_dir}")


def site_unit(settings: SiteSettings, site_dir: Path) -> str:
    """Return a systemd unit that shows the site its own files, its shard and this Python environment only."""
    shard = Path(settings.shard)
    readable = [shard, *(shard.with_name(name) for name in (SHARD_MANIFEST_FILE, PUBLIC_FILE))]
    readable += [Path(settings.ca)] if settings.ca else []
    readable += [Path(sys.prefix), Path(sys.base_prefix), Path(fedmosaic_cli.__file__).parent]
    has_gpu = any(Path(device).exists() for device in GPU_DEVICES)
    return systemd_unit(sys.executable, site_dir.absolute(), os.getuid(), user_state_dir(), readable, has_gpu)


def shard_facts(shard: SiteShard) -> dict[str, Any]:
    """Return what a shard contains, for people to check."""
    sizes = {name: len(index) for name, index in shard.own.splits().items()}
    return {
        "client": shard.client_id,
        "examples": ", ".join(f"{size} {name}" for name, size in sizes.items()),
        "classes": len(shard.dataset.class_names),
        "public examples": len(shard.partition.public),
        "shards": shard.shard_set.digest,
    }


def check_connection_settings(settings: SiteSettings, private_key: Path, insecure: bool) -> None:
    """Raise `RequestError` if the address is missing, or the connection could not be authenticated."""
    from fedmosaic_cli.federation.flower.superlink import is_loopback, parse_address

    host, _ = parse_address(settings.superlink or "")
    if insecure:
        if not is_loopback(host):
            raise RequestError(f"{host} is another machine (--insecure): use TLS, with --ca ca.crt")
        return
    from fedmosaic_cli.federation.flower.keys import check_certificate, check_private_key

    if settings.ca is None:
        raise RequestError("the coordinator cannot be authenticated (--ca): give the ca.crt that it sent you")
    check_certificate(Path(settings.ca))
    if not private_key.exists():
        raise RequestError(f"this site has no key yet ({private_key}): make one with 'fedmosaic site init'")
    check_private_key(private_key)


def run_site(
    files: SiteFiles, settings: SiteSettings, shard: SiteShard, insecure: bool, device: str, quiet: bool
) -> None:
    """Handle the coordinator's requests until a signal stops the site."""
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.engine.execution.worker_pool import use_single_thread
    from fedmosaic_cli.federation.flower.site_node import SiteNode
    from fedmosaic_cli.federation.site import Site
    from fedmosaic_cli.machine import tune_malloc
    from fedmosaic_cli.runner.build import find_devices

    use_single_thread()
    tune_malloc()
    name = node_name(shard.client_id)
    log = SiteLog(files, (lambda line: None) if quiet else print_stderr)
    local_site = Site(
        shard,
        files.path,
        find_devices(device)[0],
        DataDirs(files.path),
        settings.policy,
        log.on_request,
        settings.limits,
        coordinator=settings.superlink or "",
    )
    if settings.max_epsilon is not None:
        _ = local_site.ledger  # an older copy of the directory is refused before the site connects
    credentials = {} if insecure else {"root": Path(settings.ca or ""), "key": files.private_key_path(name)}
    log.on_start(settings)
    log.print_line(f"{name}: {shard_facts(shard)['examples']}, shares {settings.share}")
    with (
        catch_stop_signals(STOP_GRACE_SECONDS, RESTART_HINT, "the current request") as stop_request,
        SiteNode(
            shard.client_id,
            settings.superlink or "",
            local_site.handle_request,
            on_event=log.on_connection_event,
            **credentials,
        ) as node,
    ):
        collect_as_usual()
        node.serve(stop_request)
        log.on_stop()
        raise typer.Exit(stop_request.exit_code)
