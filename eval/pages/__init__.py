"""What scorecards say in words, tables and plots."""
