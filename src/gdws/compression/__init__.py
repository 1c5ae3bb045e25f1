"""Carry a plan out: make the layers, refit them, save and load what came of it."""
