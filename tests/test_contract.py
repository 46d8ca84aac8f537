"""Properties that hold for every method in every federation."""

from __future__ import annotations

import random
from copy import deepcopy
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from fedmosaic_cli.engine.client import InProcessClient
from fedmosaic_cli.engine.messages import send_message
from fedmosaic_cli.engine.method import Method, has_finalize
from fedmosaic_cli.engine.rounds import evaluate_round, run_rounds
from fedmosaic_cli.engine.traffic import planned_traffic, upload_bits
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.fedmosaic import FedMosaic
from fedmosaic_cli.methods.fedphp import FedPHP
from fedmosaic_cli.methods.perfedavg import PerFedAvg
from fedmosaic_cli.methods.perfedckt import PerFedCKT
from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.runner.checkpoint_state import capture_state, restore_state
from tests.toys import (
    CPU,
    TOYS,
    close,
    from_client,
    from_disk,
    from_server,
    make_toy,
    models,
    personal_models,
    run_toy,
    same,
    with_other_labels,
    with_other_pixels,
)

VARIANTS: dict[str, Method] = {
    **{name: method() for name, method in METHODS.items()},
    "fedmosaic-entropy": FedMosaic(expertise="entropy", trust="stabilised"),
    "fedmosaic-late": FedMosaic(expertise="uniform", trust=0.5, warmup_rounds=2),
    "perfedckt-groups": PerFedCKT(clusters=2, mu=1.0),
    "perfedavg-hf": PerFedAvg(version="hessian-free"),
    "fedphp-mmd": FedPHP(transfer="mmd", strength=0.5),
}


@pytest.fixture(params=VARIANTS)
def method(request) -> Method:
    return VARIANTS[request.param]


@pytest.mark.thinned(every=4)
@pytest.mark.integration
@pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
def test_runs_are_reproducible_bit_for_bit(method, toy):
    assert same(models(method, toy), models(method, toy))


@pytest.mark.thinned(every=2)
@pytest.mark.integration
@pytest.mark.parametrize("toy", TOYS.values(), ids=TOYS)
def test_training_changes_models_and_keeps_them_finite(method, toy):
    before, after = models(method, toy, rounds=0), models(method, toy)
    assert not same(before, after)
    assert all(torch.isfinite(tensor).all() for model in after for tensor in model.values())


def test_seeds_give_different_models(method):
    assert not same(models(method, TOYS["even"], seed=0), models(method, TOYS["even"], seed=1))


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("execution", ["threads", "stacked"])
def test_number_of_workers_and_client_order_do_not_change_results(method, execution, workers):
    toy = TOYS["uneven"].changed(execution=execution)
    federation = toy.changed(workers=workers).federation(method)
    federation.state.clients.reverse()
    with federation.worker_pool:
        rounds = list(run_rounds(federation, 3))
    ours = personal_models(federation)
    expected = toy.federation(method)
    with expected.worker_pool:
        assert rounds == list(run_rounds(expected, 3))
    assert same([ours[client] for client in sorted(ours)], list(personal_models(expected).values()))


def test_run_neither_uses_nor_changes_global_random_generators(method):
    """Every draw has its own stream, so checkpoints need no global generator state."""
    toy = TOYS["uneven"].changed(clients_per_round=2)
    expected = models(method, toy)
    for set_seed in (torch.manual_seed, np.random.seed, random.seed):
        set_seed(7)
    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    assert same(models(method, toy), expected)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(np.random.get_state(), before[1], strict=True))
    assert random.getstate() == before[2]


def test_evaluation_does_not_change_state(method):
    check_evaluation_does_not_change_state(method, TOYS["even"])


@pytest.mark.thinned(every=3)
@pytest.mark.integration
@pytest.mark.usefixtures("with_batch_norm")
@pytest.mark.parametrize("policy", ["average", "local", "drop"])
def test_evaluation_does_not_change_batch_statistics(method, policy):
    check_evaluation_does_not_change_state(method, TOYS["even"].changed(bn_buffers=policy, clients_per_round=2))


