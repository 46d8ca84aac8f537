"""Metrics of membership-inference attacks with bootstrap intervals, per client and over all clients. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.seeds import derive_rng

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from fedmosaic_cli.audit.members import MembershipCandidates

    FloatArray = NDArray[np.float64]
    IndexArray = NDArray[np.int64]

NUM_BOOTSTRAP = 1000
CONFIDENCE_LEVEL = 0.95
# Resamples are processed in chunks of about this many numbers, which fit the processor's cache.
CHUNK_ELEMENTS = 1_000_000
AUDIT_VIEWS = ("messages-last", "messages-all", "model-loss", "model-lira-offline", "model-lira-online")
FALSE_POSITIVE_RATES = (0.01, 0.001)
NO_LEAK = "no leak found by this attack"
MEMBERS_HIGHER, MEMBERS_LOWER = "members score higher", "members score lower"
AVERAGED_METRICS = (
    "auc",
    *(f"tpr_at_fpr_{rate}" for rate in FALSE_POSITIVE_RATES),
    "member_accuracy",
    "non_member_accuracy",
)


@dataclass(frozen=True)
class AttackScores:
    """Scores of a client's candidates, members first, and how often each candidate's label was predicted correctly."""

    scores: FloatArray
    correctness: FloatArray


AttackViews = dict[str, AttackScores]
# The metrics of one client and the resampled AUCs behind its interval.
ViewMetrics = tuple[dict[str, Any], "FloatArray"]


def audit_metrics(
    views: Mapping[int, AttackViews], all_candidates: Sequence[MembershipCandidates], seed: int
) -> dict[str, Any]:
    """Compute the metrics of each view, averaged over clients (`views`) and for each client (`per_client`).

    The interval over all clients is that of the mean AUC. Clients share non-members, so these are resampled once for
    all clients; members are resampled per client.
    """
    union = np.unique(np.concatenate([candidates.non_members for candidates in all_candidates]))
    union_counts = bootstrap_counts(len(union), derive_rng(seed, "audit", "others"))
    by_client: dict[int, dict[str, ViewMetrics]] = {}
    for candidates in all_candidates:
        client_id, strata = candidates.client_id, candidates.strata
        member_counts = bootstrap_counts(len(candidates), derive_rng(seed, "audit", "members", client_id))
        non_member_counts = union_counts[:, np.searchsorted(union, candidates.non_members)]
        weights = stratified_weights(member_counts, strata), stratified_weights(non_member_counts, strata)
        by_client[client_id] = {
            name: view_metrics(views[client_id][name], *weights) for name in AUDIT_VIEWS if name in views[client_id]
        }
    by_view = {name: [each[name] for each in by_client.values() if name in each] for name in AUDIT_VIEWS}
    return {
        "views": {name: mean_view_metrics(metrics) for name, metrics in by_view.items() if metrics},
        "per_client": [
            {"client": c.client_id, "domain": c.domain, "views": {n: m for n, (m, _) in by_client[c.client_id].items()}}
            for c in all_candidates
        ],
    }


def view_metrics(view: AttackScores, member_weights: FloatArray, non_member_weights: FloatArray) -> ViewMetrics:
    """Compute the metrics of one view of one client."""
    count = len(view.scores) // 2
    members, non_members = view.scores[:count], view.scores[count:]
    aucs = bootstrap_aucs(members, non_members, member_weights, non_member_weights)
    return {
        "auc": roc_auc(members, non_members),
        **auc_interval_fields(aucs),
        **{f"tpr_at_fpr_{rate}": tpr_at_fpr(members, non_members, rate) for rate in FALSE_POSITIVE_RATES},
        "member_accuracy": float(view.correctness[:count].mean()),
        "non_member_accuracy": float(view.correctness[count:].mean()),
        "members": count,
        "non_members": count,
    }, aucs


def mean_view_metrics(client_metrics: Sequence[ViewMetrics]) -> dict[str, Any]:
    """Average one view over the clients that have it."""
    metrics = [each for each, _ in client_metrics]
    return {
        "clients": len(metrics),
        **{name: fmean(each[name] for each in metrics) for name in AVERAGED_METRICS},
        **auc_interval_fields(np.mean([aucs for _, aucs in client_metrics], axis=0)),
        **{name: sum(each[name] for each in metrics) for name in ("members", "non_members")},
    }


def auc_interval_fields(aucs: FloatArray) -> dict[str, Any]:
    low, high = confidence_interval(aucs)
    return {
        "auc_interval": [low, high],
        "finding": NO_LEAK if low <= 0.5 <= high else MEMBERS_HIGHER if low > 0.5 else MEMBERS_LOWER,
    }


def roc_auc(members: FloatArray, non_members: FloatArray) -> float:
    """Return the probability that a member scores higher than a non-member; a tie counts half."""
    from scipy.stats import rankdata

    count = len(members)
    rank_sum = rankdata(np.concatenate([members, non_members]))[:count].sum()  # the Mann-Whitney U statistic
    return float((rank_sum - count * (count + 1) / 2) / (count * len(non_members)))


def tpr_at_fpr(members: FloatArray, non_members: FloatArray, false_positive_rate: float) -> float:
    """Return the largest true-positive rate of any threshold with at most this false-positive rate.

    Members that tie with the first non-member above the limit are not detected: no threshold separates them.
    """
    max_false_positives = int(false_positive_rate * len(non_members) + 1e-9)
    if max_false_positives >= len(non_members):
        return 1.0
    return float((members > np.sort(non_members)[-max_false_positives - 1]).mean())


def bootstrap_counts(num_examples: int, rng: np.random.Generator) -> NDArray[np.uint16]:
    """Draw resamples with replacement; return how often each contains each example, [resamples, examples]."""
    counts = np.empty((NUM_BOOTSTRAP, num_examples), dtype=np.uint16)
    for start, stop in bootstrap_chunks(num_examples):
        offsets = np.arange(stop - start)[:, None] * num_examples
        draws = (rng.integers(num_examples, size=(stop - start, num_examples)) + offsets).ravel()
        counts[start:stop] = np.bincount(draws, minlength=(stop - start) * num_examples).reshape(-1, num_examples)
    return counts


def stratified_weights(counts: NDArray[np.uint16], strata: IndexArray) -> FloatArray:
    """Turn the counts of resamples into weights that keep the total of every stratum, [resamples, examples].

    Members and non-members are matched by stratum. Resamples with a different mix would vary far more than the AUC of
    matched examples does, and hide leaks. A stratum that is missing from a resample keeps its original weights.
    """
    weights = counts.astype(np.float64)
    for stratum in np.unique(strata):
        index = np.flatnonzero(strata == stratum)
        sums = weights[:, index].sum(axis=1, keepdims=True)
        weights[:, index] = np.where(sums > 0, weights[:, index] * len(index) / np.maximum(sums, 1), 1.0)
    return weights


def bootstrap_aucs(
    members: FloatArray, non_members: FloatArray, member_weights: FloatArray, non_member_weights: FloatArray
) -> FloatArray:
    """Return the weighted AUC of each resample; weights are [resamples, examples]."""
    order = np.argsort(non_members, kind="stable")
    ordered, aucs = non_members[order], np.empty(len(member_weights))
    below, up_to = np.searchsorted(ordered, members, "left"), np.searchsorted(ordered, members, "right")
    for start, stop in bootstrap_chunks(len(members) + len(non_members)):
        cumulative = np.zeros((stop - start, len(non_members) + 1))
        np.cumsum(non_member_weights[start:stop, order], axis=1, out=cumulative[:, 1:])
        weights = member_weights[start:stop]
        wins = (weights * (cumulative[:, below] + cumulative[:, up_to])).sum(axis=1) / 2
        aucs[start:stop] = wins / (weights.sum(axis=1) * cumulative[:, -1])
    return aucs


def bootstrap_chunks(row_elements: int) -> list[tuple[int, int]]:
    """Return start and stop of chunks of resamples, given the numbers per resample."""
    size = max(1, CHUNK_ELEMENTS // max(row_elements, 1))
    return [(start, min(start + size, NUM_BOOTSTRAP)) for start in range(0, NUM_BOOTSTRAP, size)]


def confidence_interval(values: FloatArray) -> tuple[float, float]:
    """Return the central 95 % of bootstrapped values, rounded so that an AUC of 0.5 is not affected by rounding."""
    low, high = np.quantile(values, [(1 - CONFIDENCE_LEVEL) / 2, (1 + CONFIDENCE_LEVEL) / 2])
    return round(float(low), 9), round(float(high), 9)
