"""A server's JSON endpoints, asked again where another try may help."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import httpx

from referee.engines.base import Unanswered
from resispec.errors import InvalidInput, first_line


class Server:
    """A server at an address, for any number of threads.

    key: sent as a bearer token, nothing when None. tries: of one request; a refused or broken connection, a
    status from 500 and 429 (too many requests) are tried again. timeout_s: without a byte from the server,
    which sends none before a whole answer is there. first_wait_s: before the second try, and twice as long
    before each one that follows. Raises InvalidInput for no address.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        tries: int = 6,
        timeout_s: float = 600,
        first_wait_s: float = 0.5,
    ) -> None:
        try:
            address = httpx.URL(url)
        except httpx.InvalidURL:
            address = httpx.URL()
        if address.scheme not in ("http", "https") or not address.host:
            raise InvalidInput(f"{url!r} is no server; allowed: an address like http://localhost:8000")
        self.url = url.rstrip("/").removesuffix("/v1")  # which users of OpenAI's clients append
        self._tries, self._first_wait_s = tries, first_wait_s
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(timeout_s, connect=10.0),
            limits=httpx.Limits(max_connections=None),  # `write_transcripts` limits them
        )

    def get(self, path: str) -> dict[str, Any]:
        """The object at a path; an empty one where the server has no such path.

        Raises Unanswered when there is no answer, InvalidInput for one that is an error or no JSON object.
        """
        response = self._exchange("GET", path, None)
        return {} if response.status_code == httpx.codes.NOT_FOUND else self._content(response, path)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of a path to an object. Raises: as `get`, and InvalidInput where there is no path."""
        response = self._exchange("POST", path, body)
        if response.status_code in (httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED):
            raise InvalidInput(
                f"{self.url} takes no requests at {path} (status {response.status_code}), "
                "so it speaks another format"
            )
        return self._content(response, path)

    def _exchange(self, method: str, path: str, body: Mapping[str, Any] | None) -> httpx.Response:
        for attempt in range(self._tries):
            if attempt:
                time.sleep(self._first_wait_s * 2 ** (attempt - 1))
            try:
                response = self._client.request(method, f"{self.url}{path}", json=body)
                if response.status_code < 500 and response.status_code != httpx.codes.TOO_MANY_REQUESTS:
                    return response
                problem = f"status {response.status_code}: {_beginning(response)}"
            except (httpx.TransportError, httpx.DecodingError) as error:
                problem = first_line(error)
        raise Unanswered(f"{self.url} gives no answer at {path} in {self._tries} tries ({problem})")

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


def _beginning(response: httpx.Response) -> str:
    """The first words of a response, in one line."""
    return " ".join(response.text.split())[:200]
