-- Version 1. Every name is in the schema that replaces {schema}.
CREATE SEQUENCE {schema}.token;

-- A worker whose lease was taken away has one until 1970, as long as another transaction locks a record
-- of it. One with a name takes over the records of an earlier one.
CREATE TABLE {schema}.workers (
    id bigint PRIMARY KEY DEFAULT nextval('{schema}.token'),
    lease_until timestamptz NOT NULL,
    name text UNIQUE
);

-- state: 0 pending, 1 held by a worker, 3 dead. begun: a delivery is under way.
-- The limits of this crate hold for rows that SQL writes as well: a row that no worker can read would
-- block all rows after it. COPY leaves the token to its default.
-- previous: what the latest INSERT found: 0 or 3 nothing, 1 a timeout, 2 one that was being delivered.
CREATE TABLE {schema}.timeouts (
    id text COLLATE "C" PRIMARY KEY CHECK (octet_length(id) BETWEEN 1 AND 255),
    due timestamptz NOT NULL,
    next_at timestamptz NOT NULL,
    token bigint NOT NULL DEFAULT nextval('{schema}.token'),
    worker bigint,
    attempt integer NOT NULL DEFAULT 0,
    state smallint NOT NULL DEFAULT 0,
    begun boolean NOT NULL DEFAULT false,
    previous smallint NOT NULL DEFAULT 0,
    repeat text CHECK (repeat ~ '^(all|once|skip) (every [1-9][0-9]{3,17}|cron [^ ]+ .+)$'),
    error text,
    payload bytea NOT NULL CHECK (octet_length(payload) <= 1048576),
    CHECK (due BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'
        AND next_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00')
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02);

-- An index for each order in which records are read. A claim reads as many entries as it claims records,
-- also if many records are due at one time.
CREATE INDEX timeouts_pending ON {schema}.timeouts (next_at, id) WHERE state = 0;
CREATE INDEX timeouts_dead ON {schema}.timeouts (next_at, id) WHERE state = 3;
CREATE INDEX timeouts_worker ON {schema}.timeouts (worker) WHERE worker IS NOT NULL;

-- Tells all workers that a timeout is due at a time, in microseconds since 1970.
CREATE FUNCTION {schema}.notify_due(due timestamptz) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('{schema}', (extract(epoch FROM due) * 1000000)::bigint::text || ' 0')
    WHERE due < clock_timestamp() + interval '1 hour'
$$;

-- Schedules a timeout within the caller's transaction, and replaces the one of the same id.
-- Returns 'created', 'replaced' or 'replaced_delivering'.
CREATE FUNCTION {schema}.schedule(new_id text, new_due timestamptz, new_payload bytea, new_repeat text DEFAULT NULL)
RETURNS text LANGUAGE sql AS $$
    SELECT {schema}.notify_due(new_due);
    INSERT INTO {schema}.timeouts AS t (id, due, next_at, token, repeat, payload)
    VALUES (new_id, new_due, new_due, nextval('{schema}.token'), new_repeat, new_payload)
    ON CONFLICT (id) DO UPDATE SET
        due = excluded.due, next_at = excluded.next_at, token = excluded.token, repeat = excluded.repeat,
        payload = excluded.payload, worker = NULL, attempt = 0, state = 0, begun = false, error = NULL,
        previous = CASE WHEN t.begun THEN 2 ELSE 1 END
    RETURNING (ARRAY['created', 'replaced', 'replaced_delivering'])[previous + 1]
$$;

-- Cancels a timeout within the caller's transaction. Returns 'cancelled', 'delivering' or 'not_found'.
CREATE FUNCTION {schema}.cancel(old_id text) RETURNS text LANGUAGE sql AS $$
    WITH gone AS (DELETE FROM {schema}.timeouts WHERE id = old_id RETURNING begun)
    SELECT coalesce((SELECT CASE WHEN begun THEN 'delivering' ELSE 'cancelled' END FROM gone), 'not_found')
$$;

-- Acknowledges a delivery within the caller's transaction; with a time, schedules the next occurrence.
-- Returns false if the claim is void: then the caller must roll back. The server uses no index of one
-- state for `state + 0`.
CREATE FUNCTION {schema}.acknowledge(old_id text, old_token bigint, again timestamptz DEFAULT NULL)
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
