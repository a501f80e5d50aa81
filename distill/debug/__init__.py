"""`--debug`: any recipe as a run of minutes, with files of its own."""
