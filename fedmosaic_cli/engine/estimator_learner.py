"""Clients with a scikit-learn classifier, refitted every round on private and pseudo-labelled examples.

The parameters of such a client are the inputs of the fit (pseudo-labels, their weight and a seed), not the fitted
classifier: the file format of scikit-learn executes code when it is read. The fit is deterministic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedmosaic_cli.cotraining import NO_LABEL
from fedmosaic_cli.engine.learner import TrainingLosses
from fedmosaic_cli.engine.losses import PseudoLabelLoss, count_and_loss, mean_cross_entropy, select_labelled
from fedmosaic_cli.errors import FedMosaicError
from fedmosaic_cli.models.sklearn_estimators import build_estimator, limit_sklearn_threads

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from fedmosaic_cli.engine.context import Parameters, State
    from fedmosaic_cli.engine.examples import Examples
    from fedmosaic_cli.engine.learner import Fit, TrainingTask
    from fedmosaic_cli.models.model_settings import ModelSettings

MIN_PROBABILITY = 1e-7


class EstimatorLearner:
    """Implements `engine.learner.Learner` for one client."""

    def __init__(self, model_settings: ModelSettings, private: Examples, public: Examples, num_classes: int) -> None:
        self.model_settings = model_settings
        self._private = private
        self._public = public
        self._num_classes = num_classes
        self._cache_key: tuple[bytes, ...] = ()
        self._cached_estimator: Any = None

    @property
    def stack_key(self) -> Hashable:
        return None

    def initial_parameters(self, seed: int) -> Parameters:
        return {
            "seed": torch.tensor(seed),
            "fitted": torch.tensor(0),
            "labels": torch.zeros(len(self._public), dtype=torch.int64),
            "weight": torch.tensor(0.0),
        }

    def fit(self, parameters: Parameters, optimizer_state: State, task: TrainingTask) -> TrainingLosses:
        parameters |= {**self.initial_parameters(0), "seed": parameters["seed"], "fitted": torch.tensor(1)}
        for term in task.terms:
            if not isinstance(term, PseudoLabelLoss):
                raise FedMosaicError(f"{self.model_settings.name} cannot learn from {type(term).__name__} (model.name)")
            parameters["labels"] = term.targets.cpu().clone()
            parameters["weight"] = torch.tensor(term.weight)
        log_probs = self.predict(parameters, self._private)
        public = [self.predict(parameters, self._public).cpu() for _ in task.terms]
        return TrainingLosses(
            mean_cross_entropy(log_probs, self._private.targets),
            [mean_cross_entropy(*select_labelled(predicted, parameters["labels"])) for predicted in public],
        )

    def fit_all(self, fits: Sequence[Fit]) -> list[TrainingLosses]:
        return [self.fit(fit.parameters, fit.optimizer_state, fit.task) for fit in fits]

    def predict(self, parameters: Parameters, examples: Examples) -> Tensor:
        if not parameters["fitted"]:
            return torch.zeros(len(examples), self._num_classes, dtype=examples.dtype, device=examples.device)
        limit_sklearn_threads()
        cache_key = tuple(tensor.cpu().numpy().tobytes() for _, tensor in sorted(parameters.items()))
        if cache_key != self._cache_key:
            self._cached_estimator, self._cache_key = self._fit_estimator(parameters), cache_key
        estimator = self._cached_estimator
        probabilities = np.full((len(examples), self._num_classes), MIN_PROBABILITY)
        if len(examples):
            predicted = estimator.predict_proba(flat_pixels(examples))
            probabilities[:, estimator.classes_] = np.maximum(predicted, MIN_PROBABILITY)
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        return torch.as_tensor(np.log(probabilities), dtype=examples.dtype, device=examples.device)

    def evaluate(self, parameters: Parameters, examples: Examples) -> tuple[float, float]:
        return count_and_loss(self.predict(parameters, examples), examples.targets)

    def features(self, parameters: Parameters, examples: Examples) -> Tensor:
        raise FedMosaicError(f"a {self.model_settings.name} has no features (model.name): this method needs a network")

    def _fit_estimator(self, parameters: Parameters) -> Any:
        from sklearn.dummy import DummyClassifier

        inputs, labels = flat_pixels(self._private), self._private.targets.cpu().numpy()
        weights = np.ones(len(labels))
        public_labels, weight = parameters["labels"].cpu().numpy(), parameters["weight"].item()
        if weight:
            # Mean private loss plus weight times mean public loss, up to a common factor.
            has_label = public_labels != NO_LABEL
            public_weight = weight * len(labels) / len(public_labels)
            inputs = np.concatenate([inputs, flat_pixels(self._public)[has_label]])
            labels = np.concatenate([labels, public_labels[has_label]])
            weights = np.concatenate([weights, np.full(has_label.sum(), public_weight)])
        estimator = build_estimator(self.model_settings, int(parameters["seed"]), len(labels))
        if len(np.unique(labels)) == 1:
            estimator = DummyClassifier(strategy="prior")  # several classifiers reject a single class
        return estimator.fit(inputs, labels, sample_weight=weights)


def flat_pixels(examples: Examples) -> NDArray[np.floating[Any]]:
    """Pixels [examples, pixels] in [-1, 1]."""
    flat: NDArray[np.floating[Any]] = examples.inputs(slice(None)).flatten(start_dim=1).cpu().numpy()
    return flat
