"""`fedmosaic partition`."""

from __future__ import annotations

import shlex
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.table import Table

from fedmosaic_cli.cli.common_options import (
    DataDirOption,
    DebugOption,
    JsonOption,
    PresetOption,
    QuietOption,
    parse_integers,
    parse_names,
)
from fedmosaic_cli.cli.console import print_json, print_notes, print_stdout, stdout_console
from fedmosaic_cli.cli.data_dir_options import data_dirs_with_progress
from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.config.presets import load_preset
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.data.data_settings import DataSettings, LabelNoiseKind, PartitionScheme, SplitProtocol
from fedmosaic_cli.data.resolve_settings import resolve_data_settings
from fedmosaic_cli.errors import RequestError

SchemeName = Enum("SchemeName", {name: name for name in get_args(PartitionScheme)}, type=str)  # type: ignore[misc]
ProtocolName = Enum("ProtocolName", {name: name for name in get_args(SplitProtocol)}, type=str)  # type: ignore[misc]
NoiseName = Enum("NoiseName", {name: name for name in get_args(LabelNoiseKind)}, type=str)  # type: ignore[misc]
MAX_CLIENT_ROWS = 40
CLIENTS_PANEL, PUBLIC_SET_PANEL, TEST_SPLIT_PANEL, LABEL_NOISE_PANEL, FILES_PANEL = (
    "Who gets what",
    "Public set",
    "Tests",
    "Wrong labels",
    "Files",
)


