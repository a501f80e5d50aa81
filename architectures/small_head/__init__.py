"""What a draft folder says of a head that says some ids alone."""
