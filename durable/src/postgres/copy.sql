-- Version 2. COPY leaves the token to its default.
ALTER TABLE {schema}.timeouts ALTER COLUMN token SET DEFAULT nextval('{schema}.token');
