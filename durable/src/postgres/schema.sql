-- Every name is in the schema that replaces {schema}, or the server's. In the search path, a function or operator of
-- another role may fit better than the server's, and would run with the rights of its caller. Triggers of users
-- need the path, so the bodies of functions name pg_catalog instead where no arguments fit exactly.
-- The end of this text sets back what the transaction had.
SELECT pg_catalog.set_config('delaywheel.path', pg_catalog.current_setting('search_path'), true),
    pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

-- With `IF NOT EXISTS`, the owner of a schema would need a right to create others.
DO $$ BEGIN
    IF to_regnamespace('"{schema}"') IS NULL THEN CREATE SCHEMA "{schema}"; END IF;
END $$;

-- compatible: the least version whose programs also work with these tables.
CREATE TABLE {schema}.version (version integer NOT NULL, compatible integer NOT NULL);

CREATE SEQUENCE {schema}.token;

-- A worker whose lease was taken away has one until 1970, as long as another transaction locks a record
-- of it. One with a name takes over the records of an earlier one.
CREATE TABLE {schema}.workers (
    id bigint PRIMARY KEY DEFAULT pg_catalog.nextval('{schema}.token'),
    lease_until timestamptz NOT NULL,
    name text UNIQUE
);

-- state: 0 pending, 1 held by a worker, 3 dead. begun: a delivery is under way.
-- The limits of this crate hold for rows that SQL writes as well: a row that no worker can read would
-- block all rows after it. COPY leaves the token to its default.
-- priority: 0 high, 1 normal, 2 low.
-- previous: what the latest INSERT found: 0 or 3 nothing, 1 a timeout, 2 one that was being delivered.
CREATE TABLE {schema}.timeouts (
    id text COLLATE "C" PRIMARY KEY CHECK (octet_length(id) BETWEEN 1 AND 255),
    due timestamptz NOT NULL,
    next_at timestamptz NOT NULL,
    token bigint NOT NULL DEFAULT pg_catalog.nextval('{schema}.token'),
    worker bigint,
    attempt integer NOT NULL DEFAULT 0,
    state smallint NOT NULL DEFAULT 0,
    begun boolean NOT NULL DEFAULT false,
    previous smallint NOT NULL DEFAULT 0,
    repeat text CHECK (CASE WHEN repeat ~ '^(all|once|skip) every [1-9][0-9]{3,17}$'
        THEN split_part(repeat, ' ', 3)::bigint <= 253402300799999999
        ELSE repeat ~ '^(all|once|skip) cron [^ ]+ .+$' END),
    error text,
    payload bytea NOT NULL CHECK (octet_length(payload) <= 1048576),
    queue text COLLATE "C" NOT NULL DEFAULT '' CHECK (octet_length(queue) <= 64),
    priority smallint NOT NULL DEFAULT 1 CHECK (priority BETWEEN 0 AND 2),
    key text COLLATE "C" CHECK (octet_length(key) <= 64),
    CHECK (due BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'
        AND next_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00')
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02);

-- An index for each order in which records are read. A claim and a list read each queue and priority in the
-- order of time. A claim reads as many entries as it claims records, also if many records are due at one time.
CREATE INDEX timeouts_pending ON {schema}.timeouts (queue, priority, next_at, id) WHERE state = 0;
CREATE INDEX timeouts_dead ON {schema}.timeouts (next_at, id) WHERE state = 3;
CREATE INDEX timeouts_dead_queue ON {schema}.timeouts (queue) WHERE state = 3;
CREATE INDEX timeouts_worker ON {schema}.timeouts (worker) WHERE worker IS NOT NULL;
CREATE INDEX timeouts_key ON {schema}.timeouts (queue, key) WHERE key IS NOT NULL AND worker IS NOT NULL;

CREATE TABLE {schema}.queues (
    name text COLLATE "C" PRIMARY KEY CHECK (octet_length(name) <= 64)
);
INSERT INTO {schema}.queues (name) VALUES ('');

-- The queues that are or were paused, also those without a row in queues. A pause that wrote to queues would wait
-- for each open transaction of a user that adds the queue.
CREATE TABLE {schema}.pauses (
    name text COLLATE "C" PRIMARY KEY CHECK (octet_length(name) <= 64),
    is_paused boolean NOT NULL
);

-- A row for each queue of the timeouts, also of those that SQL writes.
CREATE FUNCTION {schema}.add_queue(new_name text) RETURNS void LANGUAGE sql AS $$
    INSERT INTO {schema}.queues (name) SELECT new_name
    WHERE NOT EXISTS (SELECT FROM {schema}.queues WHERE name = new_name) ON CONFLICT DO NOTHING
$$;

-- allowed: microseconds since 1970 up to which the permits of the queue are given out. In the table of
-- queues, each change would add a version of a row that every claim reads.
CREATE TABLE {schema}.permits (
    queue text COLLATE "C" PRIMARY KEY,
    allowed bigint NOT NULL
);

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

-- Of eight attempts that end, one removes sixteen whose time is over since a second. Workers remove others: a
-- search from the oldest one on would pass all that were removed during an old transaction.
-- Runs with the rights of the owner, so that a role needs none to remove attempts.
CREATE FUNCTION {schema}.trim_history() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM {schema}.history WHERE number = ANY (ARRAY(
        SELECT number FROM {schema}.history WHERE until <= NEW.ended AND until > NEW.ended - interval '1 second'
        ORDER BY until LIMIT 16 FOR UPDATE SKIP LOCKED));
    RETURN NULL;
END
$$;
-- In a stricter isolation, attempts that others have removed meanwhile would be an error.
CREATE TRIGGER trimmed AFTER INSERT ON {schema}.history FOR EACH ROW
    WHEN (NEW.number % 8 = 0 AND current_setting('transaction_isolation') = 'read committed')
    EXECUTE FUNCTION {schema}.trim_history();

-- Changes of the numbers of live and dead timeouts. Their sums are the numbers. A statement adds a row, and
-- waits for no other one. One of 256 adds up rows of 64 blocks: an old transaction of others may keep very many
-- rows that are removed.
CREATE TABLE {schema}.counts (live bigint NOT NULL, dead bigint NOT NULL);
-- It has no key, and a publication of all tables would refuse its deletes.
ALTER TABLE {schema}.counts REPLICA IDENTITY FULL;

-- Runs with the rights of the owner, so that a role needs none to change the counts.
CREATE FUNCTION {schema}.count_changes() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    sign integer := CASE TG_OP WHEN 'DELETE' THEN -1 ELSE 1 END;
    more_live bigint;
    more_dead bigint;
    first bigint;
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        -- If the statement has emptied both tables, another TRUNCATE would be an error.
        IF pg_relation_size('{schema}.counts') > 0 THEN
            TRUNCATE {schema}.counts;
        END IF;
        RETURN NULL;
    ELSIF TG_OP = 'UPDATE' THEN
        more_dead := CASE NEW.state WHEN 3 THEN 1 ELSE -1 END;
        more_live := -more_dead;
    ELSE
        SELECT sign * count(*) FILTER (WHERE state < 3), sign * count(*) FILTER (WHERE state = 3)
        INTO more_live, more_dead FROM changed;
        IF more_live = 0 AND more_dead = 0 THEN
            RETURN NULL;
        END IF;
    END IF;
    -- In a stricter isolation, rows that others have added up meanwhile would be an error.
    IF random() < 1.0 / 256 AND current_setting('transaction_isolation') = 'read committed' THEN
        first := random() * greatest(0, pg_relation_size('{schema}.counts') / 8192 - 64);
        WITH old AS (
            DELETE FROM {schema}.counts WHERE ctid = ANY (ARRAY(
                SELECT ctid FROM {schema}.counts
                WHERE ctid >= format('(%s,0)', first)::tid AND ctid < format('(%s,0)', first + 64)::tid
                FOR UPDATE SKIP LOCKED))
            RETURNING live, dead
        )
        SELECT more_live + coalesce(sum(live), 0), more_dead + coalesce(sum(dead), 0)
        INTO more_live, more_dead FROM old;
    END IF;
    INSERT INTO {schema}.counts VALUES (more_live, more_dead);
    RETURN NULL;
END
$$;
CREATE TRIGGER count_new AFTER INSERT ON {schema}.timeouts REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.count_changes();
CREATE TRIGGER count_old AFTER DELETE ON {schema}.timeouts REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.count_changes();
CREATE TRIGGER count_none AFTER TRUNCATE ON {schema}.timeouts
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.count_changes();
CREATE TRIGGER count_moved AFTER UPDATE OF state ON {schema}.timeouts FOR EACH ROW
    WHEN ((OLD.state = 3) <> (NEW.state = 3)) EXECUTE FUNCTION {schema}.count_changes();

-- Only the owner, who creates the triggers, needs the right. A role could create others that empty the tables.
REVOKE EXECUTE ON FUNCTION {schema}.trim_history(), {schema}.count_changes() FROM PUBLIC;

-- Tells the workers of a queue, or all, that a timeout is due at a time, in microseconds since 1970.
CREATE FUNCTION {schema}.notify_due(due timestamptz, queue text) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify(
        '{schema}', (extract(epoch FROM due) * 1000000.0)::bigint::text || ' 0' || coalesce(' ' || queue, ''))
    WHERE due < clock_timestamp() + interval '1 hour'
$$;

-- Tells all workers that a delivery under way is void, as its timeout was scheduled again.
CREATE FUNCTION {schema}.tell_replaced() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('{schema}', '0 0');
    RETURN NULL;
END
$$;
CREATE TRIGGER told_replaced AFTER UPDATE OF previous ON {schema}.timeouts FOR EACH ROW
    WHEN (OLD.begun AND NEW.previous = 2) EXECUTE FUNCTION {schema}.tell_replaced();

-- Makes the timeouts of workers that SQL removes pending: no lease of these workers will end.
CREATE FUNCTION {schema}.free_timeouts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        DELETE FROM {schema}.workers;
        RETURN NULL;
    END IF;
    UPDATE {schema}.timeouts SET
        state = 0, worker = NULL, begun = false, token = pg_catalog.nextval('{schema}.token')
    WHERE worker = OLD.id;
    IF FOUND THEN
        PERFORM pg_notify('{schema}', '0 0');
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER freed AFTER DELETE ON {schema}.workers FOR EACH ROW EXECUTE FUNCTION {schema}.free_timeouts();
CREATE TRIGGER freed_all BEFORE TRUNCATE ON {schema}.workers
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.free_timeouts();

-- Returns 'dead' if a timeout is that now, whatever the statement around it sees.
CREATE FUNCTION {schema}.kept(old_id text) RETURNS text LANGUAGE sql AS $$
    SELECT 'dead' FROM {schema}.timeouts WHERE id = old_id AND state + 0 = 3
$$;

-- Schedules a timeout within the caller's transaction. One of the same id is replaced, or kept if
-- `conflict` is 1; if it is -1, it is replaced if it is not dead and differs in more than its time.
-- Returns 'created', 'replaced', 'replaced_delivering', 'kept' or 'kept_dead'.
CREATE FUNCTION {schema}.schedule(
    new_id text, new_due timestamptz, new_payload bytea, new_repeat text DEFAULT NULL,
    new_queue text DEFAULT '', new_priority integer DEFAULT 1, new_key text DEFAULT NULL,
    conflict integer DEFAULT 0
) RETURNS text LANGUAGE sql AS $$
    SELECT {schema}.notify_due(new_due, new_queue);
    SELECT {schema}.add_queue(new_queue);
    WITH put AS (
        INSERT INTO {schema}.timeouts AS t
            (id, due, next_at, token, repeat, payload, queue, priority, key, previous)
        VALUES (new_id, new_due, new_due, pg_catalog.nextval('{schema}.token'), new_repeat, new_payload,
            new_queue, new_priority, new_key, 3 * conflict)
        ON CONFLICT (id) DO UPDATE SET
            due = excluded.due, next_at = excluded.next_at, token = excluded.token, repeat = excluded.repeat,
            payload = excluded.payload, queue = excluded.queue, priority = excluded.priority,
            key = excluded.key, worker = NULL, attempt = 0, state = 0, begun = false, error = NULL,
            previous = CASE WHEN t.begun THEN 2 ELSE 1 END
        WHERE excluded.previous = 0 OR excluded.previous = -3 AND t.state < 3
            AND (t.repeat, t.payload, t.queue, t.priority, t.key) IS DISTINCT FROM (excluded.repeat,
                excluded.payload, excluded.queue, excluded.priority, excluded.key)
        RETURNING CASE previous WHEN 1 THEN 'replaced' WHEN 2 THEN 'replaced_delivering' ELSE 'created' END
            AS answer
    )
    SELECT coalesce((SELECT answer FROM put), 'kept_' || {schema}.kept(new_id), 'kept')
$$;

-- Cancels a timeout within the caller's transaction. Returns 'cancelled', 'delivering' or 'not_found'. The
-- notification tells workers that a delivery under way is void.
CREATE FUNCTION {schema}.cancel(old_id text) RETURNS text LANGUAGE plpgsql AS $$
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
            due = new_due, next_at = new_due, token = pg_catalog.nextval('{schema}.token'), worker = NULL, attempt = 0,
            state = 0
        WHERE id = old_id AND state < 3 AND NOT begun;
        IF FOUND THEN
            PERFORM {schema}.notify_due(new_due, queue) FROM {schema}.timeouts WHERE id = old_id;
            RETURN 'rescheduled';
        ELSIF EXISTS (SELECT FROM {schema}.timeouts WHERE id = old_id AND begun) THEN
            RETURN 'delivering';
        END IF;
    END LOOP;
    RETURN 'not_found';
END
$$;

-- Acknowledges a delivery within the caller's transaction; with a time, schedules the next occurrence.
-- Returns false if the claim is void: then the caller must roll back. With `keep_until`, the history has
-- the attempt until then. A fault of the rule makes the timeout dead. A recurring timeout ends only if
-- `is_last` is true. The server uses no index of one state for `state + 0`.
CREATE FUNCTION {schema}.acknowledge(
    old_id text, old_token bigint, again timestamptz DEFAULT NULL, keep_until timestamptz DEFAULT NULL,
    fault text DEFAULT NULL, is_last boolean DEFAULT false
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF again IS NULL AND fault IS NULL AND NOT is_last AND EXISTS (
        SELECT FROM {schema}.timeouts
        WHERE id = old_id AND token = old_token AND state + 0 = 1 AND repeat IS NOT NULL)
    THEN
        RAISE 'timeout % recurs: give the time of its next occurrence, or is_last => true', old_id;
    END IF;
    PERFORM {schema}.notify_due(again, queue) FROM {schema}.timeouts WHERE id = old_id;
    INSERT INTO {schema}.history (id, queue, due, attempt, ended, ended_as, error, until)
    SELECT id, queue, due, attempt, clock_timestamp(), CASE WHEN fault IS NULL THEN 0 ELSE 2 END, fault,
        keep_until
    FROM {schema}.timeouts
    WHERE keep_until IS NOT NULL AND id = old_id AND token = old_token AND state + 0 = 1;
    IF again IS NULL AND fault IS NULL THEN
        DELETE FROM {schema}.timeouts WHERE id = old_id AND token = old_token AND state + 0 = 1;
    ELSE
        UPDATE {schema}.timeouts SET
            due = coalesce(again, due), next_at = coalesce(again, next_at),
            token = pg_catalog.nextval('{schema}.token'),
            worker = NULL, begun = false, error = fault,
            attempt = CASE WHEN fault IS NULL THEN 0 ELSE attempt END,
            state = CASE WHEN fault IS NULL THEN 0 ELSE 3 END
        WHERE id = old_id AND token = old_token AND state + 0 = 1;
    END IF;
    RETURN FOUND;
END
$$;

-- Timeouts that are due and not acknowledged, oldest first.
CREATE VIEW {schema}.due AS
    (SELECT queue, priority, id, due, next_at, now() - next_at AS late, 'pending' AS state, worker, attempt, error
    FROM {schema}.queues CROSS JOIN pg_catalog.unnest('{0,1,2}'::smallint[]) AS level
    JOIN {schema}.timeouts ON state = 0 AND queue = name AND priority = level AND next_at <= now())
    UNION ALL
    (SELECT queue, priority, id, due, next_at, now() - next_at, CASE WHEN begun THEN 'delivering' ELSE 'claimed' END,
        worker, attempt, error
    FROM {schema}.timeouts WHERE worker IS NOT NULL AND next_at <= now())
    ORDER BY next_at, id;

-- Timeouts whose every attempt failed, in the order of their latest attempts.
CREATE VIEW {schema}.dead AS
    SELECT queue, id, due, next_at AS last_attempt, attempt AS attempts, error, repeat,
        octet_length(payload) AS payload_bytes
    FROM {schema}.timeouts WHERE state = 3 ORDER BY next_at, id;

-- Number of timeouts that wait, by the hour of their next attempt. Reads an index entry for each.
CREATE VIEW {schema}.by_hour AS
    SELECT date_trunc('hour', next_at) AS hour, queue, count(*) AS pending
    FROM {schema}.timeouts WHERE state = 0 GROUP BY 1, 2 ORDER BY 1, 2;

-- Queues with their states. Reads an index entry for each timeout that waits.
CREATE VIEW {schema}.queue_states AS
    SELECT name AS queue, coalesce(is_paused, false) AS is_paused, pending, due, now() - oldest AS late
    FROM {schema}.queues FULL JOIN {schema}.pauses USING (name) CROSS JOIN LATERAL (
        SELECT count(*) AS pending, count(*) FILTER (WHERE next_at <= now()) AS due,
            min(next_at) FILTER (WHERE next_at <= now()) AS oldest
        FROM {schema}.timeouts WHERE state = 0 AND queue = name) waiting
    ORDER BY name;

-- Workers with their leases, and the timeouts that they hold.
CREATE VIEW {schema}.leases AS
    SELECT w.id AS worker, w.name, w.lease_until, w.lease_until > clock_timestamp() AS is_valid,
        coalesce(t.held, 0) AS held, coalesce(t.delivering, 0) AS delivering
    FROM {schema}.workers w LEFT JOIN (
        SELECT worker, count(*) AS held, count(*) FILTER (WHERE begun) AS delivering
        FROM {schema}.timeouts WHERE worker IS NOT NULL GROUP BY worker) t ON t.worker = w.id
    ORDER BY w.id;

SELECT set_config('search_path', current_setting('delaywheel.path'), true);
