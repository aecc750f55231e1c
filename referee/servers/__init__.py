"""Servers: a client (`client`), the formats in which engines are asked for token ids (`formats`),
and the process of a server (`process`).
"""
