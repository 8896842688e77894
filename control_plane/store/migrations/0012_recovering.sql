-- A machine that is started from its own disk again (recovering) is moved by a workflow like the others.
DROP INDEX provisions_moving;
CREATE INDEX provisions_moving ON provisions (node_id)
    WHERE state IN ('commissioning', 'deploying', 'releasing', 'rescuing', 'recovering');
