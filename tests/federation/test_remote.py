"""A run with clients at sites equals the run with clients in one process, bit by bit."""

from __future__ import annotations

import pytest

from fedmosaic_cli.methods.registry import METHODS
from tests.federation.sites import Sites, export_shards, make_config, run

FEDERATED_METHODS = [name for name, method in METHODS.items() if not method.is_centralized]


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return export_shards(tmp_path_factory.mktemp("shards"))


@pytest.mark.parametrize("method", FEDERATED_METHODS)
def test_a_run_with_sites_equals_the_local_run(method, shards, tmp_path):
    config = make_config(shards, method, tmp_path)
    local = run(config, shards, tmp_path / "local")
    remote = run(config, shards, tmp_path / "remote", Sites(shards, tmp_path))
    assert (remote.path / "rounds.jsonl").read_bytes() == (local.path / "rounds.jsonl").read_bytes()
    local_summary, remote_summary = local.read_summary(), remote.read_summary()
    assert remote_summary["models"] == local_summary["models"]
    assert remote_summary.pop("lost") == {}
    assert remote_summary.pop("federation") == {"engine": "test", "sites": 3, "models": "at the sites"}
    assert remote_summary == local_summary
