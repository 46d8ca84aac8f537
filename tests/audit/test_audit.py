"""Audits of runs whose models are known to have learnt nothing, or everything by heart; and whom they ask about."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedmosaic_cli.audit.audit_metrics import MEMBERS_HIGHER, NO_LEAK, AttackScores, audit_metrics
from fedmosaic_cli.audit.label_queries import AuditClient, query_labels
from fedmosaic_cli.audit.members import MembershipCandidates, candidates_per_client
from fedmosaic_cli.audit.membership_attacks import message_scores
from fedmosaic_cli.audit.membership_audit import AuditSettings, model_view, run_membership_audits
from fedmosaic_cli.audit.replay import replay_run, score_message
from fedmosaic_cli.cli.app import app
from fedmosaic_cli.config.run_config import RunConfig
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.data.datasets import load_dataset
from fedmosaic_cli.data.partitioning.label_noise import reverse_labels
from fedmosaic_cli.data.partitioning.partition import partition_dataset
from fedmosaic_cli.data.resolve_settings import resolve_data_settings
from fedmosaic_cli.engine.messages import send_message
from fedmosaic_cli.engine.train_settings import TrainSettings
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.label_settings import PrivacySettings
from fedmosaic_cli.labels.voting import MIN_VOTE_WEIGHT, Ballot
from fedmosaic_cli.methods.fedct import FedCT
from fedmosaic_cli.methods.fedmosaic import FedMosaic
from fedmosaic_cli.models.model_settings import ModelSettings
from fedmosaic_cli.runner.build import DeviceDataset, build_federation
from fedmosaic_cli.runner.evaluate import load_finished_run, load_run_data
from fedmosaic_cli.runner.run_state import to_arrays
from fedmosaic_cli.storage.runs import RunDirectory
from fedmosaic_cli.storage.shards import load_exported_shards, read_shards
from tests.toys import from_client

PLAIN = PrivacySettings()
FEDMOSAIC = "quickstart/fedmosaic-entropy/seed-0"


def audited(folder, name: str, **terms) -> dict:
    [found] = run_membership_audits([RunDirectory(folder / name)], AuditSettings(**terms), "cpu", DataDirs())
    return found.content


def dealt(**settings):
    chosen = resolve_data_settings(DataSettings(**settings), DataDirs())
    dataset = load_dataset(chosen, DataDirs())
    return dataset, partition_dataset(dataset, chosen, seed=0)


def test_who_learnt_nothing_tells_nothing(roomy_runs):
    result = audited(roomy_runs, "untrained")
    assert set(result["views"]) == {"messages-last", "messages-all", "model-loss"}
    for view in result["views"].values():
        assert view["auc"] == pytest.approx(0.5, abs=0.05)


def test_who_knows_all_by_heart_gives_it_away(roomy_runs):
    """The labels are mostly noise, on both sides: to get them right is to remember them."""
    result = audited(roomy_runs, "memorised", references=4)
    few = 0.7  # four models are few
    least = {"messages-last": 0.8, "model-loss": 0.8, "model-lira-offline": few, "model-lira-online": few}
    for name, value in least.items():
        assert result["views"][name]["auc"] > value, name
        assert result["views"][name]["finding"] == MEMBERS_HIGHER
    assert result["views"]["messages-last"]["member_accuracy"] > 0.8
    assert result["views"]["messages-last"]["non_member_accuracy"] < 0.4
    assert result["views"]["messages-all"]["auc"] > 0.7
    assert result["references"] == 4


def test_all_clients_together_are_their_mean(roomy_runs):
    result = audited(roomy_runs, FEDMOSAIC)
    assert [entry["client"] for entry in result["per_client"]] == [0, 1]
    for name, view in result["views"].items():
        ours = [entry["views"][name] for entry in result["per_client"]]
        for key in ("auc", "tpr_at_fpr_0.01", "tpr_at_fpr_0.001", "member_accuracy", "non_member_accuracy"):
            assert view[key] == pytest.approx(np.mean([each[key] for each in ours]))
        assert view["members"] == view["non_members"] == sum(each["members"] for each in ours)
        assert all(each["auc_interval"][0] < each["auc"] < each["auc_interval"][1] for each in [view, *ours])
        widths = [each["auc_interval"][1] - each["auc_interval"][0] for each in [view, *ours]]
        assert widths[0] < min(widths[1:]), "more examples say more"


def test_members_and_others_swapped(roomy_runs):
    run = load_finished_run(RunDirectory(roomy_runs / FEDMOSAIC), DataDirs())
    found = candidates_per_client(*load_run_data(run, DataDirs()), 0)
    rng = np.random.default_rng(0)
    scores = {each.client_id: rng.integers(0, 5, 2 * len(each)).astype(float) for each in found}
    halves = {client: np.split(each, 2) for client, each in scores.items()}

    def aucs(values):
        seen = {client: {"model-loss": AttackScores(each, each)} for client, each in values.items()}
        return [entry["views"]["model-loss"]["auc"] for entry in audit_metrics(seen, found, 0)["per_client"]]

    swapped = aucs({client: np.concatenate(parts[::-1]) for client, parts in halves.items()})
    assert swapped == pytest.approx([1 - value for value in aucs(scores)])


def test_played_again_a_run_ends_in_the_saved_models(roomy_runs):
    assert audited(roomy_runs, FEDMOSAIC)["replay_identical"] is True
    run = load_finished_run(RunDirectory(roomy_runs / FEDMOSAIC), DataDirs())
    dataset, shares = load_run_data(run, DataDirs())
    table = DeviceDataset(dataset, shares, torch.device("cpu"), torch.float32, "auto")
    other = replace(run, config=replace(run.config, seed=1))
    again = replay_run(other, table, shares, candidates_per_client(dataset, shares, 0), print)
    assert not again.is_identical, "under another seed it is another run"


def test_that_a_replay_went_elsewhere_is_told(roomy_runs, monkeypatch):
    monkeypatch.setattr("fedmosaic_cli.audit.replay.matches_saved_models", lambda *_: False)
    result = audited(roomy_runs, FEDMOSAIC)
    assert result["replay_identical"] is False
    assert any("did not end in the saved models" in note for note in result["notes"])


def test_where_there_is_one_exchange_the_last_message_is_all(roomy_runs):
    result = audited(roomy_runs, "quickstart/fedct/seed-0")
    assert result["views"]["messages-all"] == result["views"]["messages-last"]
    result = audited(roomy_runs, FEDMOSAIC)
    assert result["views"]["messages-all"] != result["views"]["messages-last"]


def test_the_last_round_alone_is_not_played_again(roomy_runs, monkeypatch):
    monkeypatch.setattr("fedmosaic_cli.audit.membership_audit.replay_run", None)
    result = audited(roomy_runs, FEDMOSAIC, last_round=True)
    assert list(result["views"]) == ["messages-last", "model-loss"]
    assert result["replay_identical"] is None


@pytest.mark.parametrize("name", ["local", "fedavg", "centralized"])
def test_who_sends_no_labels_is_looked_at_by_its_models(roomy_runs, name):
    result = audited(roomy_runs, f"quickstart/{name}/seed-0", references=4)
    lira = [] if name == "centralized" else ["model-lira-offline", "model-lira-online"]
    assert list(result["views"]) == ["model-loss", *lira]
    assert "sends no labels" in result["notes"][0]
    assert len(result["per_client"]) == 2
    assert any("no reference models" in note for note in result["notes"]) == (not lira)


def test_audits_repeat_themselves(roomy_runs):
    terms = {"references": 4}
    assert audited(roomy_runs, FEDMOSAIC, **terms) == audited(roomy_runs, FEDMOSAIC, **terms)


def test_too_few_examples_are_refused(roomy_runs):
    with pytest.raises(RequestError, match=r"200 .* the most is \d+ .*small\): deal to fewer clients"):
        audited(roomy_runs, "small")


def test_clients_with_too_few_are_left_out_and_named(roomy_runs, monkeypatch):
    whole = audited(roomy_runs, FEDMOSAIC, last_round=True)
    sizes = [entry["views"]["model-loss"]["members"] for entry in whole["per_client"]]
    assert sizes[0] != sizes[1], "or the test tests nothing"
    monkeypatch.setattr("fedmosaic_cli.audit.membership_audit.MIN_CANDIDATES", max(sizes))
    result = audited(roomy_runs, FEDMOSAIC, last_round=True)
    out = int(np.argmin(sizes))
    assert [entry["client"] for entry in result["per_client"]] == [1 - out]
    assert result["left_out"] == [{"client": out, "matched": min(sizes)}]
    assert f"left out: {out} ({min(sizes)})" in result["notes"][-1]


SCHEMES = [
    {"scheme": "dirichlet", "alpha": 0.3, "clients": 3, "public_size": 100},
    {"scheme": "iid", "clients": 3, "val_fraction": 0.2, "public_size": 0},
    {"scheme": "dirichlet", "alpha": 1.0, "clients": 3, "flip_labels": (1,), "label_noise": 0.3},
    {"dataset": "digits-domains", "scheme": "domain"},
    {"dataset": "digits-domains", "scheme": "iid", "clients": 3},
]


@pytest.mark.parametrize("settings", SCHEMES, ids=lambda settings: "-".join(map(str, settings.values())))
def test_members_and_others_differ_in_membership_alone(settings):
    dataset, shares = dealt(**settings)
    trained = np.concatenate([shares.public, *(shard.train for shard in shares.shards)])
    for shard, found in zip(shares.shards, candidates_per_client(dataset, shares, 0), strict=True):
        assert len(found) > 50, "or the test tests nothing"
        assert set(found.members) <= set(shard.train)
        assert not set(found.non_members) & set(trained), "nobody trained on any of the others"
        for side in (found.members, found.non_members):
            assert len(np.unique(side)) == len(found)
        np.testing.assert_array_equal(dataset.labels[found.members], dataset.labels[found.non_members])
        if dataset.domain_ids is not None:
            np.testing.assert_array_equal(dataset.domain_ids[found.members], dataset.domain_ids[found.non_members])
        given = dict(zip(shard.train.tolist(), shard.split_labels("train", dataset).tolist(), strict=True))
        assert found.labels.tolist() == [given[member] for member in found.members.tolist()]


def test_exported_shards_have_the_same_candidates(tmp_path, monkeypatch):
    """Their labels are the clients' own: those of a client that turns them around are turned back to be matched."""
    monkeypatch.chdir(tmp_path)
    arguments = "partition --scheme dirichlet --alpha 0.5 --clients 3 --flip-labels 1 --out mine --export -q"
    done = CliRunner().invoke(app, arguments.split())
    assert done.exit_code == 0, done.stderr
    carried, shares = load_exported_shards(read_shards(tmp_path / "mine"))
    found = candidates_per_client(carried, shares, 0)
    again, original = dealt(scheme="dirichlet", alpha=0.5, clients=3, flip_labels=(1,))
    assert [len(each) for each in found] == [len(each) for each in candidates_per_client(again, original, 0)]
    by_class = [np.sort(reverse_labels(each.labels, 10) if each.client_id == 1 else each.labels) for each in found]
    theirs = [np.sort(again.labels[each.members]) for each in candidates_per_client(again, original, 0)]
    assert all(np.array_equal(*pair) for pair in zip(by_class, theirs, strict=True))


