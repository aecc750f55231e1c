"""Serve llama.cpp at an address of this machine, as llama-server does; needs the package xllamacpp.

    resispec serve --target embedded --mode assisted --port 8080
    resispec serve --target ./model --mode assisted --draft ./small --port 8080

The models are written as GGUF in float32, in a folder that goes when the server is stopped: by
Ctrl-C, or by SIGTERM. Ask it from another terminal:

    resispec transcripts --out spec.jsonl --server http://localhost:8080 --format llama_cpp ...
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

from referee.inputs import EMBEDDED, count, counts
from referee.transcribe import add_engine_options, in_process
from resispec.commands import as_typed
from resispec.errors import CommandParser, InvalidInput, in_one_line

ENGINE = "llama_cpp"
PORT = 8080
"""The port of llama-server, unless it is told another one."""


def port(text: str) -> int:
    """The number of a port, from 1 to 65535.

    Raises argparse.ArgumentTypeError for any other text.
    """
    if (number := count(text)) >= 2**16:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: a port from 1 to 65535")
    return number


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = CommandParser(
        prog=as_typed("referee.serve"),
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--target",
        default=EMBEDDED,
        help="folder, hub name, or pair of conf/pair; embedded by default",
    )
    parser.add_argument("--port", type=port, default=PORT, help=f"of 127.0.0.1, by default {PORT}")
    parser.add_argument(
        "--concurrency", type=counts, default=(8,), help="the most requests at a time, 8 by default"
    )
    parser.add_argument(
        "--by-ratio",
        action="store_true",
        help="accept a drafted token by the ratio of its probabilities, as in speculative "
        "sampling; llama.cpp's default is to accept it if the target draws it, too",
    )
    add_engine_options(parser, "of --mode assisted, for a --target that is no pair")
    parser.set_defaults(engine=ENGINE, until_decided=False)
    return parser


def _end(*_: Any) -> None:
    sys.exit(0)


@in_one_line("stopped")
def main(arguments: Sequence[str] | None = None) -> None:
    """The command, which ends when it is stopped: with exit code 0 by SIGTERM."""
    options = parser().parse_args(arguments)
    if options.by_ratio and options.mode != "assisted":
        raise InvalidInput("--by-ratio is for drafted tokens; give --mode assisted, too")
    signal.signal(signal.SIGTERM, _end)
    with TemporaryDirectory(prefix="resispec-") as folder:
        # By its name, since the path of its file is another one after each start.
        own = {"port": options.port, "by_ratio": options.by_ratio, "alias": options.target}
        engine = in_process(options, Path(folder), **own)
        sys.stdout.write(
            f"{engine.name} {engine.version} on {options.target}: {engine.server.url}, "
            f"--format {ENGINE}\n"
        )
        sys.stdout.flush()
        Event().wait()


if __name__ == "__main__":
    sys.exit(main())
