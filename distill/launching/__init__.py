"""Scripts that start a run on several machines, each as its system wants them. No torch."""
