//! The statements of the store. `{schema}` stands for the name of the schema.
//!
//! Each statement works on arrays, so that one statement serves a group of commands. A statement
//! locks rows in the order of ids if it can. Two groups that lock the same rows
//! in different orders cause a deadlock. The server ends it, and the store writes the group again.
//!
//! A statement that finds its rows by their ids compares `state + 0`: the server cannot use an
//! index of one state for that. Statistics from a time when no record had this state would make it
//! read all records of the state for each id.

/// Puts the name of the schema into a statement, where it may be a word of SQL.
pub(super) fn named(sql: &str, schema: &str) -> String {
    sql.replace("{schema}.", &format!("\"{schema}\".")).replace("{schema}", schema)
}

/// Carries out commands of different ids. `$8` has the notifications, and `$12` is the one that a
/// delivery under way has become void. The history has the attempts until `$13`, if it is not
/// null; `$14` is the present, and `$15` how long to wait for a lock. Kinds: -1 replace if it
/// differs, 0 replace, 1 keep, 2 cancel, 3 acknowledge, 4 reschedule, 5 requeue, 6 retry, 7 dead, 8
/// next occurrence, 9 release, 10 leave, 11 purge.
///
/// Returns the ids that it changed, for a schedule with `previous` and for a cancel with whether a
/// delivery was under way. A reschedule that a delivery prevents is among them, with 1, and a
/// schedule that keeps a dead timeout, with 4.
///
/// A commit with a notification waits for others that have one, so it has more patience than the
/// rows. Triggers and functions notify as well, so `all_told` has a row even if `told` has none; no
/// answer has it.
///
/// It does not see a timeout with which another transaction replaces one whose row it waits for.
/// `missed` looks again, by functions that see the present.
pub(super) const WRITE: &str = "
    WITH new AS MATERIALIZED (
        SELECT new.* FROM (SELECT set_config('lock_timeout', $15::text, true)) setting,
            unnest($1::smallint[], $2::text[], $3::bigint[], $4::timestamptz[], $5::text[],
                $6::bytea[], $7::text[], $9::text[], $10::smallint[], $11::text[])
                AS new (kind, id, token, at, repeat, payload, error, queue, priority, key)
    ), put AS (
        INSERT INTO {schema}.timeouts AS t
            (id, due, next_at, token, repeat, payload, previous, queue, priority, key)
        SELECT id, at, at, pg_catalog.nextval('{schema}.token'), repeat, payload, 3 * kind, queue,
            priority, key
        FROM new WHERE kind <= 1
        ON CONFLICT (id) DO UPDATE SET
            due = excluded.due, next_at = excluded.next_at, token = excluded.token,
            repeat = excluded.repeat, payload = excluded.payload, queue = excluded.queue,
            priority = excluded.priority, key = excluded.key, worker = NULL, attempt = 0,
            state = 0, begun = false, error = NULL,
            previous = CASE WHEN t.begun THEN 2 ELSE 1 END
        WHERE excluded.previous = 0 OR excluded.previous = -3 AND t.state < 3
            AND (t.repeat, t.payload, t.queue, t.priority, t.key) IS DISTINCT FROM (excluded.repeat,
                excluded.payload, excluded.queue, excluded.priority, excluded.key)
        RETURNING id, previous
    ), gone AS (
        DELETE FROM {schema}.timeouts t USING new
        WHERE new.kind IN (2, 3, 11) AND t.id = new.id AND CASE new.kind
            WHEN 2 THEN true
            WHEN 3 THEN t.token = new.token AND t.state + 0 = 1
            ELSE t.state + 0 = 3
                AND t.error IS DISTINCT FROM (chr(1) || 'moved to another database') END
        RETURNING t.id, t.begun, new.kind
    ), moved AS (
        UPDATE {schema}.timeouts t SET
            state = CASE new.kind WHEN 7 THEN 3 ELSE 0 END,
            worker = NULL, begun = false, token = pg_catalog.nextval('{schema}.token'),
            next_at = CASE WHEN new.kind IN (6, 10) THEN greatest(new.at, least(t.due, t.next_at))
                ELSE coalesce(new.at, t.next_at) END,
            due = CASE WHEN new.kind IN (4, 8) THEN new.at ELSE t.due END,
            attempt = CASE
                WHEN new.kind IN (4, 5, 8) THEN 0
                WHEN new.kind > 8 THEN t.attempt - t.begun::integer
                ELSE t.attempt END,
            error = CASE
                WHEN new.kind IN (6, 7, 10) THEN new.error
                WHEN new.kind = 8 THEN NULL
                ELSE t.error END
        FROM new
        WHERE new.kind BETWEEN 4 AND 10 AND t.id = new.id AND CASE new.kind
            WHEN 4 THEN t.state < 3 AND NOT t.begun
            WHEN 5 THEN t.state = 3
                AND t.error IS DISTINCT FROM (chr(1) || 'moved to another database')
            ELSE t.token = new.token AND t.state = 1 END
        RETURNING t.id
    ), missed AS MATERIALIZED (
        SELECT id, CASE kind WHEN 2 THEN {schema}.cancel(id) WHEN 4 THEN {schema}.reschedule(id, at)
            ELSE {schema}.kept(id) END AS answer
        FROM new
        WHERE kind IN (-1, 1, 2, 4)
            AND id NOT IN (SELECT id FROM put UNION ALL SELECT id FROM gone UNION ALL SELECT id FROM moved)
    ), told AS MATERIALIZED (
        SELECT pg_notify('{schema}', told) FROM pg_catalog.unnest($8::text[]) AS told
        UNION ALL SELECT pg_notify('{schema}', $12)
        WHERE EXISTS (SELECT FROM gone WHERE begun AND kind = 2)
    ), noted AS (
        INSERT INTO {schema}.history (id, queue, due, attempt, ended, ended_as, error, until)
        SELECT t.id, t.queue, t.due, t.attempt, $14, CASE new.kind WHEN 6 THEN 1 WHEN 7 THEN 2 ELSE 0 END,
            new.error, $13
        FROM new JOIN {schema}.timeouts t ON t.id = new.id
        WHERE $13::timestamptz IS NOT NULL AND new.kind IN (3, 6, 7, 8) AND (t.begun OR new.kind = 7)
            AND (new.id IN (SELECT id FROM gone) OR new.id IN (SELECT id FROM moved))
    )
    SELECT id, previous FROM put UNION ALL SELECT id, begun::integer::smallint FROM gone
    UNION ALL SELECT id, 0::smallint FROM moved
    UNION ALL SELECT id, CASE answer WHEN 'delivering' THEN 1 WHEN 'dead' THEN 4 ELSE 0 END::smallint
    FROM missed WHERE answer <> 'not_found'
    UNION ALL SELECT '', 0::smallint FROM (SELECT count(*) FROM told) all_told
    WHERE set_config('lock_timeout', '10s', true) = ''";

