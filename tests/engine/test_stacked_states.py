"""Optimizer states of stacked clients as rows of one tensor."""

from __future__ import annotations

import pytest
import torch

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.execution.stacked.stacked_states import split_states, stack_rows, stack_states
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.methods.gated import copy_model_state
from fedmosaic_cli.methods.local import Local
from fedmosaic_cli.runner.checkpoint_state import capture_state
from fedmosaic_cli.runner.client_state_files import ClientStateFiles
from tests.toys import TOYS, make_toy


def states_after(rounds, **changes):
    federation = make_toy([8, 8, 8]).changed(execution="stacked", optimizer="adam", **changes).federation(Local())
    with federation.worker_pool:
        list(run_rounds(federation, rounds))
    return federation, [client.state["model.optimizer"] for client in federation.state.clients]


def owned_bytes(tensor):
    return tensor.untyped_storage().nbytes()


def test_consecutive_rows_are_not_copied():
    stack = torch.arange(24.0).view(4, 2, 3).clone()
    for rows, start in ((stack.unbind(), 0), (stack.unbind()[1:3], 1), (stack[1:].unbind(), 1)):
        assert stack_rows(rows).data_ptr() == stack[start].data_ptr()
        assert torch.equal(stack_rows(rows), torch.stack(rows))


@pytest.mark.parametrize(
    "choose",
    [
        lambda stack: [stack[1], stack[0]],
        lambda stack: [stack[0], stack[2]],
        lambda stack: [stack[0], stack[1].clone()],
        lambda stack: [stack[0].clone(), stack[1].clone()],
        lambda stack: list(stack.transpose(1, 2).unbind()),
        lambda stack: [stack[0][:1], stack[1][:1]],
        lambda stack: [stack[0, 0], stack[0, 1]],
    ],
    ids=["reversed", "with a gap", "one copy", "copies", "transposed", "parts", "rows of rows"],
)
def test_other_tensors_are_stacked(choose):
    stack = torch.arange(24.0).view(4, 2, 3).clone()
    tensors = choose(stack)
    stacked = stack_rows(tensors)
    assert torch.equal(stacked, torch.stack(tensors))
    stacked.zero_()
    assert stack.sum() == sum(range(24)), "the tensors are unchanged"


@pytest.mark.parametrize("as_views", [True, False])
def test_split_states_have_separate_step_counts_and_equal_values(as_views):
    stacked = {"step": torch.tensor(3.0), "exp_avg": torch.rand(3, 2)}
    split = [own for (own,) in split_states([stacked], 3, as_views)]
    assert torch.equal(stack_states(split)["exp_avg"], stacked["exp_avg"])
    assert (stack_states(split)["exp_avg"].data_ptr() == stacked["exp_avg"].data_ptr()) == as_views
    split[1]["step"] += 1
    assert [own["step"].item() for own in split] == [3, 4, 3]


def test_clients_keep_the_same_memory_between_rounds():
    federation = make_toy([8, 8, 8]).changed(execution="stacked", optimizer="adam").federation(Local())

    def rows():
        return [client.state["model.optimizer"]["body.1.weight"]["exp_avg"] for client in federation.state.clients]

    with federation.worker_pool:
        list(run_rounds(federation, 1))
        before = rows()
        assert all(row._base is before[0]._base is not None for row in before)
        list(run_rounds(federation, 3))
    assert [row.data_ptr() for row in rows()] == [row.data_ptr() for row in before]


@pytest.mark.parametrize("changes", [{"clients_per_round": 2}, {"clients_per_round": 3}], ids=str)
def test_sampled_clients_do_not_keep_the_memory_of_others(changes):
    for state in states_after(3, **changes)[1]:
        for entry in state.values():
            assert owned_bytes(entry["exp_avg"]) == entry["exp_avg"].nbytes


def test_clients_whose_partners_have_stopped_do_not_keep_the_memory_of_others():
    """Only two of three clients train: their stack is not that of the whole group."""

    class Stopping(Local):
        def local_round(self, client, received, ctx):
            return {} if client.id == 0 and client.round > 1 else super().local_round(client, received, ctx)

    federation = make_toy([8, 8, 8]).changed(execution="stacked", optimizer="adam").federation(Stopping())
    with federation.worker_pool:
        list(run_rounds(federation, 3))
    for client in federation.state.clients[1:]:
        entry = client.state["model.optimizer"]["head.weight"]["exp_avg"]
        assert owned_bytes(entry) == entry.nbytes


def test_a_copied_state_has_only_its_own_rows():
    federation, _ = states_after(1)
    client = federation.state.clients[1]
    copied = params.copy_state(client.state)
    copy_model_state(client, "model", "candidate")
    for state in (copied["model.optimizer"], client.state["candidate.optimizer"]):
        for name, entry in state.items():
            own = client.state["model.optimizer"][name]["exp_avg"]
            assert torch.equal(entry["exp_avg"], own)
            assert owned_bytes(entry["exp_avg"]) == own.nbytes < owned_bytes(own)


def test_files_contain_only_the_rows_of_the_client(tmp_path):
    federation, (state, *_) = states_after(1)
    client = federation.state.clients[0]
    ClientStateFiles(tmp_path).save(0, client.state)
    content = (tmp_path / "0.safetensors").stat().st_size
    sizes = sum(tensor.nbytes for tensor in params.leaves(client.state) if isinstance(tensor, torch.Tensor))
    assert sizes <= content < sizes + 4096
    arrays, _ = capture_state(federation.state)
    for name, entry in state.items():
        assert arrays[f"client-0/model.optimizer/{name}/exp_avg"].shape == entry["exp_avg"].shape


def test_a_diverged_client_gets_its_row_back_and_leaves_the_others_alone():
    class Diverging(Local):
        def local_round(self, client, received, ctx):
            message = super().local_round(client, received, ctx)
            if client.id == 1 and client.round == 2:
                client.state["model"]["head.bias"].fill_(torch.nan)
            return message

    toy = TOYS["uneven"].changed(execution="stacked", optimizer="adam", on_nan="skip")
    skipping, expected = toy.federation(Diverging()), toy.federation(Local())
    with skipping.worker_pool, expected.worker_pool:
        list(run_rounds(skipping, 1)), list(run_rounds(expected, 1))
        before = params.copy_state(skipping.state.clients[1].state)
        list(run_rounds(skipping, 2)), list(run_rounds(expected, 2))
    assert all(map(torch.equal, params.leaves(before), params.leaves(skipping.state.clients[1].state)))
    for client in (0, 2):
        own, other = (each.state.clients[client].state for each in (skipping, expected))
        assert all(map(torch.equal, params.leaves(own), params.leaves(other)))
