"""`fedmosaic federation public`, `site pack` and `federation gather`: shards of data that nobody else may see."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedmosaic_cli.cli.common_options import DebugOption, JsonOption, QuietOption, parse_names
from fedmosaic_cli.cli.console import print_json, print_notes, print_stdout, stdout_console
from fedmosaic_cli.cli.data_dir_options import data_dirs_with_progress
from fedmosaic_cli.data.data_settings import MAX_CLIENTS
from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from fedmosaic_cli.federation.site_package import PublicSet

ImageSizeOption = Annotated[
    int | None,
    typer.Option(min=1, max=4096, help="Side that images are brought to.", show_default="as they are, if all alike"),
]
PublicOption = Annotated[Path, typer.Option(help="The file of 'fedmosaic federation public', the same for all sites.")]
ALL_REMARKS_HINT = "--json tells all"


def public(
    images: Annotated[
        Path, typer.Option(help="Images in a directory, in subdirectories or not; or an npz file with 'images'.")
    ],
    output: Annotated[Path, typer.Option("--out", help="Where to write the public set.")] = Path("public.npz"),
    image_size: ImageSizeOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Make the public set, which all sites label, out of images without labels.

    Send it to every site: nothing in it may be anybody's secret. What directories are called does not matter.

    \b
    [bold]Examples[/bold]
    fedmosaic federation public --images open-images --image-size 64
    fedmosaic federation public --images open-images.npz --out ours/public.npz
    """
    from fedmosaic_cli.data.site_data import load_site_images
    from fedmosaic_cli.federation.site_package import build_public_set, write_new_or_identical

    with data_dirs_with_progress(None, quiet or as_json) as place:
        pixels, remarks = load_site_images(images, image_size, place)
        made = build_public_set(pixels)
    print_notes(remarks, ALL_REMARKS_HINT)
    write_new_or_identical({output: made.npz_bytes})
    if as_json:
        print_json({"public": str(output), **public_set_facts(made), "remarks": remarks})
        return
    print_stdout(f"{len(made.images)} images, {image_format(made)}, written to {output} (sha256 {made.sha256[:12]})")
    print_stdout(f"next: send {output} to every site, for 'fedmosaic site pack --public {output.name}'")