/// Carries out commands of kind 3 alone, with no history, in half the time of [`WRITE`]. `$3` is
/// how long to wait for a lock.
pub(super) const DONE: &str = "
    WITH old AS MATERIALIZED (
        SELECT old.* FROM (SELECT set_config('lock_timeout', $3::text, true)) setting,
            unnest($1::text[], $2::bigint[]) AS old (id, token)
    )
    DELETE FROM {schema}.timeouts t USING old
    WHERE t.id = old.id AND t.token = old.token AND t.state + 0 = 1 RETURNING t.id, 0::smallint";

pub(super) const NOW: &str = "SELECT clock_timestamp()";

/// Adds timeouts whose id is free; fails if one is not.
pub(super) const COPY: &str = "COPY {schema}.timeouts
    (id, due, next_at, repeat, payload, queue, priority, key) FROM STDIN BINARY";

/// Without any notification, a command may have stopped a delivery, which is one as well.
pub(super) const NOTIFY: &str = "
    SELECT set_config('lock_timeout', '10s', true)
    FROM (SELECT count(pg_notify('{schema}', told)) FROM pg_catalog.unnest($1::text[]) AS told) all_told";

/// The key lock keeps the worker from being removed before the claim has committed. `$6` says
/// whether cron expressions are claimed, `$8` has the keys to pass over, `$9` is the present, `$10`
/// says whether deliveries begin, and `$11` whether a paused queue is claimed from.
///
/// It takes the earliest of each priority, and keeps those that go first. It has locked these rows,
/// so they stay where they are, and the update needs no index to find them.
pub(super) const CLAIM: &str = "
    WITH picked AS (
        SELECT t.* FROM pg_catalog.unnest('{0,1,2}'::smallint[]) AS level
        CROSS JOIN LATERAL (
            SELECT ctid AS spot, id, next_at, priority, octet_length(payload) AS size,
                $10 AND attempt = 0 AND repeat IS NULL AND key IS NULL AND next_at <= $9 AS begins
            FROM {schema}.timeouts
            WHERE EXISTS (SELECT FROM {schema}.workers
                    WHERE id = $1 AND lease_until > pg_catalog.to_timestamp(0) FOR KEY SHARE)
                AND ($11 OR NOT EXISTS (SELECT FROM {schema}.pauses WHERE name = $7 AND is_paused))
                AND state = 0 AND queue = $7 AND priority = level AND next_at >= $2 AND next_at < $3
                AND ($6 OR repeat IS NULL OR split_part(repeat, ' ', 2) <> 'cron')
                AND (key IS NULL OR key <> ALL ($8::text[]))
            ORDER BY next_at, id LIMIT $4 FOR UPDATE SKIP LOCKED
        ) t
    ), fitting AS (
        SELECT spot, begins FROM (
            SELECT spot, begins, sum(size) OVER line - size AS before, row_number() OVER line AS place
            FROM picked
            WINDOW line AS (ORDER BY
                next_at > $9, CASE WHEN next_at <= $9 THEN priority END, next_at, id)
        ) sizes WHERE before < $5 AND place <= $4
    )
    UPDATE {schema}.timeouts t SET
        state = 1, worker = $1, token = pg_catalog.nextval('{schema}.token'), begun = begins,
        attempt = attempt + begins::integer
    FROM fitting WHERE t.ctid = fitting.spot
    RETURNING {columns}";

