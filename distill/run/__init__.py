"""The folder of a run: who owns it, which stages are current, what each was made from."""
