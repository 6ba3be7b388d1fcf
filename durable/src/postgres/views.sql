-- Version 2: views for people. A program of version 1 works with these tables.

-- Timeouts that are due and not acknowledged, oldest first.
CREATE VIEW {schema}.due AS
    (SELECT id, due, next_at, now() - next_at AS late, 'pending' AS state, worker, attempt, error
    FROM {schema}.timeouts WHERE state = 0 AND next_at <= now())
    UNION ALL
    (SELECT id, due, next_at, now() - next_at, CASE WHEN begun THEN 'delivering' ELSE 'claimed' END,
        worker, attempt, error
    FROM {schema}.timeouts WHERE worker IS NOT NULL AND next_at <= now())
    ORDER BY next_at, id;

-- Timeouts whose every attempt failed, in the order of their latest attempts.
CREATE VIEW {schema}.dead AS
    SELECT id, due, next_at AS last_attempt, attempt AS attempts, error, repeat,
        octet_length(payload) AS payload_bytes
    FROM {schema}.timeouts WHERE state = 3 ORDER BY next_at, id;

-- Number of timeouts that wait, by the hour of their next attempt. Reads an index entry for each.
CREATE VIEW {schema}.by_hour AS
    SELECT date_trunc('hour', next_at) AS hour, count(*) AS pending
    FROM {schema}.timeouts WHERE state = 0 GROUP BY 1 ORDER BY 1;

-- Workers with their leases, and the timeouts that they hold.
CREATE VIEW {schema}.leases AS
    SELECT w.id AS worker, w.name, w.lease_until, w.lease_until > clock_timestamp() AS is_valid,
        coalesce(t.held, 0) AS held, coalesce(t.delivering, 0) AS delivering
    FROM {schema}.workers w LEFT JOIN (
        SELECT worker, count(*) AS held, count(*) FILTER (WHERE begun) AS delivering
        FROM {schema}.timeouts WHERE worker IS NOT NULL GROUP BY worker) t ON t.worker = w.id
    ORDER BY w.id;
