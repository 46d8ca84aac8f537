"""Clusters of clients with similar predictions."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

KMEANS_RESTARTS = 10


def cluster_clients(predictions: Sequence[Tensor], num_clusters: int) -> list[int]:
    """Cluster clients by k-means on their flattened predictions.

    The clusters depend neither on the order of the clients nor on the order of the examples. Clients with equal
    predictions share a cluster.

    Args:
        predictions: Predictions [examples, classes] per client, on the same examples.
        num_clusters: Maximum number of clusters.

    Returns:
        The cluster number of each client, in the order of `predictions`.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    points = np.stack([prediction.double().cpu().numpy().ravel() for prediction in predictions])
    # k-means draws its starting points by position. Sorting by norm makes positions independent of the client order.
    norms = np.square(points).sum(axis=1)
    order = sorted(range(len(points)), key=lambda client: (norms[client], points[client].tobytes()))
    kmeans = KMeans(min(num_clusters, len(points)), n_init=KMEANS_RESTARTS, random_state=0)
    clusters = np.empty(len(points), dtype=np.int64)
    with threadpool_limits(limits=1), warnings.catch_warnings():
        # Fewer distinct predictions than clusters are allowed.
        warnings.simplefilter("ignore", ConvergenceWarning)
        clusters[order] = kmeans.fit_predict(points[order])
    return [int(cluster) for cluster in clusters]
