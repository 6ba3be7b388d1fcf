-- Version 2: queues, priorities, keys and a history.
-- allowed: of programs before version 5.
CREATE TABLE {schema}.queues (
    name text COLLATE "C" PRIMARY KEY CHECK (octet_length(name) <= 64),
    is_paused boolean NOT NULL DEFAULT false,
    allowed bigint NOT NULL DEFAULT 0
);
INSERT INTO {schema}.queues (name) VALUES ('');

-- priority: 0 high, 1 normal, 2 low.
ALTER TABLE {schema}.timeouts
    ADD COLUMN queue text COLLATE "C" NOT NULL DEFAULT '' CHECK (octet_length(queue) <= 64),
    ADD COLUMN priority smallint NOT NULL DEFAULT 1 CHECK (priority BETWEEN 0 AND 2),
    ADD COLUMN key text COLLATE "C" CHECK (octet_length(key) <= 64);

-- A claim and a list read each queue and priority in the order of time.
DROP INDEX {schema}.timeouts_pending;
CREATE INDEX timeouts_pending ON {schema}.timeouts (queue, priority, next_at, id) WHERE state = 0;
CREATE INDEX timeouts_key ON {schema}.timeouts (queue, key) WHERE key IS NOT NULL AND worker IS NOT NULL;

-- A row for each queue of the timeouts, also of those that SQL writes.
CREATE FUNCTION {schema}.add_queue(new_name text) RETURNS void LANGUAGE sql AS $$
    INSERT INTO {schema}.queues (name) SELECT new_name
    WHERE NOT EXISTS (SELECT FROM {schema}.queues WHERE name = new_name) ON CONFLICT DO NOTHING
$$;

-- Schedules a timeout within the caller's transaction, and replaces the one of the same id.
-- Returns 'created', 'replaced' or 'replaced_delivering'.
DROP FUNCTION {schema}.schedule(text, timestamptz, bytea, text);
CREATE FUNCTION {schema}.schedule(
    new_id text, new_due timestamptz, new_payload bytea, new_repeat text DEFAULT NULL,
    new_queue text DEFAULT '', new_priority integer DEFAULT 1, new_key text DEFAULT NULL
) RETURNS text LANGUAGE sql AS $$
    SELECT {schema}.notify_due(new_due);
    SELECT {schema}.add_queue(new_queue);
    INSERT INTO {schema}.timeouts AS t (id, due, next_at, token, repeat, payload, queue, priority, key)
    VALUES (new_id, new_due, new_due, nextval('{schema}.token'), new_repeat, new_payload,
        new_queue, new_priority, new_key)
    ON CONFLICT (id) DO UPDATE SET
        due = excluded.due, next_at = excluded.next_at, token = excluded.token, repeat = excluded.repeat,
        payload = excluded.payload, queue = excluded.queue, priority = excluded.priority, key = excluded.key,
        worker = NULL, attempt = 0, state = 0, begun = false, error = NULL,
        previous = CASE WHEN t.begun THEN 2 ELSE 1 END
    RETURNING (ARRAY['created', 'replaced', 'replaced_delivering'])[previous + 1]
$$;

-- Cancels a timeout within the caller's transaction. Returns 'cancelled', 'delivering' or 'not_found'. The
-- notification tells workers that a delivery under way is void.
CREATE OR REPLACE FUNCTION {schema}.cancel(old_id text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    was_begun boolean;
BEGIN
    -- Another transaction may replace the row for which a statement waits.
    WHILE EXISTS (SELECT FROM {schema}.timeouts WHERE id = old_id) LOOP
        DELETE FROM {schema}.timeouts WHERE id = old_id RETURNING begun INTO was_begun;
        IF was_begun THEN
            PERFORM pg_notify('{schema}', '0 0');
            RETURN 'delivering';
        ELSIF FOUND THEN
            RETURN 'cancelled';
        END IF;
    END LOOP;
    RETURN 'not_found';
END
$$;

-- Moves a timeout that waits within the caller's transaction. Returns 'rescheduled', 'delivering' or
-- 'not_found'.
CREATE FUNCTION {schema}.reschedule(old_id text, new_due timestamptz) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    WHILE EXISTS (SELECT FROM {schema}.timeouts WHERE id = old_id AND state < 3) LOOP
        UPDATE {schema}.timeouts SET
            due = new_due, next_at = new_due, token = nextval('{schema}.token'), worker = NULL, attempt = 0,
            state = 0
        WHERE id = old_id AND state < 3 AND NOT begun;
        IF FOUND THEN
            PERFORM {schema}.notify_due(new_due);
            RETURN 'rescheduled';
        ELSIF EXISTS (SELECT FROM {schema}.timeouts WHERE id = old_id AND begun) THEN
            RETURN 'delivering';
        END IF;
    END LOOP;
    RETURN 'not_found';
END
$$;

-- Attempts that have ended. ended_as: 0 acknowledged, 1 failed, 2 dead.
CREATE TABLE {schema}.history (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    due timestamptz NOT NULL,
    attempt integer NOT NULL,
    ended timestamptz NOT NULL,
    ended_as smallint NOT NULL,
    error text,
    until timestamptz NOT NULL
);
CREATE INDEX history_id ON {schema}.history (id, number);
CREATE INDEX history_until ON {schema}.history (until);

-- Acknowledges a delivery within the caller's transaction; with a time, schedules the next occurrence.
-- Returns false if the claim is void: then the caller must roll back. With a last time, the history has
-- the attempt until then. A fault of the rule makes the timeout dead.
DROP FUNCTION {schema}.acknowledge(text, bigint, timestamptz);
CREATE FUNCTION {schema}.acknowledge(
    old_id text, old_token bigint, again timestamptz DEFAULT NULL, keep_until timestamptz DEFAULT NULL,
    fault text DEFAULT NULL
) RETURNS boolean LANGUAGE sql AS $$
    SELECT {schema}.notify_due(again);
    INSERT INTO {schema}.history (id, queue, due, attempt, ended, ended_as, error, until)
    SELECT id, queue, due, attempt, clock_timestamp(), CASE WHEN fault IS NULL THEN 0 ELSE 2 END, fault,
        keep_until
    FROM {schema}.timeouts
    WHERE keep_until IS NOT NULL AND id = old_id AND token = old_token AND state + 0 = 1;
    WITH gone AS (
        DELETE FROM {schema}.timeouts
        WHERE again IS NULL AND fault IS NULL AND id = old_id AND token = old_token AND state + 0 = 1 RETURNING 1
    ), moved AS (
        UPDATE {schema}.timeouts SET
            due = coalesce(again, due), next_at = coalesce(again, next_at), token = nextval('{schema}.token'),
            worker = NULL, begun = false, error = fault,
            attempt = CASE WHEN fault IS NULL THEN 0 ELSE attempt END,
            state = CASE WHEN fault IS NULL THEN 0 ELSE 3 END
        WHERE (again IS NOT NULL OR fault IS NOT NULL)
            AND id = old_id AND token = old_token AND state + 0 = 1
        RETURNING 1
    )
    SELECT EXISTS (SELECT FROM gone) OR EXISTS (SELECT FROM moved)
$$;
