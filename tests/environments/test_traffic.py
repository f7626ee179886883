"""Back-pressure: the tokens that all sessions ask for together have a limit, and who waits has its turn."""

import asyncio

from environments.traffic import Traffic


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_requests_beyond_the_limit_wait_in_order() -> None:
    async def act() -> list[int]:
        traffic, began = Traffic(100), list[int]()
        doors = [asyncio.Event() for _ in range(4)]

        async def ask(number: int, tokens: int) -> None:
            async with traffic.admitted(tokens):
                began.append(number)
                await doors[number].wait()

        tasks = [asyncio.create_task(ask(number, tokens)) for number, tokens in enumerate((60, 60, 10, 90))]
        await settle()
        assert (began, traffic.queued, traffic.tokens, traffic.asking) == ([0], 3, 60, 1), "a small one passes nobody"
        doors[0].set()
        await settle()
        assert (began, traffic.queued, traffic.tokens) == ([0, 1, 2], 1, 70)
        doors[1].set(), doors[2].set(), doors[3].set()
        await asyncio.gather(*tasks)
        assert (traffic.tokens, traffic.asking, traffic.queued) == (0, 0, 0)
        return began

    assert asyncio.run(act()) == [0, 1, 2, 3]


def test_a_request_larger_than_the_limit_goes_alone() -> None:
    async def act() -> None:
        traffic = Traffic(10)
        async with traffic.admitted(500):
            other = asyncio.create_task(traffic.admitted(1).__aenter__())
            await settle()
            assert not other.done()
        await asyncio.wait_for(other, 5)

    asyncio.run(act())


def test_who_gives_up_waiting_holds_up_nobody() -> None:
    async def act() -> None:
        traffic = Traffic(10)

        async def ask(tokens: int) -> None:
            async with traffic.admitted(tokens):
                pass

        async with traffic.admitted(6):
            large, small = asyncio.create_task(ask(10)), asyncio.create_task(ask(4))
            await settle()
            assert traffic.queued == 2
            large.cancel()
            await asyncio.wait_for(small, 5)
            # Let in and cancelled at the same time.
        first = traffic.admitted(10)
        await first.__aenter__()
        late = asyncio.create_task(ask(10))
        await settle()
        await first.__aexit__(None, None, None)
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
        assert (traffic.tokens, traffic.queued) == (0, 0)

    asyncio.run(act())
