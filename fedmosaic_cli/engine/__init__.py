"""What every method runs on: the contract, the one loop, the one trainer, the one evaluator, the one channel."""
