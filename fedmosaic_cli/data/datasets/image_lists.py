"""Data sets that come as directories of images a domain and class, with lists that say what is for training.

Lists are texts of DomainNet (`clipart/bird/x.jpg 35` a line) or the pickles that FedBN publishes; of a path the last
three parts count. Where there are no lists, a fifth of each domain is set apart for testing, the same for everybody.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil
from typing import TYPE_CHECKING

from fedmosaic_cli.data.io.image_folders import dataset_from_files, list_class_images, list_subdirectories
from fedmosaic_cli.data.io.safe_pickle import read_safe_pickle
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.seeds import derive_rng

if TYPE_CHECKING:
    from pathlib import Path

    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.datasets.dataset_source import LoadOptions
    from fedmosaic_cli.data.io.image_folders import ImageFile

TEST_FRACTION = 0.2
# The split is the data set's: it must not depend on the user's seed.
SPLIT_SEED = 0


def find_domain_root(folders: tuple[Path, ...], domains: tuple[str, ...]) -> Path | None:
    """The first of `folders` that holds a directory called like one of the domains."""
    return next((folder for folder in folders if any((folder / name).is_dir() for name in domains)), None)


@dataclass(frozen=True)
class DomainLayout:
    """A data set's domains and classes, and other names under which a class is found on disks and in lists."""

    name: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    aliases: dict[str, str] = field(default_factory=dict)

    def canonical_path(self, path: str) -> str:
        """`domain/class/file` of any path to a file, with our name for the class."""
        domain, label, file = ["", "", *path.replace("\\", "/").split("/")][-3:]
        return f"{domain}/{self.aliases.get(label, label)}/{file}"


def load_domain_dataset(layout: DomainLayout, root: Path, options: LoadOptions) -> Dataset:
    """The images of the wanted domains, each domain in the order of its lists, training part first."""
    name, chosen = layout.name, options.domains or layout.domains
    missing = [domain for domain in chosen if not (root / domain).is_dir()]
    if missing:
        there = [domain for domain in chosen if domain not in missing]
        raise RequestError(
            f"domain '{missing[0]}' of {name} is not here ({root}): put it there, or go without: "
            f"--domains {','.join(there)}, in training --set data.domains=[{','.join(there)}]"
        )
    files, without_lists = [], []
    for domain in chosen:
        held = list_domain_images(layout, root, domain)
        listed = {part: read_image_list(layout, root, domain, part) for part in ("train", "test")}
        if all(names is not None for names in listed.values()):
            files += order_by_lists(layout, held, {part: names or [] for part, names in listed.items()}, root)
        else:
            without_lists.append(domain)
            files += assign_default_split(held, name, domain)
    dataset = dataset_from_files(name, root, files, options, layout.classes, chosen)
    if without_lists:
        remark = f"no lists for {', '.join(without_lists)}: {TEST_FRACTION:.0%} of each was set apart for testing"
        origin = "a fixed fifth of each domain, set apart for lack of lists"
        dataset = replace(dataset, warnings=(*dataset.warnings, remark), test_set_description=origin)
    return dataset


def list_domain_images(layout: DomainLayout, root: Path, domain: str) -> list[ImageFile]:
    """What lies in the directories of our classes, under our names for them."""
    there = {layout.aliases.get(name, name): name for name in list_subdirectories(root, domain)}
    missing = [name for name in layout.classes if name not in there]
    if missing:
        raise RequestError(f"no class '{missing[0]}' in domain '{domain}' ({root / domain}): put it there")
    files = list_class_images(root, [f"{domain}/{there[name]}" for name in layout.classes], domain, "")
    return [file._replace(label=layout.aliases.get(file.label, file.label)) for file in files]


def read_image_list(layout: DomainLayout, root: Path, domain: str, split: str) -> list[str] | None:
    """Our name of every file in a list, or None where there is no list."""
    for folder in (root, root / "splits", root / "txt"):
        text, pickled = folder / f"{domain}_{split}.txt", folder / f"{domain}_{split}.pkl"
        if text.is_file():
            lines = text.read_text(encoding="utf-8-sig", errors="replace").splitlines()
            names = [layout.canonical_path(line.rsplit(maxsplit=1)[0]) for line in lines if line.strip()]
            # These run class by class; the first of them must not be of one class.
            order = derive_rng(SPLIT_SEED, layout.name, "list", domain, split).permutation(len(names))
            return [names[position] for position in order]
        if pickled.is_file():
            return [layout.canonical_path(path) for path in read_pickled_paths(pickled)]
    return None


def read_pickled_paths(path: Path) -> list[str]:
    """The paths in one of FedBN's lists, which are a pair of paths and labels."""
    content = read_safe_pickle(path)
    try:
        return [name.decode() if isinstance(name, bytes) else str(name) for name in content[0]]
    except (TypeError, KeyError, IndexError, UnicodeDecodeError):
        raise RequestError(f"not a list of paths and labels ({path}): fetch it anew") from None


def order_by_lists(
    layout: DomainLayout, files: list[ImageFile], lists: dict[str, list[str]], root: Path
) -> list[ImageFile]:
    """The listed files of our classes. A file that is listed twice, or is not there, is an error."""
    by_name = {layout.canonical_path(file.relative_path): file for file in files}
    listed = [(name, part) for part, names in lists.items() for name in names if has_known_class(layout, name)]
    lost = [name for name, _ in listed if name not in by_name]
    if lost:
        raise RequestError(f"{len(lost)} listed images are not there, the first is {lost[0]} ({root}): fetch them")
    if len({name for name, _ in listed}) < len(listed):
        raise RequestError(f"the lists of '{files[0].domain}' name an image twice ({root}): fetch them anew")
    return [by_name[name]._replace(split=part) for name, part in listed]


def has_known_class(layout: DomainLayout, path: str) -> bool:
    return path.split("/")[1] in layout.classes


def assign_default_split(files: list[ImageFile], dataset_name: str, domain: str) -> list[ImageFile]:
    """A fixed draw of a fifth for testing, in a fixed order, as published lists are."""
    order = derive_rng(SPLIT_SEED, dataset_name, "split", domain).permutation(len(files))
    shuffled = [files[position] for position in order]
    tests = ceil(len(files) * TEST_FRACTION)
    return [
        *(file._replace(split="train") for file in shuffled[tests:]),
        *(file._replace(split="test") for file in shuffled[:tests]),
    ]