@pytest.fixture
def skewed() -> list[MembershipCandidates]:
    return candidates_per_client(*dealt(scheme="dirichlet", alpha=0.3, clients=2, public_size=0), 0)


def said_by(method, log_probs, counts, privacy=PLAIN):
    """What a client with these predictions would tell the server."""
    config = RunConfig(
        "toy", 0, DataSettings(public_size=50), ModelSettings(), TrainSettings(), method, 0, privacy=privacy
    )
    return query_labels(config, log_probs, AuditClient(0, 1, counts, 0))


@pytest.mark.parametrize("labels", ["krr", "xor"])
@pytest.mark.parametrize("expertise", ["frequency", "entropy"])
def test_noise_is_heard_by_whoever_asks_about_members(labels, expertise):
    """With an infinite budget what is heard is what is always heard; with a small one it is hardly anything."""
    method, counts = FedMosaic(expertise=expertise), torch.arange(1, 11)
    log_probs = (8 * torch.eye(10)[torch.arange(400) % 10]).log_softmax(dim=1)
    truth = np.arange(400) % 10
    plain = message_scores(*said_by(method, log_probs, counts), truth)
    endless = message_scores(*said_by(method, log_probs, counts, PrivacySettings(labels=labels, epsilon="inf")), truth)
    np.testing.assert_allclose(endless, plain, atol=1e-9)
    little = PrivacySettings(labels=labels, label_epsilon=0.1, noise_multiplier=1.0)
    assert (message_scores(*said_by(method, log_probs, counts, little), truth) > 0).mean() < 0.6


