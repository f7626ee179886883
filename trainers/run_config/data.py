"""What a supervised run trains on."""

from pydantic import Field

from trainers.run_config.section import Section


class DataConfig(Section):
    """What a supervised run trains on."""

    path: str = Field(min_length=1)
    """JSONL file with one `{"messages": [{"role", "content"}, ...]}` per line."""
    batch_size: int = Field(default=64, ge=1)
    """Conversations per optimizer step."""
