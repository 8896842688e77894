-- Profiles, workflows and their steps, shards, and what the engine leaves for others to do.

CREATE TABLE profiles (
    id TEXT PRIMARY KEY,
    tenant_id TEXT NOT NULL,
    name TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    UNIQUE (tenant_id, name)
);

CREATE TABLE profile_versions (
    profile_id TEXT NOT NULL REFERENCES profiles (id),
    -- 1, 2, 3, …
    version BIGINT NOT NULL,
    document TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    -- Set by the first workflow that uses it; a version never changes anyway, a used one is never removed.
    used_at BIGINT,
    PRIMARY KEY (profile_id, version)
);

CREATE TABLE workflows (
    id TEXT PRIMARY KEY,
    tenant_id TEXT NOT NULL,
    profile_id TEXT NOT NULL,
    profile_version BIGINT NOT NULL,
    -- The profile as it was when the workflow started.
    document TEXT NOT NULL,
    node_id TEXT,
    instance_id TEXT,
    shard BIGINT NOT NULL,
    -- The kind of work that is queued when the workflow has ended.
    owner TEXT,
    -- pending, running, paused, succeeded, failed, cancelled
    state TEXT NOT NULL,
    -- failing, cancelling, or null
    ending TEXT,
    -- The step in flight, by number and by id.
    step_seq BIGINT,
    step_id TEXT,
    error TEXT,
    -- When the reconciler must look at it again at the latest; null when nobody need.
    wake_at BIGINT,
    created_at BIGINT NOT NULL,
    started_at BIGINT,
    finished_at BIGINT,
    updated_at BIGINT NOT NULL
);
CREATE UNIQUE INDEX workflows_active_node ON workflows (node_id)
    WHERE node_id IS NOT NULL AND state IN ('pending', 'running', 'paused');
CREATE UNIQUE INDEX workflows_active_instance ON workflows (tenant_id, instance_id)
    WHERE instance_id IS NOT NULL AND state IN ('pending', 'running', 'paused');
CREATE INDEX workflows_due ON workflows (shard, wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX workflows_by_node ON workflows (tenant_id, node_id, id);
CREATE INDEX workflows_ended ON workflows (finished_at) WHERE finished_at IS NOT NULL;

CREATE TABLE workflow_steps (
    workflow_id TEXT NOT NULL REFERENCES workflows (id) ON DELETE CASCADE,
    seq BIGINT NOT NULL,
    id TEXT NOT NULL,
    -- main, on-failure, cleanup
    phase TEXT NOT NULL,
    action TEXT NOT NULL,
    -- control-plane, site, ramdisk, daemon
    runs_on TEXT NOT NULL,
    -- What was resolved of the profile's step (StepSpec).
    spec TEXT NOT NULL,
    -- The main step that this on-failure or clean-up row belongs to.
    owner_seq BIGINT,
    -- pending, running, waiting, succeeded, failed, skipped, cancelled
    state TEXT NOT NULL,
    attempt BIGINT NOT NULL,
    -- The attempt from which the retries are counted: the operator's retry counts afresh.
    first_attempt BIGINT NOT NULL,
    command_id TEXT,
    deadline BIGINT,
    wake_at BIGINT,
    -- The machine's boot id and role when a step that awaits a rejoin was sent.
    rejoin TEXT,
    result TEXT,
    error TEXT,
    started_at BIGINT,
    finished_at BIGINT,
    PRIMARY KEY (workflow_id, seq)
);

CREATE TABLE shards (
    shard BIGINT PRIMARY KEY,
    worker TEXT,
    -- Grows with each change of hands: what was begun under an older number can change nothing.
    fence BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);

CREATE TABLE workers (
    name TEXT PRIMARY KEY,
    seen_at BIGINT NOT NULL
);

-- What a workflow's owner is to look at, once for each end.
CREATE TABLE owner_queue (
    seq {{serial}},
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    workflow_id TEXT NOT NULL,
    tenant_id TEXT NOT NULL,
    queued_at BIGINT NOT NULL
);
CREATE INDEX owner_queue_by_kind ON owner_queue (kind, seq);

-- The configuration that a node's daemon is to have; a new generation reaches it as NodeSpec.
CREATE TABLE desired_states (
    node_id TEXT PRIMARY KEY,
    tenant_id TEXT NOT NULL,
    generation BIGINT NOT NULL,
    spec TEXT NOT NULL,
    invalidated_at BIGINT NOT NULL,
    -- The generation that the daemon has said it took.
    applied BIGINT
);

ALTER TABLE commands ADD COLUMN workflow_id TEXT;
CREATE INDEX commands_of_workflow ON commands (workflow_id) WHERE workflow_id IS NOT NULL;
