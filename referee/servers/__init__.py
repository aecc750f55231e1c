"""Servers: a client (`client`), and the formats in which engines are asked
for token ids (`formats`).
"""
