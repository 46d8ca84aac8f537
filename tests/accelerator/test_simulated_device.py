"""The simulated accelerator computes like the CPU, refuses mixed devices, and counts what a GPU would wait for."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.accelerator.simulated_device import DEVICE, record_operations, register


@pytest.fixture
def device():
    return register()


def test_values_survive_copies_and_views(device):
    values = torch.arange(12.0).reshape(4, 3)
    there = values.to(device)
    assert str(there.device) == DEVICE
    assert torch.equal(there[1:].t().contiguous().cpu(), values[1:].t())
    there[0] += 5
    assert torch.equal(there.cpu()[0], values[0] + 5)
    assert there.view(-1)[2:4].tolist() == [7.0, 3.0]


def test_gradients_and_optimizer_steps_equal_those_of_the_cpu(device):
    torch.manual_seed(0)
    inputs, labels = torch.randn(8, 3), torch.arange(8) % 2
    own = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    other = copy.deepcopy(own).to(device)
    for module, place in ((own, "cpu"), (other, device)):
        optimizer = torch.optim.Adam(module.parameters(), lr=0.1, fused=True)
        for _ in range(3):
            optimizer.zero_grad()
            cross_entropy(module(inputs.to(place)), labels.to(place)).backward()
            optimizer.step()
    for mine, theirs in zip(own.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs.cpu())


def test_modules_can_be_bound_to_other_tensors(device):
    """Learners exchange the data of a parameter to run a module on the weights of a client."""
    module = torch.nn.Linear(2, 1, bias=False).to(device)
    module.weight.data = torch.tensor([[2.0, 3.0]]).to(device)
    with torch.inference_mode():
        assert module(torch.ones(1, 2).to(device)).item() == 5.0


def test_copies_are_independent(device):
    tensor = torch.zeros(3).to(device)
    copied = copy.deepcopy({"a": tensor, "b": tensor})
    tensor += 1
    assert copied["a"].tolist() == [0, 0, 0]
    assert copied["a"] is copied["b"]


@pytest.mark.parametrize(
    "operation", [torch.add, lambda a, b: torch.stack([a, b]), lambda a, b: torch.cat([a, b]), torch.dot]
)
@pytest.mark.parametrize("other", ["cpu", "simgpu:1"])
def test_operations_on_two_devices_fail(device, operation, other):
    with pytest.raises(RuntimeError, match=r"device|simgpu"):
        operation(torch.ones(3).to(device), torch.ones(3).to(other))


def test_gradients_on_the_second_device():
    weight = torch.ones(3).to(register(1)).requires_grad_()
    (weight * weight).sum().backward()
    assert weight.grad.device == register(1)
    assert weight.grad.tolist() == [2, 2, 2]


def test_reads_and_copies_are_counted_and_views_are_no_kernels(device):
    values = torch.ones(3, 3)
    with record_operations() as record:
        there = values.to(device)
        total = (there * 2)[1:].t().sum()
        assert total.item() == 12.0
        there.cpu()
        assert bool((there > 0).all())
    assert record.waits == {"to device": 1, "to host": 1, "read": 2}
    assert sum(count for name, count in record.kernels.items() if name.startswith("mul")) == 1
    assert not any(name.startswith(("slice", "t", "view", "as_strided")) for name in record.kernels)
    with record_operations() as record:
        assert len(there[there > 0]) == 9
    assert sum(record.waits.values()) == 1, "the size depends on the values"
    with record_operations() as empty:
        torch.ones(3).sum().item()
    assert not empty.waits
