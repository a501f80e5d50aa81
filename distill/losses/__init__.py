"""A sum of losses over answer tokens, computed from logits or from hidden states in chunks."""
