"""What the views of an audit come to: for each client, and for all of them together. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.audit.membership_attacks import (
    bootstrap_aucs,
    bootstrap_counts,
    confidence_interval,
    roc_auc,
    stratified_weights,
    tpr_at_fpr,
)
from fedmosaic_cli.seeds import derive_rng

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from fedmosaic_cli.audit.members import MembershipCandidates

    FloatArray = NDArray[np.float64]

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
    """What a view shows of a client's candidates, members first: a score each, and how far its label was told right."""

    scores: FloatArray
    correctness: FloatArray


AttackViews = dict[str, AttackScores]
# A client's entry and the resampled AUCs behind its interval.
ViewMetrics = tuple[dict[str, Any], "FloatArray"]


def audit_metrics(
    views: Mapping[int, AttackViews], all_candidates: Sequence[MembershipCandidates], seed: int
) -> dict[str, Any]:
    """`views` over all clients, and an entry of each client in `per_client`.

    Over all clients, numbers are means over clients. Their interval is that of the mean AUC: clients share examples
    that nobody trained on, so these are resampled once for all, while each client's members are its own.
    """
    measured = client_view_metrics(views, all_candidates, seed)
    by_view = {name: [each[name] for each in measured.values() if name in each] for name in AUDIT_VIEWS}
    return {
        "views": {name: mean_view_metrics(entries) for name, entries in by_view.items() if entries},
        "per_client": [
            {"client": c.client_id, "domain": c.domain, "views": {n: e for n, (e, _) in measured[c.client_id].items()}}
            for c in all_candidates
        ],
    }


def client_view_metrics(
    views: Mapping[int, AttackViews], all_candidates: Sequence[MembershipCandidates], seed: int
) -> dict[int, dict[str, ViewMetrics]]:
    """Every view of every client."""
    union = np.unique(np.concatenate([candidates.non_members for candidates in all_candidates]))
    drawn = bootstrap_counts(len(union), derive_rng(seed, "audit", "others"))
    measured = {}
    for candidates in all_candidates:
        members = bootstrap_counts(len(candidates), derive_rng(seed, "audit", "members", candidates.client_id))
        others = drawn[:, np.searchsorted(union, candidates.non_members)]
        weights = stratified_weights(members, candidates.strata), stratified_weights(others, candidates.strata)
        measured[candidates.client_id] = {
            name: view_metrics(views[candidates.client_id][name], *weights)
            for name in AUDIT_VIEWS
            if name in views[candidates.client_id]
        }
    return measured


def view_metrics(view: AttackScores, member_weights: FloatArray, non_member_weights: FloatArray) -> ViewMetrics:
    """One view of one client."""
    count = len(view.scores) // 2
    members, others = view.scores[:count], view.scores[count:]
    aucs = bootstrap_aucs(members, others, member_weights, non_member_weights)
    rates = {f"tpr_at_fpr_{rate}": tpr_at_fpr(members, others, rate) for rate in FALSE_POSITIVE_RATES}
    accuracies = {
        "member_accuracy": float(view.correctness[:count].mean()),
        "non_member_accuracy": float(view.correctness[count:].mean()),
    }
    return {
        "auc": roc_auc(members, others),
        **auc_interval_fields(aucs),
        **rates,
        **accuracies,
        "members": count,
        "non_members": count,
    }, aucs


def mean_view_metrics(client_metrics: Sequence[ViewMetrics]) -> dict[str, Any]:
    """One view of all clients that have it."""
    entries = [entry for entry, _ in client_metrics]
    means = {name: fmean(entry[name] for entry in entries) for name in AVERAGED_METRICS}
    sums = {name: sum(entry[name] for entry in entries) for name in ("members", "non_members")}
    return {
        "clients": len(entries),
        **means,
        **auc_interval_fields(np.mean([a for _, a in client_metrics], axis=0)),
        **sums,
    }


def auc_interval_fields(aucs: FloatArray) -> dict[str, Any]:
    low, high = confidence_interval(aucs)
    return {
        "auc_interval": [low, high],
        "finding": NO_LEAK if low <= 0.5 <= high else MEMBERS_HIGHER if low > 0.5 else MEMBERS_LOWER,
    }
