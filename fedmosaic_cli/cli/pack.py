"""`fedmosaic federation public`, `site pack` and `federation gather`: shards of data that nobody else may see."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedmosaic_cli.cli.common_options import DebugOption, JsonOption, QuietOption, names
from fedmosaic_cli.cli.console import notes, out, say, say_json
from fedmosaic_cli.cli.data_dir_options import data_place
from fedmosaic_cli.data.data_settings import MOST_CLIENTS
from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from fedmosaic_cli.federation.site_package import PublicSet

ImageSizeOption = Annotated[
    int | None,
    typer.Option(min=1, max=4096, help="Side that images are brought to.", show_default="as they are, if all alike"),
]
PublicOption = Annotated[Path, typer.Option(help="The file of 'fedmosaic federation public', the same for all sites.")]
ALL_NOTES = "--json tells all"


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
    from fedmosaic_cli.data.site_data import own_images
    from fedmosaic_cli.federation.site_package import public_set, write_new

    with data_place(None, quiet or as_json) as place:
        pixels, remarks = own_images(images, image_size, place)
        made = public_set(pixels)
    notes(remarks, ALL_NOTES)
    write_new({output: made.content})
    if as_json:
        say_json({"public": str(output), **facts(made), "remarks": remarks})
        return
    say(f"{len(made.images)} images, {kind_of(made)}, written to {output} (sha256 {made.sha256[:12]})")
    say(f"next: send {output} to every site, for 'fedmosaic site pack --public {output.name}'")


def pack(
    client: Annotated[int, typer.Option(min=0, max=MOST_CLIENTS - 1, help="The number of this site: 0, 1, 2, ...")],
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
    from fedmosaic_cli.data.site_data import own_examples
    from fedmosaic_cli.federation.site_package import pack as packed
    from fedmosaic_cli.federation.site_package import prepared, read_public, save_packed

    class_names, common = class_list(classes), read_public(public)
    paths = {"train": train, "test": test, **({} if val is None else {"val": val})}
    with data_place(None, quiet or as_json) as place:
        own = {name: own_examples(path, class_names, image_size, place) for name, path in paths.items()}
        parts = prepared(own, common)
    remarks = [remark for part in parts.values() for remark in part.remarks]
    notes(remarks, ALL_NOTES)
    content, description = packed(client, parts, class_names, common)
    file, about = save_packed(output, client, content, description)
    if as_json:
        say_json({"file": str(file), "description": str(about), **description, "remarks": remarks})
        return
    show_parts({name: description[name] for name in paths}, class_names)
    say(f"written to {file}, which stays here: it holds the images")
    say(f"next: send {about} to the coordinator. It holds no image, but these counts, which all sites will know")
    say(f"then: put the coordinator's manifest.json and public.npz into {output}, and run")
    say(f"      fedmosaic site init --shard {file}")


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
    from fedmosaic_cli.config.run_config import check_name
    from fedmosaic_cli.federation.merge_packages import gather as gathered
    from fedmosaic_cli.federation.merge_packages import save_gathered
    from fedmosaic_cli.federation.site_package import read_packed, read_public

    check_name(output.resolve().name, "--out")
    called = output.resolve().name if name is None else name
    check_name(called, "--name")
    common = read_public(public)
    found = {path: read_packed(path) for path in descriptions}
    shards = save_gathered(output, gathered(found, common, called), common)
    manifest = shards.manifest
    notes(manifest["remarks"])
    if as_json:
        say_json(manifest)
        return
    for entry in manifest["clients"]:
        sizes = ", ".join(f"{entry[part]['size']} {part}" for part in ("train", "test", "val") if part in entry)
        say(f"client {entry['id']}: {sizes}")
    say(f"public set: {len(common.images)} images, {kind_of(common)}")
    say(f"written to {output} (digest {shards.digest[:12]})")
    say(f"next: send {output / 'manifest.json'} and {output / 'public.npz'} to every site")
    say(f"then: fedmosaic train --engine flower --shards {output}")


def class_list(text: str) -> tuple[str, ...]:
    """The classes, two at least and each once."""
    found = names(text, "--classes")
    if len(set(found)) < len(found) or len(found) < 2 or not all(map(str.isprintable, found)):
        raise RequestError(f"cannot tell the classes '{text}' apart (--classes): name two or more, each once")
    return found


def facts(made: PublicSet) -> dict[str, Any]:
    return {"images": len(made.images), "image_shape": list(made.shape), "sha256": made.sha256}


def kind_of(made: PublicSet) -> str:
    height, width, channels = made.shape
    return f"{width}x{height}, {'grey' if channels == 1 else 'colour'}"


def show_parts(parts: dict[str, Any], class_names: tuple[str, ...]) -> None:
    """How much of what was packed."""
    view = Table("part", "images", "by class", box=None, pad_edge=False)
    for part, described in parts.items():
        counts = zip(class_names, described["class_counts"], strict=True)
        view.add_row(part, str(described["size"]), "  ".join(f"{name}:{count}" for name, count in counts if count))
    out().print(view)
