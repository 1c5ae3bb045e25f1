"""Extreme weights, images, geometries, budgets and counts against float64, brute force and scipy.

works.py      all of them, and how many      factors.py     the paper's factors, against singular values in float64
layers.py     layers, against loops          networks.py    compressed networks and attacks
choices.py    budgets and counts, against brute force and scipy
"""
