"""Places where a test can stop the world: before and after every write, frame and act."""

import asyncio


class Points:
    """Numbers every place that is passed; at place `kill_at` the process "dies": nothing goes on from there."""

    def __init__(self, kill_at: int = 0) -> None:
        self.kill_at = kill_at
        self.passed: list[str] = []
        self.dead = asyncio.Event()

    async def at(self, name: str) -> None:
        if not self.dead.is_set():
            self.passed.append(name)
            if len(self.passed) == self.kill_at:
                self.dead.set()
        if self.dead.is_set():
            await asyncio.Event().wait()
