"""What leaves a site: a coordinator cannot reconstruct examples, and a privacy budget covers every value."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from unittest.mock import MagicMock

import numpy as np
import pytest
from scipy.optimize import least_squares
from scipy.special import logsumexp

from fedmosaic_cli.errors import RunStateError
from fedmosaic_cli.federation import protocol
from fedmosaic_cli.federation.egress import EgressFilter, rounded_metric, rounded_trust
from fedmosaic_cli.federation.local_federation import start_local_site
from fedmosaic_cli.federation.policy import SitePolicy
from fedmosaic_cli.federation.privacy_ledger import PrivacyLedger
from fedmosaic_cli.federation.protocol import Request, Response
from fedmosaic_cli.federation.usage_limits import UsageLimits, UsageRecord
from fedmosaic_cli.labels import wire
from fedmosaic_cli.labels.privacy.accounting import Release
from fedmosaic_cli.runner.build import build_site_federation
from tests.federation.sites import (
    CPU,
    NOISY_LABELS,
    Sites,
    export_shards,
    is_request,
    join,
    join_request,
    local_round,
    make_config,
    request_site,
    run,
    run_id,
)

ATTACK = (
    *("train.rounds=2", "train.local_steps=1", "train.batch_size=1", "train.lr=1e-30", "model.hidden=[]"),
    "methods.fedct.warmup_rounds=2",
)
NO_MINIMA = {"min_batch_size": 1, "min_examples": 1, "min_lr": 0.0}
NOISE = ("privacy.labels=krr", "privacy.epsilon=0.5", "privacy.delta=0.1")
NUM_PLANS = 110
BUDGET = SitePolicy("labels", max_epsilon=8)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return export_shards(tmp_path_factory.mktemp("shards"))


@pytest.fixture(scope="module")
def tiny_shards(tmp_path_factory):
    """Shards whose clients have two training examples, so that few plans are wasted on the other example."""
    return export_shards(
        tmp_path_factory.mktemp("tiny"), examples_per_client=2, test_examples_per_client=20, public_alpha=None
    )


def known_model(site, config):
    """Return what the coordinator knows of a plan: the initial linear model, and the first example of the round."""
    shard = site.shard
    blank = replace(shard.dataset, images=np.zeros_like(shard.dataset.images))
    federation = build_site_federation(
        config, blank, shard.partition, shard.client_train_sizes, shard.shard_set.digest, CPU
    )
    client = federation.state.clients[0]
    client.begin_round(1)
    model = client.initial_model
    first = client._private_batches("private")[0]
    return model["head.weight"].double().numpy(), model["head.bias"].double().numpy(), first.tolist()


def attack_error(site, shards, folder, *more):
    """Return the mean pixel error of the coordinator's reconstruction of an example; inf if it learns no loss."""
    shard = site.shard
    index = shard.own.train[0]
    image = shard.dataset.images[index].reshape(-1) / 127.5 - 1
    label = int(shard.dataset.labels[index])
    observed = []
    for seed in range(4 * NUM_PLANS):
        config = make_config(shards, "fedct", folder, *ATTACK, *more, seed=seed)
        weight, bias, first = known_model(site, config)
        if first != [0]:
            continue
        if join(site, config)["kind"] == protocol.ERROR:
            break
        loss = local_round(site, config).get("metrics", {}).get("loss_private")
        if loss is None:
            break
        observed.append((weight, bias, loss))
        if len(observed) == NUM_PLANS:
            break
    if not observed:
        return math.inf
    weights, biases, losses = (np.stack(values) for values in zip(*observed, strict=True))

    def residuals(pixels):
        logits = weights @ pixels + biases
        return logsumexp(logits, axis=1) - logits[:, label] - losses

    guess = least_squares(residuals, np.zeros(len(image)), bounds=(-1.001, 1.001)).x
    return float(np.abs(guess - image).mean())


