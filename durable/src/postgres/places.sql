-- Version 3. An index for each order in which records are read. A claim reads as many entries as it
-- claims records, also if many records are due at one time.
CREATE INDEX timeouts_pending ON {schema}.timeouts (next_at, id) WHERE state = 0;
CREATE INDEX timeouts_dead ON {schema}.timeouts (next_at, id) WHERE state = 3;
DROP INDEX {schema}.timeouts_state;

-- As in version 1, but for the comparison of states, for which the server uses no index.
CREATE OR REPLACE FUNCTION {schema}.acknowledge(old_id text, old_token bigint, again timestamptz DEFAULT NULL)
RETURNS boolean LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM {schema}.timeouts
        WHERE again IS NULL AND id = old_id AND token = old_token AND state + 0 = 1 RETURNING 1
    ), moved AS (
        UPDATE {schema}.timeouts SET
            due = again, next_at = again, token = nextval('{schema}.token'), worker = NULL, attempt = 0,
            state = 0, begun = false, error = NULL
        WHERE again IS NOT NULL AND id = old_id AND token = old_token AND state + 0 = 1 RETURNING 1
    )
    SELECT EXISTS (SELECT FROM gone) OR EXISTS (SELECT FROM moved)
$$;
