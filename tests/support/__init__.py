"""What the tests and benches stand on: agents that do as they are told, and real processes with handles."""
