-- Who there is in the embedded PostgreSQL, and what belongs to whom, in a cluster of any age. Nobody can log in as a
-- superuser, so a server for a single user reads this, before the real one starts. Doing it again changes nothing.

BEGIN;

-- What initdb makes was called like the application once, which was its superuser. Nobody may rename who they are.
DO $$ BEGIN
    IF (SELECT rolname FROM pg_authid WHERE oid = 10) <> 'postgres' THEN
        CREATE ROLE renaming SUPERUSER;
        SET LOCAL SESSION AUTHORIZATION renaming;
        EXECUTE format('ALTER ROLE %I RENAME TO postgres', (SELECT rolname FROM pg_authid WHERE oid = 10));
        SET LOCAL SESSION AUTHORIZATION postgres;
        DROP ROLE renaming;
    END IF;
END $$;

ALTER ROLE postgres NOLOGIN PASSWORD NULL;

DO $$ BEGIN
    IF to_regrole('{owner}') IS NULL THEN CREATE ROLE {owner}; END IF;
    IF to_regrole('{application}') IS NULL THEN CREATE ROLE {application}; END IF;
END $$;

ALTER ROLE {owner} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS PASSWORD '{owner_verifier}';

ALTER ROLE {application} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS
    PASSWORD '{application_verifier}';

ALTER DATABASE {database} OWNER TO {owner};

REVOKE ALL ON DATABASE {database} FROM PUBLIC;

GRANT CONNECT ON DATABASE {database} TO {application};

-- Sequences of columns go with their table. What the application may do with a table, controlplane/grants.sql says.
DO $$ DECLARE relation regclass; BEGIN
    FOR relation IN
        SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm')
    LOOP
        EXECUTE format('ALTER TABLE %s OWNER TO {owner}', relation);
    END LOOP;
END $$;

COMMIT;

