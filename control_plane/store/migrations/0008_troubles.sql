-- The machines that cannot be asked, found without looking at all of them.
CREATE INDEX node_observations_troubled ON node_observations (seen_at) WHERE trouble IS NOT NULL;
