"""FedDF: FedAvg, and then the server distils the clients' ensemble into the mean on the public set.

Lin et al., Ensemble Distillation for Robust Model Fusion in Federated Learning, NeurIPS 2020. The student starts at the
mean of the models and minimises the cross-entropy to the softmax of the clients' mean logits; teachers are in
evaluation mode. Differs from the paper: a fixed number of steps with a constant learning rate, without early stopping
and without dropping of poor teachers. The authors take up to 10,000 steps per round.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.losses import DistillationLoss
from fedmosaic_cli.engine.method import Needs, hyperparameters
from fedmosaic_cli.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedmosaic_cli.engine.context import FederationInfo, ReceivedMessage, Server

STUDENT_KEY = "student"


@hyperparameters
class FedDF(FedAvg):
    """FedDF.

    Attributes:
        steps: Steps of the server per round. With 0 it equals FedAvg, bit for bit.
        lr: Learning rate of the server, which uses Adam.
    """

    steps: Annotated[int, Field(ge=0, le=1_000_000)] = 100
    lr: Annotated[float, Field(gt=0, le=1e30)] = 1e-3

    info = replace(FedAvg.info, name="feddf", title="FedDF", citation="Lin et al., NeurIPS 2020")

    @property
    def needs(self) -> Needs:
        return replace(super().needs, public_set=True, server_compute=True, averaged_statistics=True)

    def aggregate(self, server: Server, uploads: Mapping[int, ReceivedMessage], ctx: FederationInfo) -> None:
        import torch

        super().aggregate(server, uploads, ctx)
        if not self.steps:
            return
        # All entries are in the uploads, unless the network has running statistics that are not averaged.
        teachers = [server.predict_public({**ctx.initial_model, **upload["model"]}) for upload in uploads.values()]
        mean = torch.stack(teachers).mean(dim=0)
        server.state[STUDENT_KEY] = params.clone({**ctx.initial_model, **server.state["model"]})
        term = DistillationLoss(mean, 1.0, temperature=1.0)
        result = server.train(STUDENT_KEY, [term], steps=self.steps, lr=self.lr, optimizer="adam")
        server.log(loss_distillation=result.term_losses[0])
        server.state["model"] = params.select(server.state[STUDENT_KEY], server.state["model"])
        for key in [key for key in server.state if key.startswith(STUDENT_KEY)]:
            del server.state[key]
