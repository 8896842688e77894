-- When a machine was last brought into service, by a workflow, its own agent or an operator's word; null where that is
-- not known. What its ramdisk and its agent did before says nothing of how it has been since.
ALTER TABLE provisions ADD COLUMN deployed_at BIGINT;
UPDATE provisions SET deployed_at = since WHERE state = 'deployed';
