"""Training of several clients with the same architecture in one batched model."""
