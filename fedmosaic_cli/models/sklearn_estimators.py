"""Classifiers of scikit-learn that support sample weights and probabilities."""

from __future__ import annotations

import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmosaic_cli.models.model_settings import ModelSettings

MAX_ITERATIONS = 1000


def build_estimator(settings: ModelSettings, seed: int, num_examples: int) -> Any:
    """A new, unfitted classifier for `num_examples` examples."""
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.tree import DecisionTreeClassifier

    trees, depth, random_state = settings.trees, settings.depth, seed % 2**32
    if settings.name == "decision-tree":
        return DecisionTreeClassifier(max_depth=depth, random_state=random_state)
    if settings.name == "random-forest":
        return RandomForestClassifier(trees, max_depth=depth, random_state=random_state, n_jobs=1)
    if settings.name == "gradient-boosting":
        # With the default of 20 examples per leaf it cannot split fewer than 40 examples.
        leaf = min(20, max(1, num_examples // 10))
        return HistGradientBoostingClassifier(
            max_iter=trees, max_depth=depth, min_samples_leaf=leaf, early_stopping=False, random_state=random_state
        )
    return LogisticRegression(max_iter=MAX_ITERATIONS)


def limit_sklearn_threads() -> None:
    """Limit scikit-learn to one core in this thread, without convergence warnings.

    Clients already run in parallel, and sums over another number of threads round differently. The limit is never
    lifted, because lifting it in one thread would lift it in all.
    """
    from sklearn.exceptions import ConvergenceWarning

    warnings.simplefilter("ignore", ConvergenceWarning)
    threadpool_controller().limit(limits=1)


@cache
def threadpool_controller() -> Any:
    # Only libraries that are already loaded can be limited.
    import sklearn.ensemble
    import sklearn.linear_model  # noqa: F401
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