def test_a_coordinator_reconstructs_an_image_from_unprotected_metrics(tiny_shards, tmp_path):
    site = Sites(tiny_shards, tmp_path, SitePolicy(metrics="exact-unprotected")).sites[0]
    assert attack_error(site, tiny_shards, tmp_path) < 1e-3


@pytest.mark.parametrize(
    ("policy", "noise"),
    [
        (SitePolicy(), ()),
        (SitePolicy("predictions"), ()),
        (SitePolicy("models"), ()),
        (SitePolicy(metrics="withheld"), ()),
        (SitePolicy(metrics="withheld", **NO_MINIMA), ()),
        (SitePolicy(max_epsilon=0.5, delta=0.1, **NO_MINIMA), NOISE),
        (SitePolicy(max_epsilon=0.5, metrics="exact-unprotected", delta=0.1, **NO_MINIMA), NOISE),
    ],
    ids=["default", "predictions", "models", "withheld", "withheld, no minima", "budget", "budget and exact"],
)
def test_every_protecting_policy_hides_the_loss_of_a_single_example(policy, noise, tiny_shards, tmp_path):
    site = Sites(tiny_shards, tmp_path, policy).sites[0]
    assert attack_error(site, tiny_shards, tmp_path, *noise) == math.inf


def test_rounding_and_a_limit_of_runs_protect_without_the_minima_of_a_plan(tiny_shards, tmp_path):
    sites = Sites(tiny_shards, tmp_path, SitePolicy(**NO_MINIMA), UsageLimits())
    assert attack_error(sites.sites[0], tiny_shards, tmp_path) > 0.3


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("train.batch_size=4", "train.batch_size is 4, and this site requires 8"),
        ("train.lr=1e-9", "train.lr is 1e-09, and this site requires 1e-06"),
        ("train.local_steps=1", "train.local_steps times train.batch_size is 8"),
    ],
)
def test_plans_below_a_minimum_are_refused(assignment, words, shards, tmp_path):
    site = Sites(shards, tmp_path, SitePolicy()).sites[0]
    config = make_config(shards, "fedmosaic", tmp_path, "train.batch_size=8", assignment)
    assert words in join(site, config)["text"]
    assert not list(tmp_path.rglob("plan.json"))


def test_with_a_budget_responses_do_not_depend_on_data(shards, tmp_path):
    """Two sites with different examples send the same headers, and labels with noise in as many bytes."""
    responses = []
    for name, change in (("one", lambda images: images), ("other", lambda images: images[::-1].copy())):
        site = Sites(shards, tmp_path / name, BUDGET).sites[0]
        site.shard = replace(site.shard, dataset=replace(site.shard.dataset, images=change(site.shard.dataset.images)))
        config = make_config(shards, "fedmosaic", tmp_path, *NOISY_LABELS)
        requests = [(protocol.LOCAL_ROUND, 1), (protocol.LOCAL_ROUND, 2), (protocol.FINISH, 2)]
        messages = [site.handle_request(join_request(site, config).encode())]
        for kind, number in requests:
            request = Request({"kind": kind, "run": run_id(config), "round": number})
            messages.append(site.handle_request(request.encode()))
        responses.append([(Response.decode(message).header, len(message)) for message in messages])
    assert responses[0] == responses[1]
    headers = [header for header, _ in responses[0]]
    assert all(header["withheld"] for header in headers)
    assert [header["kind"] for header in headers] == [protocol.JOIN, *(kind for kind, _ in requests)]


def test_with_a_budget_a_diverged_client_sends_labels_like_any_other(shards, tmp_path, monkeypatch):
    site = Sites(shards, tmp_path, BUDGET).sites[0]
    config = make_config(shards, "fedmosaic", tmp_path, *NOISY_LABELS)
    expected = [join(site, config), local_round(site, config, 1)]
    other = Sites(shards, tmp_path / "other", BUDGET).sites[0]
    join(other, config)
    client = other._current_run.client
    monkeypatch.setattr(type(client), "require_finite", diverge_once(client))
    data = other.handle_request(Request({"kind": protocol.LOCAL_ROUND, "run": run_id(config), "round": 1}).encode())
    response = Response.decode(data)
    assert response.header == expected[1]
    assert set(response.parts) == {"opinion"}


