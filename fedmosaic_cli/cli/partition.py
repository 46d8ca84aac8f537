"""`fedmosaic partition`."""

from __future__ import annotations

import shlex
from collections.abc import Callable
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
    parse_counts,
    parse_integers,
    parse_names,
)
from fedmosaic_cli.cli.completion import complete_dataset, complete_scheme
from fedmosaic_cli.cli.console import print_command, print_json, print_notes, print_text, stdout_console
from fedmosaic_cli.cli.data_dir_options import data_dirs_with_progress
from fedmosaic_cli.cli.help import choices
from fedmosaic_cli.config.layers import ConfigLayers
from fedmosaic_cli.config.presets import load_preset
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.data.data_settings import DataSettings, LabelNoiseKind, PartitionScheme, SplitProtocol
from fedmosaic_cli.data.datasets import DATASETS
from fedmosaic_cli.data.resolve_settings import resolve_data_settings
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.plugins import resolve_dataset

SchemeName = Enum("SchemeName", {name: name for name in get_args(PartitionScheme)}, type=str)  # type: ignore[misc]
ProtocolName = Enum("ProtocolName", {name: name for name in get_args(SplitProtocol)}, type=str)  # type: ignore[misc]
NoiseName = Enum("NoiseName", {name: name for name in get_args(LabelNoiseKind)}, type=str)  # type: ignore[misc]
MAX_CLIENT_ROWS = 40


def client_option(
    text: str, default: str | None = None, metavar: str = "N", complete: Callable[[str], list[str]] | None = None
) -> Any:
    return typer.Option(
        help=text, show_default=default or True, metavar=metavar, rich_help_panel="Clients", autocompletion=complete
    )


def public_set_option(text: str, default: str, metavar: str) -> Any:
    return typer.Option(help=text, show_default=default, metavar=metavar, rich_help_panel="Public set")


def split_option(text: str, default: str, metavar: str) -> Any:
    return typer.Option(help=text, show_default=default, metavar=metavar, rich_help_panel="Test split")


def label_noise_option(text: str, default: str | None = None, metavar: str | None = None) -> Any:
    return typer.Option(help=text, show_default=default or True, metavar=metavar, rich_help_panel="Wrong labels")


