-- The store's own table: which migrations this database has had.
CREATE TABLE schema_migrations (
    version BIGINT PRIMARY KEY,
    name TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    applied_at BIGINT NOT NULL
);
