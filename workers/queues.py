"""How long our queues are, asked of the broker."""

from __future__ import annotations

from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError

from workers.celery_settings import END_QUEUE, QUEUE


def queue_lengths(app: Celery, queues: tuple[str, ...] = (QUEUE, END_QUEUE)) -> dict[str, int]:
    """Messages waiting in each queue (those a worker holds are not counted). Raises kombu's OperationalError."""
    pool: Any = app.pool
    with pool.acquire(block=True) as connection:
        channel = connection.default_channel
        lengths = {}
        for name in queues:
            try:
                # Declared, not asked passively: that looks for the key without kombu's global prefix.
                lengths[name] = int(channel.queue_declare(queue=name, durable=True).message_count)
            except connection.connection_errors as error:
                raise OperationalError(str(error)) from error
        return lengths
