"""A client of a server's JSON endpoints: it asks again if that may help, and always ends."""

import asyncio
import json
import re
from asyncio import sleep
from collections.abc import Mapping
from concurrent.futures import Future
from functools import cache
from ipaddress import ip_address
from threading import Thread
from typing import Any

import httpx

from referee.engines.base import TimedOut, Unanswered, drawn_again
from resispec.errors import InvalidInput, first_line, printable

MOST_BYTES = 16 * 2**20
"""The most bytes of an answer that are read; token ids of 100,000 positions take a tenth of it."""
NOT_BEGUN = (httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE)
"""The statuses with which a server turns a request away before it works on it."""


class Server:
    """A server at an address, which any number of threads may use.

    url: may hold a name and a password, NAME:PASSWORD@HOST, which are sent and never shown; the
    attribute of this name has neither. key: sent as a bearer token, unless None. A key or a
    password goes over plain http only to this machine, or if `plain_key`. tries: the most tries of
    one request, which is repeated after a refused or broken connection, a status from 500 on, or
    429 (too many requests). timeout_s: the limit of one request with all its tries, until the whole
    answer is there. first_wait_s: the wait before the second try; it doubles before each further
    one. software: the `Server` header of the last answer, None without one.

    Raises InvalidInput for a bad address, and for a key or password that no request can carry or
    anyone on the way could read.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        tries: int = 6,
        timeout_s: float = 600,
        first_wait_s: float = 0.5,
        plain_key: bool = False,
    ) -> None:
        try:
            address = httpx.URL(url)
        except httpx.InvalidURL:
            address = httpx.URL()
        is_port = address.port is None or 0 < address.port < 2**16
        if address.scheme not in ("http", "https") or not address.host or not is_port:
            raise InvalidInput(
                f"{without_password(url)!r} is no server; allowed: an address like "
                "http://localhost:8000, with a port from 1 to 65535"
            )
        if key and address.userinfo:
            raise InvalidInput(
                "the server's address holds a name or password, beside its key; allowed: one"
            )
        if key and not (key.isascii() and key.isprintable()):
            raise InvalidInput("the server's key holds a character that no request can carry")
        is_here = _is_this_machine(address.host)
        shown = str(address.copy_with(userinfo=b""))
        secret = "key" if key else "password" if address.password else None
        if secret and address.scheme == "http" and not (is_here or plain_key):
            raise InvalidInput(
                f"the {secret} for {shown} would be sent without encryption; allowed: https, an "
                "address of this machine, or --plain-key, which sends it all the same"
            )
        self.url = shown.rstrip("/").removesuffix("/v1")  # which users of OpenAI's clients append
        self.software: str | None = None
        self._tries, self._timeout_s, self._first_wait_s = tries, timeout_s, first_wait_s
        self._loop, self._waiting = _loop(), set[Future[tuple[int, bytes]]]()
        try:
            self._client = httpx.AsyncClient(
                # A packed answer can be a thousand times as large when it is unpacked.
                headers={"Accept-Encoding": "identity"}
                | ({"Authorization": f"Bearer {key}"} if key else {}),
                auth=(address.username, address.password) if address.userinfo else None,
                timeout=httpx.Timeout(None, connect=10.0),
                # a server may close one that waits
                limits=httpx.Limits(max_keepalive_connections=0),
                trust_env=not is_here,  # no proxy between this machine and itself
            )
        except (ImportError, ValueError, httpx.InvalidURL) as error:
            reason = without_password(first_line(error))
            problem = f"the proxy that the environment names cannot be used ({reason})"
            raise InvalidInput(f"{problem}; allowed: a proxy for http") from error

    def stop(self) -> None:
        """End the requests under way; whoever waits for one gets CancelledError."""
        for future in tuple(self._waiting):
            future.cancel()

    def get(self, path: str) -> dict[str, Any]:
        """The JSON object at a path; an empty one if the server has no such path.

        Raises Unanswered if there is no answer, InvalidInput if the answer is an error, no JSON
        object, or too large.
        """
        status, body = self._request("GET", path)
        return {} if status == httpx.codes.NOT_FOUND else self._content(status, body, path)

    def post(
        self, path: str, body: Mapping[str, Any], is_drawn_again: bool = False
    ) -> dict[str, Any]:
        """The answer to an object sent to a path.

        is_drawn_again: whether a request that is sent again gets another answer, as without a seed.
        Then only one that was not begun is sent again, since those whose answers take long fail
        more often, and the answers that are kept would be too short.

        Raises like `get`, and InvalidInput if there is no path, or for a request that failed and
        may not be sent again.
        """
        return self._content(*self._request("POST", path, body, is_drawn_again), path)

    def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        is_drawn_again: bool = False,
    ) -> tuple[int, bytes]:
        """Status and body of the answer, by a task, since a waiting thread cannot be stopped."""
        task = self._in_time(method, path, body, is_drawn_again)
        future = asyncio.run_coroutine_threadsafe(task, self._loop)
        self._waiting.add(future)
        try:
            return future.result()
        finally:
            self._waiting.discard(future)
            future.cancel()  # where Ctrl-C ended the wait

    async def _in_time(
        self, method: str, path: str, body: Mapping[str, Any] | None, is_drawn_again: bool
    ) -> tuple[int, bytes]:
        problem, kind = "it is silent, or slow", Unanswered
        is_begun = False
        try:
            async with asyncio.timeout(self._timeout_s):
                for attempt in range(self._tries):
                    if attempt:
                        await sleep(self._first_wait_s * 2 ** (attempt - 1))
                    is_begun = True  # unless the server says that it is not
                    try:
                        status, answer = await self._reply(method, path, body)
                        if status < 500 and status != httpx.codes.TOO_MANY_REQUESTS:
                            return status, answer
                        problem, kind = f"status {status}: {_beginning(answer)}", Unanswered
                        is_begun = status not in NOT_BEGUN
                    except httpx.TransportError as error:
                        problem = first_line(error)
                        is_late = isinstance(error, httpx.TimeoutException)
                        kind = TimedOut if is_late else Unanswered
                        is_begun = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                    if is_drawn_again and is_begun:
                        raise drawn_again(f"{self.url} broke a request off at {path} ({problem})")
        except TimeoutError:
            line = (
                f"{self.url} gives no whole answer at {path} within {self._timeout_s:g} s "
                f"({problem})"
            )
            if is_drawn_again and is_begun:
                raise drawn_again(line) from None
            raise TimedOut(line) from None
        raise kind(f"{self.url} gives no answer at {path} in {self._tries} tries ({problem})")

    async def _reply(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> tuple[int, bytes]:
        answer = bytearray()
        async with self._client.stream(method, f"{self.url}{path}", json=body) as response:
            if (packing := response.headers.get("Content-Encoding", "identity")) != "identity":
                raise InvalidInput(
                    f"{self.url} answers at {path} in {packing[:20]!r}; it was asked not to pack"
                )
            software = printable(response.headers.get("Server", ""))[:100]
            self.software = software or None
            async for piece in response.aiter_raw():
                answer += piece
                if len(answer) > MOST_BYTES:
                    raise InvalidInput(
                        f"{self.url} answers at {path} with more than {MOST_BYTES / 2**20:.2g} "
                        "MiB; token ids take less"
                    )
        return response.status_code, bytes(answer)

    def _content(self, status: int, body: bytes, path: str) -> dict[str, Any]:
        if status >= 300:
            raise InvalidInput(
                f"{self.url} refuses a request at {path} (status {status}): {_beginning(body)}"
            )
        try:
            content = json.loads(body, parse_int=_number)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise InvalidInput(
                f"{self.url} answers at {path} with no JSON object, but with {_beginning(body)!r}"
            )
        return content


def without_password(text: str) -> str:
    """A text that holds an address, without what stands before its last @ except the scheme."""
    return re.sub(r"(\w+://)?.*@", r"\1...@", text, count=1, flags=re.DOTALL)


def _number(digits: str) -> int | float:
    """A whole number; a longer one than any needed becomes a float, which arithmetic can take."""
    return int(digits) if len(digits) < 19 else float(digits)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The loop of all requests, in its own thread: a caller's may run a loop, as in notebooks."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, daemon=True).start()
    return loop


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _beginning(body: bytes) -> str:
    """The first words of an answer, in one line."""
    return printable(" ".join(body[:2000].decode(errors="replace").split()))[:200]
