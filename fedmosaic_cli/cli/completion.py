"""Shell completion of names and configuration keys. Imports no torch, so that the shell does not wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

if TYPE_CHECKING:
    from collections.abc import Iterable


def complete_preset(incomplete: str) -> list[str]:
    """Return the presets that start with the word."""
    from fedmosaic_cli.config.presets import preset_names

    return matching(preset_names(), incomplete)


def complete_method(incomplete: str) -> list[str]:
    """Return the methods that start with the word."""
    from fedmosaic_cli.methods.registry import METHODS

    return matching(METHODS, incomplete)


def complete_baseline(incomplete: str) -> list[str]:
    """Return what `fedmosaic baseline` accepts: methods, or `all`."""
    return matching(["all", *complete_method("")], incomplete)


def complete_method_list(incomplete: str) -> list[str]:
    """Return the methods that may follow the last comma."""
    start, comma, last = incomplete.rpartition(",")
    return [f"{start}{comma}{name}" for name in complete_method(last)]


def complete_model(incomplete: str) -> list[str]:
    """Return the models that start with the word."""
    from fedmosaic_cli.plugins import built_in_models

    return matching(built_in_models(), incomplete)


def complete_dataset(incomplete: str) -> list[str]:
    """Return the data sets that start with the word."""
    from fedmosaic_cli.data.datasets import DATASETS

    return matching(DATASETS, incomplete)


def complete_download(incomplete: str) -> list[str]:
    """Return the data sets that can be downloaded."""
    from fedmosaic_cli.data.datasets import DATASETS

    return matching((name for name, source in DATASETS.items() if source.downloads), incomplete)


def complete_scheme(incomplete: str) -> list[str]:
    """Return the partition schemes that start with the word."""
    from fedmosaic_cli.data.data_settings import PartitionScheme

    return matching(get_args(PartitionScheme), incomplete)


def complete_expertise(incomplete: str) -> list[str]:
    """Return the rules of expertise that start with the word."""
    from fedmosaic_cli.methods.fedmosaic import ExpertiseName

    return matching(get_args(ExpertiseName), incomplete)


def complete_study(incomplete: str) -> list[str]:
    """Return the studies of `fedmosaic reproduce`."""
    from fedmosaic_cli.sweeps.studies import STUDIES

    return matching(STUDIES, incomplete)


def complete_assignment(incomplete: str) -> list[str]:
    """Return the configuration keys that start with the word, each followed by `=`."""
    from fedmosaic_cli.config.key_names import display_key
    from fedmosaic_cli.config.layers import CONFIG_SECTIONS, field_names
    from fedmosaic_cli.methods.registry import METHODS

    sections = {**CONFIG_SECTIONS, **{f"methods.{name}": method for name, method in METHODS.items()}}
    keys = (f"{section}.{name}" for section, kind in sections.items() for name in field_names(kind))
    return matching((f"{display_key(key)}=" for key in keys), incomplete)


def matching(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
