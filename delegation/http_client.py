"""The SDK's HTTP client for one agent: over the guarded transport, with our headers, and without a memory."""

from __future__ import annotations

from collections.abc import Mapping

import httpx

from delegation.cards import CheckedCard, standard_headers
from delegation.outbound import GuardedTransport
from delegation.settings import AgentSettings


class _NoCookies(httpx.Cookies):
    def extract_cookies(self, response: httpx.Response) -> None:
        """Keep none: what one agent sets must not reach another on the same host."""


class _CookielessClient(httpx.AsyncClient):
    @property
    def cookies(self) -> httpx.Cookies:
        return _NO_COOKIES

    @cookies.setter
    def cookies(self, cookies: object) -> None:
        raise NotImplementedError("no cookies are kept")


_NO_COOKIES = _NoCookies()


def build_http(
    agent: AgentSettings, card: CheckedCard, participant_id: str, transport: GuardedTransport
) -> httpx.AsyncClient:
    """For calls to an agent of the configuration."""
    version = card.interface.version
    headers = standard_headers(agent, participant_id, extensions=card.active_extensions, version=version)
    return open_http(transport, headers)


def open_http(transport: GuardedTransport, headers: Mapping[str, str]) -> httpx.AsyncClient:
    """No cookies, proxies or redirects; every request is an exchange of `transport`."""
    return _CookielessClient(
        transport=transport,
        headers=headers,
        timeout=httpx.Timeout(None),  # the exchange's deadline bounds every wait
        follow_redirects=False,
        trust_env=False,
    )
