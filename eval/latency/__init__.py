"""How long the steps of decoding take on this machine, beside the least they can take."""
