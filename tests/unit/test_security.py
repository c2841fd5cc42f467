"""Which of the configured credentials a card asks for, and what is said when it asks for others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from delegation.auth_settings import Credential
from delegation.cards import check_card
from delegation.config_values import RESERVED_HEADERS
from delegation.credentials import Presented, _Shown
from delegation.errors import AgentRefused, ConfigurationError, UnsupportedExtensionError
from delegation.secret_values import read_secret
from delegation.security import CredentialUse, choose_credentials, describe_credentials
from delegation.security_schemes import MOST_ALTERNATIVES, MOST_LISTS, MOST_SCHEMES, MOST_SCOPES
from delegation.settings import AgentSettings

BEARER = {"type": "bearer", "token": "env:TOKEN"}
BASIC = {"type": "basic", "username": "u", "password": "env:PASSWORD"}
KEY = {"type": "api_key", "in": "header", "name": "X-Team-Key", "key": "env:KEY"}
QUERY_KEY = {"type": "api_key", "in": "query", "name": "key", "key": "env:KEY"}
COOKIE_KEY = {"type": "api_key", "in": "cookie", "name": "session", "key": "env:KEY"}
CLIENT = {"client_id": "us", "client_secret": "env:SECRET"}
OAUTH = {"type": "oauth2", "token_url": "https://tokens.example/token", **CLIENT}
OIDC = {"type": "oidc", "issuer": "https://issuer.example", **CLIENT}
MTLS = {"type": "mtls", "certificate": "file:/c.pem", "key": "file:/k.pem"}

FLOW = {"clientCredentials": {"tokenUrl": "https://t.example", "scopes": {}}}
#: One scheme of each kind, in A2A 1.0's spelling.
SCHEMES: dict[str, Any] = {
    "tok": {"httpAuthSecurityScheme": {"scheme": "Bearer"}},
    "pass": {"httpAuthSecurityScheme": {"scheme": "basic"}},
    "digest": {"httpAuthSecurityScheme": {"scheme": "digest"}},
    "key": {"apiKeySecurityScheme": {"location": "header", "name": "x-team-key"}},
    "query": {"apiKeySecurityScheme": {"location": "query", "name": "key"}},
    "cookie": {"apiKeySecurityScheme": {"location": "cookie", "name": "session"}},
    "oauth": {"oauth2SecurityScheme": {"flows": FLOW}},
    "code": {"oauth2SecurityScheme": {"flows": {"authorizationCode": {"tokenUrl": "https://theirs.example/t"}}}},
    "oidc": {"openIdConnectSecurityScheme": {"openIdConnectUrl": "https://issuer.example/x"}},
    "mtls": {"mtlsSecurityScheme": {}},
}
#: The same in OpenAPI's, which A2A 0.3 used.
OLDER_SCHEMES: dict[str, Any] = {
    "tok": {"type": "http", "scheme": "bearer"},
    "pass": {"type": "http", "scheme": "Basic"},
    "key": {"type": "apiKey", "in": "header", "name": "X-Team-Key"},
    "query": {"type": "apiKey", "in": "query", "name": "key"},
    "cookie": {"type": "apiKey", "in": "cookie", "name": "session"},
    "oauth": {"type": "oauth2", "flows": FLOW},
    "oidc": {"type": "openIdConnect", "openIdConnectUrl": "https://issuer.example/x"},
    "mtls": {"type": "mutualTLS"},
}
ONE_EACH = [
    ("tok", BEARER),
    ("pass", BASIC),
    ("key", KEY),
    ("query", QUERY_KEY),
    ("cookie", COOKIE_KEY),
    ("oauth", OAUTH),
    ("oidc", OIDC),
    ("mtls", MTLS),
]
_CREDENTIALS: TypeAdapter[tuple[Credential, ...]] = TypeAdapter(tuple[Credential, ...])


def credentials_of(*entries: Mapping[str, Any]) -> tuple[Credential, ...]:
    return _CREDENTIALS.validate_python(list(entries))


def wants(*alternatives: Sequence[str], skills: Any = (), **more: Any) -> dict[str, Any]:
    """A card with one requirement for each combination of scheme names."""
    requirements = [{"schemes": {name: {"list": []} for name in each}} for each in alternatives]
    return {"securitySchemes": SCHEMES, "securityRequirements": requirements, "skills": list(skills), **more}


def chosen(card: Mapping[str, Any], *entries: Mapping[str, Any]) -> list[int]:
    return [use.position for use in choose_credentials(card, credentials_of(*entries))]


def refusal(card: Mapping[str, Any], *entries: Mapping[str, Any]) -> str:
    with pytest.raises(UnsupportedExtensionError) as raised:
        choose_credentials(card, credentials_of(*entries))
    return raised.value.detail


# ------------------------------------------------------------------ what is chosen


@pytest.mark.parametrize(("name", "credential"), ONE_EACH)
def test_each_kind_of_scheme_takes_its_kind_of_credential(name: str, credential: dict[str, Any]) -> None:
    """And no other one: whatever else is configured beside it is not sent."""
    others = [each for _, each in ONE_EACH if each is not credential]
    assert chosen(wants([name]), credential) == [0]
    assert chosen(wants([name]), *others, credential) == [len(others)]
    assert refusal(wants([name]), *others).startswith(f"auth_missing: {name}: add [[agents.auth]] ")


@pytest.mark.parametrize(("name", "credential"), ONE_EACH)
def test_the_spelling_of_0_3_means_the_same(name: str, credential: dict[str, Any]) -> None:
    """`security` with scheme names as keys, `type: apiKey`, `in: header`."""
    card = {"securitySchemes": OLDER_SCHEMES, "security": [{name: []}]}
    assert chosen(card, credential) == [0]
    assert refusal(card, *(each for _, each in ONE_EACH if each is not credential)).startswith(f"auth_missing: {name}:")


@pytest.mark.parametrize(
    ("card", "entries", "expected"),
    [
        (wants(["key"], ["tok"]), [BEARER, KEY], [1]),  # the card's order, and one complete set only
        (wants(["key", "query"], ["tok"]), [BEARER, KEY], [0]),  # the first that is complete
        (wants(["key", "tok"]), [BEARER, KEY], [1, 0]),  # both
        (wants(["tok"], ["key", "tok"]), [KEY, BEARER], [1]),
        (wants([], ["tok"]), [BEARER], [0]),  # anonymous is the last resort
        (wants([], ["tok"]), [KEY], []),
        (wants([]), [BEARER], []),
        (wants(["tok"], securityRequirements=[{"schemes": {"tok": {}}}]), [BEARER], [0]),
        (wants(securityRequirements=[{"schemes": None}]), [BEARER], []),  # proto3 JSON: no schemes
        (wants(["unheard"], ["tok"]), [BEARER], [0]),
        (wants(["digest"], ["tok"]), [BEARER], [0]),
        ({"securitySchemes": SCHEMES}, [MTLS], [0]),  # schemes without requirements: any of them
        ({"securitySchemes": {}, "securityRequirements": []}, [BEARER, KEY], [0, 1]),
        ({}, [BEARER, KEY, QUERY_KEY, MTLS], [0, 1, 2, 3]),  # nothing is asked for: what the operator bound to it
        ({}, [BEARER, BASIC, KEY], [0, 2]),  # one for each place
    ],
)
def test_one_alternative_is_met_in_full(card: Any, entries: list[dict[str, Any]], expected: list[int]) -> None:
    """Alternatives count in the card's order; each is a combination; nothing beyond the chosen one is sent."""
    assert chosen(card, *entries) == expected


