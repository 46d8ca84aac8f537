"""Learners that are no networks: classifiers of scikit-learn that weigh their examples and give probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedmosaic_cli.models.settings import ESTIMATORS

if TYPE_CHECKING:
    from fedmosaic_cli.models.settings import ModelSettings

ITERATIONS = 1000


def build_estimator(settings: ModelSettings, seed: int, examples: int) -> Any:
    """A new classifier for so many examples, not fitted yet. One thread: clients run side by side already."""
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.tree import DecisionTreeClassifier

    trees, depth, random_state = settings.trees, settings.depth, seed % 2**32
    # With its usual 20 examples a leaf, boosting does not learn from fewer than 40 at all.
    leaf = min(20, max(1, examples // 10))
    kinds: dict[str, Any] = dict(
        zip(
            ESTIMATORS,
            (
                lambda: DecisionTreeClassifier(max_depth=depth, random_state=random_state),
                lambda: RandomForestClassifier(trees, max_depth=depth, random_state=random_state, n_jobs=1),
                lambda: HistGradientBoostingClassifier(
                    max_iter=trees,
                    max_depth=depth,
                    min_samples_leaf=leaf,
                    early_stopping=False,
                    random_state=random_state,
                ),
                lambda: LogisticRegression(max_iter=ITERATIONS),
            ),
            strict=True,
        )
    )
    return kinds[settings.name]()
