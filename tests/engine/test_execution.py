"""Execution modes, lockstep groups, worker pools, devices and optimizers."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedmosaic_cli.engine import optim, params
from fedmosaic_cli.engine.context import FederationInfo, ProximalTerm
from fedmosaic_cli.engine.execution import lockstep
from fedmosaic_cli.engine.execution.lockstep import LockstepGroup, current_group, current_worker_id, without_group
from fedmosaic_cli.engine.execution.modes import choose_execution, num_workers
from fedmosaic_cli.engine.execution.worker_pool import MAX_STACK_SIZE, ClientJob, WorkerPool, group_jobs
from fedmosaic_cli.engine.federation import init_state
from fedmosaic_cli.engine.local_pool import ServerView
from fedmosaic_cli.engine.losses import PseudoLabelLoss, ToDeviceMixin
from fedmosaic_cli.engine.messages import Logits, Weights, send_message
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.engine.server import InProcessServer
from fedmosaic_cli.engine.train_settings import TrainSettings
from fedmosaic_cli.errors import FedMosaicError, RequestError
from fedmosaic_cli.labels.label_messages import ConsensusLabels
from fedmosaic_cli.methods.apfl import APFL
from fedmosaic_cli.methods.ditto import Ditto
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.local import Centralized, Local
from fedmosaic_cli.methods.perfedavg import PerFedAvg
from fedmosaic_cli.methods.pfedme import PFedMe
from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.models.model_settings import ModelSettings
from fedmosaic_cli.runner.build import check_network
from tests.toys import CPU, TOYS, from_server, make_toy, run_toy
from tests.waiting import HANG_SECONDS

CUDA = torch.device("cuda", 0)
META = torch.device("meta")
DIGITS, CIFAR = (1, 8, 8), (3, 32, 32)
MLP, CNN, VIT = ModelSettings(), ModelSettings(name="cnn"), ModelSettings(name="vit-tiny")


class TestExecutionMode:
    @pytest.mark.parametrize(
        ("model", "shape", "clients", "device", "expected"),
        [
            (MLP, DIGITS, 15, CPU, "stacked"),
            (MLP, DIGITS, 1, CPU, "threads"),
            (CNN, CIFAR, 15, CPU, "threads"),
            (CNN, CIFAR, 15, CUDA, "stacked"),
            (VIT, CIFAR, 15, CUDA, "threads"),
        ],
    )
    def test_auto_execution_depends_on_device_and_model(self, model, shape, clients, device, expected):
        assert choose_execution(TrainSettings(), model, shape, clients, device) == expected

    @pytest.mark.parametrize("execution", ["threads", "stacked"])
    def test_execution_can_be_configured(self, execution):
        for model, shape in ((MLP, DIGITS), (CNN, CIFAR)):
            assert choose_execution(TrainSettings(execution=execution), model, shape, 15, CPU) == execution

    def test_network_that_cannot_be_stacked_is_rejected_by_name(self):
        with pytest.raises(RequestError, match=r"vit-tiny cannot be stacked \(train.execution\): use auto or threads"):
            choose_execution(TrainSettings(execution="stacked"), VIT, CIFAR, 15, CPU)

    def test_gpu_has_one_worker_by_default(self):
        assert (num_workers(0, 15, CUDA), num_workers(3, 15, CUDA)) == (1, 3)
        assert 1 <= num_workers(0, 2, CPU) <= 2


class TestLockstepGroup:
    def run(self, parts):
        """Run one function per client, as `WorkerPool` does."""
        group, results, failures = LockstepGroup(len(parts)), {}, {}

        def run_client(index):
            try:
                results[index] = group.run_client(index, lambda: parts[index](group))
            except ValueError as error:
                failures[index] = error

        threads = [threading.Thread(target=run_client, args=(index,)) for index in reversed(range(len(parts)))]
        for thread in threads:
            thread.start()
        group.run()
        for thread in threads:
            thread.join(timeout=HANG_SECONDS)
        assert not any(thread.is_alive() for thread in threads), "a client thread waits forever"
        return results, failures

    def test_simultaneous_requests_are_handled_together_in_client_order(self):
        calls = []

        def double(contents):
            calls.append(contents)
            return [2 * content for content in contents]

        def part(number):
            return lambda group: group.submit("double", double, number) + group.submit("double", double, 10 * number)

        results, _ = self.run([part(1), part(2), part(3)])
        assert results == {0: 22, 1: 44, 2: 66}
        assert calls == [[1, 2, 3], [10, 20, 30]]

    def test_groups_are_handled_separately_and_idle_clients_do_not_block(self):
        calls = []

        def note(contents):
            calls.append(contents)
            return contents

        parts = [
            lambda group: group.submit("a", note, 1),
            lambda group: group.submit("b", note, 2),
            lambda group: None,
            lambda group: group.submit("a", note, 3) + group.submit("a", note, 4),
        ]
        results, _ = self.run(parts)
        assert results == {0: 1, 1: 2, 2: None, 3: 7}
        assert calls == [[1, 3], [2], [4]]

    def test_failure_does_not_affect_other_clients(self):
        def fail(contents):
            raise ValueError("no answer")

        def give_up(group):
            raise ValueError("gave up")

        echo = lambda contents: contents  # noqa: E731
        results, failures = self.run(
            [give_up, lambda group: group.submit("x", fail, 1), lambda group: group.submit("y", echo, 5)]
        )
        assert results == {2: 5}
        assert {index: str(error) for index, error in failures.items()} == {0: "gave up", 1: "no answer"}

    def test_worker_thread_handles_all_requests(self):
        """Other threads would each keep the peak memory of a request."""
        handling_threads = []

        def note(contents):
            handling_threads.append(threading.get_ident())
            return contents

        def part(group):
            assert current_worker_id() == group.worker_id
            return [group.submit("x", note, number) for number in range(5)]

        self.run([part] * 4 + [lambda group: None])
        assert handling_threads == [threading.get_ident()] * 5

    def test_group_is_aborted_if_a_thread_cannot_be_started(self, monkeypatch):
        start, started = threading.Thread.start, []

        def start_three(thread):
            started.append(thread)
            if len(started) > 3:
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_three)
        jobs = [ClientJob(number, 1, "team", CPU) for number in range(6)]
        with WorkerPool(1) as workers, pytest.raises(RuntimeError, match="can't start new thread"):
            workers.map(lambda item: current_group().submit("x", list, item), jobs)

    def test_one_client_runs_at_a_time(self):
        running, most = [], []

        def part(group):
            running.append(1)
            most.append(len(running))
            time.sleep(0.01)
            running.pop()

        self.run([part] * 4)
        assert most == [1, 1, 1, 1]

    def test_there_is_no_current_group_outside_a_group(self):
        assert current_group() is None

    def test_clients_compute_together_even_if_some_of_them_also_transfer_values(self):
        """Otherwise a client that reads a value would be trained in another stack, with other last bits."""
        handled = []

        def note(contents):
            handled.append(contents)
            return contents

        def part(number):
            def work(group):
                for transfer in range(number % 3):
                    group.submit("read", note, f"read {transfer} of {number}", is_transfer=True)
                return group.submit("fit", note, f"fit {number}")

            return work

        self.run([part(number) for number in range(4)])
        assert handled == [
            ["read 0 of 1", "read 0 of 2"],
            ["read 1 of 2"],
            ["fit 0", "fit 1", "fit 2", "fit 3"],
        ]

    def test_a_client_that_computes_for_all_submits_no_request(self):
        def part(group):
            with without_group():
                assert current_group() is None
                assert current_worker_id() == group.worker_id
            return current_group() is group

        assert self.run([part] * 2)[0] == {0: True, 1: True}


class TestWorkerPool:
    def test_longest_job_starts_first_and_results_keep_job_order(self):
        started = []

        def work(item):
            started.append(item)
            return item.upper()

        jobs = [ClientJob("short", 1, None, CPU), ClientJob("long", 9, None, CPU), ClientJob("middle", 5, None, CPU)]
        with WorkerPool(1) as workers:
            assert workers.map(work, jobs) == ["SHORT", "LONG", "MIDDLE"]
        assert started == ["long", "middle", "short"]

    def test_first_failure_in_job_order_is_raised(self):
        def work(item):
            if item:
                raise ValueError(f"item {item}")

        for count in (1, 3):
            with WorkerPool(count) as workers, pytest.raises(ValueError, match="item 1"):
                workers.map(work, [ClientJob(item, item, None, CPU) for item in (0, 1, 2)])

    def test_groups_have_at_most_the_stack_size(self):
        jobs = [ClientJob(n, 1, None if n == 3 else "mine", CPU) for n in range(MAX_STACK_SIZE + 5)]
        groups = group_jobs(jobs)
        assert groups[0] == [3]
        assert [len(group) for group in groups[1:]] == [MAX_STACK_SIZE, 4]

    def test_devices_do_not_wait_for_each_other(self):
        barrier = threading.Barrier(2, timeout=HANG_SECONDS)
        jobs = [ClientJob(0, 1, None, CPU), ClientJob(1, 1, None, META)]
        with WorkerPool(1) as workers:
            # With one queue for both devices, the first job would wait forever.
            workers.map(lambda item: barrier.wait(), jobs)


class ScalarReads(TorchDispatchMode):
    """Counts operations that synchronise with a GPU: reading a number, or a size that depends on values."""

    WAITS: ClassVar = {
        torch.ops.aten._local_scalar_dense.default,
        torch.ops.aten.nonzero.default,
        torch.ops.aten.masked_select.default,
        torch.ops.aten.equal.default,
        torch.ops.aten.is_nonzero.default,
    }

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        by_mask = func is torch.ops.aten.index.Tensor and any(i is not None and i.dtype == torch.bool for i in args[1])
        self.count += func in self.WAITS or by_mask
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class SynchronisingLoss(ToDeviceMixin):
    """A term that reads its value in every step."""

    weight: float = 0.5
    log_key: ClassVar[str] = "loss_public"
    uses_public: ClassVar[bool] = True

    def loss(self, outputs):
        value = outputs.public_logits.square().mean()
        return value * 2 if value.item() > 1 else value


@pytest.mark.parametrize("execution", ["threads", "stacked"])
class TestDeviceSynchronisation:
    @pytest.fixture
    def reads(self, execution, monkeypatch):
        """Count scalar reads in a round of `steps` steps of three clients with batches of different sizes."""
        counted = []

        def count_reads(function):
            def counting(*arguments):
                with ScalarReads() as mode:
                    result = function(*arguments)
                counted.append(mode.count)
                return result

            return counting

        def reads(steps, train, method=Local()):  # noqa: B008 - methods are immutable
            counted.clear()
            federation = make_toy([3, 9, 7]).changed(execution=execution, local_steps=steps).federation(method)
            clients = federation.state.clients
            for client in clients:
                client.begin_round(1)
            with federation.worker_pool as workers:
                workers.map(
                    count_reads(train), [ClientJob(client, 1, client.learner.stack_key, CPU) for client in clients]
                )
            return sum(counted)

        monkeypatch.setattr(lockstep, "dispatch", count_reads(lockstep.dispatch))
        return reads

    @pytest.mark.parametrize("terms", [(), (PseudoLabelLoss(torch.zeros(7, dtype=torch.int64), 0.5),)])
    def test_training_step_does_not_synchronise(self, reads, terms):
        def train(client):
            client.train("model", terms, ProximalTerm(params.clone(client.state["model"]), 0.1))

        assert reads(2, train) == reads(12, train)

    @pytest.mark.usefixtures("with_batch_norm")
    def test_training_step_with_batch_norm_does_not_synchronise(self, reads):
        assert reads(2, lambda client: client.train("model")) == reads(12, lambda client: client.train("model"))

    @pytest.mark.parametrize("method", [PFedMe(), PerFedAvg(), APFL()], ids=["pfedme", "perfedavg", "apfl"])
    def test_manual_steps_do_not_synchronise(self, reads, method):
        def train(client):
            client.state["model"] = params.clone(client.initial_model)
            method.train_local_model(client, client.state["model"])

        assert reads(2, train, method) == reads(12, train, method)

    def test_synchronising_step_is_detected(self, reads):
        def train(client):
            client.train("model", (SynchronisingLoss(),))

        assert reads(12, train) > reads(2, train)


class TestPrecision:
    SCRIPT = """
