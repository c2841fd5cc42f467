"""A peer on toolnexus's own server: `python -m tests.peers.toolnexus_agent [--port N]`; its "model" is a function."""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from toolnexus import create_in_process_client, create_toolkit

SKILL = """---
name: hello-world
description: says hello
---
Say hello.
"""
HELD_S = 60.0


def generate(request: dict[str, Any]) -> dict[str, Any]:
    """The last message is the task's text."""
    text = request["messages"][-1].get("content") or ""
    if text.startswith("fail"):
        raise RuntimeError("model down")
    if text.startswith("hold"):
        time.sleep(HELD_S)
    return {"content": f"done: {text}"}


async def serve(port: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        skill = Path(directory) / "hello-world" / "SKILL.md"
        skill.parent.mkdir()
        skill.write_text(SKILL, encoding="utf-8")
        client = create_in_process_client(model="scripted", generate=generate)
        toolkit = await create_toolkit(skills_dir=directory, builtins=False)
        handle = await toolkit.serve(f"127.0.0.1:{port}", client=client, a2a={"name": "video-desk"})
        print(json.dumps({"ready": handle.url}), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    asyncio.run(serve(parser.parse_args().port))
