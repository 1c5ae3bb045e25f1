"""Rewrites of a traced network's graph, each exact except for rounding."""
