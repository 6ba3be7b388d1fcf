-- Version 4: kept counts. A program of version 2 works with these tables.

-- Changes of the numbers of live and dead timeouts. Their sums are the numbers. A statement adds a row, and
-- waits for no other one. One of 256 adds up rows of 64 blocks: an old transaction of others may keep very many
-- rows that are removed.
CREATE TABLE {schema}.counts (live bigint NOT NULL, dead bigint NOT NULL);

-- Runs with the rights of the owner, so that a role needs no more than before.
CREATE FUNCTION {schema}.count_changes() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    more_live bigint;
    more_dead bigint;
    first bigint;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        more_dead := CASE NEW.state WHEN 3 THEN 1 ELSE -1 END;
        more_live := -more_dead;
    ELSE
        SELECT count(*) FILTER (WHERE state < 3), count(*) FILTER (WHERE state = 3)
        INTO more_live, more_dead FROM changed;
        IF more_live = 0 AND more_dead = 0 THEN
            RETURN NULL;
        END IF;
        IF TG_OP = 'DELETE' THEN
            more_live := -more_live;
            more_dead := -more_dead;
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
CREATE TRIGGER count_moved AFTER UPDATE OF state ON {schema}.timeouts FOR EACH ROW
    WHEN ((OLD.state = 3) <> (NEW.state = 3)) EXECUTE FUNCTION {schema}.count_changes();
INSERT INTO {schema}.counts
    SELECT count(*) FILTER (WHERE state < 3), count(*) FILTER (WHERE state = 3) FROM {schema}.timeouts;
