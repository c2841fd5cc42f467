"""Tests in tiers by what must be running: unit (nothing), integration (Valkey, an agent), acceptance (everything)."""
