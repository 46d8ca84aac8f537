"""Data sets that come as directories of images a domain and class, with lists that say what is for training.

Lists are texts of DomainNet (`clipart/bird/x.jpg 35` a line) or the pickles that FedBN publishes; of a path the last
three parts count. Where there are no lists, a fifth of each domain is set apart for testing, the same for everybody.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil
from typing import TYPE_CHECKING

from fedmosaic_cli.data.io.image_folders import directories, in_classes, to_dataset
from fedmosaic_cli.data.io.safe_pickle import read_pickle
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.seeds import generator

if TYPE_CHECKING:
    from pathlib import Path

    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.datasets.dataset_source import Wanted
    from fedmosaic_cli.data.io.image_folders import ImageFile

TEST_SHARE = 0.2
# The split is the data set's: it must not depend on the user's seed.
SEED = 0


def find_domains(folders: tuple[Path, ...], domains: tuple[str, ...]) -> Path | None:
    """The first of `folders` that holds a directory called like one of the domains."""
    return next((folder for folder in folders if any((folder / name).is_dir() for name in domains)), None)


@dataclass(frozen=True)
class Catalogue:
    """A data set's domains and classes, and other names under which a class is found on disks and in lists."""

    name: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    aliases: dict[str, str] = field(default_factory=dict)

    def own_name(self, path: str) -> str:
        """`domain/class/file` of any path to a file, with our name for the class."""
        domain, label, file = ["", "", *path.replace("\\", "/").split("/")][-3:]
        return f"{domain}/{self.aliases.get(label, label)}/{file}"


def load_domains(catalogue: Catalogue, root: Path, wanted: Wanted) -> Dataset:
    """The images of the wanted domains, each domain in the order of its lists, training part first."""
    name, chosen = catalogue.name, wanted.domains or catalogue.domains
    missing = [domain for domain in chosen if not (root / domain).is_dir()]
    if missing:
        there = [domain for domain in chosen if domain not in missing]
        raise RequestError(
            f"domain '{missing[0]}' of {name} is not here ({root}): put it there, or go without: "
            f"--domains {','.join(there)}, in training --set data.domains=[{','.join(there)}]"
        )
    files, without_lists = [], []
    for domain in chosen:
        held = images_of(catalogue, root, domain)
        listed = {part: read_list(catalogue, root, domain, part) for part in ("train", "test")}
        if all(names is not None for names in listed.values()):
            files += in_list_order(catalogue, held, {part: names or [] for part, names in listed.items()}, root)
        else:
            without_lists.append(domain)
            files += set_apart(held, name, domain)
    dataset = to_dataset(name, root, files, wanted, catalogue.classes, chosen)
    if without_lists:
        remark = f"no lists for {', '.join(without_lists)}: {TEST_SHARE:.0%} of each was set apart for testing"
        origin = "a fixed fifth of each domain, set apart for lack of lists"
        dataset = replace(dataset, remarks=(*dataset.remarks, remark), test_origin=origin)
    return dataset


def images_of(catalogue: Catalogue, root: Path, domain: str) -> list[ImageFile]:
    """What lies in the directories of our classes, under our names for them."""
    there = {catalogue.aliases.get(name, name): name for name in directories(root, domain)}
    missing = [name for name in catalogue.classes if name not in there]
    if missing:
        raise RequestError(f"no class '{missing[0]}' in domain '{domain}' ({root / domain}): put it there")
    files = in_classes(root, [f"{domain}/{there[name]}" for name in catalogue.classes], domain, "")
    return [file._replace(label=catalogue.aliases.get(file.label, file.label)) for file in files]


def read_list(catalogue: Catalogue, root: Path, domain: str, part: str) -> list[str] | None:
    """Our name of every file in a list, or None where there is no list."""
    for folder in (root, root / "splits", root / "txt"):
        text, pickled = folder / f"{domain}_{part}.txt", folder / f"{domain}_{part}.pkl"
        if text.is_file():
            lines = text.read_text(encoding="utf-8-sig", errors="replace").splitlines()
            names = [catalogue.own_name(line.rsplit(maxsplit=1)[0]) for line in lines if line.strip()]
            # These run class by class; the first of them must not be of one class.
            order = generator(SEED, catalogue.name, "list", domain, part).permutation(len(names))
            return [names[position] for position in order]
        if pickled.is_file():
            return [catalogue.own_name(path) for path in pickled_paths(pickled)]
    return None


def pickled_paths(path: Path) -> list[str]:
    """The paths in one of FedBN's lists, which are a pair of paths and labels."""
    content = read_pickle(path)
    try:
        return [name.decode() if isinstance(name, bytes) else str(name) for name in content[0]]
    except (TypeError, KeyError, IndexError, UnicodeDecodeError):
        raise RequestError(f"not a list of paths and labels ({path}): fetch it anew") from None


def in_list_order(
    catalogue: Catalogue, held: list[ImageFile], lists: dict[str, list[str]], root: Path
) -> list[ImageFile]:
    """The listed files of our classes. A file that is listed twice, or is not there, is an error."""
    by_name = {catalogue.own_name(file.name): file for file in held}
    listed = [(name, part) for part, names in lists.items() for name in names if in_classes_of(catalogue, name)]
    lost = [name for name, _ in listed if name not in by_name]
    if lost:
        raise RequestError(f"{len(lost)} listed images are not there, the first is {lost[0]} ({root}): fetch them")
    if len({name for name, _ in listed}) < len(listed):
        raise RequestError(f"the lists of '{held[0].domain}' name an image twice ({root}): fetch them anew")
    return [by_name[name]._replace(part=part) for name, part in listed]


def in_classes_of(catalogue: Catalogue, name: str) -> bool:
    return name.split("/")[1] in catalogue.classes


def set_apart(held: list[ImageFile], name: str, domain: str) -> list[ImageFile]:
    """A fixed draw of a fifth for testing, in a fixed order, as published lists are."""
    order = generator(SEED, name, "split", domain).permutation(len(held))
    shuffled = [held[position] for position in order]
    tests = ceil(len(held) * TEST_SHARE)
    return [
        *(file._replace(part="train") for file in shuffled[tests:]),
        *(file._replace(part="test") for file in shuffled[:tests]),
    ]
