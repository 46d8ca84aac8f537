"""Each method against its oracles: what it must equal, and the usual wrong version that would not."""
