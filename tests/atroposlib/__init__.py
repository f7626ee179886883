"""Unmodified Atropos clients against a whole Rollyard: what runs in `.venv-atropos`, and what runs beside it."""