def partition(
    scheme: Annotated[
        SchemeName | None,
        client_option("How to distribute examples to clients.", metavar="SCHEME", complete=complete_scheme),
    ] = None,
    dataset: Annotated[
        str | None,
        client_option(
            f"Data set: {', '.join(DATASETS)}; FILE.py:NAME for your own.",
            "digits; digits-domains for domain and hybrid",
            "NAME",
            complete_dataset,
        ),
    ] = None,
    clients: Annotated[int | None, client_option("Number of clients.", "15")] = None,
    alpha: Annotated[float | None, client_option("dirichlet: smaller values give more skew.", "0.1", "ALPHA")] = None,
    min_size: Annotated[
        int | None, client_option("dirichlet: minimum number of examples per client.", "10; PFLlib's rule for pfllib")
    ] = None,
    examples_per_client: Annotated[
        int | None,
        client_option("Exact number of training examples per client, validation included.", "all that are distributed"),
    ] = None,
    classes_per_client: Annotated[
        int | None, client_option("pathological, hybrid: classes of each client.", "2")
    ] = None,
    balanced: Annotated[
        bool | None,
        typer.Option(
            "--balanced/--unbalanced",
            help="pathological, hybrid: split a class evenly.",
            show_default="balanced",
            rich_help_panel="Clients",
        ),
    ] = None,
    clients_per_domain: Annotated[
        str | None,
        client_option(
            "domain, hybrid: one number, or one per domain, e.g. 4,1,2.", "1 for domain, 5 for hybrid", "LIST"
        ),
    ] = None,
    domains: Annotated[str | None, client_option("Only these domains, e.g. amazon,dslr.", "all", "NAMES")] = None,
    image_size: Annotated[
        int | None, client_option("Side length that images are scaled to.", "256 for office10, domainnet", "PIXELS")
    ] = None,
    public_size: Annotated[
        int | None,
        public_set_option(
            "Unlabelled examples that all clients share.", "the paper's; for your own data a tenth, at most 300", "N"
        ),
    ] = None,
    public_alpha: Annotated[
        float | None, public_set_option("Skew its classes by Dirichlet(ALPHA).", "balanced", "ALPHA")
    ] = None,
    protocol: Annotated[
        ProtocolName | None,
        split_option(
            "official: keep the official test split; pfllib: merge and split 75/25; fedbn: FedBN's lists.",
            "official",
            choices(ProtocolName),
        ),
    ] = None,
    test_fraction: Annotated[
        float | None, split_option("Fraction for testing without an official test split.", "0.25", "FRACTION")
    ] = None,
    test_examples_per_client: Annotated[
        int | None, split_option("Exact number of test examples per client.", "all that are distributed", "N")
    ] = None,
    val_fraction: Annotated[
        float | None, split_option("Fraction of the training split for validation.", "0", "FRACTION")
    ] = None,
    flip_labels: Annotated[
        str | None, label_noise_option("Flip all labels of these clients, e.g. 0,3.", metavar="CLIENTS")
    ] = None,
    label_noise: Annotated[
        float | None, label_noise_option("Fraction of wrong training labels.", "0", "FRACTION")
    ] = None,
    label_noise_kind: Annotated[
        NoiseName | None,
        label_noise_option("symmetric: any other class; asymmetric: the next class.", "symmetric", choices(NoiseName)),
    ] = None,
    preset: PresetOption = None,
    seed: Annotated[
        int, typer.Option(min=0, metavar="N", help="Random seed of the partition.", rich_help_panel="Clients")
    ] = 0,
    data_dir: DataDirOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Directory of the shards.",
            show_default="shards/<dataset>-<scheme>-s<seed>",
            rich_help_panel="Files",
        ),
    ] = None,
    export: Annotated[
        bool,
        typer.Option(
            "--export", help="Also write the examples, to train without the data set.", rich_help_panel="Files"
        ),
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Partition a data set into shards, with class counts and plots.

    \b
    [bold]Examples[/bold]
    fedmosaic partition --scheme dirichlet --alpha 0.5 --clients 20
    fedmosaic partition --scheme hybrid --clients-per-domain 5 --classes-per-client 2
    fedmosaic partition --scheme dirichlet --alpha 0.5 --clients 10 --examples-per-client 40
    fedmosaic partition --preset practical-cifar10 --seed 1
    fedmosaic partition --scheme dirichlet --dataset emnist-letters --clients 50
    fedmosaic partition --scheme dirichlet --dataset folder --data-dir ~/my-images --image-size 64
    fedmosaic partition --scheme natural --dataset pfllib --data-dir PFLlib/dataset/Cifar10 --public-size 3000
    """
    flags = {
        "scheme": scheme and scheme.value,
        "dataset": dataset and resolve_dataset(dataset),
        "protocol": protocol and protocol.value,
        "clients": clients,
        "alpha": alpha,
        "classes_per_client": classes_per_client,
        "balanced": balanced,
        "clients_per_domain": None
        if clients_per_domain is None
        else parse_counts(clients_per_domain, "--clients-per-domain"),
        "domains": None if domains is None else parse_names(domains, "--domains"),
        "image_size": image_size,
        "min_size": min_size,
        "examples_per_client": examples_per_client,
        "test_examples_per_client": test_examples_per_client,
        "public_size": public_size,
        "public_alpha": public_alpha,
        "test_fraction": test_fraction,
        "val_fraction": val_fraction,
        "flip_labels": None if flip_labels is None else parse_integers(flip_labels, "--flip-labels"),
        "label_noise": label_noise,
        "label_noise_kind": label_noise_kind and label_noise_kind.value,
    }
    given = {key: value for key, value in flags.items() if value is not None}
    with data_dirs_with_progress(data_dir, quiet or as_json) as data_dirs:
        settings, name = resolve_partition_settings(given, preset, data_dirs)

        from fedmosaic_cli.runner.prepare import load_and_partition, write_partition_plots
        from fedmosaic_cli.storage.shards import default_shards_path

        unsaved = load_and_partition(settings, seed, output or default_shards_path(name, seed), data_dirs)
        print_notes(unsaved.dataset.warnings)
        shards = unsaved.save(export)
        write_partition_plots(shards)
    if as_json:
        print_json(shards.manifest)
    elif not quiet:
        show_partition(shards.manifest, shards.path, data_dir, preset)


def resolve_partition_settings(
    flags: dict[str, Any], preset: str | None, data_dirs: DataDirs
) -> tuple[DataSettings, str]:
    """Return the resolved settings and the name of the shards."""
    layers = ConfigLayers()
    if preset is not None:
        layers.add_all(load_preset(preset).layers)
        print_notes(layers.notices)
    elif "scheme" not in flags:
        raise RequestError("no scheme is given (fedmosaic partition): add --scheme dirichlet, or --preset quickstart")
    layers.add("flag", {"data": flags})
    settings = layers.section("data", DataSettings)
    unused = flags.keys() - set(settings.used_parameter_names()) - {"scheme", "dataset"}
    if unused:
        option = "--" + min(unused).replace("_", "-")
        reason = f"scheme '{settings.scheme}'"
        if option == "--label-noise-kind":
            reason = "no --label-noise"
        elif settings.protocol == "fedbn" and option in ("--test-fraction", "--val-fraction"):
            reason = "protocol fedbn"
        elif settings.examples_per_client is not None and option in ("--min-size", "--test-fraction"):
            reason = "data.examples_per_client"
        raise RequestError(f"{option} has no effect with {reason} (fedmosaic partition): leave it out")
    settings = resolve_data_settings(settings, data_dirs)
    if preset is not None and not flags:
        return settings, load_preset(preset).name
    return settings, f"{settings.dataset}-{settings.scheme}"


def show_partition(manifest: dict[str, Any], path: Path, data_dir: Path | None, preset: str | None = None) -> None:
    """Print the partition as a table."""
    splits = [split for split in ("train", "val", "test") if any(split in client for client in manifest["clients"])]
    table = Table("client", "domain", *splits, "training examples by class", box=None, pad_edge=False)
    for client in manifest["clients"][:MAX_CLIENT_ROWS]:
        counts = zip(manifest["class_names"], client["train"]["class_counts"], strict=True)
        text = "  ".join(f"{name}:{count}" for name, count in counts if count)
        domain = (client["domain"] or "-") + (" (labels flipped)" if client["labels_flipped"] else "")
        sizes = (str(client.get(split, {}).get("size", 0)) for split in splits)
        table.add_row(str(client["id"]), domain, *sizes, text)
    stdout_console().print(table)
    if len(manifest["clients"]) > MAX_CLIENT_ROWS:
        print_text(f"... and {len(manifest['clients']) - MAX_CLIENT_ROWS} more clients, see distribution.csv")
    left_out = f", {manifest['left_out']} examples assigned to no client" if manifest["left_out"] else ""
    noise = sum(client.get("noisy_labels", 0) for client in manifest["clients"])
    wrong = f", {noise} wrong training labels" if noise else ""
    print_text(f"tested on: {manifest['tested_on']} (protocol {manifest['protocol']})")
    print_text(f"public set: {manifest['public']['size']} examples without labels{left_out}{wrong}")
    examples = ", examples included" if manifest["export"] else ""
    print_text(f"written to {path} (digest {manifest['digest'][:12]}{examples})")
    # FedMosaic needs a public set.
    command = ["train"] if manifest["public"]["size"] else ["baseline", "local"]
    has_location = manifest["export"] is not None or manifest["found_at"]
    data_option = [] if data_dir is None or has_location else ["--data-dir", str(data_dir)]
    preset_option = [] if preset is None else ["--preset", preset]
    print_command(shlex.join(["fedmosaic", *command, *preset_option, "--shards", str(path), *data_option]), "next:")
