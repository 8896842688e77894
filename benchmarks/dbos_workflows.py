"""The peer: DBOS doing the same durable work. Run by the Python of `.peers`: URL, workflows, callers at a time.

Prints wall seconds for the workflows, each of 10 trivial steps, as JSON.
"""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from dbos import DBOS

URL, WORKFLOWS, CALLERS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
DBOS(config={"name": "bench", "system_database_url": URL, "log_level": "ERROR", "run_admin_server": False})


@DBOS.step()  # type: ignore[untyped-decorator]
def step(number: int) -> int:
    return number


@DBOS.workflow()  # type: ignore[untyped-decorator]
def workflow(_number: int) -> int:
    return sum(step(number) for number in range(10))


DBOS.launch()
workflow(0)
started = time.perf_counter()
with ThreadPoolExecutor(CALLERS) as pool:
    list(pool.map(workflow, range(WORKFLOWS)))
print(json.dumps(time.perf_counter() - started), flush=True)
os._exit(0)
