"""How one process reaches one agent: its connections, and what the agent is shown of us on them."""

from __future__ import annotations

import threading
import time
from functools import partial

from delegation.auth_settings import Credential, MutualTlsCredential
from delegation.cards import allowed_origins
from delegation.credentials import Credentials
from delegation.errors import CredentialUnavailable
from delegation.origins import Origin, read_origin
from delegation.outbound import GuardedTransport
from delegation.security import CredentialUse, choose_credentials
from delegation.settings import AgentSettings
from delegation.tls import make_context

#: Choices among an agent's credentials that keep their tokens: its card's now, its base card's, and those before.
MOST_KEPT = 4
#: Token endpoints that an operator's credentials for one agent may name, discovery included.
MOST_ENDPOINTS = 16
#: Requests to one of them: so many at once, then one in each so many seconds. A card that asks for other scopes at each
#: look would have a new token asked for each time.
TOKENS_AT_ONCE = 8
TOKEN_EACH_S = 2.5


class TokenPace:
    """How often a token endpoint is asked, however many sources of tokens the cards call for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: By URL: how many requests were left when it was asked last, and when that was.
        self._left: dict[str, tuple[float, float]] = {}

    def begin(self, url: str) -> None:
        """Before each request. Raises CredentialUnavailable when it would be one too many."""
        now = time.monotonic()
        with self._lock:
            left, at = self._left.pop(url, (float(TOKENS_AT_ONCE), now))
            left = min(float(TOKENS_AT_ONCE), left + (now - at) / TOKEN_EACH_S)
            may_ask = left >= 1
            entry = (left - 1 if may_ask else left, now)
            self._left = dict([*self._left.items(), (url, entry)][-MOST_ENDPOINTS:])
        if not may_ask:
            raise CredentialUnavailable("asked for too often: its card asks for one scope after another")


class AgentAccess:
    """The ways to one agent, each with credentials of its own: `calls`; `cards`, to its URL's origin alone; and `keys`,
    to the origin of its `signature_keys`, without any."""

    def __init__(self, agent: AgentSettings) -> None:
        self._agent = agent
        self._lock = threading.Lock()
        self._by_use: dict[tuple[CredentialUse, ...], Credentials] = {}
        self._pace = TokenPace()
        self.calls = self._transport(allowed_origins(agent), agent.auth, keep_alive=True)
        # No card says yet which of them: all, one for each place in a request.
        card_credentials = Credentials(agent.card_auth, choose_credentials({}, agent.card_auth), self._token_transport)
        # A certificate gives nothing away, and a server that wants one wants it for everything.
        is_known = any(isinstance(each, MutualTlsCredential) for each in agent.card_auth)
        certificates = agent.card_auth if is_known else agent.auth
        self.cards = self._transport([read_origin(agent.url)], certificates, credentials=card_credentials)
        keys = agent.signature_keys or "file:"
        self.keys = self._transport([] if keys.startswith("file:") else [read_origin(keys)], ())

    def credentials(self, uses: tuple[CredentialUse, ...]) -> Credentials:
        """Those of `agents[].auth` that its card asks for; the same object for the same ones, so tokens are shared."""
        with self._lock:
            if uses not in self._by_use:
                made = Credentials(self._agent.auth, uses, self._token_transport)
                self._by_use = dict([*self._by_use.items(), (uses, made)][-MOST_KEPT:])
            return self._by_use[uses]

    def close(self) -> None:
        """Close this process's connections."""
        self.calls.close()
        self.cards.close()
        self.keys.close()

    def _transport(
        self,
        origins: frozenset[Origin] | list[Origin],
        certificates: tuple[Credential, ...],
        credentials: Credentials | None = None,
        *,
        keep_alive: bool = False,  # cards, keys and tokens are asked for once in a while
    ) -> GuardedTransport:
        make_tls = partial(make_context, self._agent.ca_bundle, certificates)
        return GuardedTransport(
            origins, make_tls=make_tls, proxy=self._agent.proxy, presenter=credentials, keep_alive=keep_alive
        )

    def _token_transport(self, url: str) -> GuardedTransport:
        self._pace.begin(url)
        return self._transport([read_origin(url)], ())