def check_evaluation_does_not_change_state(method, toy):
    federation = toy.federation(method)
    with federation.worker_pool:
        list(run_rounds(federation, 2))
        before, noise = deepcopy(capture_state(federation.state)), torch.random.get_rng_state()
        assert evaluate_round(federation, {}) == evaluate_round(federation, {})
        after = deepcopy(capture_state(federation.state))
        list(run_rounds(federation, 3))
    assert before[1] == after[1]
    assert all(np.array_equal(before[0][name], after[0][name]) for name in before[0])
    assert torch.equal(noise, torch.random.get_rng_state())
    assert same(list(personal_models(federation).values()), models(method, toy))


def test_training_does_not_use_test_labels_or_public_labels(method):
    toy = TOYS["even"]
    tests = np.concatenate([shard.test for shard in toy.partition.shards])
    ours = full_state(run_toy(method, toy))
    for hidden in (tests, *([] if method.needs.public_labels else [toy.partition.public])):
        assert full_state(run_toy(method, toy.changed(dataset=with_other_labels(toy.dataset, hidden)))) == ours
    train = toy.partition.shards[0].train
    assert full_state(run_toy(method, toy.changed(dataset=with_other_labels(toy.dataset, train)))) != ours


def full_state(federation):
    """Return the state of server and clients and all personal models, bit for bit."""
    arrays, values = capture_state(federation.state)
    models = [{name: tensor.numpy() for name, tensor in m.items()} for m in personal_models(federation).values()]
    named = [*arrays.items(), *(item for model in models for item in model.items())]
    return [(name, array.tobytes()) for name, array in named], values


@pytest.mark.parametrize("name", [name for name in VARIANTS if not VARIANTS[name].needs.pooled_data])
def test_client_does_not_depend_on_data_of_other_clients(name):
    method, toy = VARIANTS[name], TOYS["even"]
    other = toy.changed(dataset=with_other_pixels(toy.dataset, toy.partition.shards[1].train))
    first, second = toy.federation(method), other.federation(method)
    uploads = [first_upload(method, federation, client=0) for federation in (first, second)]
    uploads = [{**upload, "state": client_state(f)} for upload, f in zip(uploads, (first, second), strict=True)]
    plain = [{k: v for k, v in capture_state(f.state)[1].items() if k.startswith("client-0/")} for f in (first, second)]
    assert plain[0] == plain[1]
    assert uploads[0].keys() == uploads[1].keys()
    for part, value in uploads[0].items():
        pairs = zip(flat(value), flat(uploads[1][part]), strict=True)
        assert all(left == right if isinstance(left, bytes) else torch.equal(left, right) for left, right in pairs)


def client_state(federation):
    """Return the tensors in the state of the first client."""
    arrays = capture_state(federation.state)[0]
    return {name: torch.as_tensor(array) for name, array in arrays.items() if name.startswith("client-0/")}


def first_upload(method, federation, client):
    """Return what a client uploads in the first round."""
    sender = federation.state.clients[client]
    sender.begin_round(1)
    ctx = federation.ctx
    received, _ = send_message(
        method.broadcast(federation.state.server, client, ctx), method.downloads, from_server(ctx)
    )
    return send_message(method.local_round(sender, received, ctx), method.uploads, from_client(ctx, client))[0]


def flat(value):
    """Return the leaves of nested dictionaries."""
    return [leaf for part in value.values() for leaf in flat(part)] if isinstance(value, dict) else [value]


@pytest.mark.parametrize("name", [name for name in VARIANTS if not VARIANTS[name].needs.pooled_data])
def test_logged_traffic_equals_predicted_traffic(name):
    method, toy = VARIANTS[name], make_toy([5, 6, 7], public=10)
    federation = toy.federation(method)
    expected = planned_traffic(method, federation.ctx)
    with federation.worker_pool:
        rounds = list(run_rounds(federation, 4))
    last = rounds[-1].rows[0]
    assert (last["bits_up"], last["bits_down"]) == (expected.uplink_bits, expected.downlink_bits)


