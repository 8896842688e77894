"""What every store promises, on SQLite and on PostgreSQL alike."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from enum import Enum, StrEnum
from itertools import count

import msgspec
import pytest

from control_plane.store import (
    Constraint,
    ConstraintViolated,
    Store,
    StoreClosed,
    StoreMisuse,
    StoreReadOnly,
    Transaction,
    open_store,
    params_of,
)


class State(StrEnum):
    IDLE = "idle"
    BUSY = "busy"


class Colour(Enum):
    RED = 1


class Node(msgspec.Struct, frozen=True):
    id: str
    state: State
    size: int
    powered: bool
    labels: dict[str, str]
    weight: float | None = None
    key: bytes | None = None


_TABLES = (
    """CREATE TABLE nodes (id TEXT PRIMARY KEY, state TEXT NOT NULL, size BIGINT NOT NULL CHECK (size >= 0),
       powered BOOLEAN NOT NULL, labels TEXT NOT NULL, weight DOUBLE PRECISION, key {{bytes}})""",
    "CREATE TABLE ports (number {{serial}}, node_id TEXT NOT NULL REFERENCES nodes (id), colour BIGINT)",
    """CREATE TABLE links (id TEXT PRIMARY KEY,
       node_id TEXT NOT NULL REFERENCES nodes (id) DEFERRABLE INITIALLY DEFERRED)""",
)
_INSERT = """INSERT INTO nodes (id, state, size, powered, labels, weight, key)
             VALUES (:id, :state, :size, :powered, :labels, :weight, :key)"""
_SELECT = "SELECT id, state, size, powered, labels, weight, key FROM nodes"


def make_tables(tx: Transaction) -> None:
    for table in _TABLES:
        tx.run(table)


def add(tx: Transaction, node_id: str, size: int = 1) -> None:
    tx.run(_INSERT, params_of(Node(node_id, State.IDLE, size, False, {})))


def ids(tx: Transaction) -> list[str]:
    return [row[0] for row in tx.all("SELECT id FROM nodes ORDER BY id")]


def grow(tx: Transaction, node_id: str) -> int:
    row = tx.one("SELECT size FROM nodes WHERE id = :id FOR UPDATE", {"id": node_id})
    assert row is not None
    tx.run("UPDATE nodes SET size = :size WHERE id = :id", {"id": node_id, "size": row[0] + 1})
    size: int = row[0] + 1
    return size


@pytest.fixture
async def nodes(store: Store) -> Store:
    await store.write(make_tables)
    return store


class TestRows:
    async def test_a_record_comes_back_as_it_was_stored(self, nodes: Store) -> None:
        node = Node("n1", State.BUSY, 2**40, True, {"rack": "é'7"}, 1.5, b"\x00\xff")
        await nodes.write(lambda tx: tx.run(_INSERT, params_of(node)))
        assert await nodes.read(lambda tx: tx.one(_SELECT, into=Node)) == node
        assert await nodes.read(lambda tx: tx.all(_SELECT, into=Node)) == [node]

    async def test_the_columns_may_come_in_any_order(self, nodes: Store) -> None:
        await nodes.write(add, "n1")
        sql = "SELECT labels, powered, size, state, id FROM nodes"
        assert await nodes.read(lambda tx: tx.one(sql, into=Node)) == Node("n1", State.IDLE, 1, False, {})

    async def test_without_a_record_type_a_row_is_a_tuple(self, nodes: Store) -> None:
        await nodes.write(add, "n1")
        row = await nodes.read(lambda tx: tx.one("SELECT id, size, powered, weight FROM nodes"))
        assert row == (
            "n1",
            1,
            0,
            None,
        )

    async def test_no_row_is_none(self, nodes: Store) -> None:
        assert await nodes.read(lambda tx: tx.one(_SELECT, into=Node)) is None
        assert await nodes.read(lambda tx: tx.all(_SELECT, into=Node)) == []

    async def test_a_second_row_is_refused_where_one_was_asked_for(self, nodes: Store) -> None:
        await nodes.write(add, "n1")
        await nodes.write(add, "n2")
        with pytest.raises(StoreMisuse, match="more than one row"):
            await nodes.read(lambda tx: tx.one(_SELECT))

    async def test_columns_that_do_not_fit_the_record_are_all_named(self, nodes: Store) -> None:
        await nodes.write(add, "n1")
        with pytest.raises(StoreMisuse, match=r"among its fields: colour; not selected: size, powered, labels"):
            await nodes.read(lambda tx: tx.one("SELECT id, state, 1 AS colour FROM nodes", into=Node))

    async def test_a_stored_value_that_does_not_fit_is_named_but_not_shown(self, nodes: Store) -> None:
        await nodes.write(add, "n1")
        await nodes.write(lambda tx: tx.run("UPDATE nodes SET state = 'hunter2'"))
        with pytest.raises(StoreMisuse, match=r"Node\.state") as caught:
            await nodes.read(lambda tx: tx.one(_SELECT, into=Node))
        assert "hunter2" not in str(caught.value)

    async def test_enums_are_stored_as_their_values(self, nodes: Store) -> None:
        class Port(msgspec.Struct, frozen=True):
            node_id: str
            colour: Colour

        def paint(tx: Transaction) -> Port | None:
            add(tx, "n1")
            tx.run(
                "INSERT INTO ports (node_id, colour) VALUES (:node_id, :colour)", params_of(Port("n1", Colour.RED))
            )
            assert tx.one("SELECT colour FROM ports") == (1,)
            return tx.one("SELECT node_id, colour FROM ports", into=Port)

        assert await nodes.write(paint) == Port("n1", Colour.RED)

    async def test_a_string_enum_can_be_a_parameter(self, nodes: Store) -> None:
        await nodes.write(add, "n1")
        sql = "SELECT id FROM nodes WHERE state = :state"
        assert await nodes.read(lambda tx: tx.one(sql, {"state": State.IDLE})) == ("n1",)

    async def test_a_sum_is_a_number(self, nodes: Store) -> None:
        await nodes.write(add, "n1", 2)
        row = await nodes.read(lambda tx: tx.one("SELECT sum(size) FROM nodes"))
        assert row == (2,)
        assert type(row[0]) is int


class TestStatements:
    async def test_a_list_of_any_length_is_one_parameter(self, nodes: Store) -> None:
        for number in range(4):
            await nodes.write(add, f"n{number}", number)

        def chosen(tx: Transaction, condition: str, values: Sequence[object]) -> list[str]:
            return [row[0] for row in tx.all(f"SELECT id FROM nodes WHERE {condition} ORDER BY id", {"list": values})]

        assert await nodes.read(chosen, "id IN EACH(:list)", ["n1", "n3", "n9"]) == ["n1", "n3"]
        assert await nodes.read(chosen, "id IN EACH(:list)", []) == []
        assert await nodes.read(chosen, "size NOT IN EACH(:list)", [0, 1]) == ["n2", "n3"]

    async def test_many_rows_go_in_and_are_changed_by_one_statement(self, nodes: Store) -> None:
        def fill(tx: Transaction) -> int:
            return tx.run(
                "INSERT INTO nodes (id, state, size, powered, labels) "
                "SELECT r.id, 'idle', r.size, r.powered, r.labels "
                "FROM ROWS(:rows AS r (id TEXT, size BIGINT, powered BOOLEAN, labels TEXT))",
                {"rows": [["n1", 1, False, '{"a": "it\'s"}'], ["n2", 2**40, True, "{}"]]},
            )

        def change(tx: Transaction) -> int:
            return tx.run(
                "UPDATE nodes SET size = r.size FROM ROWS(:rows AS r (id TEXT, size BIGINT)) WHERE nodes.id = r.id",
                {"rows": [["n1", 7], ["n2", 8], ["n9", 9]]},
            )

        assert await nodes.write(fill) == 2
        found = await nodes.read(lambda tx: tx.all(f"{_SELECT} ORDER BY id", into=Node))
        assert [(row.id, row.size, row.powered) for row in found] == [("n1", 1, False), ("n2", 2**40, True)]
        assert found[0].labels == {"a": "it's"}
        assert await nodes.write(change) == 2
        assert await nodes.read(lambda tx: tx.all("SELECT id, size FROM nodes ORDER BY id")) == [("n1", 7), ("n2", 8)]

    @pytest.mark.parametrize("count", [0, 1, 9, 63, 64, 65, 200])
    async def test_however_many_rows_there_are_each_goes_in_once_and_in_order(self, nodes: Store, count: int) -> None:
        rows = [[place, f"n{place * 7919 % 1000}"] for place in range(count)]
        sql = (
            "INSERT INTO nodes (id, state, size, powered, labels) SELECT r.id, 'idle', r.place, :powered, '{}' "
            "FROM ROWS(:rows AS r (place BIGINT, id TEXT)) ORDER BY r.place"
        )
        plain = sql.replace(":powered", "true")
        assert await nodes.write(lambda tx: tx.run(plain, {"rows": rows})) == count
        found = await nodes.read(lambda tx: tx.all("SELECT size, id FROM nodes ORDER BY size"))
        assert [list(row) for row in found] == rows
        again = [[place, f"m{identifier}"] for place, identifier in rows]
        assert await nodes.write(lambda tx: tx.run(sql, {"rows": again, "powered": True})) == count

    async def test_a_change_that_asks_for_all_of_its_rows_together_sees_all_of_them(self, nodes: Store) -> None:
        sql = (
            "INSERT INTO nodes (id, state, size, powered, labels) "
            "SELECT r.state, r.state, SUM(r.size), true, '{}' "
            "FROM ROWS(:rows AS r (state TEXT, size BIGINT)) WHERE r.size > 0 GROUP BY r.state"
        )
        rows = [["busy" if size % 2 else "idle", size] for size in range(100)]
        assert await nodes.write(lambda tx: tx.run(sql, {"rows": rows})) == 2
        found = await nodes.read(lambda tx: tx.all("SELECT id, size FROM nodes ORDER BY id"))
        assert found == [("busy", 2500), ("idle", 2450)]

    async def test_rows_of_which_one_is_refused_leave_nothing(self, nodes: Store) -> None:
        sql = (
            "INSERT INTO nodes (id, state, size, powered, labels) SELECT r.id, 'idle', 1, true, '{}' "
            "FROM ROWS(:rows AS r (id TEXT))"
        )
        with pytest.raises(ConstraintViolated):
            await nodes.write(lambda tx: tx.run(sql, {"rows": [[f"n{n}"] for n in range(70)] + [["n3"]]}))
        assert await nodes.read(ids) == []

    @pytest.mark.parametrize(
        "sql",
        [
            "SELECT r.id FROM ROWS(:rows AS r (id TEXT, size BIGINT))",
            "UPDATE nodes SET size = r.size FROM ROWS(:rows AS r (id TEXT, size BIGINT)) WHERE nodes.id = r.id",
        ],
        ids=["a question", "a change"],
    )
    async def test_a_row_with_a_value_too_few_is_refused(self, nodes: Store, sql: str) -> None:
        with pytest.raises(StoreMisuse, match="a value for each of id, size"):
            await nodes.write(lambda tx: tx.run(sql, {"rows": [["n1", 1], ["n2"]]}))

    async def test_signs_of_either_database_are_plain_text_inside_quotes(self, nodes: Store) -> None:
        await nodes.write(add, "50% :x")
        sql = "SELECT id, ':name {{bytes}} FOR UPDATE; %s' FROM nodes WHERE id LIKE '50%' -- :nobody's %"
        assert await nodes.read(lambda tx: tx.one(sql)) == ("50% :x", ":name {{bytes}} FOR UPDATE; %s")

    async def test_rows_can_be_locked_and_locked_rows_be_skipped(self, nodes: Store) -> None:
        await nodes.write(add, "n1")
        sql = "SELECT id FROM nodes ORDER BY id LIMIT 1 FOR UPDATE OF nodes SKIP LOCKED"
        assert await nodes.write(lambda tx: tx.one(sql)) == ("n1",)

    async def test_a_change_tells_how_many_rows_it_met(self, nodes: Store) -> None:
        await nodes.write(add, "n1")
        assert await nodes.write(lambda tx: tx.run("UPDATE nodes SET size = 5 WHERE id = :id", {"id": "n1"})) == 1
        assert await nodes.write(lambda tx: tx.run("UPDATE nodes SET size = 5 WHERE id = :id", {"id": "n2"})) == 0

    async def test_many_rows_go_in_by_one_call(self, nodes: Store) -> None:
        rows = [params_of(Node(f"n{number}", State.IDLE, number, False, {})) for number in range(50)]
        assert await nodes.write(lambda tx: tx.run_many(_INSERT, rows)) == 50
        assert len(await nodes.read(ids)) == 50

    async def test_a_change_can_answer_its_rows(self, nodes: Store) -> None:
        await nodes.write(add, "n1")
        sql = "UPDATE nodes SET size = size + 1 WHERE id = 'n1' RETURNING id, size"
        assert await nodes.write(lambda tx: tx.one(sql)) == ("n1", 2)
        assert await nodes.read(lambda tx: tx.one("SELECT size FROM nodes")) == (2,)

    @pytest.mark.parametrize("sql", ["COMMIT", "  rollback", "-- why\nSAVEPOINT x", "PRAGMA synchronous = OFF", ""])
    async def test_a_function_cannot_end_its_transaction(self, nodes: Store, sql: str) -> None:
        with pytest.raises(StoreMisuse):
            await nodes.write(lambda tx: tx.run(sql))

    @pytest.mark.parametrize(
        ("sql", "params"),
        [
            ("SELEC 1", {}),
            ("SELECT * FROM nobody", {}),
            ("SELECT 1 WHERE :x = 'a'", {}),
            ("SELECT id FROM nodes WHERE id = :x", {"x": object()}),
            ("SELECT id FROM nodes WHERE size = :x", {"x": 2**70}),
            ("SELECT id FROM nodes WHERE id IN EACH(:x)", {"x": "n1"}),
            ("DELETE FROM nodes; DELETE FROM nodes WHERE id = :x", {"x": "n"}),
            ("SELECT {{unknown}}", {}),
        ],
    )
    async def test_a_wrong_statement_is_the_callers_fault(
        self, nodes: Store, sql: str, params: dict[str, object]
    ) -> None:
        with pytest.raises(StoreMisuse):
            await nodes.write(lambda tx: tx.all(sql, params))
        assert await nodes.read(ids) == []


class TestTransactions:
    async def test_what_the_function_raises_undoes_just_its_transaction(self, nodes: Store) -> None:
        def fails(tx: Transaction) -> None:
            add(tx, "bad")
            raise LookupError("no such profile")

        results = await asyncio.gather(
            nodes.write(add, "n1"), nodes.write(fails), nodes.write(add, "n2"), return_exceptions=True
        )
        assert [type(result) for result in results] == [type(None), LookupError, type(None)]
        assert await nodes.read(ids) == ["n1", "n2"]

    async def test_many_writers_at_once_lose_nothing_and_mix_nothing(self, nodes: Store) -> None:
        await nodes.write(add, "n1", 0)
        fails = count()

        def grow_or_fail(tx: Transaction, wanted: bool) -> int:
            size = grow(tx, "n1")
            if not wanted:
                raise LookupError(str(next(fails)))
            return size

        results = await asyncio.gather(
            *(nodes.write(grow_or_fail, number % 3 > 0) for number in range(90)), return_exceptions=True
        )
        sizes = [result for result in results if isinstance(result, int)]
        assert sorted(sizes) == list(range(1, 61))
        assert sum(isinstance(result, LookupError) for result in results) == 30
        assert await nodes.read(lambda tx: tx.one("SELECT size FROM nodes")) == (60,)

    async def test_transactions_that_lock_in_opposite_orders_all_come_through(self, nodes: Store) -> None:
        for node_id in ("a", "b"):
            await nodes.write(add, node_id, 0)

        def grow_both(tx: Transaction, first: str, second: str) -> None:
            grow(tx, first)
            grow(tx, second)

        await asyncio.gather(*(nodes.write(grow_both, *("ab" if number % 2 else "ba")) for number in range(40)))
        assert await nodes.read(lambda tx: tx.all("SELECT size FROM nodes")) == [(40,), (40,)]

    async def test_a_transaction_sees_its_own_changes_and_a_later_read_sees_them_too(self, nodes: Store) -> None:
        def add_and_look(tx: Transaction) -> list[str]:
            add(tx, "n1")
            return ids(tx)

        assert await nodes.write(add_and_look) == ["n1"]
        assert await nodes.read(ids) == ["n1"]

    async def test_a_broken_rule_names_its_kind(self, nodes: Store) -> None:
        await nodes.write(add, "n1")
        port = "INSERT INTO ports (node_id) VALUES (:id)"
        expected: list[tuple[Constraint, Callable[[Transaction], object]]] = [
            (Constraint.UNIQUE, lambda tx: add(tx, "n1")),
            (Constraint.CHECK, lambda tx: add(tx, "n2", -1)),
            (Constraint.FOREIGN_KEY, lambda tx: tx.run(port, {"id": "nobody"})),
            (Constraint.NOT_NULL, lambda tx: tx.run(port, {"id": None})),
        ]
        for kind, breaks in expected:
            with pytest.raises(ConstraintViolated) as caught:
                await nodes.write(breaks)
            assert caught.value.kind is kind
        assert await nodes.read(ids) == ["n1"]

    async def test_a_broken_rule_does_not_show_the_value(self, nodes: Store) -> None:
        await nodes.write(add, "hunter2")
        with pytest.raises(ConstraintViolated) as caught:
            await nodes.write(add, "hunter2")
        error: BaseException | None = caught.value
        while error is not None:
            assert "hunter2" not in str(error)
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)

    async def test_a_rule_that_is_checked_at_the_end_fails_only_its_own_transaction(self, nodes: Store) -> None:
        def link(tx: Transaction, link_id: str, node_id: str) -> None:
            tx.run("INSERT INTO links (id, node_id) VALUES (:id, :node)", {"id": link_id, "node": node_id})

        await nodes.write(add, "n1")
        results = await asyncio.gather(
            *(nodes.write(link, f"l{number}", "nobody" if number == 3 else "n1") for number in range(6)),
            return_exceptions=True,
        )
        assert [number for number, result in enumerate(results) if result is not None] == [3]
        assert isinstance(results[3], ConstraintViolated)
        assert await nodes.read(lambda tx: tx.one("SELECT count(*) FROM links")) == (5,)

    async def test_going_on_after_a_failed_statement_is_refused(self, nodes: Store) -> None:
        def swallows(tx: Transaction) -> None:
            add(tx, "n1")
            with pytest.raises(ConstraintViolated):
                add(tx, "n1")

        def goes_on(tx: Transaction) -> None:
            swallows(tx)
            add(tx, "n2")

        for function in (swallows, goes_on):
            with pytest.raises(StoreMisuse, match="failed"):
                await nodes.write(function)
        assert await nodes.read(ids) == []

    async def test_a_transaction_kept_beyond_its_function_is_useless(self, nodes: Store) -> None:
        kept = await nodes.write(lambda tx: tx)
        with pytest.raises(StoreMisuse, match="over"):
            add(kept, "n1")

    async def test_a_cancelled_call_leaves_the_store_usable(self, nodes: Store) -> None:
        tasks = [asyncio.ensure_future(nodes.write(add, f"n{number}")) for number in range(20)]
        await asyncio.sleep(0)
        for task in tasks[1::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(result is None for result in results[0::2])
        assert {f"n{number}" for number in range(0, 20, 2)} <= set(await nodes.read(ids))

    async def test_even_what_ends_a_process_reaches_the_caller_and_undoes_the_transaction(self, nodes: Store) -> None:
        class Dying(BaseException):
            pass

        def dies(tx: Transaction) -> None:
            add(tx, "n1")
            raise Dying

        with pytest.raises(Dying):
            await nodes.write(dies)
        assert await nodes.read(ids) == []

    async def test_a_stop_iteration_is_not_lost(self, nodes: Store) -> None:
        with pytest.raises(RuntimeError, match="StopIteration"):
            await nodes.write(lambda _: next(iter(())))


class TestReads:
    async def test_a_read_cannot_change_anything(self, nodes: Store) -> None:
        with pytest.raises(StoreMisuse, match="change inside a read"):
            await nodes.read(add, "n1")
        assert await nodes.read(ids) == []

    async def test_a_read_sees_one_moment_and_never_waits_for_a_writer(self, nodes: Store) -> None:
        loop = asyncio.get_running_loop()
        read_began, written = asyncio.Event(), threading.Event()

        def reads_twice(tx: Transaction) -> tuple[list[str], list[str]]:
            before = ids(tx)
            loop.call_soon_threadsafe(read_began.set)
            assert written.wait(20)
            return before, ids(tx)

        reading = asyncio.ensure_future(nodes.read(reads_twice))
        await read_began.wait()
        await nodes.write(add, "n1")
        assert await nodes.read(ids) == ["n1"]
        written.set()
        assert await reading == ([], [])

    async def test_reads_go_on_while_a_write_is_under_way(self, nodes: Store) -> None:
        loop = asyncio.get_running_loop()
        write_began, read_done = asyncio.Event(), threading.Event()

        def writes_slowly(tx: Transaction) -> None:
            add(tx, "n1")
            loop.call_soon_threadsafe(write_began.set)
            assert read_done.wait(20)

        writing = asyncio.ensure_future(nodes.write(writes_slowly))
        await write_began.wait()
        assert await nodes.read(ids) == []
        read_done.set()
        await writing
        assert await nodes.read(ids) == ["n1"]


class TestClock:
    async def test_now_is_one_moment_in_a_transaction(self, store_url: str) -> None:
        ticks = count(1_700_000_000_000)
        store = open_store(store_url, clock=lambda: next(ticks))
        first = await store.write(lambda tx: (tx.now(), tx.now()))
        second = await store.read(lambda tx: (tx.now(), tx.now()))
        await store.close()
        assert first == (1_700_000_000_000, 1_700_000_000_000)
        assert second == (1_700_000_000_001, 1_700_000_000_001)

    async def test_without_a_clock_of_ours_it_is_the_time_of_day(self, store: Store) -> None:
        before = time.time_ns() // 1_000_000
        now = await store.write(lambda tx: tx.now())
        assert before - 2 <= now <= time.time_ns() // 1_000_000 + 2


class TestHints:
    async def test_a_hint_reaches_listeners_after_the_commit_and_not_after_a_failure(self, nodes: Store) -> None:
        heard: asyncio.Queue[str] = asyncio.Queue()
        nodes.listen("wake", heard.put_nowait)
        assert await heard.get() == ""

        def add_and_tell(tx: Transaction, node_id: str, fails: bool) -> None:
            add(tx, node_id)
            tx.notify("wake", node_id)
            if fails:
                raise LookupError

        with pytest.raises(LookupError):
            await nodes.write(add_and_tell, "bad", True)
        await nodes.write(add_and_tell, "it's \\ good", False)
        assert await heard.get() == "it's \\ good"
        await nodes.notify("wake", "outside")
        assert await heard.get() == "outside"
        assert heard.empty()

    async def test_who_stops_listening_hears_nothing_more(self, nodes: Store) -> None:
        first: asyncio.Queue[str] = asyncio.Queue()
        second: asyncio.Queue[str] = asyncio.Queue()
        stop = nodes.listen("wake", first.put_nowait)
        nodes.listen("wake", second.put_nowait)
        assert (await first.get(), await second.get()) == ("", "")
        stop()
        await nodes.notify("wake", "x")
        assert await second.get() == "x"
        assert first.empty()

    async def test_calls_after_the_commit_are_made_before_the_result_is_given(self, nodes: Store) -> None:
        made: list[str] = []

        def add_and_call(tx: Transaction, node_id: str) -> None:
            tx.after_commit(lambda: made.append(node_id))
            add(tx, node_id)

        await nodes.write(add_and_call, "n1")
        assert made == ["n1"]
        with pytest.raises(ConstraintViolated):
            await nodes.write(add_and_call, "n1")
        assert made == ["n1"]

    async def test_a_call_or_a_listener_that_fails_harms_nobody(self, nodes: Store) -> None:
        reported: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))
        done = asyncio.Event()

        def bad_listener(_: str) -> None:
            done.set()
            raise ZeroDivisionError

        nodes.listen("wake", bad_listener)
        await done.wait()
        await nodes.write(lambda tx: tx.after_commit(lambda: 1 // 0))
        assert reported == ["a listener of channel wake failed", "a call after the commit failed"]

    @pytest.mark.parametrize(("channel", "payload"), [("Wake; DROP", ""), ("", ""), ("wake", "x" * 5000)])
    async def test_a_hint_that_one_database_would_refuse_is_refused(
        self, nodes: Store, channel: str, payload: str
    ) -> None:
        with pytest.raises(StoreMisuse):
            await nodes.notify(channel, payload)


class TestClosing:
    async def test_closing_finishes_what_was_asked_and_refuses_the_rest(self, store_url: str) -> None:
        store = open_store(store_url)
        await store.write(make_tables)
        writes = [asyncio.ensure_future(store.write(add, f"n{number:03}")) for number in range(100)]
        await asyncio.sleep(0)
        await store.close()
        assert await asyncio.gather(*writes) == [None] * 100
        for refused in (store.write(add, "late"), store.read(ids)):
            with pytest.raises(StoreClosed):
                await refused
        await store.close()
        again = open_store(store_url)
        assert len(await again.read(ids)) == 100
        await again.close()

    async def test_a_store_opened_for_reading_writes_nothing(self, nodes: Store, store_url: str) -> None:
        await nodes.write(add, "n1")
        reader = open_store(store_url, read_only=True)
        assert await reader.read(ids) == ["n1"]
        with pytest.raises(StoreReadOnly):
            await reader.write(add, "n2")
        await reader.close()
