"""Read the configuration once, from `delegation.toml` and the environment, and refuse what cannot be used.

Order: values given in code, then `DELEGATION_…` variables (`__` between levels), then the file, then the defaults.
An empty variable counts as unset. `delegation.example.toml` lists every key with its meaning.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, StringConstraints, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from delegation.auth_settings import Credential, problems_of
from delegation.config_values import (
    AgentId,
    Count,
    Duration,
    FileReference,
    HeaderName,
    HeaderValue,
    KeysReference,
    Origin,
    RedisUrl,
    Retention,
    Seconds,
    ServiceUrl,
    ShownText,
    Specifier,
    WebUrl,
    is_agent_id,
    is_open_http,
    is_open_redis,
    is_unverified_redis,
    refused,
)
from delegation.errors import ConfigurationError, UnknownAgent
from delegation.redaction import conceal, conceal_url, is_secret_name
from delegation.settings_errors import ENV_PREFIX, describe, describe_unreadable_variable, one_line

CONFIG_VARIABLE = "DELEGATION_CONFIG"
DEFAULT_FILE = Path("delegation.toml")


def load_settings(path: Path | None = None) -> Settings:
    """The settings from `path`, else the file named in DELEGATION_CONFIG, else ./delegation.toml if it exists.

    Raises ConfigurationError, one line that begins with the dotted key (`agents.1.url: … (agent flights)`).
    """
    token = _config_file.set(_find_file(path))
    try:
        settings = Settings()
    except ValidationError as error:
        raise ConfigurationError(describe(error, _agent_ids.get())) from None
    except SettingsError as error:
        raise ConfigurationError(describe_unreadable_variable(error)) from None
    finally:
        _config_file.reset(token)
    _refuse_unknown_variables()
    _conceal_secrets(settings)
    return settings


# --- Sections ---------------------------------------------------------------------------------------------------------


class _Section(BaseModel):
    # Inputs may hold secrets, so pydantic must not repeat them in its errors.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class ServerSettings(_Section):
    """`[server]`: how the outside reaches us, and who we are to agents."""

    base_url: WebUrl | None = None
    trusted_proxies: int = Field(default=0, ge=0, le=16)
    participant_id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}$")] = "delegation"


class RedisSettings(_Section):
    """`[redis]`: where the records are."""

    secret_url: RedisUrl = Field(default=SecretStr("redis://127.0.0.1:6379/0"), alias="url")
    key_prefix: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:{}-]{1,64}$")] = "delegation:"

    @property
    def url(self) -> str:
        """In clear, password included: for clients only, never for a log."""
        return self.secret_url.get_secret_value()


class CelerySettings(_Section):
    """`[celery]`: whose app carries the tasks; broker and results are in `[redis] url` unless named here."""

    app: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*(:[A-Za-z_][A-Za-z0-9_.]*)?$")] = (
        "workers.app:app"
    )
    secret_broker_url: ServiceUrl | None = Field(default=None, alias="broker_url")
    secret_result_backend: ServiceUrl | None = Field(default=None, alias="result_backend")

    @property
    def broker_url(self) -> str | None:
        return self.secret_broker_url.get_secret_value() if self.secret_broker_url else None

    @property
    def result_backend(self) -> str | None:
        return self.secret_result_backend.get_secret_value() if self.secret_result_backend else None


class DefaultSettings(_Section):
    """`[defaults]`: how long a delegation may take, and how long it is remembered."""

    deadline: Duration = timedelta(hours=24)
    max_deadline: Duration = timedelta(days=7)
    retention: Retention = timedelta(days=7)

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.deadline > self.max_deadline:
            raise refused(("deadline", "must be at most defaults.max_deadline"))
        return self


class TimingSettings(_Section):
    """`[timing]`: when to look again, and when to stop."""

    call_deadline: Duration = timedelta(seconds=30)
    lease_margin: Duration = timedelta(seconds=15)
    hint_patience: Duration = timedelta(seconds=15)
    poll_first: Duration = timedelta(seconds=2)
    poll_max: Duration = timedelta(seconds=30)
    recheck_first: Duration = timedelta(seconds=60)
    recheck_max: Duration = timedelta(hours=6)
    unavailable_after: Duration = timedelta(minutes=15)
    retry_first: Duration = timedelta(seconds=2)
    retry_max: Duration = timedelta(seconds=60)
    refetch: Seconds = (1.0, 2.0, 4.0)
    min_fetch_gap: Duration = timedelta(seconds=1)
    lost_after: Duration = timedelta(seconds=60)
    cleanup_for: Duration = timedelta(hours=24)
    cancel_deadline: Duration = timedelta(seconds=60)
    stream_start: Duration = timedelta(seconds=10)
    follow_idle: Duration = timedelta(seconds=60)
    follow_lease: Duration = timedelta(seconds=30)
    sweep_interval: Duration = timedelta(seconds=0.25)
    card_ttl: Duration = timedelta(hours=1)

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        names = [n for n in ("poll", "recheck", "retry") if getattr(self, f"{n}_first") > getattr(self, f"{n}_max")]
        if names:
            raise refused(*((f"{name}_first", f"must be at most timing.{name}_max") for name in names))
        return self


class LimitSettings(_Section):
    """`[limits]`: how much of anything we take."""

    calls_per_agent: Count = 8
    attempts: Count = 5
    card_bytes: Count = 1024 * 1024
    answer_bytes: Count = 8 * 1024 * 1024
    push_bytes: Count = 65_536
    history: Count = 200
    message_text_bytes: Count = 65_536
    artifact_bytes: Count = 1024 * 1024
    event_bytes: Count = 1024 * 1024
    rounds: Count = 20
    same_turns: Count = 3
    notes: Count = 1000
    depth: Count = 8
    streams: Count = 2000
    calls_per_second: Count = 200
    breaker_failures: Count = 10
    failed_credentials: Count = 30


class AgentSettings(_Section):
    """`[[agents]]`: one agent that work may be delegated to."""

    id: AgentId
    url: WebUrl
    version: Specifier | None = None
    name: ShownText | None = None
    description: ShownText | None = None
    skills: tuple[ShownText, ...] | None = None
    updates: Literal["auto", "push", "follow", "poll", "off"] = "auto"
    follow_interval: Duration = timedelta(seconds=30)
    secret_headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict, alias="headers")
    auth: tuple[Credential, ...] = ()
    card_auth: tuple[Credential, ...] = ()
    card: FileReference | None = None
    require_signature: bool = False
    signature_keys: KeysReference | None = None
    ca_bundle: FileReference | None = None
    proxy: WebUrl | None = None
    origins: tuple[Origin, ...] = ()
    allow_http: bool = False
    on_ambiguous_send: Literal["reconcile", "resend"] = "reconcile"
    protocol: Literal["1.0", "0.3"] = "1.0"

    @property
    def headers(self) -> dict[str, str]:
        """In clear, secrets included: for calls to this agent only, never for a log."""
        return {name: value.get_secret_value() for name, value in self.secret_headers.items()}

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        if problems := list(self._problems()):
            raise refused(*problems)
        return self

    def _problems(self) -> Iterator[tuple[str, str]]:
        addresses = {"url": self.url} | {f"origins.{n}": origin for n, origin in enumerate(self.origins)}
        for key, address in addresses.items():
            if not self.allow_http and is_open_http(address):
                yield key, "must be https unless the host is loopback or allow_http = true"
        if len({name.lower() for name in self.secret_headers}) < len(self.secret_headers):
            yield "headers", "two names differ in upper and lower case only"
        yield from problems_of("auth", self.auth, allow_http=self.allow_http)
        yield from problems_of("card_auth", self.card_auth, allow_http=self.allow_http)
        if self.require_signature and self.signature_keys is None:
            yield "require_signature", "needs signature_keys: a file or an https URL with the signer's public keys"
        if (self.proxy or "").startswith("https:"):
            yield "proxy", "must be an http URL: what it carries for https is encrypted all the same"
        if (url := self.signature_keys or "").startswith("http") and not self.allow_http and is_open_http(url):
            yield "signature_keys", "must be https unless the host is loopback or allow_http = true"


class Settings(BaseSettings):
    """Everything an operator can decide. Frozen; passwords and header values are masked in its repr and dumps."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
    )

    allow_insecure: bool = False
    server: ServerSettings = ServerSettings()
    redis: RedisSettings = RedisSettings()
    celery: CelerySettings = CelerySettings()
    defaults: DefaultSettings = DefaultSettings()
    timing: TimingSettings = TimingSettings()
    limits: LimitSettings = LimitSettings()
    agents: tuple[AgentSettings, ...] = ()

    def agent(self, agent_id: str) -> AgentSettings:
        """The agent registered under `agent_id`; raises UnknownAgent, which names the valid ids."""
        for agent in self.agents:
            if agent.id == agent_id:
                return agent
        raise UnknownAgent(agent_id, [agent.id for agent in self.agents])

    @model_validator(mode="before")
    @classmethod
    def _note_ids(cls, values: Any) -> Any:
        """So that what is said of agents.1 can name it, whatever is wrong with it."""
        agents = values.get("agents") if isinstance(values, dict) else None
        listed = agents if isinstance(agents, list | tuple) else ()
        ids = [each.get("id") if isinstance(each, dict) else None for each in listed]
        _agent_ids.set(tuple(each if isinstance(each, str) and is_agent_id(each) else "" for each in ids))
        return values

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        if problems := [*self._repeated_ids(), *([] if self.allow_insecure else self._open_addresses())]:
            raise refused(*problems)
        return self

    def _repeated_ids(self) -> Iterator[tuple[str, str]]:
        first: dict[str, int] = {}
        for position, agent in enumerate(self.agents):
            if first.setdefault(agent.id, position) != position:
                yield f"agents.{position}.id", f"is the id of agents.{first[agent.id]} already"

    def _open_addresses(self) -> Iterator[tuple[str, str]]:
        unless = "unless the host is loopback or DELEGATION_ALLOW_INSECURE=1"
        if self.server.base_url and is_open_http(self.server.base_url):
            yield "server.base_url", f"must be https {unless}"
        urls = {
            "redis.url": self.redis.url,
            "celery.broker_url": self.celery.broker_url,
            "celery.result_backend": self.celery.result_backend,
        }
        for key, url in urls.items():
            if url and is_open_redis(url):
                yield key, f"must have a password {unless}"
            if url and is_unverified_redis(url):
                yield key, f"must not have ssl_cert_reqs=none {unless}"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  named by pydantic-settings
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003  named by pydantic-settings
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What is given in code beats the environment, so that a test never reaches an operator's Redis."""
        path = _config_file.get()
        return init_settings, env_settings, *([_read_file(settings_cls, path)] if path else [])


