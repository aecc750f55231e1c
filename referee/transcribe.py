"""Let an engine continue prompts, and write what it emits to a file that can be audited; see
docs/writing-transcripts.md.

    resispec transcripts --out a.jsonl --server http://localhost:8000 --format vllm --target NAME
    resispec transcripts --out b.jsonl --engine transformers --mode assisted
    resispec transcripts --out c.jsonl --engine llama_cpp --target embedded

Each row is written as soon as it is there; if the command stops, the same command goes on after the
rows that are written. With --until-decided it asks for no more prompts than a verdict takes.
--concurrency, --restarts, --turns and --context make arms, which `resispec judge` compares. Prompt
i uses seed + i. Every setting is asked for, so that no default of an engine applies in silence, and
is written to every row. The key of a server that wants one is read from RESISPEC_SERVER_KEY.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from referee import inputs
from referee.deciding import until_decided
from referee.engine_laws import check_same_everywhere
from referee.engines import Engine, Unanswered, write_transcripts
from referee.engines.base import ENGINES, MODES, TimedOut
from referee.engines.chat import TOOL_EVERY
from referee.engines.writing import keys_of, rows_of
from referee.inputs import EMBEDDED, count, counts
from referee.planned import planned_lines
from referee.prompts import PromptSource
from referee.servers.formats import FORMATS, OpenAi
from referee.transcripts import DRAFT_WEIGHTS, PRECISION, STARTED_BY, WEIGHTS, Transcript
from resispec import plugins
from resispec.commands import as_typed
from resispec.errors import GOES_ON, CommandParser, InvalidInput, in_one_line
from resispec.files import check_output
from resispec.sampling import FILTER_ORDERS, SETTINGS, Sampling, engine_of, filter_order_of

if TYPE_CHECKING:  # these import torch
    from referee.rescoring import Scorer
    from resispec.models import TransformersTokenizer

KEY = "RESISPEC_SERVER_KEY"
NUM_DRAFTED = 5
FORMAT = "server_format"
"""The kind of plug-in that adds a server format."""


def _server(options: argparse.Namespace) -> Engine:
    from referee.servers.client import Server

    if options.format is None:
        names = ", ".join(plugins.available(FORMAT, FORMATS))
        raise InvalidInput(f"--server needs a --format; allowed: {names}")
    make = plugins.find(FORMAT, options.format, FORMATS)
    tries, plain_key = options.tries, options.plain_key
    server = Server(
        options.server, os.environ.get(KEY), tries, options.timeout, plain_key=plain_key
    )
    if options.model is None:
        return make(server)
    if not getattr(make, "takes_model", False):
        raise InvalidInput(
            f"--model chooses among the models of /v1/models, which --format {options.format} does "
            "not ask; leave it out"
        )
    return make(server, options.model)


def in_process(options: argparse.Namespace, folder: Path, **own: Any) -> Engine:
    """An engine of `ENGINES`, by options of `add_engine_options`, engine and concurrency.

    folder: a place for models in the engine's own format. own: further options of the engine's
    class. Raises InvalidInput without the engine's package, and for a mode that lacks its draft.
    """
    try:
        make = resolve_name(ENGINES[options.engine])
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"--engine {options.engine} needs the package {error.name}; pip install '.[engines]' "
            "brings it"
        ) from error
    import torch

    from resispec.models.checkpoint import digest_of

    target, mode = options.target or EMBEDDED, options.mode or MODES[0]
    if mode == "assisted" and options.draft is None and not inputs.is_pair(target):
        raise InvalidInput("--mode assisted needs a --draft: a model folder or a hub name")
    if mode != "assisted" and options.draft and not options.until_decided:
        raise InvalidInput(f"--mode {mode} uses no --draft; allowed: --mode assisted, or no draft")
    if mode == MODES[0] and options.num_drafted:
        raise InvalidInput(f"--mode {mode} drafts nothing, so it has no --num-drafted")
    if target.startswith(EMBEDDED):
        torch.set_num_threads(1)  # small matrices: see conf/profile/embedded.yaml
    draft = options.draft if mode == "assisted" else None
    pair = inputs.pair_of(target, draft, options.device, options.dtype)
    folders = () if options.engine == "transformers" else (folder,)
    has_slots = options.concurrency and options.engine == "llama_cpp"
    slots = {"slots": max(options.concurrency)} if has_slots else {}
    engine: Engine = make(
        pair, *folders, mode=mode, num_drafted=options.num_drafted or NUM_DRAFTED, **slots, **own
    )
    engine.model = target
    drafted = {} if mode == MODES[0] else {"num_drafted": options.num_drafted or NUM_DRAFTED}
    engine.drafting = {"mode": mode, PRECISION: options.dtype, **drafted}
    # a name stays where its weights are trained on, or where a hub has newer ones
    engine.drafting |= {WEIGHTS: digest_of(pair.target.module.state_dict())}
    if draft is not None:
        engine.drafting |= {"draft": draft}
    if mode == "assisted":
        engine.drafting |= {DRAFT_WEIGHTS: digest_of(pair.draft_model().module.state_dict())}
    if options.concurrency and not (has_slots or engine.takes_batches):
        raise InvalidInput(f"{engine.name} has one request at a time; --concurrency is not for it")
    return engine


def _scorers(options: argparse.Namespace) -> list[Scorer]:
    """The models that rescore for --until-decided."""
    from referee.audit.terms import COLDEST

    if options.temperature <= COLDEST:
        raise InvalidInput(
            f"--until-decided needs a --temperature above {COLDEST:.2g}; greedy rows bet nothing"
        )
    if options.target is None and options.server:
        raise InvalidInput("--until-decided rescores; give --target, a folder, hub name or pair")
    target = options.target or EMBEDDED
    return inputs.scorers(target, options.draft, options.device, options.dtype)


def _engine(options: argparse.Namespace, folder: Path) -> Engine:
    if options.model and not options.server:
        raise InvalidInput("--model chooses among the models of a --server; name the --target here")
    if options.server:
        _check_started_alone(options)
    engine = _server(options) if options.server else in_process(options, folder)
    engine.ask_logprobs(options.logprobs)
    return engine


def _check_started_alone(options: argparse.Namespace) -> None:
    """Raise InvalidInput for options of how an engine drafts: a server is started with its own."""
    given = {
        "--mode": options.mode,
        "--num-drafted": options.num_drafted,
        "--draft": None if options.until_decided else options.draft,
    }
    for option, value in given.items():
        if value is not None:
            raise InvalidInput(
                f"{option} {value} is for an --engine; a server drafts as it was started, so start "
                "it that way and leave the option out"
            )


def _tokenizer(options: argparse.Namespace) -> tuple[TransformersTokenizer, str | None]:
    """The tokenizer of the engine's model, and its prompt template."""
    if options.server and options.target is None:
        raise InvalidInput(
            "the prompts are texts, which the tokenizer of the server's model encodes (what a tool "
            "says in a chat is one, too); give --target, a folder or a hub name"
        )
    return inputs.tokenizer_of(options.target or EMBEDDED, options.device, options.dtype)


