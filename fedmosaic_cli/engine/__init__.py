"""The method contract, the training loop, local training, evaluation and in-process messages."""