# 4x3 + 3 + 3x3 + 3 weights of 64 bits; 10 public examples, 3 classes: 2 bits per label, in bytes; 8 bits per expertise.
WEIGHTS, LABELS, EXPERTISE, LOGITS = 64 * 27, 24, 80, 64 * 10 * 3


@pytest.mark.parametrize(
    ("name", "up", "down"),
    [
        ("local", 0, 0),
        *((name, WEIGHTS, WEIGHTS) for name in ("fedavg", "fedprox", "fedbn", "perfedavg", "ditto", "pfedme")),
        *((name, WEIGHTS, WEIGHTS) for name in ("apfl", "fedphp")),
        ("fedct", LABELS, LABELS),
        ("perfedckt", LOGITS, LOGITS),
        ("fedmosaic", LABELS + EXPERTISE, LABELS),
    ],
)
def test_traffic_follows_from_message_sizes(name, up, down):
    federation = make_toy([5, 6, 7], public=10).federation(VARIANTS[name])
    with federation.worker_pool:
        rows = [row for done in run_rounds(federation, 3) for row in done.rows]
    assert {(row["bits_up"], row["bits_down"]) for row in rows if row["round"] > 1} == {(up, down)}


def test_local_training_does_not_depend_on_other_clients():
    toy = TOYS["even"]
    other = toy.changed(dataset=with_other_pixels(toy.dataset, toy.partition.shards[1].train))
    ours, theirs = models(METHODS["local"](), toy), models(METHODS["local"](), other)
    assert same(ours[:1], theirs[:1])
    assert not same(ours[1:2], theirs[1:2])


@pytest.mark.parametrize("name", [name for name in VARIANTS if not VARIANTS[name].needs.pooled_data])
def test_messages_share_no_memory_with_their_sender(name):
    """In both directions: overwriting received tensors does not change the state of the sender."""
    method = VARIANTS[name]
    federation = run_toy(method, TOYS["even"], rounds=2)
    upload = first_upload(method, federation, client=0)
    ctx = federation.ctx
    received, _ = send_message(method.broadcast(federation.state.server, 0, ctx), method.downloads, from_server(ctx))
    before = deepcopy(capture_state(federation.state))
    for tensor in (tensor for part in (*upload.values(), *received.values()) for tensor in flat(part)):
        if not isinstance(tensor, bytes):  # bytes are immutable
            tensor.zero_()
    after = capture_state(federation.state)
    assert all(np.array_equal(before[0][name], after[0][name]) for name in before[0])


@pytest.mark.parametrize(("name", "entry"), [("ditto", "personal"), ("apfl", "private"), ("fedphp", "history")])
def test_broadcast_does_not_overwrite_personal_models(name, entry, monkeypatch):
    """Receiving a model must not change them, so a client that does not train keeps them."""
    federation = run_toy(VARIANTS[name], TOYS["even"], rounds=2)
    client = federation.state.clients[0]
    before = {n: t.clone() for n, t in client.state[entry].items()}
    for tensor in federation.state.server.state["model"].values():
        tensor.normal_()
    monkeypatch.setattr(InProcessClient, "train", lambda *_, **__: None)
    monkeypatch.setattr(InProcessClient, "take_steps", lambda *_: None)
    monkeypatch.setattr(FedPHP, "history_weight", lambda *_: 1.0)
    first_upload(VARIANTS[name], federation, client=0)
    assert same([before], [client.state[entry]])


@pytest.mark.parametrize("name", [name for name in VARIANTS if isinstance(VARIANTS[name], FedAvg) and name != "feddf"])
def test_mean_of_equal_uploads_equals_the_upload(name):
    method = VARIANTS[name]
    federation = TOYS["uneven"].federation(method)
    upload = first_upload(method, federation, client=0)
    method.aggregate(federation.state.server, dict.fromkeys(range(3), upload), federation.ctx)
    assert close([federation.state.server.state["model"]], [upload["model"]])
    assert sum(share / 20 for share in federation.ctx.aggregation_weights(range(3))) == pytest.approx(1)


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("stop", [1, 2])
@pytest.mark.parametrize("clients_per_round", [3, 2])
def test_resume_does_not_change_results(method, stop, clients_per_round):
    check_resume_does_not_change_results(method, TOYS["uneven"].changed(clients_per_round=clients_per_round), stop)


