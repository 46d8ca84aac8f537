"""Attacks of a coordinator that keeps within the protocol: many rounds, overrides, untrained rounds, failed writes."""

from __future__ import annotations

from dataclasses import replace
from threading import Thread

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedmosaic_cli.cotraining import NO_LABEL
from fedmosaic_cli.engine.client import InProcessClient
from fedmosaic_cli.engine.messages import SERVER_ID, make_route
from fedmosaic_cli.errors import RunStateError
from fedmosaic_cli.federation import protocol
from fedmosaic_cli.federation.policy import SitePolicy
from fedmosaic_cli.federation.privacy_ledger import PrivacyLedger
from fedmosaic_cli.federation.site_run import SiteRun
from fedmosaic_cli.federation.usage_limits import UsageLimits, UsageRecord
from fedmosaic_cli.labels.privacy.accounting import Release
from fedmosaic_cli.methods.fedct import FedCT
from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.runner.build import build_site_federation, count_weights
from fedmosaic_cli.storage import syscalls
from tests.federation.sites import (
    CPU,
    NOISY_LABELS,
    Sites,
    export_shards,
    join,
    local_round,
    make_config,
    request_site,
    run,
    run_id,
)

SIMULATED_ONLY = {name for name, m in METHODS.items() if m().needs.pooled_data or m().needs.public_labels}
FEDERATED_METHODS = [name for name in METHODS if name not in SIMULATED_ONLY]
NUM_EXAMPLES, NUM_ROUNDS = 40, 150
BUDGET = SitePolicy(max_epsilon=8)
SMALL = {"examples_per_client": NUM_EXAMPLES, "test_examples_per_client": 20, "public_alpha": None}
KNOWN_MODEL = (
    *("train.batch_size=8", "train.local_steps=3", f"train.rounds={NUM_ROUNDS}", "model.hidden=[]"),
    *("train.lr=1e-6", "train.optimizer=sgd", f"methods.fedct.warmup_rounds={NUM_ROUNDS}"),
)
"""Within the minima of the default policy, and still the model hardly changes."""
RELEASE = Release(1, "krr", 60, epsilon=0.1)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return export_shards(tmp_path_factory.mktemp("shards"))


@pytest.fixture(scope="module")
def small_shards(tmp_path_factory):
    return export_shards(tmp_path_factory.mktemp("small"), **SMALL)


def weights_of_examples(site, config):
    """Return how much each example counts in the mean loss of each round [rounds, examples]. Needs no data."""
    shard = site.shard
    blank = replace(
        shard.dataset, images=np.zeros_like(shard.dataset.images), labels=np.zeros_like(shard.dataset.labels)
    )
    federation = build_site_federation(
        config, blank, shard.partition, shard.client_train_sizes, shard.shard_set.digest, CPU
    )
    client = federation.state.clients[0]
    weights = np.zeros((NUM_ROUNDS, NUM_EXAMPLES))
    for row in range(NUM_ROUNDS):
        client.begin_round(row + 1)
        for batch in client._private_batches("private"):
            weights[row, batch.numpy()] += 1 / (3 * 8)
    return weights


def set_finished(state, number):
    state.finished = number


def correlation_with_losses(site, config, monkeypatch):
    """Return how well the losses of single examples follow from the losses of all rounds; 0 if no loss is sent."""
    monkeypatch.setattr(SiteRun, "save_round", lambda run, number, *_: set_finished(run.federation.state, number))
    assert join(site, config)["kind"] == protocol.JOIN
    client = site._current_run.client
    true = cross_entropy(client.predict_private(client.initial_model), client.private.targets, reduction="none")
    rounds = [local_round(site, config, number) for number in range(1, NUM_ROUNDS + 1)]
    assert {header["kind"] for header in rounds} == {protocol.LOCAL_ROUND}
    sent = [header["metrics"].get("loss_private") for header in rounds]
    if sent[0] is None:
        assert set(sent) == {None}
        return 0.0
    weights = np.vstack([weights_of_examples(site, config), 1e-2 * np.eye(NUM_EXAMPLES)])
    values = np.concatenate([sent, np.full(NUM_EXAMPLES, 1e-2 * np.mean(sent))])
    estimates = np.linalg.lstsq(weights, values, rcond=None)[0]
    return float(np.corrcoef(estimates, true.numpy())[0, 1])


