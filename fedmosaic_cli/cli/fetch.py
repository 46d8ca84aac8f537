"""`fedmosaic fetch`."""

from __future__ import annotations

from typing import Annotated

import typer

from fedmosaic_cli.cli.common_options import DataDirOption, DebugOption, QuietOption
from fedmosaic_cli.cli.completion import complete_download
from fedmosaic_cli.cli.console import print_stdout
from fedmosaic_cli.cli.data_dir_options import data_dirs_with_progress
from fedmosaic_cli.errors import RequestError


def fetch(
    datasets: Annotated[
        list[str],
        typer.Argument(
            metavar="DATASET", help="E.g. mnist cifar100 tiny-imagenet domainnet.", autocompletion=complete_download
        ),
    ],
    data_dir: DataDirOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Download data sets, checked by size and SHA-256; an interrupted download is resumed.

    'train' and 'partition' download data sets below 1 GB themselves, so this is needed for DomainNet (18 GB) only, or
    before a machine goes offline.

    \b
    [bold]Example[/bold]
    fedmosaic fetch cifar10 domainnet --data-dir ~/data
    """
    from fedmosaic_cli.data.datasets import find_dataset_source
    from fedmosaic_cli.data.io.download import download_files

    sources = {name: find_dataset_source(name) for name in datasets}
    for name, source in sources.items():
        if not source.downloads:
            raise RequestError(f"'{name}' cannot be downloaded (fedmosaic fetch): {source.setup_hint}")
    with data_dirs_with_progress(data_dir, quiet) as data_dirs:
        for name, source in sources.items():
            # Some domains may be missing; existing files are not downloaded again.
            if source.domains or source.find(data_dirs.data_dir) is None:
                download_files(source.downloads, data_dirs)
            print_stdout(f"{name}: {source.find(data_dirs.data_dir)}")
