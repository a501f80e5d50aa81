"""Models as every command loads them, and how their products are computed."""
