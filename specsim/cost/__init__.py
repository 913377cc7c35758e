"""What a cycle costs: its terms, the fitted model, and what an NCCL setting changes (never what is accepted)."""