@pytest.mark.parametrize("offset", range(4))
def test_with_a_budget_predictions_that_are_not_numbers_are_not_noticed(offset, shards, tmp_path):
    """Weights are finite, and six layers overflow. NaN plus noise is NaN, and would be sent as expertise 0."""
    site = Sites(shards, tmp_path, BUDGET).sites[0]
    labels = (site.shard.dataset.labels + 3 * offset) % 10
    site.shard = replace(site.shard, dataset=replace(site.shard.dataset, labels=labels))
    config = make_config(shards, "fedmosaic", tmp_path, *NOISY_LABELS, *OVERFLOW)
    join(site, config)
    request = Request({"kind": protocol.LOCAL_ROUND, "run": run_id(config), "round": 1})
    [(_, upload)] = Response.decode(site.handle_request(request.encode())).parts.values()
    spec = config.method.message_spec(site._current_run.federation.ctx)
    is_zero = wire.decode_expertise(upload, spec) == 0
    assert 10 < is_zero.sum() < 50, "noise makes about a half of 60 values 0"
    assert site._current_run.client.is_skipped == (offset in (1, 2))
    assert site.ledger.num_entries == 1


OVERFLOW = (
    *("train.rounds=1", "train.local_steps=1", "train.batch_size=1", "train.lr=1.05e6", "model.hidden=[8,8,8,8,8,8]"),
    "methods.fedmosaic.expertise=entropy",
)


@pytest.mark.parametrize(
    ("policy", "is_withheld"),
    [(SitePolicy(metrics="withheld"), True), (SitePolicy(), True), (SitePolicy(metrics="exact-unprotected"), False)],
    ids=["withheld", "rounded", "unchanged"],
)
def test_a_stricter_policy_applies_to_stored_responses(policy, is_withheld, shards, tmp_path):
    sites = Sites(shards, tmp_path, SitePolicy(metrics="exact-unprotected"))
    config = make_config(shards, "student", tmp_path, "train.rounds=1", "train.batch_size=8", "train.local_steps=5")
    requests = [join_request(sites.sites[0], config)]
    requests.append(Request({"kind": protocol.LOCAL_ROUND, "run": run_id(config), "round": 1}))
    first = [sites.sites[0].handle_request(request.encode()) for request in requests][-1]
    assert Response.decode(first).header["metrics"]["loss_private"] > 0
    sites.policy = policy
    sites.restart(0)
    again = [sites.sites[0].handle_request(request.encode()) for request in requests][-1]
    if is_withheld:
        response = Response.decode(again)
        assert response.header["metrics"] == {}
        assert response.header["evaluation"] is None
        assert response.header["withheld"]
        assert response.parts == Response.decode(first).parts
    else:
        assert again == first


def test_a_stored_response_is_sent_again_byte_for_byte(shards, tmp_path):
    for number, policy in enumerate((SitePolicy(), BUDGET)):
        sites = Sites(shards, tmp_path / str(number), policy)
        config = make_config(shards, "fedmosaic", tmp_path, *NOISY_LABELS, "train.batch_size=8")
        join(sites.sites[0], config)
        request = Request({"kind": protocol.LOCAL_ROUND, "run": run_id(config), "round": 1}).encode()
        first = sites.sites[0].handle_request(request)
        assert Response.decode(first).kind == protocol.LOCAL_ROUND
        sites.restart(0)
        assert sites.sites[0].handle_request(request) == first


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cannot read a file (/home/our user/site 1/plan.json): restore it", "cannot read a file (...): restore it"),
        ("cannot read site/runs/toy/plan.json: restore it", "cannot read ... restore it"),
        (r"cannot read C:\\Users\\us\\plan.json", "cannot read ..."),
        ("delta 0.99 is not below 1/470, restore '/srv/site'", "delta 0.99 is not below 1/470, restore ..."),
        ("increase train.lr (site.json)", "increase train.lr (site.json)"),
    ],
)
def test_errors_contain_no_paths(text, expected):
    header = {"kind": protocol.ERROR, "error": protocol.ERROR_REFUSED, "text": text}
    policy = SitePolicy(metrics="exact-unprotected")
    assert EgressFilter(policy, 100, 100).filter_header(header)["text"] == expected


