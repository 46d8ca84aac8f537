"""What the views of an audit come to: for each client, and for all of them together. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmosaic_cli.audit.membership_attacks import (
    auc,
    balanced,
    interval,
    resampled_aucs,
    resamples,
    true_positive_rate,
)
from fedmosaic_cli.seeds import generator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from fedmosaic_cli.audit.members import Candidates

    Values = NDArray[np.float64]

VIEWS = ("messages-last", "messages-all", "model-loss", "model-lira-offline", "model-lira-online")
FALSE_POSITIVE_RATES = (0.01, 0.001)
NO_LEAK = "no leak found by this attack"
HIGHER, LOWER = "members score higher", "members score lower"
AVERAGED = ("auc", *(f"tpr_at_fpr_{rate}" for rate in FALSE_POSITIVE_RATES), "member_accuracy", "non_member_accuracy")


@dataclass(frozen=True)
class Seen:
    """What a view shows of a client's candidates, members first: a score each, and how far its label was told right."""

    scores: Values
    right: Values


Views = dict[str, Seen]
# A client's entry and the resampled AUCs behind its interval.
Measured = tuple[dict[str, Any], "Values"]


def findings(views: Mapping[int, Views], audited: Sequence[Candidates], seed: int) -> dict[str, Any]:
    """`views` over all clients, and an entry of each client in `per_client`.

    Over all clients, numbers are means over clients. Their interval is that of the mean AUC: clients share examples
    that nobody trained on, so these are resampled once for all, while each client's members are its own.
    """
    measured = measure(views, audited, seed)
    by_view = {name: [each[name] for each in measured.values() if name in each] for name in VIEWS}
    return {
        "views": {name: together(entries) for name, entries in by_view.items() if entries},
        "per_client": [
            {"client": c.client, "domain": c.domain, "views": {n: e for n, (e, _) in measured[c.client].items()}}
            for c in audited
        ],
    }


def measure(views: Mapping[int, Views], audited: Sequence[Candidates], seed: int) -> dict[int, dict[str, Measured]]:
    """Every view of every client."""
    union = np.unique(np.concatenate([candidates.others for candidates in audited]))
    drawn = resamples(len(union), generator(seed, "audit", "others"))
    measured = {}
    for candidates in audited:
        members = resamples(len(candidates), generator(seed, "audit", "members", candidates.client))
        others = drawn[:, np.searchsorted(union, candidates.others)]
        weights = balanced(members, candidates.kinds), balanced(others, candidates.kinds)
        measured[candidates.client] = {
            name: entry(views[candidates.client][name], *weights) for name in VIEWS if name in views[candidates.client]
        }
    return measured


def entry(seen: Seen, member_weights: Values, other_weights: Values) -> Measured:
    """One view of one client."""
    count = len(seen.scores) // 2
    members, others = seen.scores[:count], seen.scores[count:]
    aucs = resampled_aucs(members, others, member_weights, other_weights)
    rates = {f"tpr_at_fpr_{rate}": true_positive_rate(members, others, rate) for rate in FALSE_POSITIVE_RATES}
    accuracies = {
        "member_accuracy": float(seen.right[:count].mean()),
        "non_member_accuracy": float(seen.right[count:].mean()),
    }
    return {
        "auc": auc(members, others),
        **with_interval(aucs),
        **rates,
        **accuracies,
        "members": count,
        "non_members": count,
    }, aucs


def together(measured: Sequence[Measured]) -> dict[str, Any]:
    """One view of all clients that have it."""
    entries = [entry for entry, _ in measured]
    means = {name: fmean(entry[name] for entry in entries) for name in AVERAGED}
    sums = {name: sum(entry[name] for entry in entries) for name in ("members", "non_members")}
    return {"clients": len(entries), **means, **with_interval(np.mean([a for _, a in measured], axis=0)), **sums}


def with_interval(aucs: Values) -> dict[str, Any]:
    low, high = interval(aucs)
    return {"auc_interval": [low, high], "finding": NO_LEAK if low <= 0.5 <= high else HIGHER if low > 0.5 else LOWER}
