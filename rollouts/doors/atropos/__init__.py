"""The Atropos-compatible API of a run, under /atropos/<key>/: unmodified Atropos environments, trainers and tools.

    app ──► environments | data | trainers                   one module per kind of caller, all of them thin
                │              │        │
                │              │        └► services.outside.deliveries   a batch, handed out until it arrived
                │              └► formats.atropos                JSON to a PackedGroup, and back
                └► services.outside.attempts, queue                      who takes part, and how much is waiting

What differs from Atropos' own server is listed in docs/atropos.md.
"""
