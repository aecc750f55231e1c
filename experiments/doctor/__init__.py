"""Can a profile run on this machine? Small checks, each of which returns findings; see `__main__`."""
