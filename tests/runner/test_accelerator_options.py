"""Options of torch for GPUs are set for a run on an accelerator, and restored."""

from __future__ import annotations

import pytest
import torch

from fedmosaic_cli.engine.train_settings import TrainSettings
from fedmosaic_cli.runner.accelerator_options import (
    CUBLAS_WORKSPACE,
    AcceleratorOptions,
    accelerator_options,
    with_accelerator_options,
)
from tests.toys import CPU

GPU = torch.device("cuda")
DEFAULTS = AcceleratorOptions.from_settings(TrainSettings())
CHANGES = [{"tf32": True}, {"cudnn_benchmark": True}, {"deterministic": True}, {"tf32": True, "deterministic": True}]


@pytest.fixture(autouse=True)
def clean_options(monkeypatch):
    monkeypatch.delenv(CUBLAS_WORKSPACE, raising=False)
    before = AcceleratorOptions.current()
    # What another test has left must not matter; torch itself allows TF32 in convolutions.
    DEFAULTS.apply()
    yield
    assert AcceleratorOptions.current() == DEFAULTS
    before.apply()


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_options_hold_during_a_run_on_a_gpu(changes):
    with accelerator_options(TrainSettings(**changes), GPU):
        assert AcceleratorOptions.current() == AcceleratorOptions.from_settings(TrainSettings(**changes)) != DEFAULTS
        assert torch.backends.cudnn.allow_tf32 == changes.get("tf32", False)
        assert torch.are_deterministic_algorithms_enabled() == changes.get("deterministic", False)


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_options_have_no_effect_on_a_cpu(changes):
    with accelerator_options(TrainSettings(**changes), CPU):
        assert AcceleratorOptions.current() == DEFAULTS


def test_options_are_restored_after_an_error():
    with pytest.raises(KeyError), accelerator_options(TrainSettings(tf32=True, deterministic=True), GPU):
        raise KeyError


def test_options_of_interleaved_runs_do_not_affect_each_other_or_the_code_between():
    def run(**changes):
        def rounds():
            for _ in range(3):
                yield AcceleratorOptions.current()

        return with_accelerator_options(TrainSettings(**changes), GPU, rounds())

    first, second = run(tf32=True), run(cudnn_benchmark=True)
    seen = []
    for options in zip(first, second, strict=True):
        seen.append(options)
        assert AcceleratorOptions.current() == DEFAULTS
    expected = [AcceleratorOptions.from_settings(TrainSettings(**{name: True})) for name in ("tf32", "cudnn_benchmark")]
    assert seen == [tuple(expected)] * 3


def test_an_abandoned_run_is_closed():
    closed = []

    def rounds():
        try:
            yield 1
        finally:
            closed.append(True)

    run = with_accelerator_options(TrainSettings(tf32=True), GPU, rounds())
    next(run)
    run.close()
    assert closed == [True]


@pytest.mark.parametrize("changes", [{}, {"tf32": True}, {"deterministic": True}], ids=str)
def test_options_that_a_run_cannot_set_are_restored(changes):
    """A run knows neither the precision `medium` nor warnings instead of errors."""
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.allow_tf32 = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    before = AcceleratorOptions.current()
    try:
        with accelerator_options(TrainSettings(**changes), GPU):
            assert torch.get_float32_matmul_precision() == ("high" if "tf32" in changes else "highest")
            assert torch.are_deterministic_algorithms_enabled() == ("deterministic" in changes)
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.backends.cudnn.allow_tf32
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert AcceleratorOptions.current() == before
    finally:
        DEFAULTS.apply()


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
