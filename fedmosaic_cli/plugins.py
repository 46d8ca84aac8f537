"""Plug-ins: methods, models and data sets that are not part of the package.

A reference names a class or function: `FILE.py:NAME`, or `package.module:NAME` for an installed package. Entry points
of the groups `fedmosaic.methods`, `fedmosaic.models` and `fedmosaic.datasets` are used by their name. Code is imported
only if the user names it on the command line or in Python, never because a stored file names it. This module does not
import torch.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from fedmosaic_cli.engine.messages import Part
from fedmosaic_cli.engine.method import Method, MethodInfo, Needs, hyperparameters
from fedmosaic_cli.errors import FedMosaicError, RequestError, unknown_name_error
from fedmosaic_cli.models.registered_models import MODELS
from fedmosaic_cli.plugin_sources import (
    MODULE_PREFIX,
    SOURCES,
    PluginSource,
    default_name,
    describe_location,
    find_source,
    record_reference,
    references_from_environment,
    require_free_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import nn

    from fedmosaic_cli.plugin_sources import PluginKind

M = TypeVar("M", bound=type[Method])
CONTRACT_METHODS = (
    *("init_client", "init_server", "broadcast", "local_round", "aggregate", "finalize"),
    *("personal_model", "global_model", "predict", "warnings", "costs"),
)


def register_method(cls: M) -> M:
    """Register a method class under its name, so that it can be trained. It replaces an earlier plug-in of that name.

    A class without `info` gets one: the name is the class name in lower case with hyphens. A class that is not
    decorated with `hyperparameters` is made a frozen dataclass.

    Raises:
        RequestError: The class is not a method, has abstract phases, fields without default, phases with a wrong
            signature, or a name that is taken.

    Example:
        >>> import fedmosaic_cli as fedmosaic
        >>> @fedmosaic.method
        ... class Mine(fedmosaic.FedAvg):
        ...     mu: float = 0.1
    """
    from fedmosaic_cli.methods.registry import METHODS

    where = describe_location(cls)
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise RequestError(
            f"{getattr(cls, '__name__', cls)} is not a method ({where}): derive it from fedmosaic.Method"
        )
    if "info" not in cls.__dict__:
        parent = getattr(cls, "info", None) or MethodInfo("", "")
        cls.info = replace(parent, name=default_name(cls.__name__), title=cls.__name__, citation="-")
    if "__pydantic_fields__" not in cls.__dict__:
        try:
            cls = hyperparameters(cls)  # type: ignore[assignment]
        except Exception as error:  # an annotation that cannot be resolved, or a default of the wrong type
            reason = str(error).splitlines()[0]
            raise RequestError(
                f"the fields of {cls.__name__} cannot be used, {reason} ({where}): correct them"
            ) from None
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        raise RequestError(f"{cls.__name__} does not define {missing[0]} ({where}): add it")
    check_signatures(cls)
    check_spelling(cls)
    for name, field in cls.__pydantic_fields__.items():  # type: ignore[attr-defined]
        if field.is_required():
            raise RequestError(f"{cls.__name__}.{name} has no default ({where}): give it one")
    check_declarations(cls, where)
    name = cls.info.name
    require_free_name("methods", name, where, is_taken=name in METHODS and ("methods", name) not in SOURCES)
    METHODS[name] = cls
    SOURCES["methods", name] = find_source(cls)
    return cls


def register_model(name: str, factory: Callable[..., nn.Module]) -> None:
    """Register a network under a name for `model.name` and `--model`.

    Args:
        name: The name.
        factory: A class or function that returns a `torch.nn.Module`. It may have the parameters `input_shape`
            (channels, height, width) and `num_classes`. The last linear layer is the head.
    """
    from fedmosaic_cli.models.model_settings import MODEL_KEYS

    require_free_name("models", name, describe_location(factory), is_taken=name in MODEL_KEYS)
    MODELS[name] = factory
    SOURCES["models", name] = find_source(factory)


def register_dataset(
    name: str, images: Any, labels: Any = None, class_names: Sequence[str] | None = None, test_mask: Any = None
) -> None:
    """Register a data set under a name for `data.dataset` and `--dataset`.

    Args:
        name: The name.
        images: Images as uint8 [examples, height, width] or [examples, height, width, channels], a
            `torch.utils.data.Dataset` of (image, label) pairs, or a function without parameters that returns either or
            a tuple of images and labels.
        labels: The class of each image, as numbers or names. None if `images` contains them.
        class_names: Names of the classes, if labels are numbers.
        test_mask: True for examples of the test split. None splits every client's data.
    """
    from fedmosaic_cli.data.datasets import DATASETS
    from fedmosaic_cli.data.datasets.plugin_dataset import plugin_dataset_source

    where = describe_location(images) if callable(images) else ""
    is_taken = name in DATASETS and ("datasets", name) not in SOURCES
    require_free_name("datasets", name, where, is_taken=is_taken)
    source = find_source(images) if callable(images) else PluginSource("", "")
    DATASETS[name] = plugin_dataset_source(name, images, labels, class_names, test_mask)
    SOURCES["datasets", name] = source


def resolve_method(word: str) -> str:
    """Return the name of a method that a user named: built in, a reference, or an entry point."""
    from fedmosaic_cli.methods.registry import METHODS

    return resolve(word, "methods", METHODS, lambda _, target: register_method(target).info.name)


def resolve_model(word: str) -> str:
    """Return the name of a model that a user named: built in, a reference, or an entry point."""
    from fedmosaic_cli.models.model_settings import MODEL_KEYS

    def register(name: str, target: Any) -> str:
        register_model(name, target)
        return name

    return resolve(word, "models", {**MODEL_KEYS, **MODELS}, register)


def built_in_models() -> list[str]:
    """Return the names of the models of the package."""
    from fedmosaic_cli.models.model_settings import MODEL_KEYS

    return list(MODEL_KEYS)


def resolve_dataset(word: str) -> str:
    """Return the name of a data set that a user named: built in, a reference, or an entry point."""
    from fedmosaic_cli.data.datasets import DATASETS

    def register(name: str, target: Any) -> str:
        register_dataset(name, target)
        return name

    return resolve(word, "datasets", DATASETS, register)


def resolve(word: str, kind: PluginKind, known: Iterable[str], register: Callable[[str, Any], str]) -> str:
    """Return the name for a word; register what a reference or an entry point names."""
    if word in known:
        return word
    if ":" in word:
        target = load_reference(word)
        record_reference(word, kind)
        return register(default_name(word.rpartition(":")[2]), target)
    for entry in entry_points(group=f"fedmosaic.{kind}"):
        if entry.name == word:
            name = register(word, import_named(entry.value))
            record_reference(word, kind)
            if entry.dist is not None:
                distribution = f"{entry.dist.name} {entry.dist.version}"
                SOURCES[kind, name] = replace(SOURCES[kind, name], distribution=distribution)
            return name
    if word.endswith(".py"):
        raise RequestError(f"'{word}' names a file without a class ({kind}): write {word}:NAME")
    names = {"methods": "method", "models": "model", "datasets": "data set"}
    raise unknown_name_error(names[kind], word, known, "METHOD" if kind == "methods" else f"--{kind[:-1]}")


def load_plugin(reference: str) -> None:
    """Import a module that registers methods, models or data sets.

    Args:
        reference: `FILE.py`, the name of an installed module, or `methods=FILE.py:NAME` (also `models`, `datasets`).

    Raises:
        RequestError: The module does not exist or fails, with file and line.
    """
    kind, separator, word = reference.partition("=")
    resolvers = {"methods": resolve_method, "models": resolve_model, "datasets": resolve_dataset}
    if separator and kind in resolvers:
        resolvers[kind](word)
    elif reference.endswith(".py"):
        import_file(Path(reference))
        record_reference(reference)
    else:
        import_module(reference)
        record_reference(reference)


def load_named_plugins(references: Iterable[str]) -> None:
    """Import the plug-ins of `--plugin` and of the environment variable FEDMOSAIC_PLUGINS."""
    for reference in [*references_from_environment(), *references]:
        load_plugin(reference)


def register_named(
    methods: Iterable[str] | None,
    models: Iterable[str] | None,
    datasets: Iterable[str] | None,
    plugins: Iterable[str] | None,
) -> None:
    """Register everything that the options `--method`, `--model`, `--dataset` and `--plugin` of a command name."""
    load_named_plugins(plugins or ())
    for resolve_word, words in ((resolve_method, methods), (resolve_model, models), (resolve_dataset, datasets)):
        for word in words or ():
            resolve_word(word)


def load_reference(reference: str) -> Any:
    """Return the class or function that `FILE.py:NAME` or `package.module:NAME` names."""
    place, _, name = reference.rpartition(":")
    module = import_file(Path(place)) if place.endswith(".py") else import_module(place)
    if not hasattr(module, name):
        public = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise unknown_name_error("name", name, public, place)
    return getattr(module, name)


def import_named(value: str) -> Any:
    """Return what an entry point such as `package.module:NAME` names."""
    return load_reference(value) if ":" in value else import_module(value)


def import_file(path: Path) -> Any:
    """Import a single file. The same content is imported once."""
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot read the plug-in ({path}): {getattr(error, 'strerror', None) or error}") from None
    name = f"{MODULE_PREFIX}{hashlib.sha256(str(path.absolute()).encode() + content).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RequestError(f"not a Python file ({path}): a plug-in ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except FedMosaicError:
        del sys.modules[name]
        raise
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        reject_plugin(error, str(path))
    return module


def import_module(name: str) -> Any:
    """Import an installed module."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise RequestError(f"no module '{name}' (--plugin): install it, or name a file FILE.py") from None
        reject_plugin(error, name)
    except FedMosaicError:
        raise
    except (Exception, SystemExit) as error:
        reject_plugin(error, name)


