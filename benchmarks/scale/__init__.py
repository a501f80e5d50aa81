"""What more GPUs gain, recipe by recipe: predicted from one, and held against one and two processes."""
