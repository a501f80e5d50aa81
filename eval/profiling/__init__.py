"""`--profile`: what a decoding round or a training step spends its time and memory on, by torch's profiler."""
