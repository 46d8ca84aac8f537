"""The methods, one file each. METHODS is the table of all, in the order of the paper's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedmosaic_cli.methods.apfl import APFL
from fedmosaic_cli.methods.ditto import Ditto
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.fedbn import FedBN
from fedmosaic_cli.methods.fedct import FedCT
from fedmosaic_cli.methods.fedmosaic import FedMosaic
from fedmosaic_cli.methods.fedphp import FedPHP
from fedmosaic_cli.methods.fedprox import FedProx
from fedmosaic_cli.methods.gated import GatedCoTraining
from fedmosaic_cli.methods.local import Centralized, Local
from fedmosaic_cli.methods.perfedavg import PerFedAvg
from fedmosaic_cli.methods.perfedckt import PerFedCKT
from fedmosaic_cli.methods.pfedme import PFedMe

if TYPE_CHECKING:
    from fedmosaic_cli.engine.method import Method

METHOD_CLASSES = (
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