def skill(*alternatives: Sequence[str], skill_id: str = "s1", key: str = "securityRequirements") -> dict[str, Any]:
    return {"id": skill_id, key: [{"schemes": {name: {} for name in each}} for each in alternatives]}


@pytest.mark.parametrize(
    ("card", "entries", "expected"),
    [
        (wants(["tok"], skills=[skill(["key"])]), [BEARER, KEY], [0, 1]),
        (wants(["tok"], skills=[skill(["tok"])]), [BEARER, KEY], [0]),
        (wants(["tok"], skills=[skill(["key"], ["tok"])]), [BEARER, KEY], [0, 1]),
        (wants(["tok"], skills=[skill(["key"], ["tok"])]), [BEARER], [0]),
        (wants(skills=[skill(["key"]), skill(["query"], skill_id="s2")]), [QUERY_KEY, KEY], [1, 0]),
        (wants(["tok"], skills=[skill(["pass"], ["tok"])]), [BEARER, BASIC], [0]),  # the first wants the bearer's place
        (wants(["tok"], skills=[{"id": "s", "security": [{"key": []}]}]), [BEARER, KEY], [0, 1]),
        (wants(["tok"], skills=["no skill", skill([])]), [BEARER, KEY], [0]),
    ],
)
def test_what_skills_ask_for_is_sent_as_well(card: Any, entries: list[dict[str, Any]], expected: list[int]) -> None:
    """A delegation names no skill, so every call carries what the card and each of its skills want."""
    assert chosen(card, *entries) == expected


