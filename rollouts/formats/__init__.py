"""Bytes to groups and batches, and back. Knows no HTTP: what is wrong is raised as Invalid, whose faults are data.

native, atropos.items ─► arrays.PackedGroup ─► checks ─► services store it
rows ─► native, atropos.encoding ─► batch_body
"""
