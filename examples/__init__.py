"""Agents to delegate to in the demo and the tests; nothing in here imports the project's own packages."""
