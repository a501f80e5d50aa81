"""One forward pass of a model with its cache: plain, compiled, or captured."""
