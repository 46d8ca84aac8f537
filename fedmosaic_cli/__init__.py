"""fedmosaic: personalized federated learning by co-training, from the command line and from Python.

The names below are imported on first use, so `import fedmosaic_cli` loads neither torch nor pandas.

Example:
    >>> import fedmosaic_cli as fedmosaic
    >>> result = fedmosaic.Experiment("quickstart", method="ditto").run()
    >>> result.accuracy
"""

from __future__ import annotations

import sys
from types import ModuleType

TYPE_CHECKING = False  # type checkers take it as True; the import of typing would take longer than all the rest
if TYPE_CHECKING:
    from typing import Any

    from fedmosaic_cli.api.api_errors import FedMosaicWarning
    from fedmosaic_cli.api.api_report import Report, report
    from fedmosaic_cli.api.check_methods import check_method
    from fedmosaic_cli.api.compare_runs import compare
    from fedmosaic_cli.api.experiments import Experiment, RoundResult
    from fedmosaic_cli.api.forecast_runs import forecast
    from fedmosaic_cli.api.method_decorator import method
    from fedmosaic_cli.api.results import Result, Runs, load
    from fedmosaic_cli.api.tensorboard_callback import TensorBoard
    from fedmosaic_cli.engine import params
    from fedmosaic_cli.engine.context import Client, FederationInfo, ProximalTerm, Server, Training, TrainResult
    from fedmosaic_cli.engine.losses import TargetLoss
    from fedmosaic_cli.engine.messages import Logits, Part, PerClient, Scalars, Tensors, Weights
    from fedmosaic_cli.engine.method import Costs, Method, MethodInfo, Needs, hyperparameters
    from fedmosaic_cli.engine.peers import PeerMethod
    from fedmosaic_cli.errors import FedMosaicError
    from fedmosaic_cli.methods.fedavg import FedAvg
    from fedmosaic_cli.methods.local import Local
    from fedmosaic_cli.plugins import load_plugin, register_dataset, register_method, register_model

__version__ = "0.1.0"

__all__ = [
    "Client",
    "Costs",
    "Experiment",
    "FedAvg",
    "FedMosaicError",
    "FedMosaicWarning",
    "FederationInfo",
    "Local",
    "Logits",
    "Method",
    "MethodInfo",
    "Needs",
    "Part",
    "PeerMethod",
    "PerClient",
    "ProximalTerm",
    "Report",
    "Result",
    "RoundResult",
    "Runs",
    "Scalars",
    "Server",
    "TargetLoss",
    "TensorBoard",
    "Tensors",
    "TrainResult",
    "Training",
    "Weights",
    "check_method",
    "compare",
    "forecast",
    "hyperparameters",
    "load",
    "load_plugin",
    "method",
    "params",
    "register_dataset",
    "register_method",
    "register_model",
    "report",
]

MODULES = {
    "api.api_errors": ("FedMosaicWarning",),
    "api.api_report": ("Report",),
    "api.check_methods": ("check_method",),
    "api.compare_runs": ("compare",),
    "api.experiments": ("Experiment", "RoundResult"),
    "api.forecast_runs": ("forecast",),
    "api.method_decorator": ("method",),
    "api.results": ("Result", "Runs", "load"),
    "api.tensorboard_callback": ("TensorBoard",),
    "engine.context": ("Client", "FederationInfo", "ProximalTerm", "Server", "TrainResult", "Training"),
    "engine.losses": ("TargetLoss",),
    "engine.messages": ("Logits", "Part", "PerClient", "Scalars", "Tensors", "Weights"),
    "engine.method": ("Costs", "Method", "MethodInfo", "Needs", "hyperparameters"),
    "engine.peers": ("PeerMethod",),
    "errors": ("FedMosaicError",),
    "methods.fedavg": ("FedAvg",),
    "methods.local": ("Local",),
    "plugins": ("load_plugin", "register_dataset", "register_method", "register_model"),
}
"""The names that each module provides."""
MODULE_OF = {name: module for module, names in MODULES.items() for name in names}


class CallablePackage(ModuleType):
    """The package `fedmosaic_cli.report`, which can be called: `fedmosaic_cli.report("runs")`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from fedmosaic_cli.api.api_report import report

        return report(*args, **kwargs)


class RootPackage(ModuleType):
    """This package. The import system assigns `report`, a package with the name of a function."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "report" and isinstance(value, ModuleType):
            value.__class__ = CallablePackage
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = RootPackage


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    from importlib import import_module

    if name == "params":
        value: Any = import_module("fedmosaic_cli.engine.params")
    elif name == "report":
        value = import_module("fedmosaic_cli.report")
    elif name in MODULE_OF:
        value = getattr(import_module(f"fedmosaic_cli.{MODULE_OF[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
