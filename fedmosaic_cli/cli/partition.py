"""`fedmosaic partition`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.table import Table

from fedmosaic_cli.cli.console import out, say, say_json
from fedmosaic_cli.cli.options import DebugOption, JsonOption, PresetOption, QuietOption, whole_numbers
from fedmosaic_cli.config.layers import Layers
from fedmosaic_cli.config.presets import load_preset
from fedmosaic_cli.data.partition import resolve
from fedmosaic_cli.data.settings import DataSettings, Scheme
from fedmosaic_cli.errors import RequestError

SchemeName = Enum("SchemeName", {name: name for name in get_args(Scheme)}, type=str)  # type: ignore[misc]
MOST_ROWS = 40


def partition(
    scheme: Annotated[SchemeName | None, typer.Option(help="How to deal the examples to clients.")] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="Which examples to deal.", show_default="digits; digits-domains for domain and hybrid"),
    ] = None,
    clients: Annotated[int | None, typer.Option(help="How many.", show_default="15")] = None,
    alpha: Annotated[
        float | None, typer.Option(help="dirichlet: the smaller, the more skewed.", show_default="0.1")
    ] = None,
    classes_per_client: Annotated[int | None, typer.Option(help="pathological, hybrid.", show_default="2")] = None,
    clients_per_domain: Annotated[
        int | None, typer.Option(help="domain, hybrid.", show_default="1 for domain, 5 for hybrid")
    ] = None,
    min_size: Annotated[
        int | None, typer.Option(help="dirichlet: the fewest examples of a client.", show_default="10")
    ] = None,
    public_size: Annotated[
        int | None,
        typer.Option(help="Size of the unlabelled public set.", show_default="300 for digits"),
    ] = None,
    public_alpha: Annotated[
        float | None, typer.Option(help="Skew its classes by Dirichlet(alpha).", show_default="balanced")
    ] = None,
    test_fraction: Annotated[
        float | None, typer.Option(help="Each client's share for testing.", show_default="0.25")
    ] = None,
    flip_labels: Annotated[
        str | None, typer.Option(metavar="CLIENTS", help="Turn the labels of these clients around, e.g. 0,3.")
    ] = None,
    preset: PresetOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Deals differently for each number.")] = 0,
    output: Annotated[
        Path | None,
        typer.Option("--out", help="Where to write the shards.", show_default="shards/<dataset>-<scheme>-s<seed>"),
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Deal a data set to clients: shards, counts and a picture.

    \b
    [bold]Examples[/bold]
    fedmosaic partition --scheme dirichlet --alpha 0.5 --clients 20
    fedmosaic partition --scheme hybrid --clients-per-domain 5 --classes-per-client 2
    fedmosaic partition --preset quickstart --seed 1
    """
    flags = {
        "scheme": scheme.value if scheme else None,
        "dataset": dataset,
        "clients": clients,
        "alpha": alpha,
        "classes_per_client": classes_per_client,
        "clients_per_domain": clients_per_domain,
        "min_size": min_size,
        "public_size": public_size,
        "public_alpha": public_alpha,
        "test_fraction": test_fraction,
        "flip_labels": None if flip_labels is None else whole_numbers(flip_labels, "--flip-labels"),
    }
    settings, name = settings_of({key: value for key, value in flags.items() if value is not None}, preset)

    from fedmosaic_cli.experiment.plan import deal
    from fedmosaic_cli.records.shards import default_path

    shards = deal(settings, seed, output or default_path(name, seed)).written()
    if as_json:
        say_json(shards.manifest)
    elif not quiet:
        show(shards.manifest, shards.path)


def settings_of(flags: dict[str, Any], preset: str | None) -> tuple[DataSettings, str]:
    """How to deal, and what to call the result."""
    layers = Layers()
    if preset is not None:
        layers.add_all(load_preset(preset).layers)
    elif "scheme" not in flags:
        raise RequestError("no scheme is given (fedmosaic partition): add --scheme dirichlet, or --preset quickstart")
    layers.add("flag", {"data": flags})
    settings = resolve(layers.section("data", DataSettings))
    idle = flags.keys() - settings.parameters().keys() - {"scheme", "dataset"}
    if idle:
        option = "--" + sorted(idle)[0].replace("_", "-")
        raise RequestError(
            f"{option} has no effect with scheme '{settings.scheme}' (fedmosaic partition): leave it out"
        )
    if preset is not None and not flags:
        return settings, load_preset(preset).name
    return settings, f"{settings.dataset}-{settings.scheme}"


def show(manifest: dict[str, Any], path: Path) -> None:
    """The partition at a glance."""
    view = Table("client", "domain", "train", "test", "training examples by class", box=None, pad_edge=False)
    for client in manifest["clients"][:MOST_ROWS]:
        counts = zip(manifest["class_names"], client["train"]["class_counts"], strict=True)
        text = "  ".join(f"{name}:{count}" for name, count in counts if count)
        domain = (client["domain"] or "-") + (" (labels flipped)" if client["labels_flipped"] else "")
        view.add_row(str(client["id"]), domain, str(client["train"]["size"]), str(client["test"]["size"]), text)
    out().print(view)
    if len(manifest["clients"]) > MOST_ROWS:
        say(f"... and {len(manifest['clients']) - MOST_ROWS} more clients, see distribution.csv")
    left_out = f", {manifest['left_out']} examples dealt to nobody" if manifest["left_out"] else ""
    say(f"public set: {manifest['public']['size']} examples without labels{left_out}")
    say(f"written to {path} (digest {manifest['digest'][:12]})")
    say(f"next: fedmosaic train --shards {path}")
