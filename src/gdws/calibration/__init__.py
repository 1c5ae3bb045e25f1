"""One pass over the calibration images: statistics of a network, collected once, that serve any budget."""
