-- Workers that agents connect to, and when each last said that it lives: by the database's clock.
CREATE TABLE gateways (
    worker TEXT PRIMARY KEY,
    seen_at BIGINT NOT NULL
);
-- What workers of an earlier version left open: they say that they live as soon as they start.
INSERT INTO gateways (worker, seen_at) SELECT DISTINCT worker, 0 FROM sessions WHERE disconnected_at IS NULL;
