"""What every command shares: an error is one line and an exit code, and a signal stops it in good order."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import version
from types import FrameType

from experiments.commands import fail
from experiments.configuration.messages import explained
from experiments.configuration.sweeps import with_parts
from resispec.errors import InvalidInput, first_line


def run_command(main: Callable[[], None], config_name: str = "run") -> int:
    """Run a function decorated with `hydra.main` on this process's command line; return the exit code.

    config_name: the file of conf/ that it composes.

    Besides what Hydra knows, a command line may have `--version`, and `--verbose`, which shows the traceback
    of an error.
    """
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        sys.stdout.write(f"resispec {version('resispec')}\n")
        return 0
    is_verbose = "--verbose" in arguments
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises instead of printing a report
    signal.signal(signal.SIGTERM, _on_terminate)
    try:
        sys.argv[1:] = _ordered([argument for argument in arguments if argument != "--verbose"])
        with explained(config_name):
            main()
    except InvalidInput as error:
        return _fail(str(error), is_verbose)
    except KeyboardInterrupt:
        return _fail("stopped; what is finished stays, and the same command goes on from there", False)
    except OSError as error:
        return _fail(
            f"{error.strerror}: {error.filename}" if error.strerror else first_line(error), is_verbose
        )
    return 0


def _ordered(arguments: list[str]) -> list[str]:
    """The arguments with Hydra's flags where its parser takes them, and artefacts that have parts spelt out.

    Raises InvalidInput for a word that is no KEY=VALUE.
    """
    multirun = [argument for argument in arguments if argument in ("-m", "--multirun")]
    others = [argument for argument in arguments if argument not in multirun]
    takes_value = (
        "-cn",
        "--config-name",
        "-cd",
        "--config-dir",
        "-cp",
        "--config-path",
        "-p",
        "--package",
        "-c",
        "--cfg",
    )
    for before, argument in zip(["", *others], others, strict=False):
        is_value = before in (*takes_value, "-i", "--info")
        if not argument.startswith(("-", "~")) and "=" not in argument and not is_value:
            raise InvalidInput(
                f"{argument!r} is no KEY=VALUE; to run an artefact's sweep: experiment={argument}"
            )
    return [*multirun, *with_parts(others)]


def _on_terminate(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _fail(message: str, is_verbose: bool) -> int:
    if is_verbose:
        traceback.print_exc()
    return fail(message)
