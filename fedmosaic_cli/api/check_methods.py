"""`fedmosaic check-method` from Python."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.api.api_errors import python_wording
from fedmosaic_cli.api.experiments import assignments, reject_unknown_overrides
from fedmosaic_cli.api.plugin_arguments import method_name
from fedmosaic_cli.plugins import load_named_plugins

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from fedmosaic_cli.engine.method import Method


def check_method(method: str | type[Method], overrides: Mapping[str, Any] | None = None) -> pd.DataFrame:
    """Check that a method keeps the contract: short runs, resume, remote sites, traffic and memory.

    It trains three clients on the embedded digits for a few rounds, in a temporary directory.

    Args:
        method: The name of a method, `FILE.py:NAME`, or a method class.
        overrides: Configuration values by dotted key, e.g. hyper-parameters: `{"methods.ditto.mu": 0.1}`.

    Returns:
        One row per check with the columns `name`, `problem` and `skipped`. `problem` is "" if the check passed or was
        skipped; `skipped` is the reason why a check does not apply, or "".

    Raises:
        FedMosaicError: The method does not exist, or a value is invalid.

    Example:
        >>> checks = fedmosaic.check_method("ditto")
        >>> checks[checks.problem != ""]
    """
    import pandas as pd

    with python_wording():
        load_named_plugins(())
        name, words = method_name(method), assignments(overrides or {})
        reject_unknown_overrides(words)
        from fedmosaic_cli.method_checks.checks import check_method as run_checks

        return pd.DataFrame([asdict(result) for result in run_checks(name, words)])