@pytest.mark.parametrize("sends_withheld_metrics", [False, True])
def test_many_rounds_of_a_known_model_do_not_tell_losses_of_examples(
    sends_withheld_metrics, small_shards, tmp_path, monkeypatch
):
    """Rounding does not prevent this: rounding errors of many means over different examples average out."""
    if sends_withheld_metrics:
        monkeypatch.setattr(InProcessClient, "_covers_all", lambda *_: True)
    config = make_config(small_shards, "fedct", tmp_path, *KNOWN_MODEL)
    site = Sites(small_shards, tmp_path, SitePolicy()).sites[0]
    correlation = correlation_with_losses(site, config, monkeypatch)
    assert correlation > 0.9 if sends_withheld_metrics else correlation == 0


@pytest.mark.parametrize("epochs", [False, True])
def test_training_losses_are_sent_if_they_average_over_all_examples(epochs, small_shards, tmp_path):
    """Five steps of 8 examples are 40 examples, as one epoch; three steps are a part of them."""
    more = ("train.local_steps=null", "train.local_epochs=2") if epochs else ("train.local_steps=5",)
    site = Sites(small_shards, tmp_path, SitePolicy()).sites[0]
    config = make_config(small_shards, "fedct", tmp_path, "train.batch_size=8", *more)
    join(site, config)
    assert local_round(site, config)["metrics"]["loss_private"] > 0
    part = make_config(small_shards, "fedct", tmp_path, "train.batch_size=8", "train.local_steps=3", seed=1)
    join(site, part)
    assert local_round(site, part)["metrics"]["loss_private"] is None


MEANS_OVER_ALL_EXAMPLES = {
    "fedmosaic": {"loss_private", "loss_public"},
    "fedrep": {"loss_private"},
    "feddf": {"loss_distillation"},
}


@pytest.mark.parametrize("method", FEDERATED_METHODS)
def test_no_method_sends_training_losses_of_a_part_of_the_examples(method, small_shards, tmp_path):
    """Batches of 9 do not fit the 40 examples. FedMosaic sends means over all private and all labelled public examples,
    and FedRep that of an epoch. The distillation loss is the server's.
    """
    needs = METHODS[method]().needs
    shards = small_shards
    if needs.validation:
        shards = export_shards(tmp_path, **SMALL, val_fraction=0.2)
    sgd = ("train.optimizer=sgd", "train.lr=0.1") if needs.plain_sgd else ()
    config = make_config(shards, method, tmp_path, "train.batch_size=9", "train.rounds=2", *sgd)
    sites = Sites(shards, tmp_path, SitePolicy("models"))
    rows = [row for row in run(config, shards, tmp_path / "run", sites).read_rounds() if row["round"] > 0]
    assert len(rows) == 6
    for row in rows:
        assert row["accuracy"] is not None
        sent = {name for name, value in row.items() if name.startswith("loss") and value is not None}
        assert sent <= MEANS_OVER_ALL_EXAMPLES.get(method, set())


def test_losses_of_selected_examples_are_partial_even_if_their_number_fits(small_shards, tmp_path):
    site = Sites(small_shards, tmp_path).sites[0]
    join(site, make_config(small_shards, "fedct", tmp_path))
    client = site._current_run.client
    for examples, partial in ((None, set()), (torch.arange(20), {"loss_private"})):
        client.begin_round(1)
        client.train("model", examples=examples, steps=5, batch_size=8)
        assert client.withheld_metrics == partial
    client.log(loss_private=1.0)
    assert client.withheld_metrics == set(), "a value that the method computes itself"


