"""Measurements on a GPU that is available for 15 minutes: drafts in vLLM, the tests marked gpu, step times."""