def diverge_once(client):
    from fedmosaic_cli.errors import DivergenceError

    def require_finite(self, values, what="state"):
        raise DivergenceError(self.id, self.round, what)

    return require_finite


def test_a_budget_holds_over_all_runs_and_restarts(shards, tmp_path):
    sites = Sites(shards, tmp_path, BUDGET)
    answers = []
    for seed in range(40):
        config = make_config(shards, "fedct", tmp_path, *NOISY_LABELS, seed=seed)
        answers.append(join(sites.sites[0], config))
        if answers[-1]["kind"] == "error":
            break
        for number in (1, 2):
            assert local_round(sites.sites[0], config, number)["kind"] == protocol.LOCAL_ROUND
        sites.restart(0)
    assert 2 < len(answers) < 40
    assert "earlier runs included, and this site allows 8 (--max-epsilon)" in answers[-1]["text"]
    assert sites.sites[0].ledger.total_epsilon(1e-5) <= 8


def test_an_older_copy_of_a_site_directory_is_refused(shards, tmp_path):
    sites = Sites(shards, tmp_path, BUDGET)
    config = make_config(shards, "fedct", tmp_path, *NOISY_LABELS)
    join(sites.sites[0], config)
    local_round(sites.sites[0], config, 1)
    ledger = tmp_path / "site-0" / "privacy-ledger.jsonl"
    old = ledger.read_bytes()
    local_round(sites.sites[0], config, 2)
    ledger.write_bytes(old)
    sites.restart(0)
    with pytest.raises(RunStateError, match="restore the newest copy of the site's directory"):
        _ = sites.sites[0].ledger
    again = make_config(shards, "fedct", tmp_path, *NOISY_LABELS, seed=1)
    assert join(sites.sites[0], again)["kind"] == "error"


def test_a_second_site_with_the_same_data_is_refused_on_this_machine(shards, tmp_path):
    sites = Sites(shards, tmp_path, BUDGET)
    config = make_config(shards, "fedct", tmp_path, *NOISY_LABELS)
    join(sites.sites[0], config)
    local_round(sites.sites[0], config, 1)
    second = replace(sites.sites[0], folder=tmp_path / "second", _current_run=None)
    assert join(second, make_config(shards, "fedct", tmp_path, *NOISY_LABELS, seed=1))["kind"] == "error"


@pytest.mark.parametrize("damage", ["change", "remove", "not json"])
def test_a_damaged_privacy_ledger_is_refused(damage, tmp_path):
    path, anchors = tmp_path / "ledger.jsonl", tmp_path / "anchors"
    ledger = PrivacyLedger(path, "data", 10, anchors)
    for number in (1, 2, 3):
        ledger.append("run", [Release(number, "krr", 60, epsilon=0.1)])
    lines = path.read_bytes().splitlines(keepends=True)
    if damage == "change":
        lines[1] = lines[1].replace(b'"count":60', b'"count":1')
    elif damage == "remove":
        del lines[1]
    else:
        lines[2] = b"{\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(RunStateError):
        PrivacyLedger(path, "data", 10, anchors)


def test_a_ledger_survives_a_crash_in_the_middle_of_a_line(tmp_path):
    path, anchors = tmp_path / "ledger.jsonl", tmp_path / "anchors"
    ledger = PrivacyLedger(path, "data", 10, anchors)
    ledger.append("run", [Release(1, "krr", 60, epsilon=0.1)])
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    again = PrivacyLedger(path, "data", 10, anchors)
    assert again.num_entries == 1
    again.append("run", [Release(2, "krr", 60, epsilon=0.1)])
    assert PrivacyLedger(path, "data", 10, anchors).num_entries == 2


