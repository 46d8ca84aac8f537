"""Data sets stored as `<domain>/<class>/*.jpg` with lists of training and test images.

Lists are text files as in DomainNet (one `clipart/bird/x.jpg 35` per line) or the pickles of FedBN. Only the last three
parts of a path are used. Without lists a fixed fifth of each domain becomes the test split.
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
# The split belongs to the data set and must not depend on the user's seed.
SPLIT_SEED = 0


@dataclass(frozen=True)
class DomainLayout:
    """Directories, domains and classes of a data set, and other names of classes on disks and in lists."""

    name: str
    directories: tuple[str, ...]
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    aliases: dict[str, str] = field(default_factory=dict)

    def find(self, data_dir: Path) -> Path | None:
        """Return the first directory that contains a domain."""
        roots = (data_dir / directory for directory in self.directories)
        return next((root for root in roots if any((root / domain).is_dir() for domain in self.domains)), None)

    def load(self, root: Path, options: LoadOptions) -> Dataset:
        """Load the requested domains, each in the order of its lists with the training split first."""
        chosen = options.domains or self.domains
        missing = [domain for domain in chosen if not (root / domain).is_dir()]
        if missing:
            present = ",".join(domain for domain in chosen if domain not in missing)
            raise RequestError(
                f"domain '{missing[0]}' of {self.name} not found ({root}): add it, or omit it with "
                f"--domains {present}, for training --set data.domains=[{present}]"
            )
        files, without_lists = [], []
        for domain in chosen:
            images = self._list_domain_images(root, domain)
            lists = {split: self._read_list(root, domain, split) for split in ("train", "test")}
            if all(names is not None for names in lists.values()):
                files += self._order_by_lists(images, {split: names or [] for split, names in lists.items()}, root)
            else:
                without_lists.append(domain)
                files += assign_default_split(images, self.name, domain)
        dataset = dataset_from_files(self.name, root, files, options, self.classes, chosen)
        if without_lists:  # both texts are stored in shard manifests and must not change
            warning = f"no lists for {', '.join(without_lists)}: {TEST_FRACTION:.0%} of each was set apart for testing"
            origin = "a fixed fifth of each domain, set apart for lack of lists"
            dataset = replace(dataset, warnings=(*dataset.warnings, warning), test_set_description=origin)
        return dataset

    def _canonical_path(self, path: str) -> str:
        """Return `domain/class/file` with the canonical class name."""
        domain, label, file = ["", "", *path.replace("\\", "/").split("/")][-3:]
        return f"{domain}/{self.aliases.get(label, label)}/{file}"

    def _list_domain_images(self, root: Path, domain: str) -> list[ImageFile]:
        """Return the images of all classes with canonical labels."""
        directories = {self.aliases.get(name, name): name for name in list_subdirectories(root, domain)}
        missing = [name for name in self.classes if name not in directories]
        if missing:
            raise RequestError(f"class '{missing[0]}' of domain '{domain}' not found ({root / domain}): add it")
        files = list_class_images(root, [f"{domain}/{directories[name]}" for name in self.classes], domain, "")
        return [file._replace(label=self.aliases.get(file.label, file.label)) for file in files]

    def _read_list(self, root: Path, domain: str, split: str) -> list[str] | None:
        """Return the canonical paths in a list, or None if there is no list."""
        for folder in (root, root / "splits", root / "txt"):
            text, pickled = folder / f"{domain}_{split}.txt", folder / f"{domain}_{split}.pkl"
            if text.is_file():
                lines = text.read_text(encoding="utf-8-sig", errors="replace").splitlines()
                names = [self._canonical_path(line.rsplit(maxsplit=1)[0]) for line in lines if line.strip()]
                # Shuffled because these lists are sorted by class.
                order = derive_rng(SPLIT_SEED, self.name, "list", domain, split).permutation(len(names))
                return [names[position] for position in order]
            if pickled.is_file():
                return [self._canonical_path(path) for path in read_pickled_paths(pickled)]
        return None

    def _order_by_lists(self, files: list[ImageFile], lists: dict[str, list[str]], root: Path) -> list[ImageFile]:
        """Return the listed files of known classes in the order of the lists."""
        by_name = {self._canonical_path(file.relative_path): file for file in files}
        listed = [
            (name, split) for split, names in lists.items() for name in names if name.split("/")[1] in self.classes
        ]
        lost = [name for name, _ in listed if name not in by_name]
        if lost:
            raise RequestError(f"{len(lost)} listed images not found, the first is {lost[0]} ({root}): add them")
        if len({name for name, _ in listed}) < len(listed):
            raise RequestError(f"the lists of '{files[0].domain}' contain an image twice ({root}): download them again")
        return [by_name[name]._replace(split=split) for name, split in listed]


def read_pickled_paths(path: Path) -> list[str]:
    """Read the paths of a FedBN list, which is a pickled pair of paths and labels."""
    content = read_safe_pickle(path)
    try:
        return [name.decode() if isinstance(name, bytes) else str(name) for name in content[0]]
    except (TypeError, KeyError, IndexError, UnicodeDecodeError):
        raise RequestError(f"not a list of paths and labels ({path}): download it again") from None


def assign_default_split(files: list[ImageFile], dataset_name: str, domain: str) -> list[ImageFile]:
    """Assign a fixed random fifth to the test split, training files first."""
    order = derive_rng(SPLIT_SEED, dataset_name, "split", domain).permutation(len(files))
    shuffled = [files[position] for position in order]
    num_tests = ceil(len(files) * TEST_FRACTION)
    return [
        *(file._replace(split="train") for file in shuffled[num_tests:]),
        *(file._replace(split="test") for file in shuffled[:num_tests]),
    ]