pub(super) const AFTER_CLAIM: &str = "
    SELECT
        (SELECT min(t.next_at) FROM pg_catalog.unnest('{0,1,2}'::smallint[]) AS level CROSS JOIN LATERAL (
            SELECT next_at FROM {schema}.timeouts
            WHERE NOT EXISTS (SELECT FROM {schema}.pauses WHERE name = $4 AND is_paused)
                AND state = 0 AND queue = $4 AND priority = level AND next_at >= $2
                AND ($3 OR repeat IS NULL OR split_part(repeat, ' ', 2) <> 'cron')
                AND (key IS NULL OR key <> ALL ($5::text[]))
            ORDER BY next_at, id LIMIT 1
        ) t),
        (SELECT min(lease_until) FROM {schema}.workers w WHERE id <> $1 AND $6
            AND EXISTS (SELECT FROM {schema}.timeouts t WHERE t.worker = w.id)),
        EXISTS (SELECT FROM {schema}.workers
            WHERE id = $1 AND lease_until > pg_catalog.to_timestamp(0)),
        clock_timestamp()";

/// Locks the keys of records for the rest of the transaction, so that no other begin counts their
/// deliveries meanwhile. Returns the ids whose key another begin has locked.
pub(super) const LOCK_KEYS: &str = "
    SELECT id FROM (
        SELECT t.id, pg_try_advisory_xact_lock(
            hashtextextended(t.key, hashtextextended(t.queue, t.tableoid::bigint))) AS is_locked
        FROM pg_catalog.unnest($1::text[]) AS old (id) JOIN {schema}.timeouts t ON t.id = old.id
        WHERE t.key IS NOT NULL
    ) keys WHERE NOT is_locked";

