-- What a workflow and its steps were planned as lies beside what changes of them. A database writes a row anew with
-- each of its changes, and a step has four: it is not to write a profile and the step's arguments every time.

CREATE TABLE workflow_documents (
    workflow_id TEXT PRIMARY KEY REFERENCES workflows (id) ON DELETE CASCADE,
    -- The profile as it was when the workflow started.
    document TEXT NOT NULL
);
INSERT INTO workflow_documents (workflow_id, document) SELECT id, document FROM workflows;
ALTER TABLE workflows DROP COLUMN document;

CREATE TABLE step_plans (
    workflow_id TEXT NOT NULL REFERENCES workflows (id) ON DELETE CASCADE,
    seq BIGINT NOT NULL,
    id TEXT NOT NULL,
    action TEXT NOT NULL,
    -- control-plane, site, ramdisk, daemon
    runs_on TEXT NOT NULL,
    -- What was resolved of the profile's step (StepSpec).
    spec TEXT NOT NULL,
    PRIMARY KEY (workflow_id, seq)
);
INSERT INTO step_plans (workflow_id, seq, id, action, runs_on, spec)
    SELECT workflow_id, seq, id, action, runs_on, spec FROM workflow_steps;
ALTER TABLE workflow_steps DROP COLUMN id;
ALTER TABLE workflow_steps DROP COLUMN action;
ALTER TABLE workflow_steps DROP COLUMN runs_on;
ALTER TABLE workflow_steps DROP COLUMN spec;
