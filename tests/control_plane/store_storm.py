"""A process that writes as fast as it can and says what was acknowledged; run by the durability tests, and killed.

`python store_storm.py URL WRITERS FIRST`: each transaction puts a number into two tables; the number is printed only
once the store has said that it is stored. What was refused, or whose outcome is unknown, is not repeated.
"""

import asyncio
import os
import sys
from itertools import count

from control_plane.store import Store, StoreUnavailable, Transaction, open_store


def put(tx: Transaction, number: int) -> None:
    tx.run("INSERT INTO first (number) VALUES (:number)", {"number": number})
    tx.run("INSERT INTO second (number) VALUES (:number)", {"number": number})


async def storm(store: Store, numbers: "count[int]") -> None:
    while True:
        number = next(numbers)
        try:
            await store.write(put, number)
        except StoreUnavailable:
            await asyncio.sleep(0.05)
        else:
            os.write(1, f"{number}\n".encode())


async def main(url: str, writers: int, first: int) -> None:
    store = open_store(url)
    numbers = count(first)
    await asyncio.gather(*(storm(store, numbers) for _ in range(writers)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
