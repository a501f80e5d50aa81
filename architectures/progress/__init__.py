"""Progress of long loops, and how busy the CPU was."""
