"""How long a network takes where it will run, layer by layer, and plans under latency budgets."""
