"""With clients at sites a run is the same as with clients in one process: in every round, and to the last bit."""

from __future__ import annotations

import pytest

from fedmosaic_cli.methods.registry import METHODS
from tests.federation.sites import Sites, configured, exported, play

PLAYED_BY_SITES = [name for name, method in METHODS.items() if not method.is_centralized]


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("shards"))


@pytest.mark.parametrize("method", PLAYED_BY_SITES)
def test_a_run_with_sites_is_the_run_in_one_process(method, shards, tmp_path):
    config = configured(shards, method, tmp_path)
    here = play(config, shards, tmp_path / "here")
    there = play(config, shards, tmp_path / "there", Sites(shards, tmp_path))
    assert (there.path / "rounds.jsonl").read_bytes() == (here.path / "rounds.jsonl").read_bytes()
    ours, theirs = here.read_summary(), there.read_summary()
    assert theirs["models"] == ours["models"]
    assert theirs.pop("lost") == {}
    assert theirs.pop("federation") == {"engine": "test", "sites": 3, "models": "at the sites"}
    assert theirs == ours
