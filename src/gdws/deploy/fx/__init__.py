"""Rewrites of a traced network's graph, each exact but for rounding."""
