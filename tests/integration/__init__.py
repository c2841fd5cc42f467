"""A real Valkey, and real agents in other processes."""
