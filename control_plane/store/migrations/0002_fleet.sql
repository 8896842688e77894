-- Sites, agents, machines, the command ledger, and what surrounds them.
-- Times are milliseconds since 1970 by the store's clock. JSON lies in TEXT.

CREATE TABLE sites (
    id TEXT PRIMARY KEY,
    tenant_id TEXT NOT NULL,
    name TEXT NOT NULL,
    -- The site agent that serves this site's BMCs; null until one joined.
    agent_id TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    UNIQUE (tenant_id, name)
);

CREATE TABLE agents (
    id TEXT PRIMARY KEY,
    tenant_id TEXT NOT NULL,
    site_id TEXT REFERENCES sites (id),
    node_id TEXT,
    -- site, ramdisk, daemon
    role TEXT NOT NULL,
    host_name TEXT NOT NULL,
    version TEXT NOT NULL,
    drivers TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    -- Set once: a revoked agent never connects again.
    revoked_at BIGINT,
    revoked_reason TEXT,
    -- The connection of now, or the last one.
    session_id TEXT,
    -- The last connection that the agent's journal has noted: commands are sent only over one that was.
    ready_session TEXT
);
CREATE INDEX agents_by_tenant ON agents (tenant_id, id);

CREATE TABLE certificates (
    serial TEXT PRIMARY KEY,
    agent_id TEXT NOT NULL REFERENCES agents (id),
    issued_at BIGINT NOT NULL,
    not_after BIGINT NOT NULL
);

CREATE TABLE join_tokens (
    id TEXT PRIMARY KEY,
    tenant_id TEXT NOT NULL,
    site_id TEXT NOT NULL REFERENCES sites (id),
    role TEXT NOT NULL,
    -- SHA-256 of the secret: the secret itself is 256 random bits, so a plain hash is enough.
    secret_hash TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    expires_at BIGINT NOT NULL,
    used_at BIGINT,
    used_by TEXT
);

CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    agent_id TEXT NOT NULL REFERENCES agents (id),
    role TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    journal_id TEXT NOT NULL,
    -- The agent's process: another one is another life of it, or a copy.
    instance TEXT NOT NULL,
    worker TEXT NOT NULL,
    connected_at BIGINT NOT NULL,
    disconnected_at BIGINT,
    disconnect_reason TEXT
);
CREATE INDEX sessions_open ON sessions (worker) WHERE disconnected_at IS NULL;
CREATE INDEX sessions_by_agent ON sessions (agent_id, id);

CREATE TABLE nodes (
    id TEXT PRIMARY KEY,
    tenant_id TEXT NOT NULL,
    name TEXT NOT NULL,
    site_id TEXT NOT NULL REFERENCES sites (id),
    labels TEXT NOT NULL,
    -- Each concern's driver, where it is not the BMC's own.
    drivers TEXT NOT NULL,
    bmc_address TEXT NOT NULL,
    bmc_driver TEXT NOT NULL,
    -- The name of a credential in the site agent's vault; never the credential.
    credential_ref TEXT,
    -- verify, ca:/path, sha256:<hex>, first-use, none
    tls TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    UNIQUE (tenant_id, name)
);
CREATE INDEX nodes_by_site ON nodes (site_id);

CREATE TABLE commands (
    id TEXT PRIMARY KEY,
    tenant_id TEXT NOT NULL,
    node_id TEXT NOT NULL,
    agent_id TEXT NOT NULL REFERENCES agents (id),
    kind TEXT NOT NULL,
    payload TEXT NOT NULL,
    -- Idempotency key: a second command of the same key is the first one.
    key TEXT NOT NULL,
    -- read, converge, once: what doing it twice would mean.
    repeat TEXT NOT NULL,
    -- queued, delivered, running, succeeded, failed, rejected, expired, cancelled
    state TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    not_after BIGINT NOT NULL,
    -- The connection and the agent's journal that it was last sent to. Written before it is sent.
    sent_session TEXT,
    sent_journal TEXT,
    started_at BIGINT,
    finished_at BIGINT,
    -- Set when a cancel was asked for.
    cancel_reason TEXT,
    ending TEXT,
    -- What the agent reported after this ledger had given the command up as unknown.
    late_ending TEXT,
    UNIQUE (tenant_id, node_id, key)
);
CREATE INDEX commands_open ON commands (agent_id, id) WHERE state IN ('queued', 'delivered', 'running');
CREATE INDEX commands_queued ON commands (agent_id, id) WHERE state = 'queued';
CREATE INDEX commands_due ON commands (not_after) WHERE state IN ('queued', 'delivered', 'running');
CREATE INDEX commands_by_node ON commands (tenant_id, node_id, id);

CREATE TABLE tokens (
    id TEXT PRIMARY KEY,
    -- A tenant, or * for all of them.
    tenant_id TEXT NOT NULL,
    name TEXT NOT NULL,
    secret_hash TEXT NOT NULL,
    permissions TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT
);

CREATE TABLE audit (
    seq {{serial}},
    id TEXT NOT NULL UNIQUE,
    tenant_id TEXT NOT NULL,
    at BIGINT NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    resource TEXT NOT NULL,
    request_id TEXT NOT NULL,
    -- allowed, denied
    decision TEXT NOT NULL,
    detail TEXT NOT NULL
);
CREATE INDEX audit_by_tenant ON audit (tenant_id, seq);

CREATE TABLE events (
    seq {{serial}},
    id TEXT NOT NULL UNIQUE,
    tenant_id TEXT NOT NULL,
    at BIGINT NOT NULL,
    -- <kind>/<id>, such as command/cmd_…
    subject TEXT NOT NULL,
    type TEXT NOT NULL,
    data TEXT NOT NULL
);
CREATE INDEX events_by_tenant ON events (tenant_id, seq);
