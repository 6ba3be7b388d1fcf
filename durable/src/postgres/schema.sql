-- Version 1. Every name is in the schema that replaces {schema}.
CREATE SEQUENCE {schema}.token;

CREATE TABLE {schema}.workers (
    id bigint PRIMARY KEY DEFAULT nextval('{schema}.token'),
    lease_until timestamptz NOT NULL
);

-- state: 0 pending, 1 held by a worker, 3 dead. begun: a delivery is under way.
-- previous: what the latest INSERT found: 0 nothing, 1 a timeout, 2 one that was being delivered.
CREATE TABLE {schema}.timeouts (
    id text COLLATE "C" PRIMARY KEY,
    due timestamptz NOT NULL,
    next_at timestamptz NOT NULL,
    token bigint NOT NULL,
    worker bigint,
    attempt integer NOT NULL DEFAULT 0,
    state smallint NOT NULL DEFAULT 0,
    begun boolean NOT NULL DEFAULT false,
    previous smallint NOT NULL DEFAULT 0,
    repeat text,
    error text,
    payload bytea NOT NULL
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02);

CREATE INDEX timeouts_state ON {schema}.timeouts (state, next_at);
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
-- Returns false if the claim is void: then the caller must roll back.
CREATE FUNCTION {schema}.acknowledge(old_id text, old_token bigint, again timestamptz DEFAULT NULL)
RETURNS boolean LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM {schema}.timeouts
        WHERE again IS NULL AND id = old_id AND token = old_token AND worker IS NOT NULL RETURNING 1
    ), moved AS (
        UPDATE {schema}.timeouts SET
            due = again, next_at = again, token = nextval('{schema}.token'), worker = NULL, attempt = 0,
            state = 0, begun = false, error = NULL
        WHERE again IS NOT NULL AND id = old_id AND token = old_token AND worker IS NOT NULL RETURNING 1
    )
    SELECT EXISTS (SELECT FROM gone) OR EXISTS (SELECT FROM moved)
$$;
