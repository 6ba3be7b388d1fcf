-- Version 3. An index for each order in which records are read. A claim reads as many entries as it
-- claims records, also if many records are due at one time.
CREATE INDEX timeouts_pending ON {schema}.timeouts (next_at, id) WHERE state = 0;
CREATE INDEX timeouts_dead ON {schema}.timeouts (next_at, id) WHERE state = 3;
DROP INDEX {schema}.timeouts_state;
