"""Files of sites, exported shards and packages are for one user; ordinary runs keep the user's umask."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.federation import site_package
from fedmosaic_cli.federation.site_dir import SiteFiles, SiteSettings
from fedmosaic_cli.runner.prepare import load_and_partition, write_partition_plots
from tests.federation.sites import Sites, export_shards, make_config, run


@pytest.fixture(autouse=True)
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> set[tuple[str, int]]:
    """Return kinds and modes of a directory and of everything in it."""
    paths = (folder, *folder.rglob("*"))
    return {("directory" if path.is_dir() else "file", path.stat().st_mode & 0o777) for path in paths}


PRIVATE = {("directory", 0o700), ("file", 0o600)}
ORDINARY = {("directory", 0o755), ("file", 0o644)}


def test_exported_shards_are_private_and_others_are_not(tmp_path):
    data = DataSettings(scheme="iid", clients=2, public_size=30)
    partition = load_and_partition(data, 0, tmp_path / "parent" / "exported", DataDirs(tmp_path))
    exported = partition.save(export=True)
    write_partition_plots(exported)
    assert modes(exported.path) == PRIVATE
    assert (tmp_path / "parent").stat().st_mode & 0o777 == 0o755
    partition = load_and_partition(data, 0, tmp_path / "indices", DataDirs(tmp_path))
    assert modes(partition.save().path) == ORDINARY


def test_everything_that_a_site_writes_is_private_and_the_run_is_not(tmp_path):
    shards = export_shards(tmp_path)
    sites = Sites(shards, tmp_path)
    files = run(make_config(shards, "fedmosaic", tmp_path, "train.rounds=1"), shards, tmp_path / "run", sites)
    for client in sites.sites:
        folder = tmp_path / f"site-{client}"
        assert modes(folder) == PRIVATE
        names = {path.name for path in folder.rglob("*")}
        assert {"plan.json", "state.safetensors", f"client-{client:03d}.safetensors"} <= names
    assert modes(files.path) == ORDINARY


def test_settings_and_status_of_a_site_are_private(tmp_path):
    (tmp_path / "site").mkdir(mode=0o700)
    files = SiteFiles(tmp_path / "site")
    files.save_settings(SiteSettings(shard="client-000.npz"))
    files.save_status({"connection": "connected"})
    assert modes(files.path) == PRIVATE


def test_packages_are_private(tmp_path):
    site_package.save_package(tmp_path / "parent" / "pack", 0, b"images", {"client": 0})
    assert modes(tmp_path / "parent" / "pack") == PRIVATE
    assert (tmp_path / "parent").stat().st_mode & 0o777 == 0o755