@pytest.mark.thinned(every=3)
@pytest.mark.integration
@pytest.mark.usefixtures("with_batch_norm")
@pytest.mark.parametrize("policy", ["average", "local", "drop"])
def test_resume_with_batch_statistics_does_not_change_results(method, policy):
    toy = TOYS["uneven"].changed(clients_per_round=2, bn_buffers=policy)
    check_resume_does_not_change_results(method, toy, 2)
    assert same(models(method, toy), models(method, toy.changed(workers=3)))


def check_resume_does_not_change_results(method, toy, stop):
    halfway = run_toy(method, toy, rounds=stop)
    resumed, uninterrupted = toy.federation(method), toy.federation(method)
    restore_state(resumed, *from_disk(capture_state(halfway.state)), stop)
    assert same(list(personal_models(resumed).values()), list(personal_models(halfway).values()))
    with resumed.worker_pool, uninterrupted.worker_pool:
        rounds, expected = list(run_rounds(resumed, 4)), list(run_rounds(uninterrupted, 4))
    assert rounds == expected[stop:]
    assert same(list(personal_models(resumed).values()), list(personal_models(uninterrupted).values()))


def test_public_predictions_stay_on_the_cpu():
    """Also after a checkpoint is restored on another device, here `meta`."""
    for name in ("fedmosaic", "fedct", "perfedckt"):
        federation = run_toy(VARIANTS[name], TOYS["even"], rounds=2)
        client = federation.state.clients[0]
        client.private = replace(client.private, device=torch.device("meta"))
        restore_state(federation, *capture_state(federation.state), 2)
        loose = [
            *federation.state.server.state.values(),
            *(v for v in client.state.values() if not isinstance(v, dict)),
        ]
        assert loose
        assert all(tensor.device == CPU for tensor in loose)
        assert all(tensor.device.type == "meta" for tensor in client.state["model"].values())


@pytest.mark.parametrize("name", [name for name in VARIANTS if not VARIANTS[name].needs.public_set])
@pytest.mark.parametrize("policy", ["keep", "reset"])
def test_memory_equals_predicted_memory(name, policy):
    method = VARIANTS[name]
    num_rounds = 3 if has_finalize(method) else 1
    federation = run_toy(method, TOYS["even"].changed(optimizer_state=policy), rounds=num_rounds)
    upload = first_upload(method, federation, client=0)
    arrays = [array for key, array in capture_state(federation.state)[0].items() if key.startswith("client-0/")]
    numbers = sum(array.size for array in arrays if array.ndim) + num_elements(upload)
    costs = method.costs(federation.ctx)
    optimizer_models = 2 * costs.trained_models if policy == "keep" else 0
    assert numbers == 27 * (costs.state_models + optimizer_models) + upload_bits(method, federation.ctx) // 64


def num_elements(message):
    """Return the number of elements of all tensors in a message."""
    return sum(tensor.numel() for part in message.values() for tensor in flat(part))


def test_rows_start_with_the_documented_columns(method):
    federation = TOYS["even"].federation(method)
    with federation.worker_pool:
        rounds = list(run_rounds(federation, 2))
    columns = [
        "round",
        "client",
        "lambda",
        "loss_private",
        "loss_public",
        "accuracy",
        "test_loss",
        "bits_up",
        "bits_down",
    ]
    for done in rounds:
        assert [row["client"] for row in done.rows] == [0, 1, 2]
        assert all(list(row)[: len(columns)] == columns for row in done.rows)


def test_methods_are_frozen_and_describe_themselves(method):
    with pytest.raises(Exception, match=r"frozen|assign"):
        method.name_of_a_new_field = 1
    assert method.info.title
    assert method.info.exchanges
    assert method.info.evaluates
    assert METHODS[method.info.name](**asdict(method)) == method
