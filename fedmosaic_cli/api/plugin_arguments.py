"""Methods, models and data sets as arguments of the Python API, and as words of the equivalent command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fedmosaic_cli.config.rerun_args import relative_to_cwd
from fedmosaic_cli.engine.method import Method
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.methods.registry import METHODS, method_schema
from fedmosaic_cli.models.registered_models import MODELS
from fedmosaic_cli.plugin_sources import REFERENCES, SOURCES, default_name, file_digest
from fedmosaic_cli.plugins import (
    register_dataset,
    register_method,
    register_model,
    resolve_dataset,
    resolve_method,
    resolve_model,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.plugin_sources import PluginKind

DATASET_FUNCTIONS: dict[str, Callable[[], Any]] = {}
"""The functions and classes of data sets that were passed to this API, by name."""


def method_name(method: str | type[Method] | Method) -> str:
    """Return the name of a method. A class that is not registered is registered."""
    if isinstance(method, str):
        return resolve_method(method)
    cls = method if isinstance(method, type) else type(method)
    if not issubclass(cls, Method):
        raise RequestError(f"{method!r} is not a method (method): give a name, a method class or an instance of one")
    name = getattr(getattr(cls, "info", None), "name", "")
    # `register_method` gives a class its own name if it inherits `info`.
    if name not in METHODS or cls not in (METHODS[name], method_schema(name)):
        name = register_method(cls).info.name
    return name


def model_name(model: str | Callable[..., nn.Module]) -> str:
    """Return the name of a model. A class or function is registered under its own name."""
    if isinstance(model, str):
        return resolve_model(model)
    name = callable_name(model, "model", "a class or function that returns a torch module")
    if name not in MODELS or MODELS[name] is not model:
        register_model(name, model)
    return name


def dataset_name(dataset: str | Callable[[], Any]) -> str:
    """Return the name of a data set. A class or function is registered under its own name."""
    if isinstance(dataset, str):
        return resolve_dataset(dataset)
    name = callable_name(dataset, "dataset", "a function that returns images and labels")
    if ("datasets", name) not in SOURCES or DATASET_FUNCTIONS.get(name) is not dataset:
        register_dataset(name, dataset)
        DATASET_FUNCTIONS[name] = dataset
    return name


def callable_name(target: Any, parameter: str, expected: str) -> str:
    """Return the name of a class or function in lower case with hyphens; raise RequestError for anything else."""
    name = getattr(target, "__name__", "")
    if not callable(target) or not name:
        raise RequestError(
            f"{type(target).__name__} is not a {parameter} ({parameter}): give a name, FILE.py:NAME or {expected}, or "
            f"register it with fedmosaic.register_{parameter}"
        )
    return default_name(name)


def plugin_options(config: RunConfig, model: str | None, dataset: str | None) -> list[str]:
    """Return the options `--method`, `--model`, `--dataset` and `--plugin` of the equivalent command.

    Args:
        config: The configuration of the run.
        model: The model if `--model` selects it; None if the preset or `--set` does.
        dataset: The data set if `--dataset` selects it.
    """
    selected: dict[tuple[PluginKind, str], str] = {("methods", config.method.info.name): "--method"}
    if model is not None:
        selected["models", model] = "--model"
    if dataset is not None:
        selected["datasets", dataset] = "--dataset"
    words: list[str] = []
    for (kind, name), option in selected.items():
        words += [option, find_reference(kind, name) or name]
    for key in config.plugins():
        kind, name = cast("tuple[PluginKind, str]", tuple(key.split(".", maxsplit=1)))
        reference, file = find_reference(kind, name), find_file(kind, name)
        if reference is None and file is not None:
            words += ["--plugin", relative_to_cwd(file)]
        elif reference is not None and (kind, name) not in selected:
            words += ["--plugin", f"{kind}={reference}"]
    return words


def find_reference(kind: PluginKind, name: str) -> str | None:
    """Return `FILE.py:NAME` or `package.module:NAME` for a plug-in that was defined in a file; None for others."""
    source = SOURCES.get((kind, name))
    if source is None or not source.file or source.distribution:
        return None
    targets = {"methods": METHODS.get(name), "datasets": DATASET_FUNCTIONS.get(name)}
    target = MODELS[name] if kind == "models" and name in MODELS else targets.get(kind)
    candidates = [reference_to(target), *(word.partition("=")[2] for word in REFERENCES if word.startswith(f"{kind}="))]
    for candidate in filter(None, candidates):
        place, _, attribute = candidate.rpartition(":")
        # The name of a model or data set on the command line is that of the class or function.
        if kind != "methods" and default_name(attribute) != name:
            continue
        if not place.endswith(".py"):
            return candidate
        path = Path(place)
        if path.name == source.file and file_digest(path) == source.digest:
            return f"{relative_to_cwd(path)}:{attribute}"
    return None


def reference_to(target: Any) -> str | None:
    """Return the reference to a class or function at the top level of a module that has a file."""
    module, name = sys.modules.get(getattr(target, "__module__", "")), getattr(target, "__qualname__", "")
    file = getattr(module, "__file__", None)
    if module is None or file is None or not hasattr(module, name):
        return None
    return f"{module.__name__ if module.__package__ else Path(file).absolute()}:{name}"


def find_file(kind: PluginKind, name: str) -> Path | None:
    """Return the file of the module that defines a plug-in, or None."""
    source = SOURCES.get((kind, name))
    if source is None or not source.file or source.distribution:
        return None
    files = (Path(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None)))
    same_name = (path for path in files if path.name == source.file)
    return next((path.absolute() for path in same_name if file_digest(path) == source.digest), None)
