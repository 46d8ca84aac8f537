"""Audits of untrained and memorizing models, and the choice of candidates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedmosaic_cli.audit.audit_metrics import MEMBERS_HIGHER, NO_LEAK, AttackScores, audit_metrics
from fedmosaic_cli.audit.members import MembershipCandidates, candidates_per_client
from fedmosaic_cli.audit.membership_attacks import message_scores
from fedmosaic_cli.audit.membership_audit import AuditSettings, model_view, run_membership_audits
from fedmosaic_cli.audit.replay import AuditClient, query_labels, replay_run, score_message
from fedmosaic_cli.cli.app import app
from fedmosaic_cli.config.run_config import RunConfig
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.data.datasets import load_dataset
from fedmosaic_cli.data.partitioning.partition import partition_dataset, reverse_labels
from fedmosaic_cli.data.resolve_settings import resolve_data_settings
from fedmosaic_cli.engine.messages import send_message
from fedmosaic_cli.engine.train_settings import TrainSettings
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.label_settings import PrivacySettings
from fedmosaic_cli.labels.voting import MIN_VOTE_WEIGHT, Ballot
from fedmosaic_cli.methods.fedct import FedCT
from fedmosaic_cli.methods.fedmosaic import FedMosaic
from fedmosaic_cli.models.model_settings import ModelSettings
from fedmosaic_cli.runner.build import build_federation
from fedmosaic_cli.runner.checkpoint_state import to_arrays
from fedmosaic_cli.runner.client_state_files import ClientStateFiles
from fedmosaic_cli.runner.device_dataset import DeviceDataset
from fedmosaic_cli.runner.evaluate import load_finished_run, load_run_data
from fedmosaic_cli.storage.runs import RunDirectory
from fedmosaic_cli.storage.shards import load_exported_shards, read_shards
from tests.toys import from_client

PLAIN = PrivacySettings()
FEDMOSAIC = "quickstart/fedmosaic-entropy/seed-0"


def audited(folder, name: str, **settings) -> dict:
    [result] = run_membership_audits([RunDirectory(folder / name)], AuditSettings(**settings), "cpu", DataDirs())
    return result.content


def partitioned(**settings):
    resolved = resolve_data_settings(DataSettings(**settings), DataDirs())
    dataset = load_dataset(resolved, DataDirs())
    return dataset, partition_dataset(dataset, resolved, seed=0)


def test_untrained_models_leak_nothing(auditable_runs):
    result = audited(auditable_runs, "untrained")
    assert set(result["views"]) == {"messages-last", "messages-all", "model-loss"}
    for view in result["views"].values():
        assert view["auc"] == pytest.approx(0.5, abs=0.05)


def test_memorizing_models_leak_membership(auditable_runs):
    """Most labels are noise on both sides, so only memorization predicts them."""
    result = audited(auditable_runs, "memorised", num_shadow_models=4)
    lira_auc = 0.7  # low, as there are only four shadow models
    min_auc = {"messages-last": 0.8, "model-loss": 0.8, "model-lira-offline": lira_auc, "model-lira-online": lira_auc}
    for name, value in min_auc.items():
        assert result["views"][name]["auc"] > value, name
        assert result["views"][name]["finding"] == MEMBERS_HIGHER
    assert result["views"]["messages-last"]["member_accuracy"] > 0.8
    assert result["views"]["messages-last"]["non_member_accuracy"] < 0.4
    assert result["views"]["messages-all"]["auc"] > 0.7
    assert result["references"] == 4


def test_metrics_over_clients_are_means(auditable_runs):
    result = audited(auditable_runs, FEDMOSAIC)
    assert [entry["client"] for entry in result["per_client"]] == [0, 1]
    for name, view in result["views"].items():
        per_client = [entry["views"][name] for entry in result["per_client"]]
        for key in ("auc", "tpr_at_fpr_0.01", "tpr_at_fpr_0.001", "member_accuracy", "non_member_accuracy"):
            assert view[key] == pytest.approx(np.mean([each[key] for each in per_client]))
        assert view["members"] == view["non_members"] == sum(each["members"] for each in per_client)
        assert all(each["auc_interval"][0] < each["auc"] < each["auc_interval"][1] for each in [view, *per_client])
        widths = [each["auc_interval"][1] - each["auc_interval"][0] for each in [view, *per_client]]
        assert widths[0] < min(widths[1:]), "more examples give a narrower interval"


def test_swapping_members_and_non_members_mirrors_the_auc(auditable_runs):
    run = load_finished_run(RunDirectory(auditable_runs / FEDMOSAIC), DataDirs())
    candidates = candidates_per_client(*load_run_data(run, DataDirs()), 0)
    rng = np.random.default_rng(0)
    scores = {each.client_id: rng.integers(0, 5, 2 * len(each)).astype(float) for each in candidates}
    halves = {client: np.split(each, 2) for client, each in scores.items()}

    def aucs(values):
        views = {client: {"model-loss": AttackScores(each, each)} for client, each in values.items()}
        return [entry["views"]["model-loss"]["auc"] for entry in audit_metrics(views, candidates, 0)["per_client"]]

    swapped = aucs({client: np.concatenate(parts[::-1]) for client, parts in halves.items()})
    assert swapped == pytest.approx([1 - value for value in aucs(scores)])


def test_a_replay_reproduces_the_saved_models(auditable_runs):
    assert audited(auditable_runs, FEDMOSAIC)["replay_identical"] is True
    run = load_finished_run(RunDirectory(auditable_runs / FEDMOSAIC), DataDirs())
    dataset, partition = load_run_data(run, DataDirs())
    device_data = DeviceDataset(dataset, partition, torch.device("cpu"), torch.float32, "auto")
    other = replace(run, config=replace(run.config, seed=1))
    candidates = candidates_per_client(dataset, partition, 0)
    replay = replay_run(other, device_data, partition, candidates, print)
    assert not replay.is_identical, "another seed gives another run"


def test_the_audit_of_a_run_with_states_on_disk_is_the_same(auditable_runs, tmp_path, monkeypatch):
    """The replay has them on disk too, in a directory that it removes; shadow models are in memory."""
    monkeypatch.chdir(auditable_runs.parent)
    command = ("train", "--preset", "quickstart-label-skew", "--name", "quickstart", "--set", "data.clients=2")
    command += ("--rounds", "4", "--quiet", "--set", "methods.fedmosaic.warmup_rounds=2")
    done = CliRunner().invoke(app, [*command, "--set", "train.client_state=disk", "--run-dir", str(tmp_path / "run")])
    assert done.exit_code == 0, done.stderr
    stores, saved = [], []
    save = ClientStateFiles.save

    def build(*args, state_store, **options):
        stores.append(state_store)
        return build_federation(*args, state_store=state_store, **options)

    monkeypatch.setattr("fedmosaic_cli.audit.replay.build_federation", build)
    monkeypatch.setattr(ClientStateFiles, "save", lambda *args: (saved.append(args[1]), save(*args)))
    on_disk = audited(tmp_path, "run", num_shadow_models=4)
    assert set(saved) == {0, 1}
    assert on_disk == audited(auditable_runs, FEDMOSAIC, num_shadow_models=4)
    assert on_disk["replay_identical"] is True
    assert [store is not None for store in stores] == [True, False]
    assert not [path for path in (tmp_path / "run").iterdir() if "client-state" in path.name]


def test_a_replay_with_other_models_is_noted(auditable_runs, monkeypatch):
    monkeypatch.setattr("fedmosaic_cli.audit.replay.matches_saved_models", lambda *_: False)
    result = audited(auditable_runs, FEDMOSAIC)
    assert result["replay_identical"] is False
    assert any("did not end in the saved models" in note for note in result["notes"])


def test_with_one_message_both_message_views_are_equal(auditable_runs):
    result = audited(auditable_runs, "quickstart/fedct/seed-0")
    assert result["views"]["messages-all"] == result["views"]["messages-last"]
    result = audited(auditable_runs, FEDMOSAIC)
    assert result["views"]["messages-all"] != result["views"]["messages-last"]


def test_last_round_only_does_not_replay(auditable_runs, monkeypatch):
    monkeypatch.setattr("fedmosaic_cli.audit.membership_audit.replay_run", None)
    result = audited(auditable_runs, FEDMOSAIC, last_round_only=True)
    assert list(result["views"]) == ["messages-last", "model-loss"]
    assert result["replay_identical"] is None


@pytest.mark.parametrize("name", ["local", "fedavg", "centralized"])
def test_methods_without_labels_have_model_views_only(auditable_runs, name):
    result = audited(auditable_runs, f"quickstart/{name}/seed-0", num_shadow_models=4)
    lira = [] if name == "centralized" else ["model-lira-offline", "model-lira-online"]
    assert list(result["views"]) == ["model-loss", *lira]
    assert "sends no labels" in result["notes"][0]
    assert len(result["per_client"]) == 2
    assert any("no shadow models" in note for note in result["notes"]) == (not lira)


def test_audits_are_deterministic(auditable_runs):
    first, second = (audited(auditable_runs, FEDMOSAIC, num_shadow_models=4) for _ in range(2))
    assert first == second


def test_too_few_candidates_are_refused(auditable_runs):
    with pytest.raises(RequestError, match=r"200 .* the maximum is \d+ .*small\): use fewer clients"):
        audited(auditable_runs, "small")


def test_clients_with_too_few_candidates_are_excluded(auditable_runs, monkeypatch):
    whole = audited(auditable_runs, FEDMOSAIC, last_round_only=True)
    sizes = [entry["views"]["model-loss"]["members"] for entry in whole["per_client"]]
    assert sizes[0] != sizes[1], "otherwise the test checks nothing"
    monkeypatch.setattr("fedmosaic_cli.audit.membership_audit.MIN_CANDIDATES", max(sizes))
    result = audited(auditable_runs, FEDMOSAIC, last_round_only=True)
    excluded = int(np.argmin(sizes))
    assert [entry["client"] for entry in result["per_client"]] == [1 - excluded]
    assert result["left_out"] == [{"client": excluded, "matched": min(sizes)}]
    assert f"skipped: {excluded} ({min(sizes)})" in result["notes"][-1]


SCHEMES = [
    {"scheme": "dirichlet", "alpha": 0.3, "clients": 3, "public_size": 100},
    {"scheme": "iid", "clients": 3, "val_fraction": 0.2, "public_size": 0},
    {"scheme": "dirichlet", "alpha": 1.0, "clients": 3, "flip_labels": (1,), "label_noise": 0.3},
    {"dataset": "digits-domains", "scheme": "domain"},
    {"dataset": "digits-domains", "scheme": "iid", "clients": 3},
]


@pytest.mark.parametrize("settings", SCHEMES, ids=lambda settings: "-".join(map(str, settings.values())))
def test_candidates_differ_in_membership_only(settings):
    dataset, partition = partitioned(**settings)
    trained = np.concatenate([partition.public, *(shard.train for shard in partition.shards)])
    for shard, candidates in zip(partition.shards, candidates_per_client(dataset, partition, 0), strict=True):
        assert len(candidates) > 50, "otherwise the test checks nothing"
        assert set(candidates.members) <= set(shard.train)
        assert not set(candidates.non_members) & set(trained), "non-members are unused"
        for side in (candidates.members, candidates.non_members):
            assert len(np.unique(side)) == len(candidates)
        np.testing.assert_array_equal(dataset.labels[candidates.members], dataset.labels[candidates.non_members])
        if dataset.domain_ids is not None:
            np.testing.assert_array_equal(
                dataset.domain_ids[candidates.members], dataset.domain_ids[candidates.non_members]
            )
        given = dict(zip(shard.train.tolist(), shard.split_labels("train", dataset).tolist(), strict=True))
        assert candidates.labels.tolist() == [given[member] for member in candidates.members.tolist()]


def test_exported_shards_have_the_same_candidates(tmp_path, monkeypatch):
    """They contain the clients' labels: reversed labels are reversed back before matching."""
    monkeypatch.chdir(tmp_path)
    arguments = "partition --scheme dirichlet --alpha 0.5 --clients 3 --flip-labels 1 --out mine --export -q"
    done = CliRunner().invoke(app, arguments.split())
    assert done.exit_code == 0, done.stderr
    exported, shares = load_exported_shards(read_shards(tmp_path / "mine"))
    candidates = candidates_per_client(exported, shares, 0)
    dataset, partition = partitioned(scheme="dirichlet", alpha=0.5, clients=3, flip_labels=(1,))
    assert [len(each) for each in candidates] == [len(each) for each in candidates_per_client(dataset, partition, 0)]
    by_class = [np.sort(reverse_labels(each.labels, 10) if each.client_id == 1 else each.labels) for each in candidates]
    expected = [np.sort(dataset.labels[each.members]) for each in candidates_per_client(dataset, partition, 0)]
    assert all(np.array_equal(*pair) for pair in zip(by_class, expected, strict=True))


