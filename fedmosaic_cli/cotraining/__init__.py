"""The paper's formulas as pure functions: how much to trust, whom to trust, what the crowd says, what it costs to say."""
