"""The tables are made step by step, each step whole or not at all, and never by a program that does not know them."""

import asyncio
from pathlib import Path

import pytest

from control_plane.engine.rows import load_step, lock_workflow
from control_plane.store import (
    MigrationEdited,
    SchemaAhead,
    SchemaBehind,
    Store,
    StoreMisuse,
    Transaction,
    migrate,
    open_store,
    pending,
    verify,
)
from control_plane.store.migrate import FOLDER, applied_migrations, migrations
from control_plane.store.statements import split

_SECOND = """-- Notes; and more.
CREATE TABLE notes (number {{serial}}, text TEXT NOT NULL DEFAULT 'a;b');
CREATE INDEX notes_text ON notes (text);
INSERT INTO notes (text) VALUES ('100% :sure')
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Migrations of the test's own, that begin with the real first one."""
    made = tmp_path / "migrations"
    made.mkdir()
    (made / "0001_store.sql").write_bytes((FOLDER / "0001_store.sql").read_bytes())
    (made / "0002_notes.sql").write_text(_SECOND)
    return made


def texts(tx: Transaction) -> list[str]:
    return [row[0] for row in tx.all("SELECT text FROM notes ORDER BY number")]


async def test_the_programs_own_migrations_apply_once_to_an_empty_database(store: Store) -> None:
    with pytest.raises(SchemaBehind, match="0001_store"):
        await verify(store)
    assert [migration.version for migration in await migrate(store)] == [
        migration.version for migration in migrations(store.dialect)
    ]
    await verify(store)
    assert await migrate(store) == []
    assert await pending(store) == []


async def test_workflows_of_before_the_plans_lay_apart_keep_profile_and_steps(store: Store, tmp_path: Path) -> None:
    for file in FOLDER.glob("000?_*.sql"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    await migrate(store, tmp_path)
    await store.write(_old_workflow)
    await migrate(store)
    (document,) = await store.read(lambda tx: tx.one("SELECT document FROM workflow_documents")) or ("",)
    assert document == '{"profile":"deploy"}'
    step = await store.read(load_step, "wf_1", 3)
    assert (step.id, step.action, step.runs_on.value) == ("write", "metal.writeImage", "control-plane")
    assert (step.spec.timeout_ms, step.spec.with_) == (5_000, {"image": "x"})
    assert (step.state.value, step.attempt, step.phase.value) == ("waiting", 2, "main")
    workflow = await store.write(lock_workflow, "wf_1")
    assert workflow is not None
    assert (workflow.state.value, workflow.step_seq) == ("running", 3)


def _old_workflow(tx: Transaction) -> None:
    """As the tables were until migration 9."""
    tx.run(
        "INSERT INTO workflows (id, tenant_id, profile_id, profile_version, document, shard, state, step_seq, "
        "created_at, updated_at) VALUES ('wf_1', 'acme', 'prof_1', 1, :document, 0, 'running', 3, 1, 1)",
        {"document": '{"profile":"deploy"}'},
    )
    tx.run(
        "INSERT INTO workflow_steps (workflow_id, seq, id, phase, action, runs_on, spec, state, attempt, "
        "first_attempt) VALUES ('wf_1', 3, 'write', 'main', 'metal.writeImage', 'control-plane', :spec, 'waiting', "
        "2, 1)",
        {"spec": '{"kind":"code","with":{"image":"x"},"timeoutMs":5000}'},
    )


async def test_a_new_migration_is_applied_on_top(store: Store, folder: Path) -> None:
    await migrate(store, folder)
    assert await store.read(texts) == ["100% :sure"]
    (folder / "0003_more.sql").write_text("INSERT INTO notes (text) VALUES ('more');")
    with pytest.raises(SchemaBehind, match="lacks 1 migrations"):
        await verify(store, folder)
    assert [migration.name for migration in await migrate(store, folder)] == ["more"]
    assert await store.read(texts) == ["100% :sure", "more"]
    lines = await store.read(applied_migrations)
    assert [(line.version, line.name) for line in lines] == [(1, "store"), (2, "notes"), (3, "more")]


async def test_a_migration_that_fails_leaves_nothing_of_itself(store: Store, folder: Path) -> None:
    (folder / "0003_more.sql").write_text("CREATE TABLE more (id TEXT);\nINSERT INTO nobody (id) VALUES ('x');")
    with pytest.raises(StoreMisuse, match="nobody"):
        await migrate(store, folder)
    assert [migration.version for migration in await pending(store, folder)] == [3]
    (folder / "0003_more.sql").write_text("CREATE TABLE more (id TEXT);")
    await migrate(store, folder)


async def test_a_database_newer_than_the_program_is_refused(store: Store, folder: Path) -> None:
    await migrate(store, folder)
    (folder / "0002_notes.sql").unlink()
    for refused in (verify, migrate, pending):
        with pytest.raises(SchemaAhead, match=r"0002 \(notes\).*newer version"):
            await refused(store, folder)


async def test_an_edited_migration_is_refused(store: Store, folder: Path) -> None:
    await migrate(store, folder)
    (folder / "0002_notes.sql").write_text(_SECOND + "-- and a thought afterwards\n")
    with pytest.raises(MigrationEdited, match=r"0002 \(notes\)"):
        await verify(store, folder)


async def test_several_processes_that_migrate_at_once_apply_each_migration_once(
    postgres_url: str, folder: Path
) -> None:
    stores = [open_store(postgres_url) for _ in range(4)]
    done = await asyncio.gather(*(migrate(store, folder) for store in stores))
    assert sorted(migration.version for applied in done for migration in applied) == [1, 2]
    assert await stores[0].read(texts) == ["100% :sure"]
    for store in stores:
        await store.close()


def test_a_dialects_own_file_takes_the_place_of_the_common_one(folder: Path) -> None:
    (folder / "0002_notes.postgresql.sql").write_text("SELECT 1")
    assert [migration.sql for migration in migrations("postgresql", folder)][1] == "SELECT 1"
    assert [migration.sql for migration in migrations("sqlite", folder)][1] == _SECOND


@pytest.mark.parametrize("name", ["0004_gap.sql", "0002_twice.sql", "3-more.sql", "0003_More.sql"])
def test_files_that_are_no_sequence_are_refused(folder: Path, name: str) -> None:
    (folder / name).write_text("SELECT 1")
    with pytest.raises(MigrationEdited):
        migrations("sqlite", folder)


def test_a_script_is_split_at_its_statements_only() -> None:
    script = """
    -- first; comment
    INSERT INTO t VALUES ('a;b', "c;d"); /* ; */
    CREATE TRIGGER r AFTER INSERT ON t BEGIN UPDATE t SET x = 1; DELETE FROM u; END;
    CREATE FUNCTION f() RETURNS int AS $body$ SELECT 1; $body$ LANGUAGE sql;
    ; -- the end
    """
    assert [" ".join(statement.split()) for statement in split(script)] == [
        """-- first; comment INSERT INTO t VALUES ('a;b', "c;d")""",
        "/* ; */ CREATE TRIGGER r AFTER INSERT ON t BEGIN UPDATE t SET x = 1; DELETE FROM u; END",
        "CREATE FUNCTION f() RETURNS int AS $body$ SELECT 1; $body$ LANGUAGE sql",
    ]