import sys, torch
from fedmosaic_cli.methods.fedmosaic import FedMosaic
from fedmosaic_cli.models.architectures import ARCHITECTURES
from tests.toys import TOYS, Normalised, personal_models, run_toy
toy = TOYS["epochs"].changed(execution=sys.argv[1], optimizer="sgd", lr=0.05)
if sys.argv[2] == "with batch statistics":
    ARCHITECTURES["mlp"] = Normalised
toy.dtype = torch.float32
full = personal_models(run_toy(FedMosaic(trust=0.5), toy))
federation = run_toy(FedMosaic(trust=0.5), toy.changed(precision="bfloat16"))
half = personal_models(federation)
assert federation.state.clients[0].predict_private(half[0]).dtype == torch.float32
for key, tensor in half[0].items():
    assert tensor.dtype == full[0][key].dtype
    assert torch.allclose(tensor, full[0][key], atol=0.05), key
assert any(not torch.equal(half[0][key], full[0][key]) for key in half[0]), "bfloat16 has no effect"
"""

    @pytest.mark.parametrize("network", ["plain", "with batch statistics"])
    @pytest.mark.parametrize("execution", ["threads", "stacked"])
    def test_bfloat16_computes_in_half_and_stores_full_precision(self, execution, network):
        """Some CPUs report bfloat16 support and crash with an illegal instruction, so this runs in another process."""
        command = [sys.executable, "-c", self.SCRIPT, execution, network]
        done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
        if done.returncode == -signal.SIGILL:
            pytest.skip("this CPU has no bfloat16")
        assert done.returncode == 0, done.stderr

    def test_bfloat16_is_rejected_on_cpus(self):
        with pytest.raises(RequestError, match=r"bfloat16 is for GPUs \(train.precision\): use float32 on a CPU"):
            check_network(MLP, TrainSettings(precision="bfloat16"), (8, 8, 1), CPU)
        check_network(MLP, TrainSettings(precision="bfloat16"), (8, 8, 1), CUDA)


def leaves(value):
    """Return the values of nested dictionaries."""
    return [leaf for part in value.values() for leaf in leaves(part)] if isinstance(value, dict) else [value]


class TestDevices:
    """The device `meta`, which stores no values, replaces a GPU."""

    def test_models_arrive_on_the_receiver_device_and_labels_on_the_cpu(self):
        message = {"model": {"w": torch.ones(2)}, "labels": torch.tensor([0, 1]), "logits": torch.ones(2, 2)}
        parts = {"model": Weights(), "labels": ConsensusLabels(), "logits": Logits()}
        ctx = FederationInfo(
            num_classes=2, initial_model=message["model"], client_sizes={0: 1}, num_rounds=1, public_size=2
        )
        received, bits = send_message(message, parts, from_server(ctx, META))
        assert received["model"]["w"].device == META
        assert (received["labels"].device, received["logits"].device) == (CPU, CPU)
        assert bits == 64 + 8 + 128

    @pytest.mark.usefixtures("with_batch_norm")
    @pytest.mark.parametrize("method", [FedAvg(), Ditto(), Local()])
    def test_initial_state_is_on_the_client_device(self, method):
        federation = TOYS["even"].changed(bn_buffers="local").federation(method)
        for client in federation.state.clients:
            client.private = replace(client.private, device=META)
        state = init_state(method, federation.state.clients, InProcessServer(0, CPU), federation.ctx)
        client_states = [client.state for client in state.clients]
        tensors = [
            t for values in client_states for part in values.values() if isinstance(part, dict) for t in part.values()
        ]
        assert tensors
        assert all(tensor.device == META for tensor in tensors)

    @pytest.mark.parametrize("name", METHODS)
    def test_server_models_are_moved_to_the_client_device(self, name):
        federation = run_toy(METHODS[name](), TOYS["even"], rounds=1)
        client = federation.state.clients[0]
        client.private = replace(client.private, device=META)
        server = federation.state.server
        assert server.on_device(CPU) is server.state
        for value in server.on_device(client.device).values():
            expected = META if isinstance(value, dict) else CPU
            assert all(leaf.device == expected for leaf in leaves(value) if isinstance(leaf, torch.Tensor))

    @pytest.mark.parametrize("method", [FedAvg(), Ditto(), PFedMe()])
    def test_clients_are_evaluated_with_the_server_model_on_their_device(self, method):
        federation = run_toy(method, TOYS["even"], rounds=1)
        moved, *others = federation.state.clients
        moved.private = replace(moved.private, device=META)
        view, model = ServerView(federation), federation.state.server.state["model"]
        assert all(tensor.device == META for tensor in view.for_client(moved)["model"].values())
        assert all(view.for_client(client)["model"] is model for client in others), "the same device: no copy"

    @pytest.mark.parametrize(("method", "expected"), [(Local(), [CPU, META]), (Centralized(), [CPU])])
    def test_clients_are_distributed_over_devices(self, method, expected):
        assert make_toy([6, 6]).federation(method, devices=[CPU, META, META]).client_devices == expected

    def test_host_images_are_copied_to_the_device(self):
        private = TOYS["even"].federation(Local()).state.clients[0].private
        shown = replace(private, device=META).inputs(slice(3))
        assert (shown.device, shown.shape) == (META, (3, 1, 2, 2))
        assert torch.equal(private.inputs(slice(3)), private.normalised_images(private.indices[:3]))


class TestOptimizers:
    @pytest.mark.parametrize(
        "train",
        [
            TrainSettings(lr=0.01),
            TrainSettings(optimizer="sgd", lr=0.1),
            TrainSettings(optimizer="sgd", lr=0.1, momentum=0.9),
        ],
        ids=["adam", "sgd", "momentum"],
    )
    def test_steps_equal_those_of_torch_optimizers_bit_for_bit(self, train):
        torch.manual_seed(0)
        theirs = [torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)]
        ours, state = {index: tensor.detach().clone() for index, tensor in enumerate(theirs)}, {}
        kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
        more = {"momentum": train.momentum} if train.momentum else {}
        optimizer = kinds[train.optimizer](theirs, lr=train.lr, fused=True, **more)
        for number in range(5):
            gradients = [torch.randn_like(tensor) for tensor in theirs]
            # The memory layout of a gradient must not matter.
            optim.optimizer_step(train, ours, {0: gradients[0].T.contiguous().T, 1: gradients[1]}, state)
            for tensor, gradient in zip(theirs, gradients, strict=True):
                tensor.grad = gradient.clone()
            optimizer.step()
            assert all(torch.equal(ours[index], tensor) for index, tensor in enumerate(theirs)), number

    def test_optimizer_steps_do_not_import_the_compiler(self):
        script = (
            "import sys, torch\n"
            "from fedmosaic_cli.engine import optim\n"
            "from fedmosaic_cli.engine.train_settings import TrainSettings\n"
            "for train in (TrainSettings(), TrainSettings(optimizer='sgd', momentum=0.5)):\n"
            "    optim.optimizer_step(train, {'w': torch.ones(2)}, {'w': torch.ones(2)}, {})\n"
            "assert 'torch._dynamo' not in sys.modules\n"
        )
        subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="not glibc")
def test_tuned_allocator_causes_fewer_page_faults():
    """Page faults do not depend on the load of the machine."""
    script = """
import resource, sys, torch
from torch.nn.functional import cross_entropy
from fedmosaic_cli.machine import tune_malloc
from fedmosaic_cli.models.architectures import build_network
from fedmosaic_cli.models.model_settings import ModelSettings
torch.set_num_threads(1)
if sys.argv[1] == "keep":
    assert tune_malloc()
network = build_network(ModelSettings(name="cnn"), (3, 32, 32), 10)
images, labels = torch.rand(64, 3, 32, 32), torch.zeros(64).long()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for number in range(12):
    if number == 6:
        before = faults()
    network.zero_grad()
    cross_entropy(network(images), labels).backward()
print((faults() - before) / 6)
"""

    def faults_per_step(how):
        command = [sys.executable, "-c", script, how]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    tuned, default = faults_per_step("keep"), faults_per_step("as it is")
    # A system that is short of memory reclaims pages, which causes a few faults.
    assert tuned < default / 4


def test_divergence_error_names_the_client_in_every_execution_mode():
    for execution in ("threads", "stacked"):
        federation = TOYS["even"].changed(execution=execution, optimizer="sgd", lr=1e30).federation(Local())
        with federation.worker_pool, pytest.raises(FedMosaicError, match="client 0 diverged in round"):
            list(run_rounds(federation, 3))
