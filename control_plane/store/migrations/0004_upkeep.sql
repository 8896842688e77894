-- What pruning, doctor and the delivery of node specs look for, found without looking at anything else.

-- A workflow's commands are kept as long as the workflow: only the others end by their own age.
CREATE INDEX commands_ended ON commands (finished_at) WHERE finished_at IS NOT NULL AND workflow_id IS NULL;
CREATE INDEX workflows_failed ON workflows (finished_at) WHERE state = 'failed';
CREATE INDEX agents_by_node ON agents (node_id) WHERE node_id IS NOT NULL;
CREATE INDEX desired_states_owed ON desired_states (node_id) WHERE applied IS NULL OR applied <> generation;
