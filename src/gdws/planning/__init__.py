"""Decide what becomes of each convolution under one budget. Nothing is changed here."""
