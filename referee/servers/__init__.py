"""Servers: a client (`client`), requests for token ids (`formats`), and a process (`process`)."""