def reject_plugin(error: BaseException, where: str) -> NoReturn:
    """Raise RequestError for a plug-in that cannot be imported."""
    if isinstance(error, SyntaxError):
        where = f"{error.filename}, line {error.lineno}"
    else:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
        where = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else where
    message = error.msg if isinstance(error, SyntaxError) else error
    raise RequestError(f"{type(error).__name__}: {message} ({where}): correct the plug-in") from None


def check_spelling(cls: type[Method]) -> None:
    """Raise RequestError if a method of the class is almost named like one of the contract."""
    for name, function in vars(cls).items():
        inherited = any(name in vars(base) for base in cls.__mro__[1:])
        near = get_close_matches(name, CONTRACT_METHODS, n=1, cutoff=0.9)
        if inspect.isfunction(function) and not inherited and near:
            where = f"{inspect.getsourcefile(function)}, line {function.__code__.co_firstlineno}"
            raise RequestError(f"{cls.__name__}.{name} is not called by a run ({where}): did you mean {near[0]}?")


def check_declarations(cls: type[Method], where: str) -> None:
    """Raise RequestError if `needs`, `uploads` or `downloads` have a wrong type."""
    method = cls()
    if not isinstance(method.needs, Needs):
        raise RequestError(f"{cls.__name__}.needs is {method.needs!r:.60} ({where}): write needs = Needs(...)")
    for name in ("uploads", "downloads"):
        parts = getattr(method, name)
        if not isinstance(parts, Mapping) or not all(isinstance(part, Part) for part in parts.values()):
            raise RequestError(f'{cls.__name__}.{name} is {parts!r:.60} ({where}): write {{"model": Weights()}}')


def check_signatures(cls: type[Method]) -> None:
    """Raise RequestError if a phase of a method does not accept the arguments of the contract."""
    for phase in CONTRACT_METHODS:
        function, base = getattr(cls, phase), getattr(Method, phase)
        if function is base:
            continue
        expected = list(inspect.signature(base).parameters)
        try:
            inspect.signature(function).bind(*expected)
        except TypeError:
            where = f"{inspect.getsourcefile(function)}, line {function.__code__.co_firstlineno}"
            arguments = ", ".join(expected)
            raise RequestError(
                f"{cls.__name__}.{phase} has other parameters than {arguments} ({where}): write "
                f"def {phase}({arguments})"
            ) from None