def partition(
    scheme: Annotated[
        SchemeName | None, typer.Option(help="How to deal the examples to clients.", rich_help_panel=CLIENTS_PANEL)
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            help="Which examples to deal; 'fedmosaic doctor' lists them.",
            show_default="digits; digits-domains for domain and hybrid",
            rich_help_panel=CLIENTS_PANEL,
        ),
    ] = None,
    clients: Annotated[
        int | None, typer.Option(help="How many.", show_default="15", rich_help_panel=CLIENTS_PANEL)
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            help="dirichlet: the smaller, the more skewed.", show_default="0.1", rich_help_panel=CLIENTS_PANEL
        ),
    ] = None,
    min_size: Annotated[
        int | None,
        typer.Option(
            help="dirichlet: the fewest examples.",
            show_default="10; PFLlib's rule for pfllib",
            rich_help_panel=CLIENTS_PANEL,
        ),
    ] = None,
    classes_per_client: Annotated[
        int | None, typer.Option(help="pathological, hybrid.", show_default="2", rich_help_panel=CLIENTS_PANEL)
    ] = None,
    balanced: Annotated[
        bool | None,
        typer.Option(
            "--balanced/--unbalanced",
            help="pathological, hybrid: share a class evenly.",
            show_default="balanced",
            rich_help_panel=CLIENTS_PANEL,
        ),
    ] = None,
    clients_per_domain: Annotated[
        int | None,
        typer.Option(help="domain, hybrid.", show_default="1 for domain, 5 for hybrid", rich_help_panel=CLIENTS_PANEL),
    ] = None,
    domains: Annotated[
        str | None,
        typer.Option(help="Only these, e.g. amazon,dslr.", show_default="all", rich_help_panel=CLIENTS_PANEL),
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option(
            help="Side that images are brought to.",
            show_default="256 for office10, domainnet",
            rich_help_panel=CLIENTS_PANEL,
        ),
    ] = None,
    public_size: Annotated[
        int | None,
        typer.Option(
            help="Unlabelled examples that all see.",
            show_default="the paper's; for your own data a tenth, at most 300",
            rich_help_panel=PUBLIC_SET_PANEL,
        ),
    ] = None,
    public_alpha: Annotated[
        float | None,
        typer.Option(
            help="Skew its classes by Dirichlet(alpha).", show_default="balanced", rich_help_panel=PUBLIC_SET_PANEL
        ),
    ] = None,
    protocol: Annotated[
        ProtocolName | None,
        typer.Option(
            help="official: the data set's test part stays apart; pfllib: merged, split 75/25; fedbn: its lists.",
            show_default="official",
            rich_help_panel=TEST_SPLIT_PANEL,
        ),
    ] = None,
    test_fraction: Annotated[
        float | None,
        typer.Option(
            help="Share for testing, where there is no official test part.",
            show_default="0.25",
            rich_help_panel=TEST_SPLIT_PANEL,
        ),
    ] = None,
    val_fraction: Annotated[
        float | None,
        typer.Option(
            help="Share of the training part to choose models by.", show_default="0", rich_help_panel=TEST_SPLIT_PANEL
        ),
    ] = None,
    flip_labels: Annotated[
        str | None,
        typer.Option(
            metavar="CLIENTS", help="Turn all labels of these around, e.g. 0,3.", rich_help_panel=LABEL_NOISE_PANEL
        ),
    ] = None,
    label_noise: Annotated[
        float | None,
        typer.Option(help="Share of wrong training labels.", show_default="0", rich_help_panel=LABEL_NOISE_PANEL),
    ] = None,
    label_noise_kind: Annotated[
        NoiseName | None,
        typer.Option(
            help="symmetric: any other class; asymmetric: the next.",
            show_default="symmetric",
            rich_help_panel=LABEL_NOISE_PANEL,
        ),
    ] = None,
    preset: PresetOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Deals differently for each number.")] = 0,
    data_dir: DataDirOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Where to write the shards.",
            show_default="shards/<dataset>-<scheme>-s<seed>",
            rich_help_panel=FILES_PANEL,
        ),
    ] = None,
    export: Annotated[
        bool,
        typer.Option(
            "--export", help="Write the examples too, to train where the data set is not.", rich_help_panel=FILES_PANEL
        ),
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Deal a data set to clients: shards, counts and pictures.

    \b
    [bold]Examples[/bold]
    fedmosaic partition --scheme dirichlet --alpha 0.5 --clients 20
    fedmosaic partition --scheme hybrid --clients-per-domain 5 --classes-per-client 2
    fedmosaic partition --preset practical-cifar10 --seed 1
    fedmosaic partition --scheme dirichlet --dataset folder --data-dir ~/my-images --image-size 64
    fedmosaic partition --scheme natural --dataset pfllib --data-dir PFLlib/dataset/Cifar10 --public-size 3000
    """
    flags = {
        "scheme": scheme and scheme.value,
        "dataset": dataset,
        "protocol": protocol and protocol.value,
        "clients": clients,
        "alpha": alpha,
        "classes_per_client": classes_per_client,
        "balanced": balanced,
        "clients_per_domain": clients_per_domain,
        "domains": None if domains is None else parse_names(domains, "--domains"),
        "image_size": image_size,
        "min_size": min_size,
        "public_size": public_size,
        "public_alpha": public_alpha,
        "test_fraction": test_fraction,
        "val_fraction": val_fraction,
        "flip_labels": None if flip_labels is None else parse_integers(flip_labels, "--flip-labels"),
        "label_noise": label_noise,
        "label_noise_kind": label_noise_kind and label_noise_kind.value,
    }
    given = {key: value for key, value in flags.items() if value is not None}
    with data_dirs_with_progress(data_dir, quiet or as_json) as place:
        settings, name = resolve_partition_settings(given, preset, place)

        from fedmosaic_cli.runner.prepare import load_and_partition
        from fedmosaic_cli.storage.shards import default_shards_path

        dealt = load_and_partition(settings, seed, output or default_shards_path(name, seed), place)
        print_notes(dealt.dataset.warnings)
        shards = dealt.save(export)
    if as_json:
        print_json(shards.manifest)
    elif not quiet:
        show_partition(shards.manifest, shards.path, data_dir)


def resolve_partition_settings(
    flags: dict[str, Any], preset: str | None, data_dirs: DataDirs
) -> tuple[DataSettings, str]:
    """How to deal, and what to call the result."""
    layers = ConfigLayers()
    if preset is not None:
        layers.add_all(load_preset(preset).layers)
    elif "scheme" not in flags:
        raise RequestError("no scheme is given (fedmosaic partition): add --scheme dirichlet, or --preset quickstart")
    layers.add("flag", {"data": flags})
    settings = layers.section("data", DataSettings)
    idle = flags.keys() - set(settings.used_parameter_names()) - {"scheme", "dataset"}
    if idle:
        option = "--" + sorted(idle)[0].replace("_", "-")
        why = f"scheme '{settings.scheme}'"
        if option == "--label-noise-kind":
            why = "no --label-noise"
        elif settings.protocol == "fedbn" and option in ("--test-fraction", "--val-fraction"):
            why = "protocol fedbn"
        raise RequestError(f"{option} has no effect with {why} (fedmosaic partition): leave it out")
    settings = resolve_data_settings(settings, data_dirs)
    if preset is not None and not flags:
        return settings, load_preset(preset).name
    return settings, f"{settings.dataset}-{settings.scheme}"


def show_partition(manifest: dict[str, Any], path: Path, data_dir: Path | None) -> None:
    """The partition at a glance."""
    parts = [part for part in ("train", "val", "test") if any(part in client for client in manifest["clients"])]
    view = Table("client", "domain", *parts, "training examples by class", box=None, pad_edge=False)
    for client in manifest["clients"][:MAX_CLIENT_ROWS]:
        counts = zip(manifest["class_names"], client["train"]["class_counts"], strict=True)
        text = "  ".join(f"{name}:{count}" for name, count in counts if count)
        domain = (client["domain"] or "-") + (" (labels flipped)" if client["labels_flipped"] else "")
        view.add_row(str(client["id"]), domain, *(str(client.get(part, {}).get("size", 0)) for part in parts), text)
    stdout_console().print(view)
    if len(manifest["clients"]) > MAX_CLIENT_ROWS:
        print_stdout(f"... and {len(manifest['clients']) - MAX_CLIENT_ROWS} more clients, see distribution.csv")
    left_out = f", {manifest['left_out']} examples dealt to nobody" if manifest["left_out"] else ""
    noise = sum(client.get("noisy_labels", 0) for client in manifest["clients"])
    wrong = f", {noise} wrong training labels" if noise else ""
    print_stdout(f"tested on: {manifest['tested_on']} (protocol {manifest['protocol']})")
    print_stdout(f"public set: {manifest['public']['size']} examples without labels{left_out}{wrong}")
    print_stdout(
        f"written to {path} (digest {manifest['digest'][:12]}{', examples included' if manifest['export'] else ''})"
    )
    print_stdout(f"next: {shlex.join(next_train_command(manifest, path, data_dir))}")


def next_train_command(manifest: dict[str, Any], path: Path, data_dir: Path | None) -> list[str]:
    """What one would type next; without a public set there is nothing for FedMosaic to do."""
    command = ["train"] if manifest["public"]["size"] else ["baseline", "local"]
    remembered = manifest["export"] is not None or manifest["found_at"]
    place = [] if data_dir is None or remembered else ["--data-dir", str(data_dir)]
    return ["fedmosaic", *command, "--shards", str(path), *place]