def constant(candidates: MembershipCandidates, classes: int = 10) -> torch.Tensor:
    """The same answer to everything: its score depends on nothing but the label asked about."""
    return torch.linspace(-2.0, 3.0, classes).repeat(2 * len(candidates), 1)


def test_another_mix_of_classes_alone_is_no_leak(skewed):
    """Of a model that says the same of everything, the AUC is exactly one half."""
    counts = torch.arange(1, 11)
    for method in (FedCT(), FedMosaic(expertise="entropy"), FedMosaic(expertise="frequency")):
        views = {}
        for each in skewed:
            logits = constant(each)
            said = score_message(each, *said_by(method, logits.log_softmax(dim=1), counts))
            views[each.client] = {"messages-last": said, "model-loss": model_view(logits, each)}
        for view in audit_metrics(views, skewed, 0)["views"].values():
            assert view["auc"] == 0.5
            assert view["finding"] == NO_LEAK


def test_frequencies_add_nothing_to_labels():
    """Whoever hears the label and knows the frequencies, which are the same for everything, knows the expertise."""
    log_probs, counts = torch.randn(500, 10).log_softmax(dim=1), torch.tensor([5, 1, 0, 7, 9, 3, 3, 2, 8, 1])
    labels, expertise = said_by(FedMosaic(expertise="frequency"), log_probs, counts)
    assert expertise is not None
    assert len({(label, value) for label, value in zip(labels, expertise, strict=True)}) == len(set(labels))
    np.testing.assert_allclose(expertise, (counts / counts.sum()).numpy()[labels] + MIN_VOTE_WEIGHT, atol=1 / 255)
    _, entropy = said_by(FedMosaic(expertise="entropy"), log_probs, counts)
    assert len(set(entropy)) > 50, "unlike entropy"


@pytest.mark.parametrize("expertise", ["frequency", "entropy", "uniform"])
@pytest.mark.parametrize("bits", [1, 8])
def test_statements_are_what_arrives_at_the_server(roomy_runs, expertise, bits):
    """About the public set, which is what the method itself speaks of."""
    run = load_finished_run(RunDirectory(roomy_runs / FEDMOSAIC), DataDirs())
    method = FedMosaic(expertise=expertise, expertise_bits=bits)
    federation = build_federation(
        replace(run.config, method=method), *load_run_data(run, DataDirs()), [torch.device("cpu")]
    )
    with federation.worker_pool:
        client = federation.state.clients[0]
        log_probs = client.predict_public(client.state["model"]).log_softmax(dim=1)
        arrived, _ = send_message(method.make_label_upload(log_probs, client, federation.ctx), from_client(0))
    ballot = Ballot(0, arrived["opinion"], method.message_spec(federation.ctx))
    labels, values = said_by(method, log_probs, client.class_counts)
    np.testing.assert_array_equal(labels, ballot.labels())
    np.testing.assert_array_equal(values, ballot.weights())
    assert to_arrays(client.state["model"])
