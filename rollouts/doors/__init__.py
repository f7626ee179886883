"""HTTP: one kernel, and a door for each protocol.

native ──► kernel ◄── atropos        addresses, keys and words; cold routes of native stay with Django
             │
             ├─► reading, admission, compression, threads, sending
             └─► formats, services
"""
