"""The control log: what agents share, replicated; a help, never a condition (design §3)."""
