"""Several processes of one command: how they are started, meet, and end together."""