def test_a_ledger_whose_anchor_cannot_be_written_is_refused_before_a_release(tmp_path):
    """Otherwise each attempt would spend the budget of a message that is not sent."""
    (tmp_path / "anchors").write_bytes(b"a file")
    with pytest.raises(OSError, match="anchors"):
        PrivacyLedger(tmp_path / "ledger.jsonl", "data", 10, tmp_path / "anchors")
    assert not (tmp_path / "ledger.jsonl").exists()


def test_a_longer_ledger_that_does_not_continue_the_recorded_one_is_refused(tmp_path):
    """A site with a new directory could otherwise forget its releases by making more."""
    ledger = PrivacyLedger(tmp_path / "first.jsonl", "data", 10, tmp_path / "anchors")
    ledger.append("run", [Release(1, "krr", 60, epsilon=5.0)])
    other = PrivacyLedger(tmp_path / "other.jsonl", "data", 10, tmp_path / "other anchors")
    for number in (1, 2):
        other.append("run", [Release(number, "krr", 1, epsilon=0.01)])
    with pytest.raises(RunStateError, match="does not continue the 1 that its anchor records"):
        PrivacyLedger(tmp_path / "other.jsonl", "data", 10, tmp_path / "anchors")


def test_two_ledgers_of_the_same_data_that_are_open_at_the_same_time_do_not_both_record(tmp_path):
    first, second = (PrivacyLedger(tmp_path / name, "data", 10, tmp_path / "anchors") for name in ("a", "b"))
    first.append("run", [Release(1, "krr", 60, epsilon=0.1)])
    with pytest.raises(RunStateError, match="has 0 entries and does not continue the 1"):
        second.append("run", [Release(1, "krr", 60, epsilon=0.1)])
    assert not (tmp_path / "b").exists()


def test_simulated_sites_of_different_runs_have_separate_ledgers(tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr("subprocess.Popen", lambda command, env, **_: commands.append(env) or MagicMock())
    for run_name in ("first", "second"):
        with start_local_site(tmp_path / "client-000.npz", tmp_path / run_name, [], tmp_path):
            pass
        (tmp_path / f"{run_name}.txt").unlink()
    assert [env["XDG_STATE_HOME"] for env in commands] == [
        str(tmp_path / name / "state") for name in ("first", "second")
    ]


def test_a_rejoin_with_another_plan_is_refused(shards, tmp_path):
    site = Sites(shards, tmp_path).sites[0]
    assert join(site, make_config(shards, "fedct", tmp_path))["kind"] == "join"
    assert (
        "differs from the one that this site joined"
        in join(site, make_config(shards, "fedct", tmp_path, "train.lr=0.5"))["text"]
    )
    assert join(site, make_config(shards, "fedct", tmp_path, "train.rounds=6"))["kind"] == "join"


def test_rounds_are_evaluated_in_order(shards, tmp_path):
    """Otherwise a coordinator could evaluate any model on the site's test data."""
    sites = Sites(shards, tmp_path)
    config = make_config(shards, "fedavg", tmp_path)
    run(config, shards, tmp_path / "run", sites)
    request = next(
        data for client, data, _ in sites.exchanges if client == 0 and is_request(data, protocol.EVALUATE, 4)
    )
    site = sites.site(0)
    assert site.handle_request(request)
    header = {"kind": protocol.EVALUATE, "run": Request.decode(request).header["run"], "round": 3}
    assert (
        "round 3 was requested after round 4 (evaluation): evaluate rounds in order"
        in request_site(site, header)["text"]
    )


def test_daily_limits_survive_restarts_and_a_clock_that_is_set_back(tmp_path):
    day = ["2026-05-02"]
    limits = UsageLimits(max_runs=2, max_steps=100)

    def record():
        return UsageRecord(tmp_path / "usage.json", limits, lambda: day[0])

    record().count_run("a", tmp_path)
    record().count_run("a", tmp_path)
    with pytest.raises(Exception, match=r"2 runs per day \(max_runs_per_day"):
        record().count_run("a", tmp_path)
    record().count_run("b", tmp_path)
    day[0] = "2026-05-01"
    with pytest.raises(Exception, match="2 runs per day"):
        record().count_run("a", tmp_path)
    day[0] = "2026-05-03"
    record().count_run("a", tmp_path)
    record().count_steps("a", 90)
    with pytest.raises(Exception, match="100 steps per day"):
        record().count_steps("a", 11)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.12345, 0.12),
        (0.999, 1.0),
        (12.345, 12.0),
        (123.4, 120.0),
        (-0.005001, -0.01),
        (3, 3),
        (1234, 1200),
        (None, None),
    ],
)
def test_rounded_metrics_have_two_digits(value, expected):
    assert rounded_metric(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"), [(0.0, 0.0), (9e-7, 0.0), (1.1e-6, 0.01), (0.0019, 0.01), (0.456, 0.46)]
)
def test_a_rounded_lambda_is_zero_only_if_the_client_ignores_the_public_set(value, expected):
    header = EgressFilter(SitePolicy(), 100, 100).filter_header({"metrics": {"trust": value}})
    assert header == {"metrics": {"trust": expected}}