@pytest.fixture
def skewed() -> list[MembershipCandidates]:
    return candidates_per_client(*partitioned(scheme="dirichlet", alpha=0.3, clients=2, public_size=0), 0)


def message_of(method, log_probs, counts, privacy=PLAIN):
    """The labels and weights that a client with these predictions sends."""
    config = RunConfig(
        "toy", 0, DataSettings(public_size=50), ModelSettings(), TrainSettings(), method, 0, privacy=privacy
    )
    return query_labels(config, log_probs, AuditClient(0, 1, counts, 0))


@pytest.mark.parametrize("labels", ["krr", "xor"])
@pytest.mark.parametrize("expertise", ["frequency", "entropy"])
def test_queries_contain_privacy_noise(labels, expertise):
    """An infinite budget changes nothing; a small one hides nearly everything."""
    method, counts = FedMosaic(expertise=expertise), torch.arange(1, 11)
    log_probs = (8 * torch.eye(10)[torch.arange(400) % 10]).log_softmax(dim=1)
    truth = np.arange(400) % 10
    plain = message_scores(*message_of(method, log_probs, counts), truth)
    unlimited = message_scores(
        *message_of(method, log_probs, counts, PrivacySettings(labels=labels, epsilon="inf")), truth
    )
    np.testing.assert_allclose(unlimited, plain, atol=1e-9)
    strict = PrivacySettings(labels=labels, label_epsilon=0.1, noise_multiplier=1.0)
    assert (message_scores(*message_of(method, log_probs, counts, strict), truth) > 0).mean() < 0.6


