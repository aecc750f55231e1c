"""Can a profile run on this machine? Small checks, each of which gives lines; see `checks`."""
