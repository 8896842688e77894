-- Boot tickets: with what a machine's own agents join, and by what one machine is told from another.

-- The machine that a token is bound to; null for a site's agent.
ALTER TABLE join_tokens ADD COLUMN node_id TEXT;
CREATE INDEX join_tokens_by_node ON join_tokens (node_id, role) WHERE node_id IS NOT NULL;

-- Set when the same agent has joined anew: what a machine's earlier boot was given is of no use any more.
ALTER TABLE certificates ADD COLUMN revoked_at BIGINT;
CREATE INDEX certificates_by_agent ON certificates (agent_id);

-- The three tables below refer to nodes without a foreign key: its check would wait for whoever holds the node's row,
-- and what is learnt of a machine is stored while a command's row is held.

-- What is known of the machines: UUID, serial number and MACs, each in one spelling.
CREATE TABLE node_facts (
    node_id TEXT NOT NULL,
    -- bmc: an inventory through the node's BMC. host: the machine itself, in a join that was taken, or an inventory.
    source TEXT NOT NULL,
    -- uuid, serial, mac
    kind TEXT NOT NULL,
    value TEXT NOT NULL,
    seen_at BIGINT NOT NULL,
    PRIMARY KEY (node_id, source, kind, value)
);
CREATE INDEX node_facts_by_value ON node_facts (value, kind);

-- Why a machine was last refused; gone once it has joined.
CREATE TABLE node_refusals (
    node_id TEXT PRIMARY KEY,
    role TEXT NOT NULL,
    reason TEXT NOT NULL,
    refused_at BIGINT NOT NULL
);

-- How a machine's ramdisk reaches the network and where it writes its messages, where that was said.
CREATE TABLE node_boot (
    node_id TEXT PRIMARY KEY,
    -- A TicketNetwork.
    network TEXT NOT NULL,
    serial_console TEXT NOT NULL
);
