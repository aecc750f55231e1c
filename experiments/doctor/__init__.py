"""The doctor: small checks of whether a profile can run on this machine, see `needs`."""
