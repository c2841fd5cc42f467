"""What an operator may write, what is refused, and that every refusal names its key and keeps its secrets."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
import typing
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from delegation.auth_settings import Credential
from delegation.cards import check_card
from delegation.errors import ConfigurationError, UnknownAgent
from delegation.settings import AgentSettings, Settings, load_settings
from examples.sample_agent import build_card, read_options

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "delegation.example.toml"

Load = Callable[[str], Settings]
Refusal = Callable[[str], str]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def load(empty_folder: Path) -> Load:
    def load_text(text: str) -> Settings:
        path = empty_folder / "some.toml"
        path.write_text(text, encoding="utf-8")
        return load_settings(path)

    return load_text


@pytest.fixture
def refusal(load: Load) -> Refusal:
    def refuse(text: str) -> str:
        with pytest.raises(ConfigurationError) as caught:
            load(text)
        detail = str(caught.value)
        assert detail.isprintable(), "a refusal is one line"
        return detail

    return refuse


def agent(extra: str = "", url: str = "https://flights.example.com", agent_id: str = "flights") -> str:
    return f'[[agents]]\nid = "{agent_id}"\nurl = "{url}"\n{extra}\n'


# --- Where settings come from -----------------------------------------------------------------------------------------


def test_without_a_file_the_defaults_hold() -> None:
    """Nothing configured is a valid configuration without agents."""
    settings = load_settings()
    assert settings == Settings()
    assert settings.redis.url == "redis://127.0.0.1:6379/0"
    assert settings.celery.app == "workers.app:app"
    assert settings.timing.refetch == (1.0, 2.0, 4.0)
    assert settings.limits.card_bytes == 2**20
    assert settings.agents == ()


def test_the_file_in_the_current_folder_is_read(empty_folder: Path) -> None:
    """./delegation.toml needs no mention."""
    (empty_folder / "delegation.toml").write_text('[server]\nparticipant_id = "ours"\n')
    assert load_settings().server.participant_id == "ours"


def test_the_named_file_comes_before_the_one_in_the_current_folder(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DELEGATION_CONFIG wins over ./delegation.toml, and an argument over both."""
    for name in ("delegation", "named", "given"):
        (empty_folder / f"{name}.toml").write_text(f'[server]\nparticipant_id = "{name}"\n')
    monkeypatch.setenv("DELEGATION_CONFIG", "named.toml")
    assert load_settings().server.participant_id == "named"
    assert load_settings(Path("given.toml")).server.participant_id == "given"


def test_a_named_file_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt path must not start the product with defaults."""
    monkeypatch.setenv("DELEGATION_CONFIG", "nowhere.toml")
    with pytest.raises(ConfigurationError, match=r"^DELEGATION_CONFIG: nowhere\.toml: no such file$"):
        load_settings()


@pytest.mark.parametrize("content", [b"[server\n", b"a = \xff\n", b"a = 1\na = 2\n"])
def test_a_file_that_is_no_toml_is_named(empty_folder: Path, content: bytes) -> None:
    """The refusal begins with the path and is one line."""
    (empty_folder / "broken.toml").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"^broken\.toml: not TOML: [^\n]+$"):
        load_settings(Path("broken.toml"))


def test_the_environment_beats_the_file(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable replaces its own key and leaves the key's neighbours alone."""
    monkeypatch.setenv("DELEGATION_REDIS__URL", "redis://localhost:7000/3")
    monkeypatch.setenv("DELEGATION_TIMING__POLL_FIRST", "PT0.5S")
    monkeypatch.setenv("DELEGATION_TIMING__REFETCH", "1,2")
    settings = load('[redis]\nurl = "redis://localhost:1/0"\nkey_prefix = "x:"\n[timing]\npoll_first = 5')
    assert (settings.redis.url, settings.redis.key_prefix) == ("redis://localhost:7000/3", "x:")
    assert settings.timing.poll_first == timedelta(seconds=0.5)
    assert settings.timing.refetch == (1.0, 2.0)


def test_code_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that names its Redis never reaches the one in the environment."""
    monkeypatch.setenv("DELEGATION_SERVER__PARTICIPANT_ID", "environment")
    assert Settings(server={"participant_id": "code"}).server.participant_id == "code"


def test_agents_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers configure agents as one JSON array."""
    monkeypatch.setenv("DELEGATION_AGENTS", '[{"id": "a", "url": "https://a.example.com", "headers": {"X-A": "b"}}]')
    assert load_settings().agent("a").headers == {"X-A": "b"}


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose files pass on variables that nobody set."""
    monkeypatch.setenv("DELEGATION_SERVER__BASE_URL", "")
    monkeypatch.setenv("DELEGATION_CONFIG", "")
    assert load_settings().server.base_url is None


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("DELEGATION_SERVER__BASE_ULR", "x", "server.base_ulr: unknown key (set by DELEGATION_SERVER__BASE_ULR)"),
        ("DELEGATION_SERVR__BASE_URL", "x", "servr.base_url: unknown key (set by DELEGATION_SERVR__BASE_URL)"),
        ("DELEGATION_AGENTS", "not json", "agents: DELEGATION_AGENTS is not JSON"),
        ("DELEGATION_TIMING__POLL_FIRST", "soon", "timing.poll_first: must be an ISO 8601 duration"),
        ("DELEGATION_TIMING__REFETCH", "soon", "timing.refetch.0: should be a valid number"),
    ],
)
def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str) -> None:
    """A misspelt variable is an error as a misspelt key is, and the refusal says where it came from."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert str(caught.value).startswith(expected)


