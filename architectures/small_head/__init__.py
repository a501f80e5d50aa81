"""What a draft folder says of a head that outputs some ids alone."""
