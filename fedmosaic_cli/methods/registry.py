"""The methods by name, and which of them the paper's tables compare."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, get_args

from fedmosaic_cli.engine.method import MethodFamily, MethodInfo, unused_hyperparameters
from fedmosaic_cli.methods.apfl import APFL
from fedmosaic_cli.methods.ditto import Ditto
from fedmosaic_cli.methods.dpsgd import DPSGD
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.fedavgft import FedAvgFT
from fedmosaic_cli.methods.fedbn import FedBN
from fedmosaic_cli.methods.fedct import FedCT
from fedmosaic_cli.methods.feddf import FedDF
from fedmosaic_cli.methods.fedfomo import FedFomo
from fedmosaic_cli.methods.fedmosaic import FedMosaic
from fedmosaic_cli.methods.fedper import FedPer
from fedmosaic_cli.methods.fedphp import FedPHP
from fedmosaic_cli.methods.fedproto import FedProto
from fedmosaic_cli.methods.fedprox import FedProx
from fedmosaic_cli.methods.fedrep import FedRep
from fedmosaic_cli.methods.gated import ExtendedFedMosaic, GatedCoTraining
from fedmosaic_cli.methods.lgfedavg import LGFedAvg
from fedmosaic_cli.methods.local import Centralized, Local
from fedmosaic_cli.methods.oracle import Oracle
from fedmosaic_cli.methods.perfedavg import PerFedAvg
from fedmosaic_cli.methods.perfedckt import PerFedCKT
from fedmosaic_cli.methods.pfedhn import PFedHN
from fedmosaic_cli.methods.pfedme import PFedMe
from fedmosaic_cli.methods.scaffold import Scaffold
from fedmosaic_cli.methods.student import Student

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    FedAvgFT,
    Scaffold,
    FedDF,
    FedPer,
    FedRep,
    LGFedAvg,
    FedProto,
    FedFomo,
    PFedHN,
    DPSGD,
    Student,
    Oracle,
)
METHODS: dict[str, type[Method]] = {method.info.name: method for method in METHOD_CLASSES}
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

ALL_BASELINES = (*BASELINES, "gated")
"""The methods that `fedmosaic baseline all` trains."""

PAPER_METHODS = (*BASELINES, "fedmosaic")
"""The methods that the paper's tables and studies compare, besides gated co-training. The list is explicit."""

EXTENDED_METHODS = ("fedavgft", "gated", "student", "oracle")
"""The methods that `fedmosaic reproduce --extended` adds below the paper's rows."""

FEDMOSAIC_DEFAULTS = {"warmup_share": 0.0, "public_loss": "plain", "votes_from": "self"}
"""Options that config.yaml records for every FedMosaic run. Other values make it an `ExtendedFedMosaic`."""


STORED_INFO: dict[str, MethodInfo] = {}
"""Descriptions of plug-in methods, as the collected runs stored them."""


def method_info(name: str) -> MethodInfo:
    """Return the description of a method: that of the class, or that of a stored run.

    Raises:
        KeyError: The method is neither registered nor described by a collected run.
    """
    return METHODS[name].info if name in METHODS else STORED_INFO[name]


def known_methods() -> list[str]:
    """Return the names of all registered and stored methods, in the order of table rows."""
    return [*METHODS, *sorted(STORED_INFO.keys() - METHODS.keys())]


def store_method_info(content: Any) -> None:
    """Keep the description of a plug-in method that a run stored.

    Raises:
        ValueError: The content is not a valid description.
    """
    names = {field.name for field in fields(MethodInfo)}
    if not isinstance(content, dict) or content.keys() != names:
        raise ValueError("it has other keys")
    texts = {name: value for name, value in content.items() if name != "shares_labels"}
    if not all(isinstance(text, str) and text.isprintable() for text in texts.values()):
        raise ValueError("it must contain printable texts")
    if content["family"] not in get_args(MethodFamily) or not isinstance(content["shares_labels"], bool):
        raise ValueError("its family is unknown")
    STORED_INFO[content["name"]] = MethodInfo(**content)


def method_schema(name: str) -> type[Method]:
    """Return the class whose fields are the accepted hyper-parameters of `methods.<name>`."""
    return ExtendedFedMosaic if name == FedMosaic.info.name else METHODS[name]


def simplified_method(method: Method) -> Method:
    """Return the paper's FedMosaic in place of an `ExtendedFedMosaic` that uses none of the extensions."""
    if not isinstance(method, ExtendedFedMosaic) or method.trust in ("agreement", "gated"):
        return method
    values = asdict(method)
    if any(values[key] != default for key, default in FEDMOSAIC_DEFAULTS.items()):
        return method
    return FedMosaic(**{field.name: values[field.name] for field in fields(FedMosaic)})


def effective_hyperparameters(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyper-parameters of a method that have an effect, given the values of the others."""
    unused = unused_hyperparameters(method_schema(name), values) if name in METHODS else frozenset()
    return {key: value for key, value in values.items() if key not in unused}


def recorded_hyperparameters(method: Method) -> dict[str, Any]:
    """Return the hyper-parameters that config.yaml records: those with an effect, under the keys of version 0.1.0."""
    values: dict[str, Any] = asdict(method)  # type: ignore[call-overload]
    if type(method) is FedMosaic:
        values |= FEDMOSAIC_DEFAULTS
    unused = unused_hyperparameters(type(method), values)
    return {name: value for name, value in values.items() if name not in unused}