def test_two_credentials_for_one_place_are_refused() -> None:
    """A bearer token and a password are both in Authorization: neither is left out in silence."""
    assert refusal(wants(["tok", "pass"]), BEARER, BASIC) == (
        "auth_missing: two of its schemes want the same place in a request"
    )
    card = wants(["tok"], skills=[skill(["pass"])])
    assert refusal(card, BEARER, BASIC) == (
        "auth_missing (for skill s1): two of its schemes want the same place in a request"
    )


def test_a_credential_of_one_scheme_serves_no_other() -> None:
    """`scheme` binds it to a name on the card; without it, it serves any of its kind."""
    card = wants(["one"], ["two"], securitySchemes={"one": SCHEMES["tok"], "two": SCHEMES["tok"]})
    assert choose_credentials(card, credentials_of({**BEARER, "scheme": "two"}))[0].scheme == "two"
    assert choose_credentials(card, credentials_of(BEARER))[0].scheme == "one"
    assert refusal(card, {**BEARER, "scheme": "three"}).startswith("auth_missing: ")


@pytest.mark.parametrize("entry", [BEARER, OAUTH, OIDC])
@pytest.mark.parametrize("name", ["tok", "oauth", "code", "oidc"])
def test_a_named_token_serves_every_scheme_that_is_shown_a_token(name: str, entry: dict[str, Any]) -> None:
    """Three kinds of schemes end in `Authorization: Bearer`; the operator says which token it is by the name."""
    assert chosen(wants([name]), {**entry, "scheme": name}) == [0]
    assert refusal(wants(["key"]), {**entry, "scheme": "key"}).startswith("auth_missing: key: ")


def test_scopes_are_those_of_the_chosen_alternative() -> None:
    """In either spelling, united over the card and its skills, each once; what is no scope is left out."""
    lists = [{"list": ["read", "write"]}, {"list": ["write", "admin", 7, "two words", 'quo"te', "é", "", "x" * 257]}]
    card = wants(
        securityRequirements=[{"schemes": {"oauth": lists[0]}}],
        skills=[{"id": "s", "securityRequirements": [{"schemes": {"oauth": lists[1]}}]}],
    )
    (use,) = choose_credentials(card, credentials_of(OAUTH))
    assert use == CredentialUse(position=0, scheme="oauth", scopes=("read", "write", "admin"))
    older = {"securitySchemes": OLDER_SCHEMES, "security": [{"oauth": ["read"]}]}
    assert choose_credentials(older, credentials_of(OAUTH))[0].scopes == ("read",)