def check_arms(options: argparse.Namespace) -> None:
    """Raise InvalidInput for arms that cannot be asked for together."""
    if options.start and not options.server:
        raise InvalidInput("--start starts a server; give its --server address and --format")
    if options.restarts and not options.start:
        raise InvalidInput("--restarts needs --start, the command that starts the server")
    if options.start and options.until_decided:
        raise InvalidInput(
            "--until-decided looks between the prompts of one start, so it is not for --start; "
            "allowed: one of them"
        )


def of_starts(
    options: argparse.Namespace,
    whole: Callable[[int], list[Transcript] | None],
    ask: Callable[[Engine, int, int], list[Transcript]],
) -> list[Transcript]:
    """The rows of all starts of a server, each by the command that is given.

    whole: gives the rows of a start that has them all. A server is not started for these; the last
    one is all the same if there is no other, since all rows are checked against what it says. ask:
    see `main`.
    """
    from referee.servers.process import ServerProcess

    starts = range(1, (options.restarts or 1) + 1)
    written = {restart: whole(restart) for restart in starts}
    due = [restart for restart in starts if written[restart] is None] or [starts[-1]]
    log = options.out.with_name(f"{options.out.name}.server.log")
    for restart in due:
        with ServerProcess(options.start, options.server, log):
            engine = _engine(options, Path())
            engine.drafting = {**engine.drafting, STARTED_BY: options.start}
            written[restart] = ask(engine, restart, options.num_prompts)
    return [row for rows in written.values() for row in rows or ()]


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = CommandParser(
        prog=as_typed("referee.transcribe"),
        usage="%(prog)s --out FILE (--engine NAME | --server ADDRESS --format NAME) [options]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="the .jsonl file to write, or to go on with"
    )
    engine = parser.add_mutually_exclusive_group(required=True)
    engine.add_argument("--server", help="address of a server, like http://localhost:8000")
    engine.add_argument("--engine", choices=list(ENGINES), help="an engine in this process")
    parser.add_argument(
        "--target",
        help="folder, hub name, or pair of conf/pair; with --engine the pair embedded by default",
    )
    parser.add_argument(
        "--prompts",
        default="embedded_reference",
        help="of conf/dataset, or a .jsonl file; embedded_reference by default",
    )
    parser.add_argument("--num-prompts", type=count, default=100, help="100 by default")
    parser.add_argument(
        "--until-decided",
        action="store_true",
        help="rescore answers with --target (and --draft) as they come, and end as soon as bets "
        "show a bias, or after --num-prompts; valid however often one looks",
    )
    parser.add_argument(
        "--prompt-tokens", type=count, default=48, help="texts are cut to so many; 48 by default"
    )
    parser.add_argument(
        "--seed", type=partial(count, least=0), default=0, help="prompt i uses this + i"
    )
    parser.add_argument(
        "--concurrency",
        type=counts,
        default=(),
        help="requests at a time, of a server (8 by default) or an engine that takes several; "
        "1,4,16,64 asks for everything under each load, for the audit to compare",
    )
    parser.add_argument(
        "--turns",
        type=count,
        help="every prompt begins a chat of so many turns, whose later ones are further prompts of "
        f"--prompts; before every turn that {TOOL_EVERY} divides a tool says something",
    )
    parser.add_argument(
        "--context",
        type=partial(counts, least=0),
        default=(None,),
        help="fill prompts up to so many tokens, in front, with further prompts of --prompts; "
        "0,4096 asks for both",
    )
    settings = parser.add_argument_group("settings, all of which are always asked for")
    for name, off in {**Sampling().by_name(), "filter_order": "", "max_new_tokens": 64}.items():
        text = (
            f"default {off}"
            if off != ""
            else f"{', '.join(FILTER_ORDERS)}; default: the engine's own"
        )
        settings.add_argument(f"--{name.replace('_', '-')}", type=type(off), default=off, help=text)
    server = parser.add_argument_group("with --server")
    formats = f"what the server speaks: {', '.join(FORMATS)}, or a package's own"
    server.add_argument("--format", metavar="NAME", help=formats)
    server.add_argument("--model", help="the one to ask, of a server that has several")
    server.add_argument(
        "--logprobs",
        type=count,
        default=0,
        metavar="K",
        help="ask for the log-probabilities of the K most probable tokens, for a comparison "
        "without a target",
    )
    server.add_argument(
        "--start",
        metavar="COMMAND",
        help="start the server by this command, without a shell, and stop it at the end; what it "
        "prints is in OUT.server.log",
    )
    server.add_argument(
        "--restarts", type=count, help="starts of the server, each asked for everything"
    )
    server.add_argument("--tries", type=count, default=6, help="of a request that gets no answer")
    server.add_argument(
        "--timeout", type=count, default=600, help="seconds of a request with all its tries"
    )
    server.add_argument(
        "--plain-key", action="store_true", help=f"send {KEY} over http to another machine"
    )
    about = "of --mode assisted or --until-decided, for a --target that is no pair"
    add_engine_options(parser.add_argument_group("with --engine"), about)
    return parser


