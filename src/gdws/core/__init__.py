"""What all other folders use: checks of models and images, files, hashes, progress, processes, a network's convolutions."""
