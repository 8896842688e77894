-- Metal: what state each machine is in, which workflow moves it, and what was asked of that workflow.

-- A node without a row is enrolled, and nothing was ever asked of it.
CREATE TABLE provisions (
    node_id TEXT PRIMARY KEY,
    tenant_id TEXT NOT NULL,
    -- enrolled, commissioning, available, deploying, deployed, releasing, rescuing, rescue, failed, maintenance
    state TEXT NOT NULL,
    since BIGINT NOT NULL,
    -- enrolled, available or deployed: the last state that a workflow brought to its end.
    base TEXT NOT NULL,
    -- What workflows that did not end well have left since: changed, erasing, or null.
    residue TEXT,
    -- What moves it, or moved it last, and by which workflow.
    verb TEXT,
    workflow_id TEXT,
    -- The state that the present workflow began in; or the one that maintenance stands in for.
    origin TEXT,
    -- An operator's abort, which waits for the workflow's end.
    aborting BOOLEAN NOT NULL,
    -- Why it failed (a WorkflowError).
    cause TEXT,
    -- Why it is in maintenance.
    note TEXT,
    -- The node's own profiles, by verb.
    profiles TEXT NOT NULL,
    -- Whether a remediation may be started for it.
    remediate BOOLEAN NOT NULL,
    -- When a command last switched it off on purpose, as far as remediation has taken note of it.
    asked_off_at BIGINT,
    updated_at BIGINT NOT NULL
);
CREATE INDEX provisions_moving ON provisions (node_id)
    WHERE state IN ('commissioning', 'deploying', 'releasing', 'rescuing');
CREATE INDEX provisions_failed ON provisions (since) WHERE state = 'failed';
CREATE INDEX provisions_remedied ON provisions (node_id) WHERE remediate AND state = 'deployed';

-- What was asked of a workflow that metal started.
CREATE TABLE provision_runs (
    workflow_id TEXT PRIMARY KEY REFERENCES workflows (id) ON DELETE CASCADE,
    tenant_id TEXT NOT NULL,
    node_id TEXT NOT NULL,
    verb TEXT NOT NULL,
    asked TEXT NOT NULL,
    started_at BIGINT NOT NULL,
    started_by TEXT NOT NULL
);
CREATE INDEX provision_runs_by_node ON provision_runs (node_id, started_at);

-- Labels that an inventory has found; the operator's own lie with the node, and win.
CREATE TABLE found_labels (
    node_id TEXT PRIMARY KEY,
    labels TEXT NOT NULL,
    found_at BIGINT NOT NULL
);