@pytest.mark.parametrize("key", ["train.lr", "clients.0.lr"])
def test_minima_apply_to_the_settings_of_this_client(key, shards, tmp_path):
    site = Sites(shards, tmp_path, SitePolicy()).sites[0]
    config = make_config(shards, "fedct", tmp_path, "train.batch_size=8", f"{key}=1e-30")
    assert "train.lr is 1e-30, and this site requires 1e-06" in join(site, config)["text"]


STUDENT_STEPS = ("train.rounds=1", "methods.student.steps=100", "methods.student.check_agreement=false")


def test_steps_of_all_trainings_count(shards, tmp_path):
    """The student trains on the public set and on its own data, beside the local steps."""
    site = Sites(shards, tmp_path, limits=UsageLimits(max_steps=100)).sites[0]
    config = make_config(shards, "student", tmp_path, *STUDENT_STEPS)
    join(site, config)
    assert "100 steps per day (max_steps_per_day" in finish_student(site, config)["text"]


def finish_student(site, config):
    """Run the round of a student and return the response to finalize."""
    header = local_round(site, config)
    if header["kind"] == protocol.ERROR:
        return header
    run = site._current_run
    federation = run.federation
    ctx, downloads = federation.ctx, federation.method.downloads
    shares = torch.rand(ctx.public_size, ctx.num_classes, dtype=torch.float64) + 0.1
    message = {"shares": shares, "agreement": {"z": 5.0, "median_z": 5.0}}
    parts = protocol.encode_parts(message, downloads, make_route(CPU, ctx, 2, SERVER_ID))
    return request_site(site, {"kind": protocol.FINALIZE, "run": run_id(config), "round": 1}, parts)


def test_nothing_is_computed_after_the_hours_of_a_day_and_finished_work_is_still_sent(shards, tmp_path, monkeypatch):
    monkeypatch.setattr("fedmosaic_cli.federation.usage_limits.seconds_since_midnight", lambda: 5000.0)
    site = Sites(shards, tmp_path, limits=UsageLimits(max_hours=1.0)).sites[0]
    config = make_config(shards, "fedct", tmp_path)
    join(site, config)
    response = local_round(site, config, 1)
    site.usage.add_seconds(site.coordinator, 3600)
    header = {"run": run_id(config), "round": 2}
    refused = [
        join(site, make_config(shards, "fedct", tmp_path, seed=1)),
        local_round(site, config, 2),
        request_site(site, {"kind": protocol.EVALUATE, **header}),
    ]
    assert ["1 hours per day (max_hours_per_day" in each["text"] for each in refused] == [True] * 3
    assert local_round(site, config, 1) == response
    assert request_site(site, {"kind": protocol.FINISH, **header, "round": 1})["kind"] == protocol.FINISH


def test_a_request_that_spans_midnight_counts_for_the_new_day_only_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr("fedmosaic_cli.federation.usage_limits.seconds_since_midnight", lambda: 60.0)
    usage = UsageRecord(tmp_path / "usage.json", UsageLimits())
    usage.add_seconds("a", 25 * 3600)
    usage.require_time("a")
    assert usage.usage_today()["a"].seconds == 60.0


def test_rounds_are_refused_when_stored_runs_exceed_the_disk_space(shards, tmp_path):
    site = Sites(shards, tmp_path, limits=UsageLimits(max_disk_gb=1e-5)).sites[0]
    config = make_config(shards, "fedct", tmp_path, "model.hidden=[500]")
    join(site, config)
    texts = [local_round(site, config, number).get("text", "") for number in (1, 2, 3)]
    assert "at most 1e-05 GB of stored runs (max_disk_gb" in texts[-1]


