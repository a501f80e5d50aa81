"""How a draft learns from its target: data, losses, Composer training, export."""
