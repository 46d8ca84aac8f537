"""A network of your own: any torch module that returns logits. Its last linear layer is the head.

Try it: fedmosaic train --preset quickstart --model docs/examples/my_model.py:MyModel
"""

from torch import nn


class MyModel(nn.Sequential):
    """One convolution, dropout, and two linear layers."""

    def __init__(self, input_shape, num_classes):
        channels, height, width = input_shape
        super().__init__(
            nn.Conv2d(channels, 8, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(8 * height * width, 32),
            nn.ReLU(),
            nn.Linear(32, num_classes),
        )
