"""How clients are executed: one by one in worker threads, in lockstep, or stacked."""
