"""The paper's formulas as pure functions: when to trust, whom to trust, what the crowd says, what it costs to say."""