def test_a_card_cannot_ask_for_scopes_without_end() -> None:
    """Each would be in every token request."""
    card = wants(securityRequirements=[{"schemes": {"oauth": {"list": [f"s{n}" for n in range(10_000)]}}}])
    assert len(choose_credentials(card, credentials_of(OAUTH))[0].scopes) <= MOST_SCHEMES


@pytest.mark.parametrize(("name", "entry"), [("tok", BEARER), ("oauth", OAUTH)])
def test_the_scopes_of_all_skills_together_are_bounded(name: str, entry: dict[str, Any]) -> None:
    """Otherwise they are united again for each skill, of which a card may have thousands."""
    skills = [
        {"id": str(n), "securityRequirements": [{"schemes": {name: {"list": [f"{n}.{m}" for m in range(16)]}}}]}
        for n in range(5)
    ]
    card = wants(securityRequirements=[], skills=skills[:4])
    assert len(choose_credentials(card, credentials_of(entry))[0].scopes) == MOST_SCOPES
    with pytest.raises(AgentRefused, match="card_invalid: more than 64 scopes are asked for"):
        choose_credentials({**card, "skills": skills}, credentials_of(entry))


def test_so_many_skills_may_have_requirements_of_their_own() -> None:
    """A card with more is refused before it costs anything; skills without requirements do not count."""
    skills = [{"id": str(n), "securityRequirements": [{"schemes": {"tok": {"list": []}}}]} for n in range(MOST_LISTS)]
    card = wants(securityRequirements=[], skills=[*skills, *({"id": f"x{n}"} for n in range(1000))])
    assert choose_credentials(card, credentials_of(BEARER))
    with pytest.raises(AgentRefused, match="card_invalid: more than 256 lists of securityRequirements"):
        choose_credentials({**card, "securityRequirements": [{"schemes": {"tok": {}}}]}, credentials_of(BEARER))


# ------------------------------------------------------------------ what is said


@pytest.mark.parametrize(
    ("alternative", "said"),
    [
        (["tok"], 'tok: add [[agents.auth]] type = "bearer", token = "env:…"'),
        (["pass"], 'pass: add [[agents.auth]] type = "basic", username = "…", password = "env:…"'),
        (
            ["key"],
            'key: add [[agents.auth]] type = "api_key", in = "header", name = "x-team-key", key = "env:…"',
        ),
        (
            ["oauth"],
            (
                'oauth: add [[agents.auth]] type = "oauth2", client_id = "…", client_secret = "env:…", '
                'token_url = "https://t.example" if you trust it'
            ),
        ),
        (
            ["code"],
            'code: add [[agents.auth]] type = "bearer", token = "env:…", scheme = "code": no client credentials there',
        ),
        (
            ["oidc"],
            'oidc: add [[agents.auth]] type = "oidc", issuer = "https://…", client_id = "…", client_secret = "env:…"',
        ),
        (["mtls"], 'mtls: add [[agents.auth]] type = "mtls", certificate = "file:…", key = "file:…"'),
        (["digest"], "digest (http digest): of no kind that we speak"),
        (["unheard"], "unheard: not among the card's securitySchemes"),
    ],
)
@pytest.mark.parametrize("entries", [[], [QUERY_KEY]])
def test_what_is_missing_is_said_with_its_cure(
    alternative: list[str], said: str, entries: list[dict[str, Any]]
) -> None:
    """The scheme's name, and a whole block for the configuration; whether nothing is there or the wrong thing."""
    assert refusal(wants(alternative), *entries) == f"auth_missing: {said}"


@pytest.mark.parametrize("bound", [{**BEARER, "scheme": "other"}, {**KEY, "scheme": "other"}])
def test_a_block_that_is_bound_to_another_scheme_is_said_to_be_so(bound: dict[str, Any]) -> None:
    """It is there, and serves nothing on this card."""
    name = "tok" if bound["type"] == "bearer" else "key"
    assert refusal(wants([name]), bound) == (
        f'auth_missing: {name}: your {bound["type"]} is bound to scheme = "other"; '
        f'bind it to "{name}", or add a block for that'
    )


