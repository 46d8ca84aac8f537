"""Data sets that come as directories of images a domain and class, with lists that say what is for training.

Lists are texts of DomainNet (`clipart/bird/x.jpg 35` a line) or the pickles that FedBN publishes; of a path the last
three parts count. Where there are no lists, a fifth of each domain is set apart for testing, the same for everybody.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

from fedmosaic_cli.data.folders import directories, in_classes, to_dataset
from fedmosaic_cli.data.plain_pickle import read_pickle
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.seeds import generator

if TYPE_CHECKING:
    from pathlib import Path

    from fedmosaic_cli.data.dataset import Dataset
    from fedmosaic_cli.data.folders import ImageFile
    from fedmosaic_cli.data.sources.source import Wanted

TEST_SHARE = 0.2
# The split is the data set's: it must not depend on the user's seed.
SEED = 0


def find_domains(folders: tuple[Path, ...], domains: tuple[str, ...]) -> Path | None:
    """The first of `folders` that holds a directory called like one of the domains."""
    return next((folder for folder in folders if any((folder / name).is_dir() for name in domains)), None)


def load_domains(name: str, root: Path, domains: tuple[str, ...], classes: tuple[str, ...], wanted: Wanted) -> Dataset:
    """The images of the given domains and classes, each domain in the order of its lists, training part first."""
    chosen = wanted.domains or domains
    missing = [domain for domain in chosen if not (root / domain).is_dir()]
    if missing:
        there = [domain for domain in chosen if domain not in missing]
        raise RequestError(
            f"domain '{missing[0]}' of {name} is not here ({root}): put it there, or go without: "
            f"--domains {','.join(there)}, in training --set data.domains=[{','.join(there)}]"
        )
    files, without_lists = [], []
    for domain in chosen:
        held = images_of(root, domain, classes)
        listed = {part: read_list(root, domain, part) for part in ("train", "test")}
        if all(names is not None for names in listed.values()):
            files += [file for part, names in listed.items() for file in in_list_order(held, names or [], part, root)]
        else:
            without_lists.append(domain)
            files += set_apart(held, name, domain)
    dataset = to_dataset(name, root, files, wanted.image_size, wanted.place, classes, chosen)
    if without_lists:
        remark = f"no lists for {', '.join(without_lists)}: {TEST_SHARE:.0%} of each was set apart for testing"
        dataset = replace(dataset, remarks=(*dataset.remarks, remark))
    return dataset


def images_of(root: Path, domain: str, classes: tuple[str, ...]) -> list[ImageFile]:
    """What lies in the directories of the given classes."""
    there = set(directories(root, domain))
    missing = [name for name in classes if name not in there]
    if missing:
        raise RequestError(f"no class '{missing[0]}' in domain '{domain}' ({root / domain}): put it there")
    return in_classes(root, [f"{domain}/{name}" for name in classes], domain, "")


def read_list(root: Path, domain: str, part: str) -> list[str] | None:
    """`domain/class/file` for every line of a list, or None where there is no list."""
    for folder in (root, root / "splits", root / "txt"):
        text, pickled = folder / f"{domain}_{part}.txt", folder / f"{domain}_{part}.pkl"
        if text.is_file():
            lines = text.read_text(encoding="utf-8", errors="replace").splitlines()
            return ["/".join(line.rsplit(maxsplit=1)[0].split("/")[-3:]) for line in lines if line.strip()]
        if pickled.is_file():
            return pickled_list(pickled)
    return None


def pickled_list(path: Path) -> list[str]:
    """FedBN's lists: a pair of paths and labels."""
    content = read_pickle(path)
    try:
        paths = [p.decode() if isinstance(p, bytes) else str(p) for p in content[0]]
    except (TypeError, KeyError, IndexError, UnicodeDecodeError):
        raise RequestError(f"not a list of paths and labels ({path}): fetch it anew") from None
    return ["/".join(name.replace("\\", "/").split("/")[-3:]) for name in paths]


def in_list_order(held: list[ImageFile], names: list[str], part: str, root: Path) -> list[ImageFile]:
    """The listed files of our classes. A listed file that is not there is an error."""
    by_name = {file.name: file for file in held}
    ours = {file.name.rsplit("/", 1)[0] for file in held}
    listed = [name for name in names if name.rsplit("/", 1)[0] in ours]
    lost = [name for name in listed if name not in by_name]
    if lost:
        raise RequestError(f"{len(lost)} listed images are not there, the first is {lost[0]} ({root}): fetch them")
    return [by_name[name]._replace(part=part) for name in listed]


def set_apart(held: list[ImageFile], name: str, domain: str) -> list[ImageFile]:
    """A fixed draw of a fifth for testing, in a fixed order, as published lists are."""
    order = generator(SEED, name, "split", domain).permutation(len(held))
    shuffled = [held[position] for position in order]
    tests = ceil(len(held) * TEST_SHARE)
    return [
        *(file._replace(part="train") for file in shuffled[tests:]),
        *(file._replace(part="test") for file in shuffled[:tests]),
    ]
