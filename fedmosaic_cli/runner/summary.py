"""What comes of a run: the numbers of its last round, what they were taken under, and what one should know of them."""

from __future__ import annotations

from collections import Counter
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.resume_changes import FREE_TO_CHANGE
from fedmosaic_cli.cotraining.trust import TRUST_RULES, TrustRule
from fedmosaic_cli.engine.evaluation import averages
from fedmosaic_cli.labels.privacy.privatize import LEDGER
from fedmosaic_cli.labels.trust_diagnosis import diagnose
from fedmosaic_cli.storage.run_summary import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Collection

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.engine.rounds import Federation
    from fedmosaic_cli.storage.shards import Shards


def summarise(config: RunConfig, shards: Shards, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The summary of a finished run. The number is the last round's.

    The best round is there for information: chosen on validation data, where clients set some aside, it may be used;
    chosen on test data it flatters.
    """
    by_round: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_round.setdefault(row["round"], []).append(row)
    means = {number: fmean(row["accuracy"] for row in played) for number, played in by_round.items()}
    chosen_by = "val_accuracy" if all("val_accuracy" in row for row in rows) else "accuracy"
    marks = {number: fmean(row[chosen_by] for row in played) for number, played in by_round.items()}
    best = max(marks, key=lambda number: (marks[number], -number))
    last = [row["accuracy"] for row in by_round[config.train.rounds]]
    sizes = shards.test_sizes()
    method, content = config.method, config.to_dict()
    return {
        "schema": SCHEMA,
        "preset": config.setting,
        "dataset": config.data.dataset,
        "scheme": config.data.scheme,
        "method": method.name,
        "variant": method.variant,
        "expertise": getattr(method, "expertise", None),
        "hyperparameters": content["methods"][method.name],
        "seed": config.seed,
        "rounds": config.train.rounds,
        "model": content["model"],
        "train": {key: value for key, value in content["train"].items() if f"train.{key}" not in FREE_TO_CHANGE},
        "clients": content["clients"],
        "shards": {"digest": shards.digest, "parameters": shards.manifest["parameters"], "clients": len(sizes)},
        "accuracy": {**averages(last, sizes), "per_client": last},
        "global_accuracy": global_accuracy(by_round[config.train.rounds], sizes),
        "best_round": {
            "round": best,
            "client_mean": means[best],
            "chosen_on": "validation" if chosen_by == "val_accuracy" else "test",
        },
        "bits": {way: None if method.pooled else sum(row[f"bits_{way}"] for row in rows) for way in ("up", "down")},
        "evaluation": {"model": method.evaluated, "clients": "each on its own test part", "round": "last"},
        **{name: content[name] for name in ("attack", "defence") if name in content},
        **honest_accuracy(last, sizes, config.attack.clients),
    }


def honest_accuracy(marks: list[float], sizes: list[int], attackers: Collection[int]) -> dict[str, Any]:
    """The averages over clients that did not attack; nothing where nobody did, or everybody."""
    honest = [client for client in range(len(marks)) if client not in attackers]
    if not attackers or not honest:
        return {}
    return {"honest_accuracy": averages([marks[client] for client in honest], [sizes[client] for client in honest])}


def told_of_trust(config: RunConfig, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What the summary says of co-training; nothing of methods whose clients share no labels."""
    if not config.method.shares_labels:
        return {}
    rule = TRUST_RULES.get(getattr(config.method, "trust", ""))
    found = diagnose(rows, by_losses=isinstance(rule, TrustRule))
    return {"diagnosis": found and found.to_dict()}


def ledgers_of(federation: Federation) -> dict[int, Any]:
    """What clients wrote down that let anything go."""
    return {client.id: client.state[LEDGER] for client in federation.standing.clients if LEDGER in client.state}


def left_out(rows: list[dict[str, Any]]) -> dict[str, int]:
    """In how many rounds clients were left out because they diverged; those that never were are not named."""
    return dict(Counter(str(row["client"]) for row in rows if "left_out" in row))


def global_accuracy(rows: list[dict[str, Any]], sizes: list[int]) -> dict[str, Any] | None:
    """The same averages for the global model, where the method has one."""
    marks = [row["global_accuracy"] for row in rows if "global_accuracy" in row]
    return {**averages(marks, sizes), "per_client": marks} if marks else None
