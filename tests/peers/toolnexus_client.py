"""toolnexus's own client: `python -m tests.peers.toolnexus_client CARD TIMEOUT_MS POLL_MS TEXT…`.

It prints what it makes of an agent, as one JSON object: its tools, and the result of the first for each text.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from toolnexus import agent
from toolnexus.a2a import agent_tools


async def ask(card: str, timeout_ms: int, poll_ms: int, texts: list[str]) -> dict[str, Any]:
    tools = await agent_tools(agent(card, timeout=timeout_ms, poll_every=poll_ms))
    results = [await tools[0].execute({"task": text}) for text in texts]
    return {
        "tools": [[tool.name, tool.description, tool.source] for tool in tools],
        "results": [[each.output, each.is_error, each.metadata] for each in results],
    }


if __name__ == "__main__":
    card, timeout_ms, poll_ms, *texts = sys.argv[1:]
    print(json.dumps(asyncio.run(ask(card, int(timeout_ms), int(poll_ms), texts))))
