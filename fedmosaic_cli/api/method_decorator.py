"""The decorator that registers a method."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, dataclass_transform

if TYPE_CHECKING:
    from fedmosaic_cli.engine.method import Method

M = TypeVar("M", bound="type[Method]")


@dataclass_transform(frozen_default=True)
def method(cls: M) -> M:
    """Make a class a method: a frozen dataclass of hyper-parameters, registered under its name.

    A class without `info` gets one. Its name is that of the class in lower case with hyphens.

    Args:
        cls: A subclass of `Method`, `FedAvg` or another method. Its fields are the hyper-parameters, with defaults.

    Returns:
        The class.

    Raises:
        FedMosaicError: The class is not a method, a phase has other parameters than in `Method`, a field has no
            default, or a built-in method has the same name.

    Example:
        >>> import fedmosaic_cli as fedmosaic
        >>> @fedmosaic.method
        ... class LocalHead(fedmosaic.FedAvg):
        ...     def local_parameter_names(self, ctx):
        ...         return super().local_parameter_names(ctx) | ctx.group("head")
        >>> fedmosaic.Experiment("quickstart", method=LocalHead).run()
    """
    from fedmosaic_cli.plugins import register_method

    return register_method(cls)
