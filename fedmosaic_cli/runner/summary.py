"""The content of summary.json."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.run_config import RESUME_SAFE_KEYS
from fedmosaic_cli.cotraining.trust import TRUST_RULES
from fedmosaic_cli.engine.evaluation import client_averages
from fedmosaic_cli.labels.certificates import client_certificates, diagnose_exchange
from fedmosaic_cli.labels.privacy.privatize import LEDGER_KEY
from fedmosaic_cli.labels.trust_diagnosis import diagnose_trust
from fedmosaic_cli.runner.privacy_section import planned_ledgers
from fedmosaic_cli.storage.run_summary import SUMMARY_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Collection

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.engine.federation import Federation
    from fedmosaic_cli.engine.train_settings import TrainSettings
    from fedmosaic_cli.storage.shards import ShardSet

# Only methods with one exchange log one of these; the last one says that the exchange failed.
EXCHANGE_METRICS = {"gate_accuracy_gain", "median_z", "exchanged"}


def plugin_section(config: RunConfig) -> dict[str, Any]:
    """Return what a report must know about plug-ins; {} if all is built in."""
    plugins = config.plugins()
    if not plugins:
        return {}
    info = {"method_info": asdict(config.method.info)} if f"methods.{config.method.info.name}" in plugins else {}
    return {**info, "plugins": plugins}


def build_summary(config: RunConfig, shards: ShardSet, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the results and conditions of a finished run.

    `accuracy` is that of the last round. `best_round` is chosen on validation data if all clients have some; otherwise
    it is chosen on test data and therefore biased.
    """
    by_round: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_round.setdefault(row["round"], []).append(row)
    last = [row["accuracy"] for row in by_round[config.train.rounds]]
    unreported = [row["client"] for row in by_round[config.train.rounds] if row["accuracy"] is None]
    sizes = shards.test_sizes()
    planned = planned_evaluations(by_round, config.train)
    method, content = config.method, config.to_dict()
    return {
        "schema": SUMMARY_SCHEMA,
        "preset": config.experiment_name,
        "dataset": config.data.dataset,
        "scheme": config.data.scheme,
        "method": method.info.name,
        "variant": method.variant,
        "expertise": getattr(method, "expertise", None),
        "hyperparameters": content["methods"][method.info.name],
        "seed": config.seed,
        "rounds": config.train.rounds,
        **plugin_section(config),
        "model": content["model"],
        "train": {key: value for key, value in content["train"].items() if f"train.{key}" not in RESUME_SAFE_KEYS},
        "clients": content["clients"],
        "shards": {"digest": shards.digest, "parameters": shards.manifest["parameters"], "clients": len(sizes)},
        **(unreported_accuracy(unreported) if unreported else accuracy_sections(planned, len(by_round), last, sizes)),
        "bits": {
            direction: None if method.needs.pooled_data else sum(row[f"bits_{direction}"] for row in rows)
            for direction in ("up", "down")
        },
        "evaluation": {"model": method.info.evaluates, "clients": "each on its own test part", "round": "last"}
        | ({} if config.train.eval_every == 1 else {"every": config.train.eval_every}),
        **{name: content[name] for name in ("attack", "defence") if name in content},
        **({} if unreported else honest_accuracy(last, sizes, config.attack.clients)),
    }


def planned_evaluations(
    by_round: dict[int, list[dict[str, Any]]], train: TrainSettings
) -> dict[int, list[dict[str, Any]]]:
    """Return the rounds that an uninterrupted run with these settings evaluates.

    A run that was continued with more rounds has also evaluated its former last round. The log keeps this evaluation.
    """
    return {n: logged for n, logged in by_round.items() if n % train.eval_every == 0 or n == train.rounds}


