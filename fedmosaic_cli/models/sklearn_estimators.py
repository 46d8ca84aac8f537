"""Learners that are no networks: classifiers of scikit-learn that weigh their examples and give probabilities."""

from __future__ import annotations

import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmosaic_cli.models.model_settings import ModelSettings

MAX_ITERATIONS = 1000


def build_estimator(settings: ModelSettings, seed: int, num_examples: int) -> Any:
    """A new classifier for so many examples, not fitted yet."""
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.tree import DecisionTreeClassifier

    trees, depth, random_state = settings.trees, settings.depth, seed % 2**32
    if settings.name == "decision-tree":
        return DecisionTreeClassifier(max_depth=depth, random_state=random_state)
    if settings.name == "random-forest":
        return RandomForestClassifier(trees, max_depth=depth, random_state=random_state, n_jobs=1)
    if settings.name == "gradient-boosting":
        # With its usual 20 examples a leaf, it does not learn from fewer than 40 at all.
        leaf = min(20, max(1, num_examples // 10))
        return HistGradientBoostingClassifier(
            max_iter=trees, max_depth=depth, min_samples_leaf=leaf, early_stopping=False, random_state=random_state
        )
    return LogisticRegression(max_iter=MAX_ITERATIONS)


def limit_sklearn_threads() -> None:
    """From here on, what scikit-learn computes in this thread it computes on one core, and quietly.

    Clients run side by side already, and sums in another number of threads round differently. Never undone: a limit
    that one thread lifts would be lifted for the others as well.
    """
    from sklearn.exceptions import ConvergenceWarning

    warnings.simplefilter("ignore", ConvergenceWarning)
    threadpool_controller().limit(limits=1)


@cache
def threadpool_controller() -> Any:
    # Only libraries that are loaded already can be limited.
    import sklearn.ensemble
    import sklearn.linear_model  # noqa: F401
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
