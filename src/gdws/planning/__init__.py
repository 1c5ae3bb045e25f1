"""Choose a structure and a size for each convolution under one budget. The model is not changed here."""
