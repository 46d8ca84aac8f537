"""Options of torch for GPUs are set for a run on an accelerator, and restored."""

from __future__ import annotations

import pytest
import torch

from fedmosaic_cli.engine.train_settings import TrainSettings
from fedmosaic_cli.runner.accelerator_options import CUBLAS_WORKSPACE, AcceleratorOptions, accelerator_options
from tests.toys import CPU

GPU = torch.device("cuda")
DEFAULTS = AcceleratorOptions(tf32=False, cudnn_benchmark=False, deterministic=False)
CHANGES = [{"tf32": True}, {"cudnn_benchmark": True}, {"deterministic": True}, {"tf32": True, "deterministic": True}]


@pytest.fixture(autouse=True)
def clean_options(monkeypatch):
    monkeypatch.delenv(CUBLAS_WORKSPACE, raising=False)
    before = AcceleratorOptions.current(), torch.backends.cudnn.allow_tf32
    yield
    assert (AcceleratorOptions.current(), torch.backends.cudnn.allow_tf32) == before
    assert before[0] == DEFAULTS


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_options_hold_during_a_run_on_a_gpu(changes):
    with accelerator_options(TrainSettings(**changes), GPU):
        assert AcceleratorOptions.current() == AcceleratorOptions(**{**vars(DEFAULTS), **changes})
        assert torch.backends.cudnn.allow_tf32 == changes.get("tf32", False)


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_options_have_no_effect_on_a_cpu(changes):
    with accelerator_options(TrainSettings(**changes), CPU):
        assert AcceleratorOptions.current() == DEFAULTS


def test_options_are_restored_after_an_error():
    with pytest.raises(KeyError), accelerator_options(TrainSettings(tf32=True, deterministic=True), GPU):
        raise KeyError


def test_without_options_products_and_convolutions_are_in_full_precision():
    with accelerator_options(TrainSettings(), GPU):
        assert not torch.backends.cudnn.allow_tf32
        assert torch.get_float32_matmul_precision() == "highest"


def test_defaults_are_not_stored():
    assert not TrainSettings().to_record().keys() & {"tf32", "cudnn_benchmark", "deterministic"}
    assert TrainSettings(tf32=True).to_record()["tf32"] is True


def test_varying_algorithms_are_not_deterministic():
    with pytest.raises(ValueError, match="cudnn_benchmark"):
        TrainSettings(cudnn_benchmark=True, deterministic=True)