def test_evaluations_of_rounds_without_training_count_as_steps(shards, tmp_path):
    site = Sites(shards, tmp_path, limits=UsageLimits(max_steps=6)).sites[0]
    config = make_config(shards, "fedct", tmp_path, "train.rounds=100")
    join(site, config)
    kinds = [
        request_site(site, {"kind": protocol.EVALUATE, "run": run_id(config), "round": number})["kind"]
        for number in range(1, 5)
    ]
    assert kinds == [protocol.EVALUATE, protocol.EVALUATE, protocol.ERROR, protocol.ERROR]


def test_weights_count_with_all_copies_and_optimizer_states(shards, tmp_path):
    dataset = Sites(shards, tmp_path).sites[0].shard.dataset
    local, gated = (make_config(shards, method, tmp_path, "model.hidden=[50]") for method in ("local", "gated"))
    one = 64 * 50 + 50 + 50 * 10 + 10
    assert count_weights(local, dataset, 0) == 4 * one + one
    assert count_weights(gated, dataset, 0) > 10 * one


@pytest.mark.parametrize("call", ["fsync", "write"])
def test_a_failed_write_of_the_ledger_does_not_damage_it(call, tmp_path, monkeypatch):
    path, anchors = tmp_path / "ledger.jsonl", tmp_path / "anchors"
    ledger = PrivacyLedger(path, "data", 10, anchors)
    ledger.append("run", [RELEASE])
    original = getattr(syscalls, call)

    def fail(target, *data):
        if call == "write":
            original(target, data[0][:20])
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(syscalls, call, fail)
        with pytest.raises(OSError, match="no space"):
            ledger.append("run", [RELEASE])
    ledger.append("run", [RELEASE])
    assert ledger.num_entries == PrivacyLedger(path, "data", 10, anchors).num_entries == 2


def test_two_ledgers_of_the_same_data_do_not_record_at_the_same_moment(tmp_path, monkeypatch):
    first, second = (PrivacyLedger(tmp_path / name, "data", 10, tmp_path / "anchors") for name in ("a", "b"))
    check, outcomes = PrivacyLedger._check_anchor, []

    def append_in_other_process():
        try:
            second.append("run", [RELEASE])
            outcomes.append("recorded")
        except RunStateError:
            outcomes.append("refused")

    other = Thread(target=append_in_other_process)

    def check_and_let_the_other_begin(ledger):
        check(ledger)
        if ledger is first:
            other.start()
            other.join(0.5)

    monkeypatch.setattr(PrivacyLedger, "_check_anchor", check_and_let_the_other_begin)
    first.append("run", [RELEASE])
    other.join()
    assert outcomes == ["refused"]


RECORD_LEVEL = (*NOISY_LABELS, "privacy.unit=record-assumed", "privacy.changed_rows=1")


@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        (SitePolicy(metrics="withheld"), ("train.rounds=2",)),
        (SitePolicy(), NOISY_LABELS),
        (SitePolicy(metrics="withheld"), RECORD_LEVEL),
    ],
    ids=["labels without noise", "metrics beside noise", "noise for single records"],
)
def test_a_budget_after_runs_without_noise_is_refused(policy, settings, shards, tmp_path):
    sites = Sites(shards, tmp_path, policy)
    config = make_config(shards, "fedct", tmp_path, "train.batch_size=8", *settings)
    assert join(sites.sites[0], config)["kind"] == protocol.JOIN
    sites.policy = BUDGET
    sites.restart(0)
    refused = join(sites.sites[0], make_config(shards, "fedct", tmp_path, *NOISY_LABELS, seed=1))
    assert "1 earlier run sent values without noise" in refused["text"]
    assert join(sites.sites[0], config)["kind"] == protocol.ERROR, "nor does it continue the run"


