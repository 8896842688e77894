-- Workers that agents connect to, and when each last said that it lives: by the database's clock.
CREATE TABLE gateways (
    worker TEXT PRIMARY KEY,
    seen_at BIGINT NOT NULL
);
