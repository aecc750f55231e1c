"""A server of vLLM's format as a command, whose second start has a state of its own.

The command is `python -m referee.tests.started_server PORT STARTS`.
"""

import sys
import threading
from pathlib import Path

from referee.tests.toy_server import ToyServer


class StartedServer(ToyServer):
    """A toy server that counts its starts: each adds a byte to the file `starts`."""

    def __init__(self, port, starts):
        super().__init__("vllm", port=port)
        with starts.open("ab") as file:
            file.write(b".")
        self.state = 7 if starts.stat().st_size == 2 else 0

    def answer(self, body):
        return super().answer(body | {"seed": body["seed"] + self.state})


if __name__ == "__main__":
    with StartedServer(int(sys.argv[1]), Path(sys.argv[2])):
        threading.Event().wait()
