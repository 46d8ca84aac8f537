"""The methods by name, and which of them the paper's tables compare."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.methods.apfl import APFL
from fedmosaic_cli.methods.ditto import Ditto
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.fedbn import FedBN
from fedmosaic_cli.methods.fedct import FedCT
from fedmosaic_cli.methods.fedmosaic import FedMosaic
from fedmosaic_cli.methods.fedphp import FedPHP
from fedmosaic_cli.methods.fedprox import FedProx
from fedmosaic_cli.methods.gated import ExtendedFedMosaic, GatedCoTraining
from fedmosaic_cli.methods.local import Centralized, Local
from fedmosaic_cli.methods.perfedavg import PerFedAvg
from fedmosaic_cli.methods.perfedckt import PerFedCKT
from fedmosaic_cli.methods.pfedme import PFedMe

if TYPE_CHECKING:
    from fedmosaic_cli.engine.method import Method

METHOD_CLASSES: tuple[type[Method], ...] = (
    Centralized,
    Local,
    FedAvg,
    FedProx,
    FedCT,
    FedBN,
    PerFedAvg,
    Ditto,
    PFedMe,
    APFL,
    FedPHP,
    PerFedCKT,
    FedMosaic,
    GatedCoTraining,
)
METHODS: dict[str, type[Method]] = {method.name: method for method in METHOD_CLASSES}
"""All methods by name, in the order of table rows. Adding one changes neither the paper's tables nor its studies."""

BASELINES = (
    "centralized",
    "local",
    "fedavg",
    "fedprox",
    "fedct",
    "fedbn",
    "perfedavg",
    "ditto",
    "pfedme",
    "apfl",
    "fedphp",
    "perfedckt",
)
"""The methods that the paper compares FedMosaic with, in the order of its tables."""

PAPER_METHODS = (*BASELINES, "fedmosaic")
"""The methods that the paper's tables and studies compare, besides gated co-training. The list is explicit."""

FEDMOSAIC_DEFAULTS = {"warmup_share": 0.0, "public_loss": "plain", "votes_from": "self"}
"""Options that config.yaml records for every FedMosaic run. Other values make it an `ExtendedFedMosaic`."""


def method_schema(name: str) -> type[Method]:
    """Return the class whose fields are the accepted hyper-parameters of `methods.<name>`."""
    return ExtendedFedMosaic if name == FedMosaic.name else METHODS[name]


def simplified_method(method: Method) -> Method:
    """Return the paper's FedMosaic in place of an `ExtendedFedMosaic` that uses none of the extensions."""
    if not isinstance(method, ExtendedFedMosaic) or method.trust in ("agreement", "gated"):
        return method
    values = asdict(method)
    if any(values[key] != default for key, default in FEDMOSAIC_DEFAULTS.items()):
        return method
    return FedMosaic(**{field.name: values[field.name] for field in fields(FedMosaic)})


def recorded_hyperparameters(method: Method) -> dict[str, Any]:
    """Return the hyper-parameters that config.yaml records: those with an effect, under the keys of version 0.1.0."""
    values: dict[str, Any] = asdict(method)  # type: ignore[call-overload]
    if type(method) is FedMosaic:
        values |= FEDMOSAIC_DEFAULTS
    unused = method.unused_hyperparameters(values)
    return {name: value for name, value in values.items() if name not in unused}
