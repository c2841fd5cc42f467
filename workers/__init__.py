"""THE QUEUE: decides when a step runs, never what it does.

``web → workers → delegation``: this room knows Celery and the library; it imports no web. What users need is here.
"""

from delegation.join_policy import quorum
from workers.canvas import delegate
from workers.handles import DelegationHandle, Workflow
from workers.install import install
from workers.talk import reply

__all__ = ["DelegationHandle", "Workflow", "delegate", "install", "quorum", "reply"]
