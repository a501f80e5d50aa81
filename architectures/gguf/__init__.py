"""llama.cpp's files as targets."""
