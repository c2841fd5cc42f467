"""Which cards are accepted, and what is said of the others."""

from __future__ import annotations

from typing import Any

import pytest

from delegation.cards import CheckedCard, Interface, allowed_origins, check_card, standard_headers
from delegation.errors import AgentError, AgentRefused, UnsupportedExtensionError
from delegation.origins import Origin
from delegation.settings import AgentSettings
from delegation.task_extension import TASK_EXTENSION

HOME = "https://agent.example"


def settings(**fields: Any) -> AgentSettings:
    return AgentSettings(id="ledger", url=HOME, **fields)


def card(**fields: Any) -> dict[str, Any]:
    """Case C046's card: valid, and without everything proto3 JSON may leave out."""
    plain = {
        "name": "Ledger Helper",
        "description": "Answers ledger questions",
        "version": "3.2.0",
        "supportedInterfaces": [interface()],
        "capabilities": {"streaming": True},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "s", "name": "S", "description": "d"}],
        "xFutureField": {"a": 1},
    }
    return {**plain, **fields}


def interface(url: str = f"{HOME}/rpc", binding: str = "JSONRPC", version: Any = "1.0", **more: Any) -> dict[str, Any]:
    return {"url": url, "protocolBinding": binding, "protocolVersion": version, **more}


def refused(raw: Any, agent: AgentSettings | None = None) -> AgentError:
    with pytest.raises((AgentRefused, UnsupportedExtensionError)) as refusal:
        check_card(agent or settings(), raw)
    assert "\n" not in refusal.value.detail
    assert len(refusal.value.detail) < 300
    return refusal.value


def test_a_card_that_leaves_out_what_is_false_or_empty_is_accepted() -> None:
    """Case C046: absent pushes are no pushes, absent tags are no error, unknown fields are ignored."""
    checked = check_card(settings(), card(), fetched_at="2026-11-30T10:00:00Z")
    assert checked.interface == Interface(url=f"{HOME}/rpc", binding="JSONRPC", protocol_version="1.0")
    assert not checked.can_push
    assert [skill.id for skill in checked.skills] == ["s"]
    assert checked.fetched_at == "2026-11-30T10:00:00Z"
    assert checked.raw == card()


def test_skills_and_capabilities_may_be_absent() -> None:
    """An empty list, and an empty object, are written as nothing."""
    raw = card()
    del raw["skills"], raw["capabilities"]
    assert check_card(settings(), raw).skills == ()


@pytest.mark.parametrize("field", ["name", "description", "version", "supportedInterfaces"])
@pytest.mark.parametrize("value", [None, "", 7, {"a": 1}, []])
def test_a_required_field_that_is_missing_or_of_the_wrong_kind_is_named(field: str, value: object) -> None:
    """The reason is shown to the operator."""
    error = refused(card(**{field: value}))
    assert error.detail.startswith("card_invalid: ")
    assert field in error.detail


def test_a_card_in_snake_case_is_recognised() -> None:
    """Case C092: never half-read."""
    raw = card(supported_interfaces=[interface()])
    del raw["supportedInterfaces"]
    assert refused(raw).detail == "card_invalid: supportedInterfaces missing (found supported_interfaces)"


@pytest.mark.parametrize("raw", [None, [], "card", 7])
def test_what_is_no_object_is_no_card(raw: object) -> None:
    """Whatever JSON it is."""
    assert "not a JSON object" in refused(raw).detail


@pytest.mark.parametrize(
    "fields",
    [
        {"capabilities": []},
        {"capabilities": {"pushNotifications": 1}},
        {"capabilities": {"extensions": {}}},
        {"capabilities": {"extensions": ["x"]}},
        {"capabilities": {"extensions": [{"required": True}]}},
        {"skills": {}},
        {"skills": ["x"]},
        {"securitySchemes": []},
        {"supportedInterfaces": ["x"]},
        {"supportedInterfaces": [interface(url=None)]},  # type: ignore[arg-type]
    ],
)
def test_a_wrong_shape_anywhere_is_refused_without_a_traceback(fields: dict[str, Any]) -> None:
    """Cards are hostile input."""
    assert refused(card(**fields)).detail.startswith("card_invalid: ")


