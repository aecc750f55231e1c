"""A server's process: it is awaited, ends with its children, and a failed start is one line."""

import os
import sys
import time
from pathlib import Path

import httpx
import pytest

from referee.servers.process import ServerProcess, words_of
from referee.tests.toy_server import free_port
from resispec.errors import InvalidInput

SERVER = """
import http.server, os, signal, subprocess, sys, time

port, pids, fault = int(sys.argv[1]), sys.argv[2], sys.argv[3]
if fault == "ends":
    print("loading\\nno such model: x\\n", file=sys.stderr)
    sys.exit(3)
if fault == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
with open(pids, "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
if fault == "silent":
    time.sleep(60)


class Handler(http.server.BaseHTTPRequestHandler):
    count = 0

    def do_GET(self):
        Handler.count += 1
        self.send_response(503 if Handler.count < 3 else 404)
        self.send_header("X-Count", str(Handler.count))
        self.end_headers()


http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def port():
    return free_port()


def process(folder, port, fault, **options):
    (folder / "server.py").write_text(SERVER)
    words = [sys.executable, str(folder / "server.py"), str(port), str(folder / "pids"), fault]
    return ServerProcess(words, f"http://127.0.0.1:{port}/v1", folder / "log" / "server", **options)


def runs(pid):
    """Whether a process runs; one that has ended but was not waited for does not."""
    stat = Path("/proc") / pid / "stat"
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("fault", ["none", "stubborn"])
def test_it_is_there_when_it_answers_and_ends_with_its_children(tmp_path, port, fault):
    with process(tmp_path, port, fault, stop_s=0.5) as server:
        assert server.address == f"http://127.0.0.1:{port}"
        response = httpx.get(server.address)
        assert response.status_code == 404
        assert int(response.headers["X-Count"]) == 4  # two answers said that it loads
        pids = (tmp_path / "pids").read_text().split()
        assert all(map(runs, pids))
        with pytest.raises(InvalidInput, match="something answers at .* before"):
            process(tmp_path, port, "none").__enter__()
    time.sleep(0.1)
    assert not any(map(runs, pids))


@pytest.mark.parametrize(
    "fault, line",
    [
        ("ends", r"ended before http://127.0.0.1:\d+ answered \(exit code 3\).* no such model: x$"),
        ("silent", r"did not answer at http://127.0.0.1:\d+ within 1 s; .* is: nothing$"),
    ],
)
def test_a_server_that_does_not_answer_is_one_line_and_leaves_nothing(tmp_path, port, fault, line):
    with pytest.raises(InvalidInput, match=line) as raised:
        process(tmp_path, port, fault, start_s=1).__enter__()
    assert "\n" not in str(raised.value)
    if fault == "silent":
        time.sleep(0.1)
        assert not any(map(runs, (tmp_path / "pids").read_text().split()))


def test_an_error_in_the_context_stops_the_server(tmp_path, port):
    with pytest.raises(KeyboardInterrupt), process(tmp_path, port, "none"):
        raise KeyboardInterrupt
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pids").read_text().split()[0]), 0)


def test_a_command_is_words_and_no_shell_reads_it(tmp_path, port):
    assert words_of("vllm serve 'a model' --x '{\"k\": 5}'") == (
        "vllm",
        "serve",
        "a model",
        "--x",
        '{"k": 5}',
    )
    for wrong in ("", "  ", [], "a 'b"):
        with pytest.raises(InvalidInput, match="allowed: a program and its arguments"):
            words_of(wrong)
    with pytest.raises(InvalidInput, match="'no-program;' cannot be started"):
        address = f"http://127.0.0.1:{port}"
        ServerProcess("no-program; touch x", address, tmp_path / "log").__enter__()
