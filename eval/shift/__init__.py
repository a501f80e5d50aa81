"""How drafts do on the same stream of requests, while what is asked shifts: curves, segments, tokens, regressions."""
