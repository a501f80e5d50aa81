"""How often the intervals of this project hold the truth, and how often its decisions are wrong."""
