"""The Atropos-compatible API of a run, under /atropos/<key>/: unmodified Atropos environments, trainers and tools.

    app ──► environments | data | batches | registration     one module per kind of caller, all of them thin
                │              │        │
                │              │        └► services.deliveries   a batch, handed out until it arrived
                │              └► items ─► groups                JSON to a PackedGroup, and back in `encoding`
                └► services.attempts, queue                      who takes part, and how much is waiting

It is a plain ASGI application, mounted before Django: nothing lies between a body and the store. What differs from
Atropos' own server is listed in docs/atropos.md.
"""
