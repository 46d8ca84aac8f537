"""Estimators as clients, and federations of different learners."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.tree import DecisionTreeClassifier

from fedmosaic_cli.engine.estimator_learner import EstimatorLearner, flat_pixels
from fedmosaic_cli.engine.learner import BatchSchedule, TrainingTask
from fedmosaic_cli.engine.losses import LogitMatchingLoss, PseudoLabelLoss
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.errors import FedMosaicError
from fedmosaic_cli.methods.fedct import FedCT
from fedmosaic_cli.methods.fedmosaic import FedMosaic
from fedmosaic_cli.methods.local import Centralized, Local
from fedmosaic_cli.methods.perfedckt import PerFedCKT
from fedmosaic_cli.models.model_settings import ESTIMATOR_NAMES, ModelSettings
from fedmosaic_cli.runner.checkpoint_state import capture_state, restore_state
from tests.toys import TOYS, make_toy, mixed, models, personal_models, run_toy, same, with_other_labels

MIXED = mixed(TOYS["even"])
METHODS = pytest.mark.parametrize("method", [Local(), FedCT(), FedMosaic(trust="stabilised", expertise="entropy")])


def predictions(federation):
    """Return the public logits of all clients."""
    return [c.predict_public(federation.method.personal_model(c, {})) for c in federation.state.clients]


def test_fedmosaic_without_trust_equals_local_training_for_mixed_learners():
    assert same(models(FedMosaic(trust=0.0), MIXED), models(Local(), MIXED))
    assert not same(models(FedMosaic(trust=0.5), MIXED), models(Local(), MIXED))


def test_fedmosaic_with_full_trust_and_uniform_expertise_equals_fedct_for_mixed_learners():
    assert same(models(FedMosaic(trust=1.0, expertise="uniform"), MIXED), models(FedCT(), MIXED))


@METHODS
def test_mixed_run_does_not_depend_on_the_number_of_workers(method):
    ours = predictions(run_toy(method, MIXED))
    with_workers = predictions(run_toy(method, MIXED.changed(workers=3)))
    assert all(torch.equal(*pair) for pair in zip(ours, with_workers, strict=True))


@METHODS
def test_mixed_run_resumes_from_a_checkpoint(method):
    halfway = run_toy(method, MIXED, rounds=2)
    resumed, uninterrupted = MIXED.federation(method), MIXED.federation(method)
    restore_state(resumed, *capture_state(halfway.state), 2)
    with resumed.worker_pool, uninterrupted.worker_pool:
        assert list(run_rounds(resumed, 4)) == list(run_rounds(uninterrupted, 4))[2:]


def test_model_of_one_client_does_not_affect_the_others():
    plain, with_others = models(Local(), TOYS["even"]), models(Local(), mixed(TOYS["even"]))
    assert len(with_others[1]["labels"]) == 7
    only_first = TOYS["even"].changed(models={0: MIXED.models[0]})
    assert same(models(Local(), only_first)[1:], plain[1:])


def test_different_networks_can_share_logits():
    toy = TOYS["even"].changed(models={0: ModelSettings(hidden=(5, 2)), 1: ModelSettings(hidden=())})
    federation = run_toy(PerFedCKT(clusters=1), toy)
    assert len({len(model) for model in personal_models(federation).values()}) == 3


def test_weight_of_pseudo_labels_is_scaled_by_set_sizes():
    """The objective is the mean private loss plus trust times the mean public loss."""
    client = TOYS["uneven"].federation(Local()).state.clients[2]
    learner = EstimatorLearner(ModelSettings(name="decision-tree", depth=2), client.private, client.public, 3)
    labels = torch.arange(7) % 3
    parameters = learner.initial_parameters(5)
    term = PseudoLabelLoss(labels, 0.25)
    learner.fit(parameters, {}, TrainingTask(client.private, client.public, BatchSchedule([], []), [term]))
    inputs = np.concatenate([flat_pixels(client.private), flat_pixels(client.public)])
    targets = np.concatenate([client.private.labels, labels])

    def expected_probabilities(weight):
        tree = DecisionTreeClassifier(max_depth=2, random_state=5)
        return tree.fit(inputs, targets, sample_weight=np.repeat([1.0, weight], [11, 7])).predict_proba(inputs)

    ours = np.concatenate([learner.predict(parameters, part).exp() for part in (client.private, client.public)])
    assert np.allclose(ours, expected_probabilities(0.25 * 11 / 7), atol=1e-6)
    assert not np.allclose(expected_probabilities(0.25 * 11 / 7), expected_probabilities(0.25), atol=1e-6), (
        "using trust itself as sample weight gives another model"
    )


@pytest.mark.parametrize("name", ESTIMATOR_NAMES)
def test_every_estimator_learns(name):
    toy = make_toy([30, 30], public=6).changed(models=dict.fromkeys(range(2), ModelSettings(name=name, trees=20)))
    federation = toy.federation(FedMosaic(trust="stabilised"))
    with federation.worker_pool:
        rows = list(run_rounds(federation, 3))[-1].rows
    assert all(row["loss_private"] < 0.9 for row in rows)
    assert all(row["loss_public"] is not None for row in rows)


@pytest.mark.parametrize("name", ESTIMATOR_NAMES)
def test_single_class_is_supported_and_unseen_classes_keep_positive_probability(name):
    toy = make_toy([6, 6], public=6).changed(models=dict.fromkeys(range(2), ModelSettings(name=name, trees=3)))
    first = toy.partition.shards[0].train
    labels = toy.dataset.labels.copy()
    labels[first] = 2
    toy = toy.changed(dataset=toy.dataset.__class__(**{**vars(toy.dataset), "labels": labels}))
    federation = run_toy(Local(), toy, rounds=1)
    logits = predictions(federation)[0]
    assert logits.isfinite().all()
    assert (logits.argmax(dim=1) == 2).all()


def test_predictions_are_uniform_before_the_first_round():
    client = MIXED.federation(Local()).state.clients[1]
    assert (client.predict_public(client.state["model"]) == 0).all()


def test_centralized_training_uses_the_model_section():
    toy = TOYS["even"].changed(models={0: ModelSettings(name="random-forest", trees=3)})
    assert "labels" not in models(Centralized(), toy)[0], "the centralized client has the model of the section `model`"


def test_estimator_learns_from_private_labels_only():
    other = MIXED.changed(dataset=with_other_labels(MIXED.dataset, MIXED.partition.shards[1].train))
    ours, theirs = predictions(run_toy(Local(), MIXED)), predictions(run_toy(Local(), other))
    assert not torch.equal(ours[1], theirs[1])
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[2], theirs[2])


def test_unsupported_loss_terms_are_rejected():
    client = MIXED.federation(Local()).state.clients[1]
    with pytest.raises(FedMosaicError, match="random-forest cannot learn from LogitMatchingLoss"):
        client.train("model", [LogitMatchingLoss(torch.zeros(7, 3), 1.0)])
    with pytest.raises(FedMosaicError, match="no network"):
        client.optimizer_step("model", {})