def test_only_what_is_missing_of_a_combination_is_named() -> None:
    """C036: with the key there and the token not, the token."""
    assert refusal(wants(["key", "tok"]), KEY).startswith('auth_missing: tok: add [[agents.auth]] type = "bearer"')


@pytest.mark.parametrize(
    "fields",
    [
        {"securitySchemes": {"tok": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}}},
        {"securityRequirements": [{"schemes": {"tok": {"list": []}}}]},
        {"securityRequirements": [{"schemes": {}}]},
        {"securityRequirements": [{}]},
        {"security": [{}]},
        {"skills": [{"id": "s", "securityRequirements": [{"schemes": {}}]}]},
    ],
)
def test_with_nothing_configured_any_mention_of_security_refuses(fields: dict[str, Any]) -> None:
    """Even an empty entry: a card that speaks of security is for somebody who configured it."""
    assert refusal(fields).startswith("auth_missing")


@pytest.mark.parametrize(
    "name",
    [
        *("Host", "Transfer-Encoding", "Content-Length", "Cookie", "TE", "Connection", "Proxy-Authorization"),
        *("X-A2A-Notification-Token", "A2A-Version", "X-Participant-Id", "X-Key\r\nX-Evil: 1", "X Key", "", "ключ"),
        "X" * 65,
    ],
)
def test_a_card_cannot_send_a_key_to_a_header_of_its_choice(name: str) -> None:
    """O-04: such a name is in no configuration, so nothing is sent; and it is not advised either."""
    schemes = {"evil": {"apiKeySecurityScheme": {"location": "header", "name": name}}}
    card = wants(["evil"], securitySchemes=schemes)
    for entries in ([], [KEY], [{**KEY, "scheme": "evil"}]):
        said = refusal(card, *entries)
        assert "no place that a key of ours is ever put in" in said
        assert "[[agents.auth]]" not in said
    assert refusal(wants(["evil"], securitySchemes=schemes), KEY, BEARER).isprintable()
    with pytest.raises(ValueError, match=r"must be|is set by"):
        credentials_of({**KEY, "name": name})


def test_a_card_that_names_another_header_than_configured_does_not_get_the_key() -> None:
    """O-04: where a key goes the operator has decided."""
    card = wants(["key"], securitySchemes={"key": {"apiKeySecurityScheme": {"location": "header", "name": "X-Log"}}})
    assert refusal(card, KEY) == (
        'auth_missing: key: add [[agents.auth]] type = "api_key", in = "header", name = "X-Log", key = "env:…"'
    )
    assert refusal(card, {**KEY, "scheme": "key"}).startswith("auth_missing: key: ")
    elsewhere = wants(["key"], securitySchemes={"key": {"apiKeySecurityScheme": {"location": "query", "name": "key"}}})
    assert refusal(elsewhere, KEY).startswith("auth_missing: key: ")


def test_reserved_headers_are_no_place_for_a_key_in_any_spelling() -> None:
    """The list of headers that we or the connection set."""
    for name in RESERVED_HEADERS:
        with pytest.raises(ValueError, match="is set by"):
            credentials_of({**KEY, "name": name.title()})


HOSTILE = "a\r\nb\x1b[31m<b>\u202e" + "n" * 5000


