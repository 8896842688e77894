-- What the sites' agents have last seen of the machines. A row is written when what is seen has changed.
CREATE TABLE node_observations (
    node_id TEXT PRIMARY KEY REFERENCES nodes (id) ON DELETE CASCADE,
    -- on, off, poweringOn, poweringOff, unknown
    power TEXT NOT NULL,
    -- ok, warning, critical, unknown
    health TEXT NOT NULL,
    -- The BMC's own word for the power.
    raw TEXT,
    -- Why the machine could not be asked: a code, a colon, words.
    trouble TEXT,
    -- What led to the look: poll, stream, push.
    how TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    -- When it was first seen so.
    seen_at BIGINT NOT NULL
);