def test_every_field_of_a_response_needs_a_rule():
    egress = EgressFilter(SitePolicy(), 100, 100)
    with pytest.raises(ValueError, match="no rule for the field 'secret'"):
        egress.filter_header({"kind": protocol.LOCAL_ROUND, "secret": 1})


def test_metrics_of_few_examples_are_withheld():
    egress = EgressFilter(SitePolicy(), num_train=100, num_test=19, num_validation=19)
    assert egress.filter_header({"evaluation": {"accuracy": 0.5, "loss": 1.0}}) == {
        "evaluation": None,
        "withheld": True,
    }
    egress = EgressFilter(SitePolicy(), num_train=100, num_test=20, num_validation=19)
    metrics = {"accuracy": 0.512, "loss": 1.0, "val_accuracy": 0.4}
    assert egress.filter_header({"evaluation": metrics}) == {"evaluation": {"accuracy": 0.51, "loss": 1.0}}


def test_a_run_with_withheld_metrics_finishes_and_lists_unreported_clients(shards, tmp_path):
    config = make_config(shards, "fedmosaic", tmp_path, *NOISY_LABELS)
    files = run(config, shards, tmp_path / "run", Sites(shards, tmp_path, BUDGET))
    summary = files.read_summary()
    assert summary["accuracy"] == {"client_mean": None, "per_client": None}
    assert summary["unreported"] == [0, 1, 2]
    assert all(row["accuracy"] is None and row["withheld"] == 1 for row in files.read_rounds())
    assert summary["models"] == {}, "a digest of a model depends on the data"
    stored = json.loads((tmp_path / "site-0").glob("runs/**/evaluation.json").__next__().read_text())
    assert stored["round"] == 2, "the site has its evaluation"


def test_labels_and_models_at_sites_equal_those_of_a_simulation_and_metrics_after_rounding(shards, tmp_path):
    config = make_config(shards, "fedmosaic", tmp_path, "train.local_steps=20")
    sites = Sites(shards, tmp_path, SitePolicy(min_examples=1))
    remote, local = (run(config, shards, tmp_path / name, of) for name, of in (("run", sites), ("local", None)))
    assert remote.read_summary()["models"] == local.read_summary()["models"]
    own = {"lambda", "loss_private", "loss_public", "accuracy", "test_loss", "agreement"}
    for there, here in zip(remote.read_rounds(), local.read_rounds(), strict=True):
        expected = {key: rounded_metric(value) if key in own else value for key, value in here.items()}
        if here["lambda"] is not None:
            expected["lambda"] = rounded_trust(here["lambda"])
        # A share of training losses, which average over a part of the examples.
        assert there == ({**expected, "public_share": None} if here["public_share"] else expected)
