"""Apply a plan: build the layers, refit them, save and load the result."""
