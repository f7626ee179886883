"""The tool server of the sums. verifiers starts it as a program."""

import verifiers.v1 as vf


class Calls(vf.State):
    count: int = 0


class SumsTools(vf.Toolset[vf.ToolsetConfig, Calls]):
    TOOL_PREFIX = "sums"

    @vf.tool
    async def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        self.state.count += 1
        return a + b


if __name__ == "__main__":
    SumsTools.run()