@pytest.mark.parametrize("version", ["1.0", "1.0.1"])
def test_versions_of_1_0_are_spoken(version: str) -> None:
    """Case C097: the patch number does not matter."""
    raw = card(supportedInterfaces=[interface(version=version)])
    assert check_card(settings(), raw).interface.protocol_version == version


@pytest.mark.parametrize("protocol", ["1.0", "0.3"])
@pytest.mark.parametrize("version", ["0.30", "0.4", "1.10", "2.0", "10.0", "v1.0", "1", "", None, 1.0, 0.3])
def test_c097_other_versions_are_not_spoken(version: object, protocol: str) -> None:
    """Case C097: neither compared as text nor as numbers, with 0.3 allowed or not."""
    error = refused(card(supportedInterfaces=[interface(version=version)]), settings(protocol=protocol))
    assert type(error) is AgentRefused
    assert error.detail.startswith("no_supported_interface: the card offers JSONRPC")


@pytest.mark.parametrize("version", ["0.3", "0.3.0", "0.3.7"])
def test_c097_versions_of_0_3_are_spoken_where_the_settings_allow_it(version: str) -> None:
    """Case C097: the patch number does not matter. Else no silent fallback, and the cure in the reason."""
    raw = card(supportedInterfaces=[interface(version=version)])
    assert check_card(settings(protocol="0.3"), raw).interface.version == "0.3"
    assert refused(raw).detail == f'version_unsupported: {version}; protocol = "0.3" in its [[agents]] block allows it'


def test_the_first_interface_we_speak_is_chosen() -> None:
    """Case C085: an interface of another binding or version before it does not matter."""
    offers = [
        interface("127.0.0.1:5", "GRPC"),
        interface(f"{HOME}/old", version="0.3"),
        interface(f"{HOME}/rest", "HTTP+JSON"),
        interface(),
    ]
    checked = check_card(settings(), card(supportedInterfaces=offers))
    assert (checked.interface.binding, checked.interface.url) == ("HTTP+JSON", f"{HOME}/rest")
    error = refused(card(supportedInterfaces=offers[:1]))
    assert error.detail == "no_supported_interface: the card offers GRPC 1.0; we speak JSONRPC 1.0, HTTP+JSON 1.0"


@pytest.mark.parametrize(
    "url",
    [
        "http://agent.example/rpc",
        "https://agent.example:8443/rpc",
        "https://evil.example/rpc",
        "https://agent.example.evil.example/rpc",
        "https://sub.agent.example/rpc",
        "https://agent.example./rpc",
        "http://169.254.169.254/latest",
        "http://[::ffff:127.0.0.1]/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://127.1/",
        "http://0/",
        "http://[64:ff9b::7f00:1]/",
        "http://localhost./",
    ],
)
def test_an_interface_elsewhere_is_refused(url: str) -> None:
    """Case C022: what only the card names is not spoken to."""
    assert refused(card(supportedInterfaces=[interface(url)])).detail.startswith("card_origin_refused: ")


@pytest.mark.parametrize(
    "url",
    ["/rpc", "rpc", "", "file:///etc/hosts", "unix:/x", "https://u:p@agent.example/", "https://agent.example/#x"],
)
def test_an_interface_without_a_plain_absolute_url_is_refused(url: str) -> None:
    """Case C048: told as what it is, not as an error deep in an HTTP library."""
    assert refused(card(supportedInterfaces=[interface(url)])).detail.startswith(
        "card_invalid: supportedInterfaces[0].url"
    )


def test_origins_that_the_operator_added_are_allowed() -> None:
    """An agent's interface may live beside its card."""
    agent = settings(origins=("https://api.agent.example:8443",))
    checked = check_card(agent, card(supportedInterfaces=[interface("https://api.agent.example:8443/rpc")]))
    assert checked.interface.url == "https://api.agent.example:8443/rpc"
    assert allowed_origins(agent) == {
        Origin("https", "agent.example", 443),
        Origin("https", "api.agent.example", 8443),
    }


def test_a_later_interface_within_the_origins_serves_when_the_first_lies_outside() -> None:
    """Being refused one address, we are not refused the agent."""
    offers = [interface("https://evil.example/rpc"), interface(f"{HOME}/rest", "HTTP+JSON")]
    assert check_card(settings(), card(supportedInterfaces=offers)).interface.url == f"{HOME}/rest"


