"""`fedmosaic federation public`, `site pack` and `federation gather`: shards of data that stays at the sites."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fedmosaic_cli.cli.common_options import DebugOption, JsonOption, QuietOption, parse_names
from fedmosaic_cli.cli.console import print_command, print_json, print_notes, print_text, stdout_console
from fedmosaic_cli.cli.data_dir_options import data_dirs_with_progress
from fedmosaic_cli.data.data_settings import MAX_CLIENTS
from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from fedmosaic_cli.federation.site_package import PublicSet

ImageSizeOption = Annotated[
    int | None,
    typer.Option(
        min=1, max=4096, metavar="PIXELS", help="Resize images to this side length.", show_default="no resizing"
    ),
]
PublicOption = Annotated[Path, typer.Option(metavar="FILE", help="The public set of 'fedmosaic federation public'.")]
ALL_REMARKS_HINT = "see --json"


def public(
    images: Annotated[
        Path,
        typer.Option(
            metavar="PATH", help="A directory with images, also in subdirectories; or an npz file with 'images'."
        ),
    ],
    output: Annotated[Path, typer.Option("--out", metavar="FILE", help="Output file.")] = Path("public.npz"),
    image_size: ImageSizeOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Create the public set, which all sites label, from images without labels.

    Every site receives it, so it must not contain private images. Names of directories are ignored.

    \b
    [bold]Examples[/bold]
    fedmosaic federation public --images open-images --image-size 64
    fedmosaic federation public --images open-images.npz --out ours/public.npz
    """
    from fedmosaic_cli.data.site_data import load_site_images
    from fedmosaic_cli.federation.site_package import build_public_set, write_new_or_identical

    with data_dirs_with_progress(None, quiet or as_json) as data_dirs:
        pixels, remarks = load_site_images(images, image_size, data_dirs)
        public_set = build_public_set(pixels)
    print_notes(remarks, ALL_REMARKS_HINT)
    write_new_or_identical({output: public_set.npz_bytes})
    if as_json:
        shape, digest = list(public_set.image_shape), public_set.sha256
        facts = {"images": len(public_set.images), "image_shape": shape, "sha256": digest}
        print_json({"public": str(output), **facts, "remarks": remarks})
        return
    print_text(
        f"{len(public_set.images)} images, {image_format(public_set)}, written to {output} "
        f"(sha256 {public_set.sha256[:12]})"
    )
    print_text(f"next: send {output} to every site, for 'fedmosaic site pack --public {output.name}'")


