"""Celery's settings are the ones Celery and kombu read: a misspelt option would be ignored in silence."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from celery.app.defaults import SETTING_KEYS
from kombu.transport.redis import Channel

from delegation.due import Step
from delegation.settings import Settings
from workers.celery_settings import (
    END_QUEUE,
    QUEUE,
    TASK_ROUTES,
    app_settings,
    broker_transport_options,
    url_for_celery,
)
from workers.install import install

NAMES = {
    "delegation.delegate",
    "delegation.start_agent_task",
    "delegation.watch",
    "delegation.wake",
    "delegation.finalize",
    "delegation.expire",
    "delegation.release",
    "delegation.clean_up",
    "delegation.expire_workflow",
    "delegation.retire_workflow",
    "delegation.cancel",
    "delegation.cancel_children",
    "delegation.reply",
    "delegation.send_reply",
    "delegation.tell",
}


@pytest.fixture
def app() -> Iterator[Celery]:
    with Celery("settings", set_as_current=False) as app:
        app.conf.update(app_settings(Settings()))
        yield install(app)


def test_every_setting_is_one_of_celerys(app: Celery) -> None:
    """By the names that Celery 5.7 lists; one it reads without listing is seen in the backend's connections."""
    unlisted = {"redis_backend_health_check_interval"}
    assert set(app_settings(Settings())) - unlisted <= SETTING_KEYS
    assert app.backend.connparams["health_check_interval"] == 10


def test_every_transport_option_is_one_of_kombus() -> None:
    """By the names that kombu's Redis channel takes from the options."""
    assert set(broker_transport_options(Settings())) <= set(Channel.from_transport_options)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task_acks_late", True),
        ("task_reject_on_worker_lost", True),
        ("worker_prefetch_multiplier", 1),
        ("accept_content", ["json"]),
        ("result_accept_content", ["json"]),
        ("task_serializer", "json"),
        ("result_serializer", "json"),
        ("event_serializer", "json"),
        ("result_extended", False),
        ("worker_enable_remote_control", False),
        ("task_track_started", True),
        ("worker_soft_shutdown_timeout", 20),
        ("broker_connection_max_retries", None),
        ("broker_connection_retry_on_startup", True),
        ("result_expires", timedelta(days=8).total_seconds()),
        ("task_time_limit", 90),
        ("task_soft_time_limit", 60),
    ],
)
def test_the_agreed_settings_are_in_force(app: Celery, name: str, value: Any) -> None:
    """What durability was measured with is what the app runs with, after everything is merged."""
    assert app.conf[name] == value


def test_the_agreed_transport_options_are_in_force(app: Celery) -> None:
    """A worker's death is noticed in seconds, a frozen Redis in ten; keys stay under our prefix."""
    assert app.conf.broker_transport_options == {
        "visibility_timeout": 300,
        "unacked_restore_interval": 5,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 10,
        "socket_timeout": 10,
        "socket_connect_timeout": 3,
        "socket_keepalive": True,
        "health_check_interval": 10,
        "global_keyprefix": "delegation:celery:",
    }
    assert app.backend.task_keyprefix == b"delegation:celery:celery-task-meta-"


def test_task_names_are_stable_and_routed(app: Celery) -> None:
    """Messages under way survive a deployment only if names do not change; each step has its queue."""
    assert {name for name in app.tasks if name.startswith("delegation.")} == NAMES == set(TASK_ROUTES)
    assert {step.value for step in Step} <= NAMES
    assert {route["queue"] for route in TASK_ROUTES.values()} == {QUEUE, END_QUEUE}
    assert app.amqp.router.route({}, "delegation.finalize")["queue"].name == END_QUEUE


def test_every_step_survives_the_worker_that_runs_it(app: Celery) -> None:
    """Late acknowledgement and redelivery are set on the tasks themselves, so that somebody else's app has them too."""
    for name in NAMES - {"delegation.delegate"}:
        assert (app.tasks[name].acks_late, app.tasks[name].reject_on_worker_lost) == (True, True)
    assert app.tasks["delegation.delegate"].acks_late


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("rediss://r.example/1", "rediss://r.example/1?ssl_cert_reqs=required"),
        ("rediss://r.example/1?ssl_cert_reqs=none", "rediss://r.example/1?ssl_cert_reqs=none"),
        ("unix:///run/redis.sock?db=2", "redis+socket:///run/redis.sock?virtual_host=2"),
    ],
)
def test_celery_is_told_the_address_in_its_own_words(ours: str, theirs: str) -> None:
    """The result backend refuses TLS without a word about certificates, and knows no unix:// scheme."""
    assert url_for_celery(ours) == theirs
