"""Time a network, layer by layer, in the engine where it will run, and plan under latency budgets."""