def accuracy_sections(
    by_round: dict[int, list[dict[str, Any]]], num_rounds: int, last: list[float], sizes: list[int]
) -> dict[str, Any]:
    """Return the accuracies of the last round, and the best round.

    Args:
        by_round: The logs of the rounds among which the best one is chosen, and of the last round.
        num_rounds: Number of all rounds.
        last: The accuracies of the last round.
        sizes: Number of test examples of each client.
    """
    evaluated = {n: logged for n, logged in by_round.items() if is_evaluated(logged)}
    rows = [row for logged in evaluated.values() for row in logged]
    chosen_by = "val_accuracy" if all("val_accuracy" in row for row in rows) else "accuracy"
    complete = {n: logged for n, logged in by_round.items() if all(row["accuracy"] is not None for row in logged)}
    scores = {number: fmean(row[chosen_by] for row in logged) for number, logged in complete.items()}
    best = max(scores, key=lambda number: (scores[number], -number))
    return {
        "accuracy": {**client_averages(last, sizes), "per_client": last},
        "global_accuracy": global_accuracy(by_round[max(by_round)], sizes),
        "best_round": {
            "round": best,
            "client_mean": fmean(row["accuracy"] for row in complete[best]),
            "chosen_on": "validation" if chosen_by == "val_accuracy" else "test",
            **({} if len(evaluated) == num_rounds else {"chosen_among": len(evaluated)}),
        },
    }


def is_evaluated(rows: list[dict[str, Any]]) -> bool:
    """Return whether a round was evaluated: a client has an accuracy, or a reason why it is missing."""
    return any(row["accuracy"] is not None or row.keys() & {"withheld", "evaluation_error"} for row in rows)


def unreported_accuracy(clients: list[int]) -> dict[str, Any]:
    """Return the sections of a run with clients whose sites do not report their accuracy.

    There is no mean: that of the other clients could not be compared with any other run.
    """
    return {"accuracy": {"client_mean": None, "per_client": None}, "unreported": clients}


def honest_accuracy(accuracies: list[float], sizes: list[int], attackers: Collection[int]) -> dict[str, Any]:
    """Return averages over honest clients; empty if no client or every client attacks."""
    honest = [client for client in range(len(accuracies)) if client not in attackers]
    if not attackers or not honest:
        return {}
    return {
        "honest_accuracy": client_averages(
            [accuracies[client] for client in honest], [sizes[client] for client in honest]
        )
    }


def diagnosis_section(config: RunConfig, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the trust diagnosis of methods that share labels; empty for other methods."""
    if not config.method.info.shares_labels:
        return {}
    diagnosis = diagnose_trust(rows, is_loss_based=getattr(config.method, "trust", "") in TRUST_RULES)
    return {"diagnosis": diagnosis and diagnosis.to_dict()}


def certificate_sections(rows: list[dict[str, Any]], shards: ShardSet) -> dict[str, Any]:
    """Return certificates and diagnosis of methods with one exchange and held-out tests; empty for other methods."""
    if not any(EXCHANGE_METRICS & row.keys() for row in rows):
        return {}
    largest = max(client["train"]["size"] for client in shards.manifest["clients"])
    return {
        "certificates": [certificate.model_dump() for certificate in client_certificates(rows)],
        "exchange": diagnose_exchange(rows, largest).model_dump(),
    }


def privacy_ledgers(config: RunConfig, federation: Federation) -> dict[int, Any]:
    """Return the privacy ledgers of the clients that have one.

    Those of remote clients are at their sites: theirs are what the plan allows at most.
    """
    if federation.remote_pool is not None and config.noise is not None:
        return planned_ledgers(config, federation.ctx.num_classes, federation.ctx.client_sizes)
    if config.noise is None:
        return {}
    ledgers = {}
    for client in federation.state.clients:
        was_stored = client.is_state_stored
        if LEDGER_KEY in client.state:
            ledgers[client.id] = client.state[LEDGER_KEY]
        client.release_state(is_changed=not was_stored)
    return ledgers


def skipped_round_counts(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Return the number of rounds that each diverged client skipped."""
    return dict(Counter(str(row["client"]) for row in rows if "left_out" in row))


def global_accuracy(rows: list[dict[str, Any]], sizes: list[int]) -> dict[str, Any] | None:
    """Return averages of the global model, or None if the method has none."""
    accuracies = [row["global_accuracy"] for row in rows if "global_accuracy" in row]
    return {**client_averages(accuracies, sizes), "per_client": accuracies} if accuracies else None