/// Returns ids and tokens of records whose claim is valid, and: 0 the delivery began, 1 others have
/// locked the record, 2 the key is busy, 3 the queue is paused. At most `$4` deliveries of a key
/// may run; `$5` has ids whose key is busy.
///
/// The commit does not wait for the disk: a begin needs to be seen, not to be durable. `valid`
/// compares the token again: the row that it locks may be newer than the one of `held`.
pub(super) const BEGIN: &str = "
    WITH held AS MATERIALIZED (
        SELECT t.id, t.token, t.queue, t.key, old.place,
            EXISTS (SELECT FROM {schema}.pauses p WHERE p.name = t.queue AND p.is_paused) AS is_paused
        FROM (SELECT set_config('synchronous_commit', 'off', true)) setting
        CROSS JOIN unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS old (id, token, place)
        JOIN {schema}.timeouts t ON t.id = old.id AND t.token = old.token
        WHERE t.state + 0 = 1 AND NOT t.begun AND t.next_at <= $3
    ), valid AS MATERIALIZED (
        SELECT held.id, held.queue, held.key, held.place, t.ctid AS spot
        FROM held JOIN {schema}.timeouts t ON t.id = held.id AND t.token = held.token
        WHERE NOT held.is_paused AND NOT t.begun AND held.id <> ALL ($5::text[])
        FOR NO KEY UPDATE OF t SKIP LOCKED
    ), running AS MATERIALIZED (
        SELECT queue, key, (
            SELECT count(*) FROM {schema}.timeouts t
            WHERE t.queue = keys.queue AND t.key = keys.key AND t.worker IS NOT NULL AND t.begun) AS count
        FROM (SELECT DISTINCT queue, key FROM valid WHERE key IS NOT NULL AND $4::bigint IS NOT NULL) keys
    ), free AS MATERIALIZED (
        SELECT id, spot FROM (
            SELECT id, spot, queue, key, row_number() OVER (PARTITION BY queue, key ORDER BY place) AS place
            FROM valid
        ) line LEFT JOIN running USING (queue, key)
        WHERE key IS NULL OR $4 IS NULL OR $4 >= place + count
    ), began AS (
        UPDATE {schema}.timeouts t SET begun = true, attempt = t.attempt + 1
        FROM free WHERE t.ctid = free.spot RETURNING t.id, t.token
    )
    SELECT id, token, 0 FROM began UNION ALL
    SELECT id, token, CASE
        WHEN is_paused THEN 3
        WHEN id = ANY ($5) THEN 2
        WHEN id IN (SELECT id FROM free) THEN 1
        WHEN id IN (SELECT id FROM valid) THEN 2
        ELSE 1 END
    FROM held WHERE id NOT IN (SELECT id FROM began)";

pub(super) const HISTORY: &str = "
    SELECT number, id, queue, due, attempt, ended, ended_as, error FROM {schema}.history
    WHERE number < $1 AND until > $2 ORDER BY number DESC LIMIT $3";

pub(super) const HISTORY_OF: &str = "
    SELECT number, id, queue, due, attempt, ended, ended_as, error FROM {schema}.history
    WHERE number < $1 AND until > $2 AND id = $4 ORDER BY number DESC LIMIT $3";

/// Returns the ids whose rows others have locked.
pub(super) const LOCKED: &str = "
    WITH free AS MATERIALIZED (
        SELECT id FROM {schema}.timeouts WHERE id = ANY ($1::text[]) FOR UPDATE SKIP LOCKED
    )
    SELECT id FROM {schema}.timeouts WHERE id = ANY ($1) AND id NOT IN (SELECT id FROM free)";

/// Returns the claims that are valid.
pub(super) const CURRENT: &str = "
    SELECT t.id, t.token FROM unnest($1::text[], $2::bigint[]) AS old (id, token)
    JOIN {schema}.timeouts t ON t.id = old.id AND t.token = old.token";

/// Gives out permits: at most `$2` up to the present `$4`, one each `$5`; those since `$3` are
/// kept. All are in microseconds. Returns their number, and up to when they are given out. A call
/// that gets none leaves no version of the row.
///
/// The clock of another worker may be a little ahead; by more than a second, the clock has stepped
/// back.
pub(super) const PERMITS: &str = "
    WITH old AS MATERIALIZED (
        SELECT CASE WHEN allowed > $4::bigint + 1000000 THEN $4
            ELSE greatest(allowed, $3::bigint) END AS start
        FROM (SELECT set_config('synchronous_commit', 'off', true)) setting, {schema}.permits p
        WHERE queue = $1 FOR UPDATE OF p
    ), given AS (
        SELECT start, greatest(0, least($2::bigint, ($4 - start) / $5::bigint)) AS count FROM old
    ), noted AS (
        UPDATE {schema}.permits SET allowed = start + count * $5 FROM given
        WHERE queue = $1 AND (count > 0 OR allowed > start)
    )
    SELECT count, start + count * $5 FROM given";

pub(super) const ADD_PERMITS: &str =
    "INSERT INTO {schema}.permits VALUES ($1, 0) ON CONFLICT DO NOTHING";

pub(super) const PAUSE: &str = "
    INSERT INTO {schema}.pauses VALUES ($1, $2)
    ON CONFLICT (name) DO UPDATE SET is_paused = excluded.is_paused";

/// Other commands may wait for this, so it has as little patience as a single one.
pub(super) const ADD_QUEUES: &str = "
    SELECT {schema}.add_queue(name)
    FROM (SELECT set_config('lock_timeout', '5ms', true)) setting, pg_catalog.unnest($1::text[]) AS name";