@pytest.mark.parametrize(
    "card",
    [
        wants([HOSTILE]),
        wants([HOSTILE], securitySchemes={HOSTILE: {"apiKeySecurityScheme": {"location": HOSTILE, "name": HOSTILE}}}),
        wants([HOSTILE], securitySchemes={HOSTILE: {"httpAuthSecurityScheme": {"scheme": HOSTILE}}}),
        wants([HOSTILE], securitySchemes={HOSTILE: {"httpAuthSecurityScheme": {"scheme": "bearer"}}}),
        wants(
            [HOSTILE],
            securitySchemes={
                HOSTILE: {"oauth2SecurityScheme": {"flows": {"clientCredentials": {"tokenUrl": HOSTILE}}}}
            },
        ),
        wants([f"{HOSTILE}{number}" for number in range(MOST_SCHEMES)]),
        wants(skills=[{"id": HOSTILE, "securityRequirements": [{"schemes": {HOSTILE: {}}}]}]),
    ],
)
@pytest.mark.parametrize("entries", [[], [BEARER], [{**KEY, "scheme": "other"}]])
def test_hostile_names_make_one_short_clean_line(card: Any, entries: list[dict[str, Any]]) -> None:
    """It is shown on terminals, kept in records and read by models."""
    try:
        uses = choose_credentials(card, credentials_of(*entries))
    except UnsupportedExtensionError as error:
        said = error.detail
    else:
        said = describe_credentials(uses, credentials_of(*entries))
    assert said.isprintable()
    assert "<" not in said
    assert len(said) <= 1500


def test_what_is_shown_is_described_without_a_secret() -> None:
    """Type and scheme, in order."""
    entries = credentials_of(KEY, BEARER)
    assert describe_credentials(choose_credentials(wants(["tok", "key"]), entries), entries) == (
        "bearer (tok), api_key (key)"
    )
    assert describe_credentials(choose_credentials({}, entries), entries) == "api_key, bearer"
    assert describe_credentials((), entries) == ""


# ------------------------------------------------------------------ what is no card


@pytest.mark.parametrize(
    "fields",
    [
        {"securitySchemes": []},
        {"securitySchemes": "tok"},
        {"securitySchemes": {f"s{n}": {} for n in range(MOST_SCHEMES + 1)}},
        {"securityRequirements": {"schemes": {}}},
        {"securityRequirements": ["tok"]},
        {"securityRequirements": [{"schemes": ["tok"]}]},
        {"securityRequirements": [{}] * (MOST_ALTERNATIVES + 1)},
        {"securityRequirements": [{"schemes": {f"s{n}": {} for n in range(MOST_SCHEMES + 1)}}]},
        {"security": 7},
        {"skills": [{"id": 7, "security": True}]},
    ],
)
def test_security_that_cannot_be_read_refuses_the_card(fields: dict[str, Any]) -> None:
    """Nothing is guessed where credentials are at stake; a combination counts whole or not at all."""
    with pytest.raises(AgentRefused, match=r"^card_invalid: "):
        choose_credentials(fields, credentials_of(BEARER))


_NAMES = st.sampled_from([*SCHEMES, "x", "", "\ud800", "a\nb"])
_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | _NAMES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | _NAMES, inner, max_size=4),
    max_leaves=12,
)
_SCHEME: st.SearchStrategy[Any] = st.sampled_from([*SCHEMES.values(), *OLDER_SCHEMES.values()]) | st.dictionaries(
    st.sampled_from(
        ["type", "in", "location", "name", "scheme", "flows", *(key for s in SCHEMES.values() for key in s)]
    ),
    st.sampled_from(["apiKey", "http", "oauth2", "header", "bearer", "X-Team-Key", FLOW]) | _JSON,
    max_size=4,
)
_REQUIREMENTS: st.SearchStrategy[Any] = st.lists(
    st.builds(lambda schemes: {"schemes": schemes}, st.dictionaries(_NAMES, _JSON, max_size=3))
    | st.dictionaries(_NAMES, _JSON, max_size=3)
    | _JSON,
    max_size=4,
)
_CARDS = st.fixed_dictionaries(
    {},
    optional={
        "securitySchemes": st.dictionaries(_NAMES, _SCHEME, max_size=4) | _JSON,
        "securityRequirements": _REQUIREMENTS | _JSON,
        "security": _REQUIREMENTS | _JSON,
        "skills": st.lists(
            st.fixed_dictionaries({}, optional={"id": _JSON, "securityRequirements": _REQUIREMENTS}) | _JSON, max_size=3
        )
        | _JSON,
    },
)
_SETS = st.lists(st.sampled_from([BEARER, BASIC, KEY, QUERY_KEY, OAUTH, OIDC, MTLS]), max_size=4, unique_by=json.dumps)