def test_variables_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes sets DELEGATION_PORT for a service named delegation."""
    monkeypatch.setenv("DELEGATION_PORT", "tcp://10.0.0.1:80")
    assert load_settings() == Settings()


# --- Refusals ---------------------------------------------------------------------------------------------------------

REFUSED = [
    ("[redis]\nprot = 1", "redis.prot: unknown key"),
    ("[servr]", "servr: unknown key"),
    ("[server]\ntrusted_proxies = -1", "server.trusted_proxies: "),
    ('[server]\nparticipant_id = "a\\r\\nb"', "server.participant_id: "),
    ('[redis]\nkey_prefix = ""', "redis.key_prefix: "),
    ('[celery]\napp = "not an app"', "celery.app: "),
    ('[celery]\nbroker_url = "nonsense"', "celery.broker_url: must be a URL"),
    ('[defaults]\ndeadline = "P8D"', "defaults.deadline: must be at most defaults.max_deadline"),
    ('[timing]\npoll_first = "PT60S"', "timing.poll_first: must be at most timing.poll_max"),
    ("[timing]\nrefetch = [1, 0]", "timing.refetch: must be numbers of seconds above 0"),
    ("[limits]\nattempts = 0", "limits.attempts: "),
    ('agents = "flights"', "agents: "),
    ('[[agents]]\nid = "a"', "agents.0.url: is missing"),
    (agent('updates = "sometimes"'), "agents.0.updates: should be 'auto', 'push', 'follow', 'poll' or 'off'"),
    (agent('on_ambiguous_send = "hope"'), "agents.0.on_ambiguous_send: "),
    (agent("colour = 1"), "agents.0.colour: unknown key"),
    (agent() + agent(agent_id="b") + agent(), "agents.2.id: is the id of agents.0 already"),
    (agent('origins = ["https://a.example.com/path"]'), "agents.0.origins.0: must be an origin"),
    (agent('origins = ["http://a.example.com"]'), "agents.0.origins.0: must be https"),
]


@pytest.mark.parametrize(("text", "expected"), REFUSED)
def test_a_refusal_begins_with_the_key(refusal: Refusal, text: str, expected: str) -> None:
    """An operator reads first which key to change, as it stands in the file."""
    assert refusal(text).startswith(expected)


@pytest.mark.parametrize("agent_id", ["", "self", "Self", ".a", "a b", "a/b", "a" * 65, "é", "a\\n"])
def test_an_id_that_cannot_be_a_key_or_a_tool_argument_is_refused(refusal: Refusal, agent_id: str) -> None:
    """Ids stand in Redis keys, URLs, metrics and a model's tool calls; `self` is the caller."""
    assert refusal(agent(agent_id=agent_id)).startswith("agents.0.id: must")


BAD_WEB_URLS = [
    "",
    "flights.example.com",
    "/relative",
    "ftp://a.example.com",
    "file:///etc/hosts",
    "https://",
    "https://user@a.example.com",
    "https://user:secret@a.example.com",
    "https://a.example.com?x=1",
    "https://a.example.com?",
    "https://a.example.com/#f",
    "https://a.example.com:99999",
    "https://a.example.com:0",
    "https://a .example.com",
    "https://a.example.com\\\\@b.example.com",
    "https://a.example.com\\t",
    "https://ä.example.com",
    "https://[::1",
    "https://169.254.169.254/latest",
    "https://[fe80::1]",
    "https://[::ffff:169.254.169.254]",
    "https://[64:ff9b::7f00:1]",
    "https://[2002:7f00:1::]",
    "https://2130706433",
    "https://0x7f000001",
    "https://127.1",
    "https://0177.0.0.1",
    "https://0.0.0.0",
]


@pytest.mark.parametrize("url", BAD_WEB_URLS)
def test_an_agent_url_that_hides_where_it_leads_is_refused(refusal: Refusal, url: str) -> None:
    """Only absolute http(s) URLs without credentials, query, fragment or disguised addresses name an agent."""
    detail = refusal(agent(url=url))
    assert detail.startswith("agents.0.url: must")
    assert "secret" not in detail


@pytest.mark.parametrize("url", ["http://localhost:1", "http://127.0.0.5:1", "http://[::1]:1", "https://10.0.0.7/a/b"])
def test_plain_http_is_for_loopback(load: Load, url: str) -> None:
    """Operators run agents on private addresses, and in the clear on their own machine only."""
    assert load(agent(url=url)).agent("flights").url == url


@pytest.mark.parametrize("host", ["a.example.com", "10.0.0.7", "localhost.example.com", "127.0.0.1.example.com"])
def test_plain_http_elsewhere_must_be_allowed_per_agent(load: Load, refusal: Refusal, host: str) -> None:
    """allow_http is a decision about one agent."""
    assert refusal(agent(url=f"http://{host}")).startswith("agents.0.url: must be https")
    assert load(agent("allow_http = true", url=f"http://{host}")).agents[0].url == f"http://{host}"


