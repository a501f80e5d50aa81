"""What recipes and commands may be told: kinds of settings, each declared once, and flags made of them. No torch."""
