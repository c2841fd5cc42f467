"""What the SDK is given: a client bound to the interface that was checked, and messages in its own types."""

from __future__ import annotations

import httpx
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AuthenticationInfo,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    TaskPushNotificationConfig,
)
from google.protobuf.struct_pb2 import Value

from delegation.agent_task import OutgoingMessage, PushConfig
from delegation.cards import CheckedCard
from delegation.outgoing import with_sender

#: Enough to hold the agent's last message, which may stand before one of ours.
HISTORY = 2


def build_sdk_client(card: CheckedCard, client: httpx.AsyncClient, *, streaming: bool) -> Client:
    """The SDK gets a card with the one interface that was checked, so it cannot choose another."""
    interface = AgentInterface(
        url=card.interface.url,
        protocol_binding=card.interface.binding,
        protocol_version=card.interface.protocol_version,
        tenant=card.interface.tenant,
    )
    config = ClientConfig(
        streaming=streaming, httpx_client=client, supported_protocol_bindings=[card.interface.binding]
    )
    return ClientFactory(config).create(
        AgentCard(
            name=card.name,
            version=card.version,
            supported_interfaces=[interface],
            capabilities=AgentCapabilities(streaming=streaming, extended_agent_card=True),
        )
    )


def build_send(message: OutgoingMessage, participant_id: str, push: PushConfig | None) -> SendMessageRequest:
    """A message of ours, to be taken without waiting for the work; JSON of its own is put back later (outgoing.py)."""
    texts = [Part(text=text) for text in message.texts]
    null = Value(null_value=0)  # type: ignore[arg-type]  # see outgoing.py
    data = [Part(data=null, media_type=part.media_type) for part in message.data]
    request = SendMessageRequest(
        message=Message(
            message_id=message.message_id,
            context_id=message.context_id,
            task_id=message.agent_task_id or "",
            role=Role.ROLE_USER,
            parts=[*texts, *data],
            metadata={
                key: value for key, value in with_sender(message, participant_id).items() if isinstance(value, str)
            },
        ),
        configuration=SendMessageConfiguration(return_immediately=True, history_length=HISTORY),
    )
    if push is not None:
        request.configuration.task_push_notification_config.CopyFrom(_build_push_config(push))
    return request


def _build_push_config(push: PushConfig) -> TaskPushNotificationConfig:
    """Both ways to prove a push, since senders differ in which of the two headers they send."""
    return TaskPushNotificationConfig(
        id=push.id,
        url=push.url,
        token=push.token,
        authentication=AuthenticationInfo(scheme="Bearer", credentials=push.token),
    )