@settings(max_examples=400, deadline=None)
@given(card=_CARDS, entries=_SETS)
def test_whatever_a_card_says_the_answer_is_a_choice_or_a_refusal(card: dict[str, Any], entries: list[Any]) -> None:
    """Two kinds of errors, one clean line each; a choice has each credential once, and one for each place at most."""
    credentials = credentials_of(*entries)
    try:
        uses = choose_credentials(card, credentials)
    except (AgentRefused, UnsupportedExtensionError) as error:
        uses, said = (), error.detail
    else:
        said = describe_credentials(uses, credentials)
    assert said.isprintable()
    assert len(said) <= 1500
    positions = [use.position for use in uses]
    assert len(positions) == len(set(positions))
    authorizations = [n for n in positions if credentials[n].type in ("bearer", "basic", "oauth2", "oidc")]
    assert len(authorizations) <= 1


@settings(max_examples=200, deadline=None)
@given(
    alternatives=st.lists(
        st.lists(st.sampled_from(sorted(OLDER_SCHEMES)), max_size=3, unique=True), min_size=1, max_size=5
    ),
    entries=st.lists(st.sampled_from(ONE_EACH), max_size=5, unique_by=lambda pair: pair[0]),
)
def test_just_one_complete_alternative_is_sent(alternatives: list[list[str]], entries: list[Any]) -> None:
    """The schemes that are met are those of one alternative, and of the first that can be; `{}` comes last."""
    ours = {name for name, _ in entries}
    places = {"tok": 0, "pass": 0, "oauth": 0, "oidc": 0}

    def can_be_met(names: list[str]) -> bool:
        return set(names) <= ours and sum(name in places for name in names) <= 1

    in_order = [*filter(None, alternatives), *(each for each in alternatives if not each)]
    expected = next((each for each in in_order if can_be_met(each)), None)
    card = wants(*alternatives)
    if expected is None or not entries:
        refusal(card, *(each for _, each in entries))
        return
    uses = choose_credentials(card, credentials_of(*(each for _, each in entries)))
    assert [use.scheme for use in uses] == expected


# ------------------------------------------------------------------ where it is used


def test_a_checked_card_carries_the_choice() -> None:
    """So whoever speaks to the agent need not read its security again."""
    card = {
        "name": "n",
        "description": "d",
        "version": "1",
        "supportedInterfaces": [
            {"url": "https://agent.example/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        ],
        **wants(["key"], ["tok"]),
    }
    agent = AgentSettings.model_validate({"id": "a", "url": "https://agent.example", "auth": [BEARER]})
    assert check_card(agent, card).credentials == (CredentialUse(position=0, scheme="tok"),)
    with pytest.raises(UnsupportedExtensionError, match="auth_missing: "):
        check_card(AgentSettings(id="a", url="https://agent.example"), card)


def test_no_secret_is_in_a_repr() -> None:
    """Tracebacks with locals, debuggers and careless logs show reprs."""
    shown = _Shown(place="header", name="Authorization", value="Bearer s3cret-value", secrets=("s3cret-value",))
    assert "s3cret" not in repr(Presented((shown,)))


def test_a_reference_to_nobodys_home_is_said_to_be_that() -> None:
    """`~name` that stands for no user is an error of the configuration and not a crash."""
    with pytest.raises(ConfigurationError, match="no such home directory"):
        read_secret("file:~nobody-of-that-name/secret")


def test_a_proxy_is_spoken_to_without_tls() -> None:
    """TLS within TLS is not spoken, and said so before anything fails; CONNECT carries https all the same."""
    agent = {"id": "a", "url": "https://agent.example"}
    assert AgentSettings.model_validate({**agent, "proxy": "http://proxy.example:3128"}).proxy is not None
    with pytest.raises(ValueError, match="must be an http URL"):
        AgentSettings.model_validate({**agent, "proxy": "https://proxy.example:3128"})
