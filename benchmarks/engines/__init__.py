"""One pair in every engine that runs here: their speeds as a table of docs/benchmarks.md."""
