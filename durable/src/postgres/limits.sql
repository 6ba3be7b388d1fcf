-- Version 4. The limits of this crate hold for rows that SQL writes as well. A row that no worker can
-- read would block all rows after it.
UPDATE {schema}.timeouts SET
    due = least(greatest(due, '1970-01-01 00:00:00+00'), '9999-12-31 23:59:59.999999+00'),
    next_at = least(greatest(next_at, '1970-01-01 00:00:00+00'), '9999-12-31 23:59:59.999999+00')
WHERE least(due, next_at) < '1970-01-01 00:00:00+00'
    OR greatest(due, next_at) > '9999-12-31 23:59:59.999999+00';
UPDATE {schema}.timeouts SET
    state = 3, worker = NULL, begun = false, token = nextval('{schema}.token'), repeat = NULL,
    error = 'the rule cannot be read: ' || repeat
WHERE repeat !~ '^(all|once|skip) (every [1-9][0-9]{3,17}|cron [^ ]+ .+)$';
UPDATE {schema}.timeouts SET
    state = 3, worker = NULL, begun = false, token = nextval('{schema}.token'),
    id = 'unreadable/' || md5(id), error = 'the id was empty or too long: ' || id
WHERE octet_length(id) NOT BETWEEN 1 AND 255;
UPDATE {schema}.timeouts SET
    state = 3, worker = NULL, begun = false, token = nextval('{schema}.token'),
    error = 'the payload has ' || octet_length(payload) || ' bytes'
WHERE octet_length(payload) > 1048576;

ALTER TABLE {schema}.timeouts
    ADD CONSTRAINT timeouts_id CHECK (octet_length(id) BETWEEN 1 AND 255),
    -- The dead timeouts from above keep their payload.
    ADD CONSTRAINT timeouts_payload CHECK (octet_length(payload) <= 1048576) NOT VALID,
    ADD CONSTRAINT timeouts_due CHECK (
        due BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'
        AND next_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'),
    ADD CONSTRAINT timeouts_repeat CHECK (
        repeat ~ '^(all|once|skip) (every [1-9][0-9]{3,17}|cron [^ ]+ .+)$');
