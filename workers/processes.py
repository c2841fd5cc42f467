"""The processes of a deployment on one machine, each as the command that starts it."""

from __future__ import annotations

FLOWER_PORT = 5555
WEB_PORT = 8080
CONCURRENCY = 32  #: DESIGN §10: threads, most of them waiting for an agent's answer
