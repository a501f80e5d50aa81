"""What a draft learns from: losses over answer tokens, from logits or from hidden states in chunks."""
