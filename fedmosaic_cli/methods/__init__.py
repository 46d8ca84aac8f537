"""The methods, one file each. METHODS is the table of all, in the order of the paper's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.fedct import FedCT
from fedmosaic_cli.methods.fedmosaic import FedMosaic
from fedmosaic_cli.methods.local import Centralized, Local

if TYPE_CHECKING:
    from fedmosaic_cli.engine.method import Method

METHODS: dict[str, type[Method]] = {method.name: method for method in (Centralized, Local, FedAvg, FedCT, FedMosaic)}