def constant_logits(candidates: MembershipCandidates, classes: int = 10) -> torch.Tensor:
    """The same logits for every example: scores depend on the label only."""
    return torch.linspace(-2.0, 3.0, classes).repeat(2 * len(candidates), 1)


def test_class_imbalance_is_not_a_leak(skewed):
    """A constant model has an AUC of exactly one half."""
    counts = torch.arange(1, 11)
    for method in (FedCT(), FedMosaic(expertise="entropy"), FedMosaic(expertise="frequency")):
        views = {}
        for each in skewed:
            logits = constant_logits(each)
            scores = score_message(each, *message_of(method, logits.log_softmax(dim=1), counts))
            views[each.client_id] = {"messages-last": scores, "model-loss": model_view(logits, each)}
        for view in audit_metrics(views, skewed, 0)["views"].values():
            assert view["auc"] == 0.5
            assert view["finding"] == NO_LEAK


def test_frequency_expertise_reveals_no_more_than_labels():
    """The label and the client's class frequencies determine the expertise."""
    log_probs, counts = torch.randn(500, 10).log_softmax(dim=1), torch.tensor([5, 1, 0, 7, 9, 3, 3, 2, 8, 1])
    labels, expertise = message_of(FedMosaic(expertise="frequency"), log_probs, counts)
    assert expertise is not None
    assert len({(label, value) for label, value in zip(labels, expertise, strict=True)}) == len(set(labels))
    np.testing.assert_allclose(expertise, (counts / counts.sum()).numpy()[labels] + MIN_VOTE_WEIGHT, atol=1 / 255)
    _, entropy = message_of(FedMosaic(expertise="entropy"), log_probs, counts)
    assert len(set(entropy)) > 50, "entropy depends on the example"


@pytest.mark.parametrize("expertise", ["frequency", "entropy", "uniform"])
@pytest.mark.parametrize("bits", [1, 8])
def test_queries_equal_what_the_server_receives(auditable_runs, expertise, bits):
    """For the public set, which the method itself labels."""
    run = load_finished_run(RunDirectory(auditable_runs / FEDMOSAIC), DataDirs())
    method = FedMosaic(expertise=expertise, expertise_bits=bits)
    federation = build_federation(
        replace(run.config, method=method), *load_run_data(run, DataDirs()), [torch.device("cpu")]
    )
    with federation.worker_pool:
        client = federation.state.clients[0]
        log_probs = client.predict_public(client.state["model"]).log_softmax(dim=1)
        message = method.make_label_upload(log_probs, client, federation.ctx)
        arrived, _ = send_message(message, method.uploads, from_client(federation.ctx, 0))
    ballot = Ballot(0, arrived["opinion"], method.message_spec(federation.ctx))
    labels, values = message_of(method, log_probs, client.class_counts)
    np.testing.assert_array_equal(labels, ballot.labels())
    np.testing.assert_array_equal(values, ballot.weights())
    assert to_arrays(client.state["model"])
