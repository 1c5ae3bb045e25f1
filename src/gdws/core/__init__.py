"""What everything stands on: checks of models and images, files, hashes, progress, processes, a network's convolutions."""
