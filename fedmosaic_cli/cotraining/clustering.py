"""Which clients answer alike."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

KMEANS_RESTARTS = 10


def cluster_clients(predictions: Sequence[Tensor], num_clusters: int) -> list[int]:
    """The number of each one's cluster: k-means on flattened answers, at most `count` clusters.

    A function of the answers as a set: the order of clients changes nothing but the order of the result, and neither
    does the order of the questions. Equal answers share a cluster.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    points = np.stack([answer.double().cpu().numpy().ravel() for answer in predictions])
    # Starting points are drawn by position: an order by length belongs to no client and to no question.
    lengths = np.square(points).sum(axis=1)
    order = sorted(range(len(points)), key=lambda client: (lengths[client], points[client].tobytes()))
    with threadpool_limits(limits=1), warnings.catch_warnings():
        # Fewer different answers than clusters are no failure.
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = KMeans(min(num_clusters, len(points)), n_init=KMEANS_RESTARTS, random_state=0).fit_predict(
            points[order]
        )
    numbers = np.empty(len(points), dtype=np.int64)
    numbers[order] = found
    return [int(number) for number in numbers]