def test_trailing_slashes_are_dropped(load: Load) -> None:
    """Paths are appended to these URLs."""
    settings = load('[server]\nbase_url = "https://d.example.com/x//"\n' + agent(url="https://a.example.com/b/"))
    assert settings.server.base_url == "https://d.example.com/x"
    assert settings.agents[0].url == "https://a.example.com/b"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[server]\nbase_url = "http://d.example.com"', "server.base_url"),
        ('[redis]\nurl = "redis://redis.example.com"', "redis.url"),
        ('[redis]\nurl = "rediss://user@redis.example.com/1"', "redis.url"),
        ('[celery]\nbroker_url = "redis://redis.example.com"', "celery.broker_url"),
        ('[celery]\nresult_backend = "redis://redis.example.com"', "celery.result_backend"),
        ('[redis]\nurl = "rediss://:pw@redis.example.com?ssl_cert_reqs=none"', "redis.url"),
        ('[celery]\nbroker_url = "rediss://:pw@redis.example.com?ssl_cert_reqs=CERT_NONE"', "celery.broker_url"),
        (
            '[celery]\nresult_backend = "rediss://:pw@r.example.com?ssl_cert_reqs=required&ssl_cert_reqs=none"',
            "celery.result_backend",
        ),
    ],
)
def test_open_addresses_need_consent(
    load: Load, refusal: Refusal, monkeypatch: pytest.MonkeyPatch, text: str, key: str
) -> None:
    """Write access to Redis is code execution, and a push token in the clear is anyone's."""
    assert refusal(text).startswith(f"{key}: must ")
    monkeypatch.setenv("DELEGATION_ALLOW_INSECURE", "1")
    assert load(text).allow_insecure


@pytest.mark.parametrize(
    "url",
    [
        "redis://:pw@redis.example.com:6379/2",
        "rediss://u:pw@r.example.com",
        "redis://[::1]:1",
        "unix:///run/redis.sock",
        "unix://:pw@/run/redis.sock?db=3",
        "redis://localhost?db=3",
        "rediss://localhost?ssl_cert_reqs=none",
        "rediss://:pw@r.example.com/1?ssl_cert_reqs=required&ssl_ca_certs=/etc/ca.pem",
    ],
)
def test_redis_with_a_password_or_at_home_is_accepted(load: Load, url: str) -> None:
    """TLS, sockets and databases are given as redis-py reads them."""
    assert load(f'[redis]\nurl = "{url}"').redis.url == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://localhost",
        "redis://",
        "redis:///0",
        "redis://:p#w@h.example.com",
        "redis://:p/w@h.example.com",
        "redis://h:x",
        "redis://localhost/one",
        "redis://localhost/0/1",
        "unix://",
    ],
)
def test_a_redis_url_that_would_be_misread_is_refused(refusal: Refusal, url: str) -> None:
    """redis-py falls back to localhost or database 0 in silence; the refusal does not repeat the password."""
    detail = refusal(f'[redis]\nurl = "{url}"')
    assert detail.startswith("redis.url: ")
    assert "p#w" not in detail
    assert "p/w" not in detail


@pytest.mark.parametrize(
    "query",
    [
        *("db=x", "db=", "db=-1", "db=%D9%A1", "socket_timeout=abc", "socket_timeout=1", "retry_on_timeout=1"),
        *("foo=1", "foo", "s3cret", "ssl_ca_certs=x", "db=1&foo="),
    ],
)
def test_a_redis_url_takes_few_parameters(refusal: Refusal, query: str) -> None:
    """redis-py fails on unknown ones at the first command, and our timeouts and lack of retries are no choice."""
    detail = refusal(f'[redis]\nurl = "redis://:s3cret@localhost/0?{query}"')
    assert detail.startswith("redis.url: ")
    assert "s3cret" not in detail


def test_tls_needs_a_known_demand_for_certificates(refusal: Refusal) -> None:
    """redis-py would say so at the first connection only."""
    assert refusal('[redis]\nurl = "rediss://:pw@r.example.com?ssl_cert_reqs=maybe"').startswith("redis.url: must")


