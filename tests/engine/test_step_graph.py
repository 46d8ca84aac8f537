"""When training steps are captured, and what is called to capture them, with a record instead of CUDA."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from fedmosaic_cli.engine.execution import step_graph
from fedmosaic_cli.engine.execution.step_graph import MIN_REPLAYS, CudaGraphs, StepGraphs
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.engine.train_settings import TrainSettings
from fedmosaic_cli.errors import RequestError
from tests.test_contract import VARIANTS
from tests.toys import CPU, TOYS, personal_models, same

GPU = torch.device("cuda:1")


class Recorder:
    """Implements `GraphCapture` without a graph: a replay calls the function again."""

    def __init__(self, device: torch.device = CPU) -> None:
        self.calls: list[str] = []

    def warm_up(self, function):
        self.calls.append("warm-up")
        function()

    def capture(self, function):
        self.calls.append("capture")

        def replay():
            self.calls.append("replay")
            function()

        return replay


def taken_steps(shapes: str) -> tuple[list[int], list[str]]:
    """Return the steps that were computed, and how; a shape is a letter."""
    recorder, computed = Recorder(), []
    graphs = StepGraphs(recorder, shapes, CPU)
    for index in range(len(shapes)):

        def compute(position, index=index):
            if position is None:
                recorder.calls.append("compute")
            computed.append(index if position is None else position.item())

        graphs.take_step(index, compute)
    return computed, recorder.calls


def test_a_shape_is_captured_if_enough_steps_remain():
    steps, calls = taken_steps("a" * (MIN_REPLAYS + 1))
    assert steps == list(range(MIN_REPLAYS + 1))
    assert calls == ["warm-up", "capture", *["replay"] * MIN_REPLAYS]
    steps, calls = taken_steps("a" * MIN_REPLAYS)
    assert steps == list(range(MIN_REPLAYS))
    assert calls == ["compute"] * MIN_REPLAYS


def test_shapes_that_alternate_have_a_graph_each_and_rare_ones_have_none():
    shapes = "ab" * (MIN_REPLAYS + 2) + "c" + "ab"
    steps, calls = taken_steps(shapes)
    assert steps == list(range(len(shapes)))
    assert calls[:4] == ["warm-up", "capture"] * 2
    assert calls.count("compute") == 1
    assert calls.count("replay") == len(shapes) - 3


@pytest.mark.parametrize("name", ["fedavg", "fedmosaic", "fedproto"])
@pytest.mark.parametrize("augment", ["none", "crop-flip"])
def test_steps_whose_number_is_in_a_tensor_equal_other_steps(name, augment, monkeypatch):
    """On the CPU, with replays that compute the step again."""
    recorders = []
    monkeypatch.setitem(step_graph.CAPTURES, "cpu", lambda device: recorders.append(Recorder()) or recorders[-1])
    found = []
    for cuda_graphs in (True, False):
        toy = TOYS["epochs"].changed(execution="stacked", augment=augment, cuda_graphs=cuda_graphs, local_epochs=12)
        federation = toy.federation(VARIANTS[name])
        with federation.worker_pool:
            rows = [done.rows for done in run_rounds(federation, 2)]
        found.append((rows, list(personal_models(federation).values())))
    assert any("replay" in recorder.calls for recorder in recorders)
    assert found[0][0] == found[1][0]
    assert same(found[0][1], found[1][1])


class Stream:
    def __init__(self, calls, name):
        self.calls, self.name = calls, name

    def wait_stream(self, other):
        self.calls.append((self.name, "waits for", other.name))


class Graph:
    def __init__(self, calls):
        self.calls = calls

    def replay(self):
        self.calls.append("replay")


@pytest.fixture
def calls(monkeypatch):
    """Return the calls of CUDA."""
    calls = []

    @contextmanager
    def entered(*names):
        calls.append((*names, "begins"))
        try:
            yield
        finally:
            calls.append((*names, "ends"))

    def graph(graph, pool, stream, capture_error_mode):
        assert step_graph.CAPTURE_LOCK.locked()
        return entered("capture", pool, stream.name, capture_error_mode)

    step_graph.side_stream.cache_clear()
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(calls, f"side of {device}"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(calls, "current"))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: entered(stream.name))
    monkeypatch.setattr(torch.cuda, "device", lambda device: entered(str(device)))
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(calls))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    yield calls
    step_graph.side_stream.cache_clear()


SIDE = f"side of {GPU}"


def test_warm_up_computes_in_the_stream_of_the_capture_and_is_ordered_with_the_current_one(calls):
    CudaGraphs(GPU).warm_up(lambda: calls.append("step"))
    inside = [(SIDE, "waits for", "current"), (SIDE, "begins"), "step", (SIDE, "ends"), ("current", "waits for", SIDE)]
    assert calls == [(str(GPU), "begins"), *inside, (str(GPU), "ends")]


def test_a_capture_uses_the_side_stream_of_the_device_and_the_memory_of_the_training(calls):
    replay = CudaGraphs(GPU).capture(lambda: calls.append("step"))
    capture = ("capture", "pool", SIDE, "thread_local")
    assert calls == [
        *[(str(GPU), "begins"), (*capture, "begins")],
        "step",
        *[(*capture, "ends"), (str(GPU), "ends")],
    ]
    replay()
    assert calls[-1] == "replay"


def test_running_out_of_memory_is_not_reported_as_a_step_that_cannot_be_captured():
    class Full(Recorder):
        def capture(self, function):
            raise torch.cuda.OutOfMemoryError

    with pytest.raises(torch.cuda.OutOfMemoryError):
        step_graph.capture_step(Full(), lambda: None)


class FailingCapture(Recorder):
    """A step fails, and then the end of the capture as well, as on CUDA."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def capture(self, function):
        try:
            raise self.error
        finally:
            raise RuntimeError("capture was invalidated")


def test_the_error_names_what_the_step_did_and_not_that_the_capture_could_not_end():
    with pytest.raises(RequestError, match=r"\(train.cuda_graphs\): a read is not permitted: set it to false"):
        step_graph.capture_step(FailingCapture(RuntimeError("a read is not permitted\nmore")), lambda: None)
    with pytest.raises(torch.cuda.OutOfMemoryError, match="full"):
        step_graph.capture_step(FailingCapture(torch.cuda.OutOfMemoryError("full")), lambda: None)


def test_runs_without_the_option_store_the_same_configuration_as_before():
    assert "cuda_graphs" not in TrainSettings().to_record()
    assert TrainSettings(cuda_graphs=True).to_record()["cuda_graphs"] is True
