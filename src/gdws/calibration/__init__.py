"""One pass over the calibration images: what they say of a network, collected once and good for any budget."""