# pydantic-settings offers no argument for the file of one single load; only load_settings sets this.
_config_file: ContextVar[Path | None] = ContextVar("_config_file", default=None)
#: Of the agents of the settings that were read last, in their order; empty where there is none that can be one.
_agent_ids: ContextVar[tuple[str, ...]] = ContextVar("_agent_ids", default=())


def _conceal_secrets(settings: Settings) -> None:
    """Those written in clear; what stands behind a reference is concealed when it is read."""
    for url in (settings.redis.url, settings.celery.broker_url, settings.celery.result_backend):
        conceal_url(url or "")
    for agent in settings.agents:
        for name, value in agent.headers.items():
            if is_secret_name(name) or name.lower().endswith("key"):
                conceal(value, for_good=True)


# --- The file ---------------------------------------------------------------------------------------------------------


def _find_file(path: Path | None) -> Path | None:
    named = os.environ.get(CONFIG_VARIABLE)
    if path is None and not named:
        return DEFAULT_FILE if DEFAULT_FILE.is_file() else None
    wanted = path if path is not None else Path(str(named)).expanduser()
    if not wanted.is_file():
        source = "" if path is not None else f"{CONFIG_VARIABLE}: "
        raise ConfigurationError(one_line(f"{source}{wanted}: no such file"))
    return wanted


def _read_file(settings_cls: type[BaseSettings], path: Path) -> TomlConfigSettingsSource:
    try:
        return TomlConfigSettingsSource(settings_cls, toml_file=path)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        where = error if isinstance(error, tomllib.TOMLDecodeError) else "not UTF-8"
        raise ConfigurationError(f"{one_line(str(path))}: not TOML: {one_line(str(where))}") from None
    except OSError as error:
        raise ConfigurationError(f"{one_line(str(path))}: {error.strerror}") from None


def _refuse_unknown_variables() -> None:
    """A misspelt section would otherwise be ignored. Names without `__` may belong to others (Kubernetes sets some)."""
    for name in sorted(os.environ):
        section, nested, rest = name.upper().removeprefix(ENV_PREFIX).lower().partition("__")
        if name.upper().startswith(ENV_PREFIX) and nested and section not in Settings.model_fields:
            raise ConfigurationError(one_line(f"{section}.{rest.replace('__', '.')}: unknown key (set by {name})"))