pub(super) const QUEUES: &str = "
    SELECT name, coalesce(is_paused, false)
    FROM {schema}.queues FULL JOIN {schema}.pauses USING (name) ORDER BY name";

pub(super) const ENTER: &str =
    "INSERT INTO {schema}.workers (lease_until, name) VALUES ($1, $2) RETURNING id";

/// A worker whose lease was taken away has one until the start of 1970. A later call has renewed
/// one that is a little longer; the clock has stepped back if it is much longer. Returns whether
/// the old one lasted until `$3`, and what the clock shows.
pub(super) const RENEW: &str = "
    UPDATE {schema}.workers SET lease_until = CASE
        WHEN workers.lease_until > $2::timestamptz + interval '1 minute' THEN $2
        ELSE greatest(workers.lease_until, $2) END
    FROM {schema}.workers old
    WHERE workers.id = $1 AND old.id = $1 AND workers.lease_until > pg_catalog.to_timestamp(0)
    RETURNING old.lease_until >= $3, clock_timestamp()";

/// Locks workers whose lease ended before a time. A claim under way ends first, or is passed over.
pub(super) const LAPSED: &str = "
    SELECT id FROM {schema}.workers WHERE lease_until < $1 AND id <> $2 FOR UPDATE SKIP LOCKED";

pub(super) const LOCK_WORKER: &str = "SELECT id FROM {schema}.workers WHERE id = $1 FOR UPDATE";

pub(super) const LOCK_NAMED: &str = "SELECT id FROM {schema}.workers WHERE name = $1 FOR UPDATE";

/// Ends the leases of workers that an earlier statement of the transaction has locked.
pub(super) const END_LEASES: &str = "
    UPDATE {schema}.workers SET lease_until = pg_catalog.to_timestamp(0), name = NULL WHERE id = ANY($1)";

/// Makes records of these workers pending that have other tokens, but for those that are locked.
/// The server hashes the tokens of a subquery, and compares each record with all of an array.
pub(super) const TAKE: &str = "
    UPDATE {schema}.timeouts t SET
        state = 0, worker = NULL, begun = false, token = pg_catalog.nextval('{schema}.token')
    WHERE t.id IN (
        SELECT id FROM {schema}.timeouts
        WHERE worker = ANY ($1) AND token NOT IN (SELECT pg_catalog.unnest($2::bigint[]))
        FOR NO KEY UPDATE SKIP LOCKED)
    RETURNING t.id";

/// Removes attempts that were kept until a time from `$1` to `$2`, and adds up counts, as triggers
/// do, but not in a transaction of a stricter isolation: those of the user may all have one.
/// Returns the latest of these times.
pub(super) const TIDY: &str = "
    WITH expired AS (
        DELETE FROM {schema}.history WHERE number = ANY (ARRAY(
            SELECT number FROM {schema}.history WHERE until >= $1 AND until <= $2
            ORDER BY until LIMIT 10000 FOR UPDATE SKIP LOCKED))
        RETURNING until
    ), start AS (
        SELECT random() * greatest(0, pg_catalog.pg_relation_size('{schema}.counts') / 8192 - 1024)::float8
            AS block
    ), old AS (
        DELETE FROM {schema}.counts WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM {schema}.counts
            WHERE ctid >= (SELECT pg_catalog.format('(%s,0)', block::bigint)::tid FROM start)
                AND ctid < (SELECT pg_catalog.format('(%s,0)', block::bigint + 1024)::tid FROM start)
            FOR UPDATE SKIP LOCKED))
        RETURNING live, dead
    ), added AS (
        INSERT INTO {schema}.counts SELECT sum(live), sum(dead) FROM old HAVING count(*) > 0
    )
    SELECT max(until) FROM expired";

/// Removes these workers. One with a locked record stays until a later look.
pub(super) const REMOVE: &str = "
    DELETE FROM {schema}.workers w WHERE id = ANY($1)
        AND NOT EXISTS (SELECT FROM {schema}.timeouts t WHERE t.worker = w.id)";

/// Stands for `{columns}`.
pub(super) const COLUMNS: &str = "id, due, next_at, token, attempt, state, begun, repeat, error,
    payload, queue, priority, key";

pub(super) const GET: &str = "SELECT {columns} FROM {schema}.timeouts WHERE id = $1";

