"""A server's JSON endpoints, asked again where another try may help."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from resispec.engines import Unanswered
from resispec.errors import InvalidInput, first_line


@dataclass(frozen=True)
class Patience:
    """How long to wait for a server.

    tries: of one request; a refused or broken connection, a status from 500 and 429 (too many requests) are
    tried again. first_wait_s: before the second try, and twice as long before each one that follows.
    timeout_s: without a byte from the server, which sends none before a whole answer is there.
    """

    tries: int = 6
    first_wait_s: float = 0.5
    timeout_s: float = 600.0


PATIENCE = Patience()


class Server:
    """A server at an address, for any number of threads.

    key: sent as a bearer token, nothing when None. Raises InvalidInput for what is no address.
    """

    def __init__(self, url: str, patience: Patience = PATIENCE, key: str | None = None) -> None:
        if not _is_address(url):
            raise InvalidInput(f"{url!r} is no server; allowed: an address like http://localhost:8000")
        self.url = url.rstrip("/").removesuffix("/v1")  # which users of OpenAI's clients append
        self._patience = patience
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = httpx.Timeout(patience.timeout_s, connect=10.0)
        # Each request takes a connection as soon as it wants one: `write_transcripts` limits their number.
        limits = httpx.Limits(max_connections=None)
        self._client = httpx.Client(headers=headers, timeout=timeout, limits=limits)

    def get(self, path: str) -> dict[str, Any]:
        """What a path gives; an empty object where the server has no such path.

        Raises Unanswered when there is no answer, InvalidInput for one that is an error or no JSON object.
        """
        response = self._exchange("GET", path, None)
        return {} if response.status_code == httpx.codes.NOT_FOUND else self._content(response, path)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """What a path answers to a JSON object. Raises: as `get`, and InvalidInput where there is no path."""
        response = self._exchange("POST", path, body)
        if response.status_code in (httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED):
            raise InvalidInput(
                f"{self.url} takes no requests at {path} (status {response.status_code}), "
                "so it speaks another format"
            )
        return self._content(response, path)

    def _exchange(self, method: str, path: str, body: Mapping[str, Any] | None) -> httpx.Response:
        wait_s = self._patience.first_wait_s
        for left in reversed(range(self._patience.tries)):
            try:
                response = self._client.request(method, f"{self.url}{path}", json=body)
                if response.status_code < 500 and response.status_code != httpx.codes.TOO_MANY_REQUESTS:
                    return response
                problem = f"status {response.status_code}: {_beginning(response)}"
            except (httpx.TransportError, httpx.DecodingError) as error:
                problem = first_line(error)
            if left:
                time.sleep(wait_s)
                wait_s *= 2
        raise Unanswered(f"{self.url} gives no answer at {path} in {self._patience.tries} tries ({problem})")

    def _content(self, response: httpx.Response, path: str) -> dict[str, Any]:
        if response.is_error or response.is_redirect:
            raise InvalidInput(
                f"{self.url} refuses a request at {path} (status {response.status_code}): "
                f"{_beginning(response)}"
            )
        try:
            content = response.json()
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise InvalidInput(
                f"{self.url} answers at {path} with no JSON object, but with {_beginning(response)!r}"
            )
        return content


def _is_address(url: str) -> bool:
    try:
        found = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    return found.scheme in ("http", "https") and bool(found.host)


def _beginning(response: httpx.Response) -> str:
    """The first words of a response, in one line."""
    return " ".join(response.text.split())[:200]
