"""The kv-canary plan: which KV-cache slots to verify before a step, and where new chain links start."""