def pack(
    client: Annotated[int, typer.Option(min=0, max=MAX_CLIENTS - 1, help="The number of this site: 0, 1, 2, ...")],
    train: Annotated[
        Path, typer.Option(help="Images in a directory a class; or an npz file with 'images' and 'labels'.")
    ],
    test: Annotated[Path, typer.Option(help="The same, to test on.")],
    classes: Annotated[str, typer.Option(help="Names of all classes, e.g. cat,dog: at all sites the same, in order.")],
    public: PublicOption,
    output: Annotated[Path, typer.Option("--out", help="Where to write the client's file and its description.")],
    val: Annotated[Path | None, typer.Option(help="The same, to choose models by.", show_default="none")] = None,
    image_size: ImageSizeOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Pack this site's own images: client-003.npz, which stays here, and client-003.json, which tells of it.

    The description holds no image, but how many there are of each class.

    The coordinator will know that, and so will all sites (docs/privacy.md, "What is not promised").

    \b
    [bold]Examples[/bold]
    fedmosaic site pack --client 3 --train scans/train --test scans/test --classes benign,malignant
      --public public.npz --out shard
    fedmosaic site pack --client 3 --train train.npz --test test.npz --classes 0,1,2 --public public.npz --out shard
    """
    from fedmosaic_cli.data.site_data import load_site_examples
    from fedmosaic_cli.federation.site_package import build_package as packed
    from fedmosaic_cli.federation.site_package import prepare_splits, read_public_set, save_package

    class_names, common = parse_class_names(classes), read_public_set(public)
    paths = {"train": train, "test": test, **({} if val is None else {"val": val})}
    with data_dirs_with_progress(None, quiet or as_json) as place:
        own = {name: load_site_examples(path, class_names, image_size, place) for name, path in paths.items()}
        parts = prepare_splits(own, common)
    remarks = [remark for part in parts.values() for remark in part.warnings]
    print_notes(remarks, ALL_REMARKS_HINT)
    content, description = packed(client, parts, class_names, common)
    file, about = save_package(output, client, content, description)
    if as_json:
        print_json({"file": str(file), "description": str(about), **description, "remarks": remarks})
        return
    print_splits({name: description[name] for name in paths}, class_names)
    print_stdout(f"written to {file}, which stays here: it holds the images")
    print_stdout(
        f"next: send {about} to the coordinator. It holds no image, but these counts, which all sites will know"
    )
    print_stdout(f"then: put the coordinator's manifest.json and public.npz into {output}, and run")
    print_stdout(f"      fedmosaic site init --shard {file}")


def gather(
    descriptions: Annotated[
        list[Path], typer.Argument(metavar="CLIENT.json...", help="What 'fedmosaic site pack' made, one a site.")
    ],
    public: PublicOption,
    output: Annotated[Path, typer.Option("--out", help="Where to write the shards: a new directory.")],
    name: Annotated[str | None, typer.Option(help="What the data is called.", show_default="as the directory")] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Make shards out of what sites say of their own data: manifest.json and public.npz.

    The examples stay with the sites. The manifest is for all of them, and tells how many of each class each has.

    What that gives away: docs/privacy.md, "What is not promised".

    \b
    [bold]Examples[/bold]
    fedmosaic federation gather client-000.json client-001.json --public public.npz --out shards/ours
    fedmosaic federation gather descriptions/*.json --public public.npz --name scans --out shards/scans
    """
    from fedmosaic_cli.config.run_config import require_safe_name
    from fedmosaic_cli.federation.merge_packages import merged_manifest as gathered
    from fedmosaic_cli.federation.merge_packages import save_merged_shards
    from fedmosaic_cli.federation.site_package import read_package, read_public_set

    require_safe_name(output.resolve().name, "--out")
    called = output.resolve().name if name is None else name
    require_safe_name(called, "--name")
    common = read_public_set(public)
    found = {path: read_package(path) for path in descriptions}
    shards = save_merged_shards(output, gathered(found, common, called), common)
    manifest = shards.manifest
    print_notes(manifest["remarks"])
    if as_json:
        print_json(manifest)
        return
    for entry in manifest["clients"]:
        sizes = ", ".join(f"{entry[part]['size']} {part}" for part in ("train", "test", "val") if part in entry)
        print_stdout(f"client {entry['id']}: {sizes}")
    print_stdout(f"public set: {len(common.images)} images, {image_format(common)}")
    print_stdout(f"written to {output} (digest {shards.digest[:12]})")
    print_stdout(f"next: send {output / 'manifest.json'} and {output / 'public.npz'} to every site")
    print_stdout(f"then: fedmosaic train --engine flower --shards {output}")


def parse_class_names(text: str) -> tuple[str, ...]:
    """The classes, two at least and each once."""
    found = parse_names(text, "--classes")
    if len(set(found)) < len(found) or len(found) < 2 or not all(map(str.isprintable, found)):
        raise RequestError(f"cannot tell the classes '{text}' apart (--classes): name two or more, each once")
    return found


def public_set_facts(public_set: PublicSet) -> dict[str, Any]:
    return {"images": len(public_set.images), "image_shape": list(public_set.image_shape), "sha256": public_set.sha256}


def image_format(public_set: PublicSet) -> str:
    height, width, channels = public_set.image_shape
    return f"{width}x{height}, {'grey' if channels == 1 else 'colour'}"


def print_splits(splits: dict[str, Any], class_names: tuple[str, ...]) -> None:
    """How much of what was packed."""
    view = Table("part", "images", "by class", box=None, pad_edge=False)
    for part, described in splits.items():
        counts = zip(class_names, described["class_counts"], strict=True)
        view.add_row(part, str(described["size"]), "  ".join(f"{name}:{count}" for name, count in counts if count))
    stdout_console().print(view)
