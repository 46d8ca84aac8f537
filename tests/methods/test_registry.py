"""The registry: adding a method changes neither the paper's tables nor its studies; old configurations still load."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedmosaic_cli.methods.fedmosaic import FedMosaic
from fedmosaic_cli.methods.gated import ExtendedFedMosaic, GatedCoTraining
from fedmosaic_cli.methods.registry import (
    BASELINES,
    METHODS,
    PAPER_METHODS,
    method_schema,
    recorded_hyperparameters,
    simplified_method,
)

ROWS = """
import sys
if sys.argv[1:] == ["with-a-new-method"]:
    from dataclasses import replace
    from fedmosaic_cli.methods import registry
    from fedmosaic_cli.methods.fedavg import FedAvg

    class NewMethod(FedAvg):
        info = replace(FedAvg.info, name="new-method", title="New method")

    registry.METHODS["new-method"] = NewMethod
from fedmosaic_cli.report.paper_tables import PAPER_TABLES
from fedmosaic_cli.sweeps.studies import STUDIES
print(PAPER_TABLES)
print(STUDIES)
"""


def test_paper_methods_are_listed_explicitly():
    assert set(PAPER_METHODS) <= METHODS.keys()
    assert (*BASELINES, "fedmosaic") == PAPER_METHODS


def test_adding_a_method_changes_no_table_and_no_study(tmp_path):
    def rows(*arguments: str) -> str:
        command = [sys.executable, "-c", ROWS, *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert "fedavg" in rows()
    assert rows("with-a-new-method") == rows()


def test_fedmosaic_without_extensions_is_the_papers_method():
    method = simplified_method(ExtendedFedMosaic(trust="stabilised", expertise="entropy", warmup_rounds=3))
    assert type(method) is FedMosaic
    assert method == FedMosaic(trust="stabilised", expertise="entropy", warmup_rounds=3)


@pytest.mark.parametrize(
    "options",
    [
        {"trust": "gated"},
        {"trust": "agreement"},
        {"votes_from": "shadow"},
        {"warmup_share": 0.2},
        {"public_loss": "prior-adjusted"},
    ],
)
def test_options_of_version_0_1_0_keep_the_extended_method(options):
    method = ExtendedFedMosaic(**options)
    assert simplified_method(method) is method
    assert method.info.name == "fedmosaic"
    assert method.variant == "fedmosaic-frequency"


def test_config_files_keep_the_keys_of_version_0_1_0():
    plain = ["warmup_rounds", "expertise", "trust", "expertise_bits", "warmup_share", "public_loss", "votes_from"]
    assert list(recorded_hyperparameters(FedMosaic())) == plain
    assert list(recorded_hyperparameters(ExtendedFedMosaic())) == plain
    assert "gate_folds" in recorded_hyperparameters(GatedCoTraining())


def test_recorded_values_load_again():
    for method in (FedMosaic(trust=0.5), ExtendedFedMosaic(trust="gated"), GatedCoTraining(gate_folds=3)):
        values = recorded_hyperparameters(method)
        assert simplified_method(method_schema(method.info.name)(**values)) == method