def test_a_bad_redis_url_ends_a_command_with_one_line_and_2(tmp_path: Path) -> None:
    """As every other bad setting."""
    ran = subprocess.run(
        [sys.executable, "-m", "workers.cli", "list"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "DELEGATION_REDIS__URL": "redis://localhost/0?socket_timeout=abc"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert re.fullmatch(r"delegation: redis\.url: [^\n]+\n", ran.stderr)


def test_records_are_kept_for_a_second_at_least(load: Load, refusal: Refusal) -> None:
    """Whoever waits for an end must still find it; Redis would count less as no time at all."""
    assert refusal("[defaults]\nretention = 0.9").startswith("defaults.retention: must be at least 1 second")
    assert load("[defaults]\nretention = 1").defaults.retention == timedelta(seconds=1)


@pytest.mark.parametrize(
    "value", ['"PT0S"', "0", "-1", "nan", "inf", "true", '"soon"', '"P1000Y"', "1e300", "07:30:00", "[]"]
)
def test_a_duration_is_positive_and_finite(refusal: Refusal, value: str) -> None:
    """No timer may be zero, endless or beyond what Redis and Celery can count."""
    assert refusal(f"[timing]\ncall_deadline = {value}").startswith("timing.call_deadline: must be ")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [('"PT1M30S"', 90), ("90", 90), ("0.25", 0.25), ('"90"', 90), ('"P1DT1S"', 86401), ('"pt5s"', 5)],
)
def test_a_duration_is_iso_8601_or_seconds(load: Load, value: str, seconds: float) -> None:
    """Both spellings mean the same timedelta."""
    assert load(f"[timing]\nlost_after = {value}").timing.lost_after == timedelta(seconds=seconds)


@pytest.mark.parametrize("version", ["", "one", ">=", "1.0"])
def test_a_version_must_be_a_specifier(refusal: Refusal, version: str) -> None:
    """A bare number is no PEP 440 specifier, and an empty one would check nothing."""
    assert refusal(agent(f'version = "{version}"')).startswith("agents.0.version: must be a PEP 440 specifier")


def test_five_errors_are_shown_and_the_rest_counted(refusal: Refusal) -> None:
    """One run of a command shows more than one mistake and stays one line."""
    detail = refusal("[limits]\n" + "\n".join(f"wrong{n} = {n}" for n in range(8)))
    assert detail.split("; ") == [f"limits.wrong{n}: unknown key" for n in range(5)] + ["and 3 more"]


def test_a_key_of_odd_characters_cannot_forge_a_line(refusal: Refusal) -> None:
    """A quoted TOML key may hold line breaks and escapes; the refusal does not."""
    assert "unknown key" in refusal('"a\\nERROR \\u001b[31m" = 1')


@pytest.fixture(scope="session")
def any_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("settings") / "any.toml"


@given(
    st.text(max_size=40), st.sampled_from(["id", "url", "version", "updates", "follow_interval", "origins", "headers"])
)
def test_any_text_is_taken_or_refused_in_one_line(any_file: Path, text: str, key: str) -> None:
    """No text an operator can write ends in a traceback, or in two lines."""
    quoted = json.dumps(text)
    values = {"id": '"a"', "url": '"https://a.example.com"', key: quoted}
    values |= {"origins": f"[{quoted}]"} if key == "origins" else {}
    values |= {"headers": f"{{ {quoted} = {quoted} }}"} if key == "headers" else {}
    any_file.write_text("[[agents]]\n" + "\n".join(f"{name} = {value}" for name, value in values.items()))
    detail = ""
    try:
        load_settings(any_file)
    except ConfigurationError as error:
        detail = str(error)
    assert detail.isprintable()


# --- Secrets ----------------------------------------------------------------------------------------------------------


def test_header_values_take_variables(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets are written by reference, anywhere inside a value."""
    monkeypatch.setenv("A_TOKEN", "t0ken")
    settings = load(agent('headers = { X-Team = "travel", Authorization = "Bearer ${A_TOKEN}", X-Price = "$5" }'))
    assert settings.agents[0].headers == {"X-Team": "travel", "Authorization": "Bearer t0ken", "X-Price": "$5"}


def test_a_variable_is_not_expanded_twice(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a secret contains is text, not a further reference."""
    monkeypatch.setenv("A_TOKEN", "x${B_TOKEN}${")
    assert load(agent('headers = { X-A = "${A_TOKEN}" }')).agents[0].headers == {"X-A": "x${B_TOKEN}${"}


@pytest.mark.parametrize("url", ["https://${HOST}.example.com", "https://a.example.com/${HOST}"])
def test_variables_are_expanded_in_header_values_only(load: Load, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Elsewhere the environment has its own way in."""
    monkeypatch.setenv("HOST", "inside")
    assert load(agent(url=url)).agents[0].url == url


@pytest.mark.parametrize(
    "value", ["${NOT_SET}", "${EMPTY}", "${", "${A-B}", "${}", "", " x", "x\\r\\nY: 1", "ü", "${BREAK}"]
)
def test_a_header_value_that_cannot_be_sent_is_refused(
    refusal: Refusal, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """The refusal names agent and header, and never the value."""
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.setenv("BREAK", "s3cret\n")
    detail = refusal(agent(f'headers = {{ X-Key = "{value}" }}'))
    assert detail.startswith("agents.0.headers.X-Key: ")
    assert "s3cret" not in detail


def test_an_unset_variable_is_named(refusal: Refusal) -> None:
    """An operator learns which variable to set."""
    expected = "agents.0.headers.X-Key: environment variable NOT_SET is not set or empty (agent flights)"
    assert refusal(agent('headers = { X-Key = "${NOT_SET}" }')) == expected


@pytest.mark.parametrize(
    "name", ["Host", "content-length", "Transfer-Encoding", "Connection", "TE", "A2A-Version", "X-Participant-Id"]
)
def test_headers_of_the_connection_and_ours_are_reserved(refusal: Refusal, name: str) -> None:
    """A configured header may not reframe the request or speak for somebody else."""
    assert refusal(agent(f'headers = {{ {name} = "x" }}')).startswith(f"agents.0.headers.{name}: this header is set")


@pytest.mark.parametrize("name", ['"X Key"', '"X:Key"', '""', '"X_Key"', '"X\\r\\nY"', f'"{"a" * 65}"'])
def test_a_header_name_is_letters_digits_and_hyphens(refusal: Refusal, name: str) -> None:
    """Other spellings are read differently by different servers."""
    assert "header names are 1 to 64 letters" in refusal(agent(f'headers = {{ {name} = "x" }}'))


def test_header_names_differ_by_more_than_case(refusal: Refusal) -> None:
    """HTTP does not tell them apart."""
    assert refusal(agent('headers = { X-A = "1", x-a = "2" }')).startswith("agents.0.headers: two names differ")


def test_secrets_are_in_no_repr_and_no_dump(load: Load) -> None:
    """Settings end up in logs, tracebacks and `doctor`; their secrets do not."""
    settings = load(
        '[redis]\nurl = "redis://:c4nary@localhost"\n'
        '[celery]\nbroker_url = "redis://:c4nary@localhost"\nresult_backend = "redis://:c4nary@localhost"\n'
        + agent('headers = { X-Key = "c4nary" }')
    )
    assert "c4nary" in settings.redis.url
    assert settings.celery.broker_url == settings.celery.result_backend == settings.redis.url
    for shown in (repr(settings), str(settings), str(settings.model_dump()), settings.model_dump_json()):
        assert "c4nary" not in shown


def test_a_refusal_next_to_a_secret_does_not_show_it(refusal: Refusal) -> None:
    """pydantic would repeat its whole input."""
    text = '[redis]\nurl = "redis://:c4nary@h.example.com"\nother = "c4nary"\n' + agent('headers = { Host = "c4nary" }')
    assert "c4nary" not in refusal(text)


# --- Credentials ------------------------------------------------------------------------------------------------------

#: The least that each kind needs.
CREDENTIALS = {
    "api_key": {"name": "X-Api-Key", "key": "env:KEY"},
    "bearer": {"token": "file:/run/secrets/token"},
    "basic": {"username": "us", "password": "env:PASSWORD"},
    "oauth2": {"token_url": "https://login.example.com/token", "client_id": "us", "client_secret": "env:SECRET"},
    "oidc": {"issuer": "https://login.example.com", "client_id": "us", "client_secret": "env:SECRET"},
    "mtls": {"certificate": "file:/etc/client.pem", "key": "file:/etc/client.key"},
}


def credential(kind: str, block: str = "auth", **keys: Any) -> str:
    """A block with what its kind needs, and these keys beside it or in place of it; None leaves one out."""
    given = {"type": kind, **CREDENTIALS.get(kind, {}), **keys}
    return "\n".join(
        [f"[[agents.{block}]]", *(f"{name} = {json.dumps(value)}" for name, value in given.items() if value)]
    )


@pytest.mark.parametrize("kind", CREDENTIALS)
@pytest.mark.parametrize("block", ["auth", "card_auth"])
def test_each_kind_of_credential_is_read(load: Load, kind: str, block: str) -> None:
    """With the least it needs, for calls and for the card; the reference is kept and not what is behind it."""
    (read,) = getattr(load(agent(credential(kind, block))).agents[0], block)
    assert read.type == kind
    assert read.scheme is None
    assert CREDENTIALS[kind].items() <= read.model_dump().items()


def test_credentials_that_are_left_out_have_defaults(load: Load) -> None:
    """A key goes into a header, a client's secret into Basic, and no scope is asked for."""
    key, client = load(agent(credential("api_key") + "\n" + credential("oauth2"))).agents[0].auth
    assert key.location == "header"
    assert (client.auth_method, client.scopes, client.audience) == ("client_secret_basic", (), None)


@pytest.mark.parametrize("location", ["header", "query", "cookie"])
def test_a_key_has_one_of_three_places(load: Load, location: str) -> None:
    """As OpenAPI has it."""
    (key,) = load(agent(credential("api_key", **{"in": location}))).agents[0].auth
    assert key.location == location


SECRET_KEYS = [
    *[("api_key", "key"), ("bearer", "token"), ("basic", "password"), ("oauth2", "client_secret")],
    *[("oidc", "client_secret"), ("mtls", "key")],
]


@pytest.mark.parametrize(("kind", "key"), SECRET_KEYS)
@pytest.mark.parametrize(
    "written", ["c4nary", "env:", "env:c4nary-1", "${c4nary}", "file:", "ENV:c4nary", "file:c4nary\n"]
)
def test_a_secret_in_the_file_is_refused_and_not_repeated(refusal: Refusal, kind: str, key: str, written: str) -> None:
    """Secrets are named, not written; whoever writes one by mistake does not find it in a log."""
    detail = refusal(agent(credential(kind, **{key: written})))
    assert detail.startswith(f"agents.0.auth.0.{kind}.{key}: must be ")
    assert "c4nary" not in detail


def test_files_of_certificates_are_not_variables(refusal: Refusal) -> None:
    """OpenSSL reads them from files alone."""
    for key in ("certificate", "key"):
        detail = refusal(agent(credential("mtls", **{key: "env:PEM"})))
        assert detail == f"agents.0.auth.0.mtls.{key}: must be file:PATH (agent flights)"


REFUSED_CREDENTIALS = [
    (credential("digest"), "agents.0.auth.0: "),
    ("auth = ['bearer']", "agents.0.auth.0: "),
    (credential("bearer", token=None), "agents.0.auth.0.bearer.token: is missing"),
    (credential("bearer", password="env:A"), "agents.0.auth.0.bearer.password: unknown key"),
    (credential("bearer", scheme=" " * 129), "agents.0.auth.0.bearer.scheme: "),
    (credential("api_key", **{"in": "body"}), "agents.0.auth.0.api_key.in: should be 'header', 'query' or 'cookie'"),
    (credential("api_key", name="Host"), "agents.0.auth.0.api_key.name: this header is set"),
    (credential("api_key", name="a2a-version"), "agents.0.auth.0.api_key.name: this header is set"),
    (credential("api_key", name="X-Key\r\nY"), "agents.0.auth.0.api_key.name: must be 1 to 64 letters"),
    (credential("basic", username="a:b"), "agents.0.auth.0.basic.username: "),
    (credential("oauth2", client_id="a\nb"), "agents.0.auth.0.oauth2.client_id: "),
    (credential("oauth2", scopes=["a b"]), "agents.0.auth.0.oauth2.scopes.0: "),
    (credential("oauth2", auth_method="private_key_jwt"), "agents.0.auth.0.oauth2.auth_method: should be "),
    (
        credential("oauth2", token_url="https://u:p@login.example.com"),
        "agents.0.auth.0.oauth2.token_url: must not hold",
    ),
    (credential("oidc", issuer="https://169.254.169.254"), "agents.0.auth.0.oidc.issuer: must not be a link-local"),
    (credential("mtls") + "\n" + credential("mtls"), "agents.0.auth: must hold one client certificate at most"),
    (
        credential("mtls", "card_auth") + "\n" + credential("mtls", "card_auth"),
        "agents.0.card_auth: must hold one client certificate at most",
    ),
]


@pytest.mark.parametrize(("text", "expected"), REFUSED_CREDENTIALS)
def test_a_credential_that_cannot_be_used_is_refused(refusal: Refusal, text: str, expected: str) -> None:
    """The key is named down to the block and its kind."""
    assert refusal(agent(text)).startswith(expected)


@pytest.mark.parametrize("written", ['type = "apikey"', 'scheme = "k"'])
def test_a_credential_of_no_known_type_is_told_the_types(refusal: Refusal, written: str) -> None:
    """In one sentence, with the agent's id; they are all there are."""
    kinds = [
        typing.get_args(each.model_fields["type"].annotation)[0]
        for each in typing.get_args(typing.get_args(Credential)[0])
    ]
    assert refusal(agent(f"[[agents.auth]]\n{written}")) == (
        f"agents.0.auth.0: type must be {', '.join(kinds[:-1])} or {kinds[-1]} (agent flights)"
    )


def test_what_is_wrong_with_an_agent_names_its_id(refusal: Refusal) -> None:
    """Whatever it is; but for an id that is none, which is not repeated."""
    second = agent("colour = 1", agent_id="hotels")
    assert refusal(agent() + second) == "agents.1.colour: unknown key (agent hotels)"
    assert refusal(agent() + agent()) == "agents.1.id: is the id of agents.0 already (agent flights)"
    assert "(agent" not in refusal(agent(agent_id="no id"))
    for wrong in ("agents = 5", 'agents = ["a"]', "agents = {}"):
        assert refusal(wrong).startswith("agents")


def test_calls_and_card_may_have_a_certificate_each(load: Load) -> None:
    """The two are shown at different times."""
    read = load(agent(credential("mtls") + "\n" + credential("mtls", "card_auth"))).agents[0]
    assert (len(read.auth), len(read.card_auth)) == (1, 1)


@pytest.mark.parametrize(("kind", "key"), [("oauth2", "token_url"), ("oidc", "issuer")])
@pytest.mark.parametrize("block", ["auth", "card_auth"])
def test_a_client_secret_travels_in_the_clear_on_loopback_only(
    load: Load, refusal: Refusal, kind: str, key: str, block: str
) -> None:
    """Or where allow_http says so for this agent."""
    outside = credential(kind, block, **{key: "http://login.example.com"})
    must = "must use https unless the host is loopback or allow_http = true"
    assert refusal(agent(outside)) == f"agents.0.{block}.0: {must} (agent flights)"
    assert load(agent("allow_http = true\n" + outside)).agents[0].allow_http
    assert load(agent(credential(kind, block, **{key: "http://127.0.0.1:9/t"}))).agents


def test_a_required_signature_needs_keys(load: Load, refusal: Refusal) -> None:
    """Keys that the card itself names prove nothing (RFC 7515 section 4.1.2 leaves trust to us)."""
    detail = refusal(agent("require_signature = true"))
    assert detail.startswith("agents.0.require_signature: needs signature_keys")
    for keys in ("file:/etc/keys.json", "https://keys.example.com/jwks.json", "http://127.0.0.1:9/jwks.json"):
        read = load(agent(f'require_signature = true\nsignature_keys = "{keys}"')).agents[0]
        assert (read.require_signature, read.signature_keys) == (True, keys)


@pytest.mark.parametrize("keys", ["", "env:KEYS", "keys.json", "file:", "ftp://keys.example.com/jwks.json"])
def test_signature_keys_are_a_file_or_a_url(refusal: Refusal, keys: str) -> None:
    """Nothing else is read as either."""
    assert refusal(agent(f'signature_keys = "{keys}"')).startswith("agents.0.signature_keys: must ")


def test_signature_keys_come_over_https(load: Load, refusal: Refusal) -> None:
    """Whoever can change keys on the way can sign; on loopback, or with allow_http, it is the operator's word."""
    keys = 'signature_keys = "http://keys.example.com/jwks.json"'
    assert refusal(agent(keys)).startswith("agents.0.signature_keys: must be https")
    assert load(agent(f"allow_http = true\n{keys}")).agents[0].signature_keys


@pytest.mark.parametrize("key", ["card", "ca_bundle"])
def test_a_pinned_card_and_a_ca_bundle_are_files(load: Load, refusal: Refusal, key: str) -> None:
    """Named like every reference; the file is read at use."""
    assert getattr(load(agent(f'{key} = "file:/etc/delegation/a.x"')).agents[0], key) == "file:/etc/delegation/a.x"
    for wrong in ("env:A", "/etc/a", "https://a.example.com/a"):
        assert refusal(agent(f'{key} = "{wrong}"')) == f"agents.0.{key}: must be file:PATH (agent flights)"


@pytest.mark.parametrize("proxy", ["proxy.internal:3128", "socks5://proxy.internal", "http://u:c4nary@proxy.internal"])
def test_a_proxy_is_a_plain_url(refusal: Refusal, proxy: str) -> None:
    """Without credentials, which would stand in the file."""
    detail = refusal(agent(f'proxy = "{proxy}"'))
    assert detail.startswith("agents.0.proxy: must ")
    assert "c4nary" not in detail


def test_agents_from_the_environment_have_credentials_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """One JSON array holds whatever the file can."""
    blocks = [{"type": kind, **keys} for kind, keys in CREDENTIALS.items()]
    written = {"id": "a", "url": "https://a.example.com", "auth": blocks, "card_auth": blocks[:1]}
    monkeypatch.setenv("DELEGATION_AGENTS", json.dumps([written]))
    read = load_settings().agent("a")
    assert [each.type for each in read.auth] == list(CREDENTIALS)
    assert [each.type for each in read.card_auth] == ["api_key"]


def test_a_secret_written_into_the_environment_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal names the key as it would in the file."""
    wrong = [{"id": "a", "url": "https://a.example.com", "auth": [{"type": "bearer", "token": "c4nary"}]}]
    monkeypatch.setenv("DELEGATION_AGENTS", json.dumps(wrong))
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert str(caught.value).startswith("agents.0.auth.0.bearer.token: must be env:NAME or file:PATH")
    assert "c4nary" not in str(caught.value)


# --- Use --------------------------------------------------------------------------------------------------------------


def test_an_unknown_agent_names_the_valid_ids(load: Load) -> None:
    """Whoever misspelt an id sees what to write."""
    settings = load(agent(agent_id="b") + agent(agent_id="a"))
    assert settings.agent("b").id == "b"
    with pytest.raises(UnknownAgent, match="valid agents: a, b"):
        settings.agent("c")


def test_settings_cannot_be_changed() -> None:
    """They are read once; every process part sees the same."""
    settings = Settings()
    with pytest.raises(ValueError, match="frozen"):
        settings.allow_insecure = True
    with pytest.raises(ValueError, match="frozen"):
        settings.timing.poll_first = timedelta(1)


def test_importing_the_package_loads_no_heavy_library() -> None:
    """Commands must start at once: the package itself brings neither Redis nor Celery nor A2A."""
    heavy = {"redis", "celery", "a2a", "flask", "pydantic", "httpx"}
    code = f"import sys, delegation; print(sorted({heavy!r} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert loaded.stdout.strip() == "[]"


# --- The files an operator starts from --------------------------------------------------------------------------------


def keys_of(model: type[BaseModel], above: str = "") -> dict[str, Any]:
    """Every dotted key with its default, agents' keys as `agents.…`."""
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        key = f"{above}{field.alias or name}"
        if key == "agents":
            found |= keys_of(AgentSettings, "agents.")
        elif isinstance(field.default, BaseModel):
            found |= keys_of(type(field.default), f"{key}.")
        else:
            found[key] = field.get_default(call_default_factory=True)
    return found


def uncommented() -> str:
    """The example with every key switched on: `#key = …` is a key, `# Text` is text."""
    return re.sub(r"^#(?=[a-z\[])", "", EXAMPLE.read_text(encoding="utf-8"), flags=re.MULTILINE)


def written_keys() -> set[str]:
    found = set()
    for section, values in tomllib.loads(uncommented()).items():
        rows = values if isinstance(values, list) else [values]
        found |= {f"{section}.{key}" for row in rows for key in row} if isinstance(rows[0], dict) else {section}
    return found


def test_the_example_lists_every_key() -> None:
    """The file is its own reference: no key is missing and none is invented."""
    assert written_keys() == set(keys_of(Settings))


def test_the_example_loads_as_shipped_and_changes_nothing(load: Load) -> None:
    """Copying it is a safe first step."""
    assert load(EXAMPLE.read_text(encoding="utf-8")) == Settings()


def test_the_example_shows_the_defaults(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every key switched on it loads, and what has a default has that value."""
    monkeypatch.setenv("COST_CENTRE", "k")  # of the header; what else is named there is read at use
    switched_on = load(uncommented())
    shown = {
        "server.base_url": "https://delegations.example.com",
        "celery.broker_url": "redis://127.0.0.1:6379/1",
        "celery.result_backend": "redis://127.0.0.1:6379/2",
    }
    example = switched_on.model_copy(update={"agents": ()})
    assert example == Settings(
        server={"base_url": shown["server.base_url"]},
        celery={key: shown[f"celery.{key}"] for key in ("broker_url", "result_backend")},
    )
    plain = AgentSettings(id="flights", url="https://flights.example.com")
    free = {"version", "secret_headers", "origins", "auth", "card_auth", "card", "signature_keys", "ca_bundle", "proxy"}
    free |= {"name", "description", "skills"}
    assert switched_on.agents[0].model_dump(exclude=free) == plain.model_dump(exclude=free)


def test_the_example_shows_every_kind_of_credential(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """One block for each, and each of their keys in one of them."""
    monkeypatch.setenv("COST_CENTRE", "k")
    shown = load(uncommented()).agents[0]
    kinds = {type(each) for each in shown.auth}
    assert kinds == set(typing.get_args(typing.get_args(Credential)[0]))
    assert [each.type for each in shown.card_auth] == ["bearer"]
    written = {key for block in tomllib.loads(uncommented())["agents"][0]["auth"] for key in block}
    assert written == {field.alias or name for kind in kinds for name, field in kind.model_fields.items()}


@pytest.mark.parametrize("number", range(6))
def test_each_credential_of_the_example_may_stand_alone(load: Load, number: int) -> None:
    """Whoever uncomments one block has a configuration that loads."""
    blocks = re.findall(
        r"^#(\[\[agents\.auth\]\]\n(?:#.*\n)+)", EXAMPLE.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert len(blocks) == 6
    (credential,) = load(agent(blocks[number].replace("\n#", "\n"))).agents[0].auth
    assert credential.scheme in (None, "partner-key")


def test_every_key_in_the_example_is_explained() -> None:
    """A paragraph of text stands above every group of keys."""
    for block in re.split(r"\n\s*\n", EXAMPLE.read_text(encoding="utf-8")):
        if re.search(r"^#[a-z]+[a-z_]* =", block, flags=re.MULTILINE):
            assert block.startswith("# "), block


def test_the_compose_file_configures_what_settings_accept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its variables load, its Redis keeps what it is told, and its processes are those of the Procfile."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    services = compose["services"]
    assert set(services) == {"redis", "web", "worker", "ends", "follower", "flower", "sample-agent"}
    ((kept, passed),) = [(line["source"], line["target"]) for line in services["redis"]["configs"]]
    assert services["redis"]["command"] == f"redis-server {passed}"
    assert "PASSWORD" not in str([service.get("command") for service in services.values()])
    content = compose["configs"][kept]["content"].splitlines()
    assert content[:3] == ["appendonly yes", "appendfsync everysec", "maxmemory-policy noeviction"]
    digests = {"REDIS_PASSWORD": "#sha256-of-the-password", "REDIS_ADMIN_PASSWORD": "#sha256-of-the-admins-password"}
    users = [re.sub(r">\$\{(\w+):\?[^}]+\}", lambda found: digests[found[1]], line) for line in content[3:]]
    assert users == (ROOT / "deploy" / "redis-users.acl").read_text(encoding="utf-8").splitlines()
    for name, value in services["worker"]["environment"].items():
        monkeypatch.setenv(name, re.sub(r"\$\{[^}]+\}", "password", value))
    settings = load_settings()
    assert settings.agent("sample").url == f"http://sample-agent:{9101}"
    for name in ("worker", "follower"):
        assert services[name]["command"] == procfile()[name]
    assert services["web"]["command"] == procfile()["web"].replace("127.0.0.1", "0.0.0.0")


def test_the_compose_files_agent_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its card names the address that it is configured under, not the one it listens at."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    options = read_options(shlex.split(services["sample-agent"]["command"])[3:])
    card = MessageToDict(build_card(options.kind, options.public_url, options.name))
    monkeypatch.setenv("DELEGATION_AGENTS", services["worker"]["environment"]["DELEGATION_AGENTS"])
    assert check_card(load_settings().agent("sample"), card).interface.url == "http://sample-agent:9101/rpc"


def procfile() -> dict[str, str]:
    lines = (ROOT / "Procfile").read_text(encoding="utf-8").splitlines()
    return dict(line.split(": ", 1) for line in lines)


def test_the_procfile_runs_web_workers_follower_and_flower() -> None:
    """Flower shows everything, so it listens on this machine only."""
    commands = {name: shlex.split(command) for name, command in procfile().items()}
    assert set(commands) == {"web", "worker", "ends", "follower", "flower"}
    assert commands["web"][:3] == ["gunicorn", "-c", "python:web.server"]
    assert "--address=127.0.0.1" in commands["flower"]
