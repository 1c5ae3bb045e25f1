"""Measure accuracy, natural and under attack, with its statistical uncertainty."""
