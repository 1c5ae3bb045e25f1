"""What is left of accuracy, natural and under attack, and how sure that is."""
