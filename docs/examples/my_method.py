"""A method of your own: FedAvg whose clients keep a moving average of their trained models.

Try it: fedmosaic check-method docs/examples/my_method.py:MyMethod
        fedmosaic train --preset quickstart --method docs/examples/my_method.py:MyMethod
"""

from fedmosaic_cli import FedAvg, params


class MyMethod(FedAvg):
    """The personal model is `momentum` times its last value plus the rest of the newly trained model."""

    momentum: float = 0.5
    personal_state_key = "personal"

    def make_upload(self, client, model, ctx):
        client.state["personal"] = params.interpolate(client.state["personal"], model, self.momentum)
        return super().make_upload(client, model, ctx)
