"""Every key a recipe may hold, section by section, and how a file becomes one Recipe."""