def add_engine_options(group: Any, draft: str) -> None:
    """Add the options of an engine in this process. draft: the help of --draft."""
    text = "how tokens are drafted: not at all (the default), with the draft, from the text before"
    group.add_argument("--mode", choices=MODES, help=text)
    group.add_argument("--draft", help=draft)
    group.add_argument(
        "--num-drafted",
        type=count,
        help=f"tokens drafted for a step, at most; {NUM_DRAFTED} by default",
    )
    inputs.add_model_options(group)


def settings_of(options: argparse.Namespace, engine: str) -> Sampling:
    """The settings that are asked for. engine: its name; it decides an order that was not given."""
    values = {name: getattr(options, name) for name in (*SETTINGS, "max_new_tokens")}
    order = options.filter_order or filter_order_of(engine)
    return Sampling(**values | {"filter_order": order})


@in_one_line(GOES_ON)
def main(arguments: Sequence[str] | None = None) -> None:
    """The command; its exit code is 0 if every prompt has its transcript."""
    options = parser().parse_args(arguments)
    folders = inputs.model_folders(options.target, options.draft)
    check_output(options.out, [Path(options.prompts)], folders)
    settings = settings_of(options, options.engine or options.format or "")
    if options.format == OpenAi.name and not options.filter_order:
        check_same_everywhere(settings, f"--format {options.format}", "--filter-order")

    check_arms(options)
    number, loads = options.num_prompts, options.concurrency or ((8,) if options.server else ())
    source = PromptSource(options.prompts, options.prompt_tokens, partial(_tokenizer, options))
    prompts = {context: source.prompts(number, context or 0) for context in options.context}
    chat = source.chat(options.turns, number) if options.turns else None

    def ask(engine: Engine, restart: int | None, number: int) -> list[Transcript]:
        """The rows of the first prompts in all arms of one start."""
        rows = []
        applied = settings_of(options, engine.name)
        is_known = engine_of(engine.name) in FILTER_ORDERS
        if options.server and not options.filter_order and not is_known:
            check_same_everywhere(applied, engine.name, "--filter-order")
        for context, parts in prompts.items():
            arm = {"restart": restart, "context": context, "chat": chat}
            place = options.out, options.seed, loads
            rows += write_transcripts(engine, parts[:number], applied, *place, **arm)
        return rows

    def whole(restart: int) -> list[Transcript] | None:
        """The rows of a start, if all are written."""
        parts = (keys_of(number, loads, restart, context, options.turns) for context in prompts)
        return rows_of(options.out, [key for part in parts for key in part])

    of_start = len(keys_of(1, loads, None, None, options.turns)) * len(prompts)
    lines = planned_lines(settings, number, of_start * (options.restarts or 1))
    sys.stderr.writelines(f"{line}\n" for line in lines)
    line = ""
    with TemporaryDirectory(prefix="resispec-") as folder:
        try:
            if options.until_decided:
                engine = _engine(options, Path(folder))
                asked = partial(ask, engine, None)
                rows, line = until_decided(asked, number, _scorers(options), loads)
            elif options.start:
                rows = of_starts(options, whole, ask)
            else:
                rows = ask(_engine(options, Path(folder)), None, number)
        except Unanswered as error:
            is_loaded = isinstance(error, TimedOut) and max(loads, default=1) > 1
            hint = "; too many requests at a time? try --concurrency 1" * is_loaded
            raise InvalidInput(f"{error}{hint}; {GOES_ON}") from error
    num_tokens = sum(len(row.output_token_ids) for row in rows)
    sys.stdout.write(
        f"{len(rows)} transcripts with {num_tokens} emitted tokens are in {options.out}\n"
    )
    if line:
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