def test_a_run_that_continues_without_a_budget_counts(shards, tmp_path):
    sites = Sites(shards, tmp_path, BUDGET)
    config = make_config(shards, "fedct", tmp_path, *NOISY_LABELS, "train.batch_size=8")
    assert join(sites.sites[0], config)["kind"] == protocol.JOIN
    sites.policy = SitePolicy()
    for _ in range(2):
        sites.restart(0)
        assert join(sites.sites[0], config)["kind"] == protocol.JOIN
    assert sites.sites[0].usage.num_runs_without_noise == 1


@pytest.mark.parametrize(
    ("method", "settings"), [("fedct", NOISY_LABELS), ("local", ("train.rounds=2",))], ids=["noise", "nothing"]
)
def test_a_budget_covers_earlier_runs_with_noise_and_without_metrics(method, settings, shards, tmp_path):
    sites = Sites(shards, tmp_path, SitePolicy(metrics="withheld"))
    assert join(sites.sites[0], make_config(shards, method, tmp_path, *settings))["kind"] == protocol.JOIN
    sites.policy = BUDGET
    sites.restart(0)
    later = make_config(shards, "fedct", tmp_path, *NOISY_LABELS, seed=1)
    assert join(sites.sites[0], later)["kind"] == protocol.JOIN


def test_stored_runs_without_a_record_of_use_count_as_runs_without_noise(shards, tmp_path):
    sites = Sites(shards, tmp_path, SitePolicy(metrics="withheld"))
    join(sites.sites[0], make_config(shards, "fedct", tmp_path, *NOISY_LABELS))
    (tmp_path / "site-0" / "usage.json").unlink()
    sites.restart(0)
    assert sites.sites[0].usage.num_runs_without_noise == 1


def test_with_withheld_metrics_a_refusal_does_not_depend_on_the_steps_that_were_taken(shards, tmp_path, monkeypatch):
    """Whether gated co-training tests its candidate depends on data. The planned steps do not."""
    kinds = []
    for num_trainings in (1, 3):
        limits = UsageLimits(max_steps=14)
        site = Sites(shards, tmp_path / str(num_trainings), BUDGET, limits).sites[0]
        config = make_config(shards, "fedct", tmp_path, *NOISY_LABELS, "train.rounds=4", "privacy.epsilon=1")
        join(site, config)

        def local_round_of_any_length(method, client, received, ctx, repeats=num_trainings):
            for _ in range(repeats):
                client.train("model")
            return ORIGINAL(method, client, received, ctx)

        monkeypatch.setattr(FedCT, "local_round", local_round_of_any_length)
        kinds.append([local_round(site, config, number)["kind"] for number in (1, 2, 3, 4)])
    assert kinds[0] == kinds[1]


ORIGINAL = FedCT.local_round


def test_a_consensus_for_few_public_examples_is_refused(shards, tmp_path):
    """Otherwise the loss on public examples would be that of a single one."""
    for labels, policy, is_refused in ((1, SitePolicy(), True), (19, SitePolicy(), True), (20, SitePolicy(), False)):
        site = Sites(shards, tmp_path / f"{labels}", policy).sites[0]
        config = make_config(shards, "fedmosaic", tmp_path, "train.batch_size=8")
        join(site, config)
        ctx, downloads = site._current_run.federation.ctx, site._current_run.federation.method.downloads
        consensus = torch.full((ctx.public_size,), NO_LABEL)
        consensus[:labels] = 3
        [name] = downloads
        assert local_round(site, config, 1)["kind"] == protocol.LOCAL_ROUND
        for kind, number in ((protocol.LOCAL_ROUND, 2), (protocol.EVALUATE, 2), (protocol.FINISH, 2)):
            route = make_route(CPU, ctx, 2 if kind == protocol.LOCAL_ROUND else number + 1, SERVER_ID)
            parts = protocol.encode_parts({name: consensus}, downloads, route)
            header = request_site(site, {"kind": kind, "run": run_id(config), "round": number}, parts)
            assert (header["kind"] == protocol.ERROR) == is_refused
            assert not is_refused or f"labels for {labels} public examples, and this site requires 20" in header["text"]
