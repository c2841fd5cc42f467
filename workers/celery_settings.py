"""Celery's settings as this project needs them; reasons beside each, numbers from measurements (docs/decisions)."""

from __future__ import annotations

from typing import Any

from delegation.settings import Settings

QUEUE = "delegations"  #: steps that call an agent
END_QUEUE = "delegations.end"  #: steps that end something and call no agent: never behind a slow one

TASK_ROUTES = {
    "delegation.delegate": {"queue": QUEUE},
    "delegation.start_agent_task": {"queue": QUEUE},
    "delegation.watch": {"queue": QUEUE},
    "delegation.wake": {"queue": QUEUE},
    "delegation.send_reply": {"queue": QUEUE},
    "delegation.cancel": {"queue": QUEUE},  # calls an agent, which may be slow
    "delegation.reply": {"queue": QUEUE},
    "delegation.clean_up": {"queue": QUEUE},
    "delegation.finalize": {"queue": END_QUEUE},
    "delegation.expire": {"queue": END_QUEUE},
    "delegation.release": {"queue": END_QUEUE},
    "delegation.tell": {"queue": END_QUEUE},
    "delegation.cancel_children": {"queue": END_QUEUE},
    "delegation.expire_workflow": {"queue": END_QUEUE},
    "delegation.retire_workflow": {"queue": END_QUEUE},
}


def celery_prefix(settings: Settings) -> str:
    """Broker and result keys live under our own prefix; kombu and the result backend add nothing after a ':'."""
    return f"{settings.redis.key_prefix}celery:"


def broker_transport_options(settings: Settings) -> dict[str, Any]:
    """Of the Redis transport. A misspelt option is ignored in silence: a test asserts each."""
    return {
        "visibility_timeout": 300,  # longer than any step; nothing is parked unacknowledged
        "unacked_restore_interval": 5,  # the defaults bring a dead worker's message back after 100 s
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 10,  # a worker killed while restoring would block the others for 300 s
        "socket_timeout": 10,
        "socket_connect_timeout": 3,
        "socket_keepalive": True,
        "health_check_interval": 10,
        "global_keyprefix": celery_prefix(settings),
    }


def app_settings(settings: Settings) -> dict[str, Any]:
    """The whole configuration of our own app."""
    return {
        "broker_url": settings.celery.broker_url or url_for_celery(settings.redis.url),
        "result_backend": settings.celery.result_backend or url_for_celery(settings.redis.url),
        "broker_transport_options": broker_transport_options(settings),
        "result_backend_transport_options": {"global_keyprefix": celery_prefix(settings)},
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,  # the default gives up after 100 and the worker exits
        "broker_channel_error_retry": True,
        "redis_socket_timeout": 10.0,
        "redis_socket_connect_timeout": 3.0,
        "redis_backend_health_check_interval": 10,
        "redis_max_connections": 64,
        "task_serializer": "json",
        "result_serializer": "json",
        "event_serializer": "json",
        "accept_content": ["json"],
        "result_accept_content": ["json"],
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "worker_prefetch_multiplier": 1,
        "task_track_started": True,
        "result_extended": False,
        "result_expires": result_expires_s(settings),
        "task_default_queue": QUEUE,
        "task_soft_time_limit": 60,  # prefork only; in threads every call has its own deadline
        "task_time_limit": 90,
        "worker_send_task_events": True,
        "worker_soft_shutdown_timeout": 20,
        "worker_enable_remote_control": False,  # anyone who reaches Redis could shut workers down
        "worker_hijack_root_logger": False,
    }


def url_for_celery(url: str) -> str:
    """A Redis address as kombu and the result backend write it: sockets named otherwise, TLS spelled out."""
    if url.startswith("unix://"):
        path, _, query = url.removeprefix("unix://").partition("?")
        return f"redis+socket://{path}" + (f"?{query.replace('db=', 'virtual_host=')}" if query else "")
    if url.startswith("rediss://") and "ssl_cert_reqs=" not in url:
        return f"{url}{'&' if '?' in url else '?'}ssl_cert_reqs=required"
    return url


def result_expires_s(settings: Settings) -> int:
    """Longer than any delegation may be parked: a native chord whose parts expire never runs its body, in silence."""
    return int(settings.defaults.max_deadline.total_seconds()) + 86400