/// The upper bound has more bytes than an id can have.
pub(super) const LIST_PREFIX: &str = "
    SELECT {columns} FROM {schema}.timeouts
    WHERE id >= $1 AND id < $1 || repeat(chr(1114111), 64) AND starts_with(id, $1) AND id > $2
    ORDER BY id LIMIT $3";

/// Lists records that are not dead, after `($1, $2)` and before `$3`. Few are held, and an index
/// finds these; the others are read in the order of the list.
pub(super) const LIST_TIMES: &str = "
    SELECT t.* FROM {schema}.queues CROSS JOIN pg_catalog.unnest('{0,1,2}'::smallint[]) AS level
        CROSS JOIN LATERAL (
            SELECT {columns} FROM {schema}.timeouts
            WHERE state = 0 AND queue = name AND priority = level
                AND (next_at, id) > ($1, $2) AND next_at < $3
            ORDER BY next_at, id LIMIT $4) t
    UNION ALL (
        SELECT {columns} FROM {schema}.timeouts
        WHERE worker IS NOT NULL AND (next_at, id) > ($1, $2) AND next_at < $3
        ORDER BY next_at, id LIMIT $4)
    ORDER BY next_at, id LIMIT $4";

/// Lists dead records after `($1, $2)`.
pub(super) const LIST_DEAD: &str = "
    SELECT {columns} FROM {schema}.timeouts
    WHERE state = 3 AND (next_at, id) > ($1, $2) ORDER BY next_at, id LIMIT $3";

pub(super) const COUNT: &str = "
    SELECT coalesce(sum(live), 0)::bigint, coalesce(sum(dead), 0)::bigint FROM {schema}.counts";

/// Counts at most `$3` live records.
pub(super) const COUNT_LIVE: &str = "
    SELECT count(*) FROM (
        (SELECT FROM {schema}.queues CROSS JOIN pg_catalog.unnest('{0,1,2}'::smallint[]) AS level
            CROSS JOIN LATERAL (
                SELECT FROM {schema}.timeouts
                WHERE state = 0 AND queue = name AND priority = level
                    AND next_at >= $1 AND next_at < $2
                ORDER BY next_at LIMIT $3) t)
        UNION ALL
        (SELECT FROM {schema}.timeouts
         WHERE worker IS NOT NULL AND next_at >= $1 AND next_at < $2 LIMIT $3)
        LIMIT $3) found";

/// Returns the first `$2` queues with counts up to `$3` at `$1`. The records of a queue that no
/// worker holds are read in the order of time, so one read counts the live and the due ones.
pub(super) const OVERVIEW: &str = "
    WITH held AS MATERIALIZED (
        SELECT queue, count(*) AS live, count(*) FILTER (WHERE next_at <= $1) AS due,
            count(*) FILTER (WHERE begun) AS delivering,
            min(next_at) FILTER (WHERE next_at <= $1 AND NOT begun) AS oldest
        FROM {schema}.timeouts WHERE worker IS NOT NULL GROUP BY queue
    )
    SELECT name, is_paused, least($3, free.live + coalesce(held.live, 0)),
        least($3, free.due + coalesce(held.due, 0)), least($3, coalesce(delivering, 0)), dead,
        least(free.oldest, held.oldest)
    FROM (
        SELECT name, coalesce(is_paused, false) AS is_paused
        FROM {schema}.queues FULL JOIN {schema}.pauses USING (name) ORDER BY name LIMIT $2
    ) first LEFT JOIN held ON queue = name
    CROSS JOIN LATERAL (
        SELECT count(*) AS live, count(*) FILTER (WHERE next_at <= $1) AS due,
            min(next_at) FILTER (WHERE next_at <= $1) AS oldest
        FROM pg_catalog.unnest('{0,1,2}'::smallint[]) AS level CROSS JOIN LATERAL (
            SELECT next_at FROM {schema}.timeouts
            WHERE state = 0 AND queue = name AND priority = level
            ORDER BY next_at, id LIMIT $3) t) free
    CROSS JOIN LATERAL (
        SELECT count(*) AS dead FROM (
            SELECT FROM {schema}.timeouts WHERE state = 3 AND queue = name LIMIT $3) t) dead
    ORDER BY name";

pub(super) const LEASES: &str =
    "SELECT worker, name, lease_until, held, delivering FROM {schema}.leases LIMIT $1";