def pack(
    client: Annotated[
        int, typer.Option(min=0, max=MAX_CLIENTS - 1, metavar="N", help="The number of this site: 0, 1, 2, ...")
    ],
    train: Annotated[
        Path,
        typer.Option(
            metavar="PATH", help="A directory with a subdirectory per class; or an npz file with 'images' and 'labels'."
        ),
    ],
    test: Annotated[Path, typer.Option(metavar="PATH", help="Test images, in the same form.")],
    classes: Annotated[
        str, typer.Option(metavar="NAMES", help="Names of all classes, e.g. cat,dog; the same at all sites, in order.")
    ],
    public: PublicOption,
    output: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Directory for the client's file and its description.")
    ],
    val: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Validation images, in the same form.", show_default="none")
    ] = None,
    image_size: ImageSizeOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Pack this site's images: client-003.npz stays here, client-003.json describes it for the coordinator.

    The description contains no image, but the number of images per class.

    The coordinator and all sites will know these counts (docs/privacy.md, "What is not protected").

    \b
    [bold]Examples[/bold]
    fedmosaic site pack --client 3 --train train --test test --classes benign,malignant --public public.npz --out shard
    fedmosaic site pack --client 3 --train train.npz --test test.npz --classes 0,1,2 --public public.npz --out shard
    """
    from fedmosaic_cli.data.site_data import load_site_examples
    from fedmosaic_cli.federation.site_package import build_package, prepare_splits, read_public_set, save_package

    class_names, public_set = parse_class_names(classes), read_public_set(public)
    paths = {"train": train, "test": test, **({} if val is None else {"val": val})}
    with data_dirs_with_progress(None, quiet or as_json) as data_dirs:
        examples = {name: load_site_examples(path, class_names, image_size, data_dirs) for name, path in paths.items()}
        splits = prepare_splits(examples, public_set)
    remarks = [warning for split in splits.values() for warning in split.warnings]
    print_notes(remarks, ALL_REMARKS_HINT)
    content, description = build_package(client, splits, class_names, public_set)
    file, description_path = save_package(output, client, content, description)
    if as_json:
        print_json({"file": str(file), "description": str(description_path), **description, "remarks": remarks})
        return
    table = Table("part", "images", "by class", box=None, pad_edge=False)
    for name in paths:
        counts = zip(class_names, description[name]["class_counts"], strict=True)
        by_class = "  ".join(f"{class_name}:{count}" for class_name, count in counts if count)
        table.add_row(name, str(description[name]["size"]), by_class)
    stdout_console().print(table)
    print_text(f"written to {file}, which stays here: it contains the images")
    print_text(f"next: send {description_path} to the coordinator. All sites will know the counts that it contains")
    print_text(f"then: put the coordinator's manifest.json and public.npz into {output}, and run")
    print_text(f"      fedmosaic site init --shard {file}")


def gather(
    descriptions: Annotated[
        list[Path],
        typer.Argument(metavar="CLIENT.json", help="Results of 'fedmosaic site pack', one per site."),
    ],
    public: PublicOption,
    output: Annotated[Path, typer.Option("--out", metavar="DIR", help="New directory for the shards.")],
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the data set.", show_default="the directory's name")
    ] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Create shards from the sites' descriptions: manifest.json and public.npz.

    The examples stay at the sites. Every site receives the manifest, which contains the class counts of all sites.

    What these counts reveal: docs/privacy.md, "What is not protected".

    \b
    [bold]Examples[/bold]
    fedmosaic federation gather client-000.json client-001.json --public public.npz --out shards/ours
    fedmosaic federation gather descriptions/*.json --public public.npz --name scans --out shards/scans
    """
    from fedmosaic_cli.config.run_config import require_safe_name
    from fedmosaic_cli.federation.gather_packages import gathered_manifest, save_gathered_shards
    from fedmosaic_cli.federation.site_package import read_package_description, read_public_set

    require_safe_name(output.resolve().name, "--out")
    dataset_name = output.resolve().name if name is None else name
    require_safe_name(dataset_name, "--name")
    public_set = read_public_set(public)
    packages = {path: read_package_description(path) for path in descriptions}
    shards = save_gathered_shards(output, gathered_manifest(packages, public_set, dataset_name), public_set)
    manifest = shards.manifest
    print_notes(manifest["remarks"])
    if as_json:
        print_json(manifest)
        return
    for entry in manifest["clients"]:
        sizes = ", ".join(f"{entry[name]['size']} {name}" for name in ("train", "test", "val") if name in entry)
        print_text(f"client {entry['id']}: {sizes}")
    print_text(f"public set: {len(public_set.images)} images, {image_format(public_set)}")
    print_text(f"written to {output} (digest {shards.digest[:12]})")
    print_text(f"next: send {output / 'manifest.json'} and {output / 'public.npz'} to every site")
    print_command(f"fedmosaic train --engine flower --shards {output}", "then:")


def parse_class_names(text: str) -> tuple[str, ...]:
    """Return two or more distinct class names."""
    names = parse_names(text, "--classes")
    if len(set(names)) < len(names) or len(names) < 2 or not all(map(str.isprintable, names)):
        raise RequestError(f"the classes '{text}' are not distinct (--classes): give two or more, each once")
    return names


def image_format(public_set: PublicSet) -> str:
    height, width, channels = public_set.image_shape
    return f"{width}x{height}, {'grey' if channels == 1 else 'colour'}"