@pytest.mark.parametrize("tenant", ["..", "a/b", "a?b", 7, "x" * 200])
def test_a_tenant_that_would_leave_its_path_is_refused(tenant: object) -> None:
    """The SDK puts it into paths unescaped."""
    assert "tenant" in refused(card(supportedInterfaces=[interface(tenant=tenant)])).detail


@pytest.mark.parametrize(
    "fields",
    [
        {"securitySchemes": {"key": {"apiKeySecurityScheme": {"name": "X-Key", "location": "header"}}}},
        {"securityRequirements": [{"schemes": {"key": {"list": []}}}]},
        {"security": [{"key": []}]},
        {"skills": [{"id": "s", "name": "S", "description": "d", "securityRequirements": [{"schemes": {}}]}]},
        {"skills": [{"id": "s", "name": "S", "description": "d", "security": [{"key": []}]}]},
    ],
)
def test_security_that_we_do_not_implement_is_refused_as_that(fields: dict[str, Any]) -> None:
    """Any scheme or requirement, the skills' included."""
    assert type(refused(card(**fields))) is UnsupportedExtensionError


def test_a_required_extension_is_refused_by_its_uri() -> None:
    """Case C062: an optional one is ignored, and never announced."""
    extensions = [
        {"uri": "https://ext.example.test/pay/v2", "required": True},
        {"uri": "https://ext.example.test/fun/v1", "required": False},
    ]
    error = refused(card(capabilities={"extensions": extensions}))
    assert type(error) is UnsupportedExtensionError
    assert error.detail == "extension_required: https://ext.example.test/pay/v2"
    checked = check_card(settings(), card(capabilities={"extensions": extensions[1:]}))
    assert checked.active_extensions == ()


def test_a_required_extension_that_we_have_is_accepted() -> None:
    """And named in calls, alone: a peer refuses those it did not advertise."""
    extensions = [{"uri": TASK_EXTENSION, "required": True}, {"uri": "https://ext.example.test/fun/v1"}]
    checked = check_card(settings(), card(capabilities={"extensions": extensions}))
    assert checked.active_extensions == (TASK_EXTENSION,)


def test_what_a_card_offers_is_what_it_says() -> None:
    """Pushes and streams; false values may be absent."""
    offers = check_card(settings(), card(capabilities={"streaming": True, "pushNotifications": False}))
    assert (offers.can_stream, offers.can_push) == (True, False)
    assert not check_card(settings(), card(capabilities={})).can_stream
    refused(card(capabilities={"streaming": "yes"}))


@pytest.mark.parametrize(
    ("specifier", "version", "accepted"),
    [
        (">=1,<2", "1.5", True),
        (">=1,<2", "2.0", False),
        (">=1", "1.0rc1", False),
        (">=1", "2.0rc1", True),
        ("==3.2.*", "3.2.9", True),
        (">=1", "release-7", False),
        (">=1", "9" * 5000, False),
        (">=1", "1.0+" + "a" * 5000, False),
    ],
)
def test_a_card_must_have_a_version_the_operator_accepts(specifier: str, version: str, accepted: bool) -> None:
    """A pre-release counts as what it is; what is no version cannot be compared."""
    agent = settings(version=specifier)
    if accepted:
        assert isinstance(check_card(agent, card(version=version)), CheckedCard)
    else:
        assert specifier in refused(card(version=version), agent).detail


def test_hostile_texts_do_not_reach_the_reason_whole() -> None:
    """It is shown on one line."""
    refused(card(supportedInterfaces=[interface(binding="GRPC\n" * 1000)]))
    refused(card(capabilities={"extensions": [{"uri": "x\x1b[2J" * 1000, "required": True}]}))
    refused(card(version="9" * 4000), settings(version="<1"))
    assert check_card(settings(), card(name="a\ud800")).name == "a?"


def test_our_own_headers_cannot_be_overridden() -> None:
    """What identifies us and the protocol is ours; the operator's headers come along."""
    headers = standard_headers(settings(headers={"X-Team": "travel"}), "us", extensions=("a", "b"))
    assert headers["A2A-Version"] == "1.0"
    assert headers["X-Participant-Id"] == "us"
    assert headers["X-Team"] == "travel"
    assert headers["A2A-Extensions"] == "a,b"
    assert "A2A-Extensions" not in standard_headers(settings(), "us")
