"""Options without effect are named at the start of a run, with the reason."""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

from fedmosaic_cli.api.api_errors import FedMosaicWarning
from fedmosaic_cli.api.experiments import Experiment
from fedmosaic_cli.cli.app import app
from fedmosaic_cli.engine.train_settings import TrainSettings
from fedmosaic_cli.runner.unused_options import CUDA_OPTIONS, unused_option_warnings
from tests.toys import CPU

GPU, MPS = torch.device("cuda"), torch.device("mps")
SHORT = ("train", "--preset", "quickstart", "--rounds", "1", "--execution", "threads", "--device", "cpu")
CHANGED = {
    "tf32": True,
    "cudnn_benchmark": True,
    "cuda_streams": 2,
    "cuda_graphs": True,
    "stacked_convolution": "matmul",
}


@pytest.mark.parametrize(
    ("device", "execution", "unused"),
    [
        (CPU, "threads", {"tf32", "cudnn_benchmark", "cuda_streams", "cuda_graphs", "stacked_convolution"}),
        (CPU, "stacked", {"tf32", "cudnn_benchmark", "cuda_streams", "cuda_graphs"}),
        (MPS, "stacked", {"tf32", "cudnn_benchmark", "cuda_streams", "cuda_graphs"}),
        (GPU, "threads", {"stacked_convolution", "cuda_graphs"}),
        (GPU, "stacked", {"cuda_streams"}),
        (GPU, "stacked and threads", set()),
    ],
)
def test_options_without_effect_depend_on_device_and_execution(device, execution, unused):
    lines = unused_option_warnings(TrainSettings(**CHANGED), [device], execution)
    assert {line.split()[0] for line in lines} == {f"train.{name}" for name in unused}
    assert unused_option_warnings(TrainSettings(), [device], execution) == []


@pytest.mark.parametrize(
    ("execution", "devices", "reason"),
    [
        ("stacked", [GPU], "the images are on the host"),
        ("threads", [GPU], "no clients are stacked"),
        ("stacked", [CPU, MPS], "no client is on a CUDA device"),
    ],
)
def test_steps_with_images_on_the_host_have_no_graphs(execution, devices, reason):
    settings = TrainSettings(cuda_graphs=True, images="host")
    expected = f"train.cuda_graphs true has no effect: {reason}"
    assert unused_option_warnings(settings, devices, execution) == [expected]


def test_an_option_has_an_effect_if_one_client_is_on_a_cuda_device():
    assert unused_option_warnings(TrainSettings(tf32=True), [CPU, GPU], "stacked") == []


def test_all_options_for_cuda_are_settings():
    assert set(CUDA_OPTIONS) < TrainSettings.model_fields.keys()


@pytest.mark.parametrize("quiet", [(), ("-q",)], ids=["progress", "quiet"])
def test_a_run_names_them_once(quiet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ("--set", "train.stacked_convolution=matmul", "--set", "train.tf32=true")
    done = CliRunner().invoke(app, [*SHORT, "--seeds", "0,1", *quiet, *options])
    assert done.exit_code == 0
    assert [line for line in done.stderr.splitlines() if "effect" in line] == [
        "warning: train.tf32 true has no effect: no client is on a CUDA device",
        "warning: train.stacked_convolution matmul has no effect: no clients are stacked",
    ]


def test_rounds_in_memory_warn_about_them():
    experiment = Experiment(
        "quickstart", method="fedavg", overrides={"train.rounds": 1, "train.tf32": True}, device="cpu"
    )
    with pytest.warns(FedMosaicWarning, match="train.tf32"):
        list(experiment.rounds())
