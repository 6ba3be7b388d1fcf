-- Version 5: permits in a table of their own, and two triggers. A program of version 2 works with these tables. While
-- both kinds of programs run, each gives out the permits of a rate by itself.

-- allowed: microseconds since 1970 up to which the permits of the queue are given out. An earlier program has
-- them in the table of queues. There, each change adds a version of a row that every claim reads.
CREATE TABLE {schema}.permits (
    queue text COLLATE "C" PRIMARY KEY,
    allowed bigint NOT NULL
);
INSERT INTO {schema}.permits SELECT name, allowed FROM {schema}.queues;

-- Tells all workers that a delivery under way is void, as its timeout was scheduled again.
CREATE FUNCTION {schema}.tell_replaced() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('{schema}', '0 0');
    RETURN NULL;
END
$$;
CREATE TRIGGER told_replaced AFTER UPDATE OF previous ON {schema}.timeouts FOR EACH ROW
    WHEN (OLD.begun AND NEW.previous = 2) EXECUTE FUNCTION {schema}.tell_replaced();

-- Of eight attempts that end, one removes sixteen whose time is over.
-- Runs with the rights of the owner, so that a role that acknowledges needs no more than before.
CREATE FUNCTION {schema}.trim_history() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM {schema}.history WHERE number = ANY (ARRAY(
        SELECT number FROM {schema}.history WHERE until <= NEW.ended
        ORDER BY until LIMIT 16 FOR UPDATE SKIP LOCKED));
    RETURN NULL;
END
$$;
-- In a stricter isolation, attempts that others have removed meanwhile would be an error.
CREATE TRIGGER trimmed AFTER INSERT ON {schema}.history FOR EACH ROW
    WHEN (NEW.number % 8 = 0 AND current_setting('transaction_isolation') = 'read committed')
    EXECUTE FUNCTION {schema}.trim_history();
