-- What Migrate makes of a new schema that shall have partitions, after the migrations. It
-- does the rest for each partition by itself: see partitions.go.
SET LOCAL search_path = pg_catalog, pg_temp;

ALTER TABLE "cardvault".records RENAME TO whole_records;
CREATE TABLE "cardvault".records (LIKE "cardvault".whole_records INCLUDING STORAGE) PARTITION BY HASH (account);
DROP TABLE "cardvault".whole_records;

ALTER TABLE "cardvault".lookups RENAME TO whole_lookups;
CREATE TABLE "cardvault".lookups (LIKE "cardvault".whole_lookups, account uuid NOT NULL) PARTITION BY HASH (account);
DROP TABLE "cardvault".whole_lookups;

-- part is the number of the partition in which the records of the list are. Functions of a
-- partition leave it out.
ALTER TABLE "cardvault".counts RENAME TO whole_counts;
CREATE TABLE "cardvault".counts (LIKE "cardvault".whole_counts, part smallint NOT NULL) PARTITION BY LIST (part);
DROP TABLE "cardvault".whole_counts;

-- add, apply and replace are as without partitions, and take the accounts of the rows: so
-- each reads one partition a row.
CREATE FUNCTION "cardvault".apply(
	patient boolean, keys bigint[], exclusive boolean[], -- see lock
	read_kind smallint[], read_id uuid[], read_stamp bigint[], -- rows; a stamp of null: there is none
	of_store uuid, of_turn bigint, new_stamp bigint, -- null: nothing is written
	gone_kind smallint[], gone_id uuid[], -- rows
	new_kind smallint[], new_id uuid[], new_account uuid[], new_scope uuid[], new_child boolean[], new_class smallint[],
	new_due timestamptz[], new_version bigint[], new_lookup bytea[], new_shown bytea[], new_secret bytea[],
	changed integer, -- how many of the new, the first, take the place of a row
	off_kind smallint[], off_hash bytea[], off_id uuid[], -- lookups
	on_kind smallint[], on_hash bytea[], on_id uuid[],
	list_kind smallint[], list_child boolean[], list_scope uuid[], list_least uuid[], -- lists, and the least id below
	entry_list integer[], entry_id uuid[], entry_class smallint[], entry_n integer[], -- what changes in them
	read_account uuid[], -- null: the row may be of any account
	gone_account uuid[], off_account uuid[], on_account uuid[], list_part smallint[]
) RETURNS integer[]
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '3s' SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
	taken text;
	stamp_now bigint;
BEGIN
	IF NOT patient OR current_setting('transaction_isolation') <> 'read committed'
			OR current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
		PERFORM "cardvault".lock(patient, keys, exclusive);
	ELSE
		FOR i IN 1..cardinality(keys) LOOP -- assignments, as these need no executor
			IF exclusive[i] THEN
				taken := pg_advisory_xact_lock(keys[i])::text;
			ELSE
				taken := pg_advisory_xact_lock_shared(keys[i])::text;
			END IF;
		END LOOP;
	END IF;
	FOR i IN 1..coalesce(cardinality(read_id), 0) LOOP
		IF read_account[i] IS NULL THEN
			stamp_now := (SELECT r.stamp FROM "cardvault".records r WHERE r.kind = read_kind[i] AND r.id = read_id[i] LIMIT 1);
		ELSE
			stamp_now := (SELECT r.stamp FROM "cardvault".records r
				WHERE r.account = read_account[i] AND r.kind = read_kind[i] AND r.id = read_id[i]);
		END IF;
		IF read_stamp[i] IS DISTINCT FROM stamp_now THEN
			RAISE EXCEPTION USING ERRCODE = 'CV001', MESSAGE = 'stale';
		END IF;
	END LOOP;
	IF of_turn IS NULL THEN
		RETURN NULL;
	END IF;
	INSERT INTO "cardvault".groups (store, turn, done) VALUES (of_store, of_turn, true);
	IF cardinality(off_id) > 0 OR cardinality(gone_id) > 0 OR changed > 0 THEN
		PERFORM "cardvault".replace(new_stamp, gone_kind, gone_id, new_kind[:changed], new_id[:changed], new_account[:changed],
			new_scope[:changed], new_child[:changed], new_class[:changed], new_due[:changed], new_version[:changed],
			new_lookup[:changed], new_shown[:changed], new_secret[:changed], off_kind, off_hash, off_id, gone_account, off_account);
	END IF;
	IF cardinality(new_id) > changed THEN
		INSERT INTO "cardvault".records (kind, id, account, scope, child, class, due, version, stamp, lookup, shown, secret)
			SELECT new_kind[i], new_id[i], new_account[i], new_scope[i], new_child[i], new_class[i], new_due[i], new_version[i],
				new_stamp, new_lookup[i], new_shown[i], new_secret[i]
			FROM generate_series(changed + 1, cardinality(new_id)) AS i;
	END IF;
	IF cardinality(on_id) > 0 THEN
		INSERT INTO "cardvault".lookups (kind, hash, id, account) SELECT * FROM unnest(on_kind, on_hash, on_id, on_account);
	END IF;

	FOR i IN 1..coalesce(cardinality(list_scope), 0) LOOP
		IF list_least[i] < (
				SELECT c.first FROM "cardvault".counts c
				WHERE c.part = list_part[i] AND c.scope = list_scope[i] AND c.child = list_child[i] AND c.kind = list_kind[i] AND c.level = 1
				ORDER BY c.first DESC LIMIT 1) THEN
			RETURN "cardvault".tally(list_part, list_kind, list_child, list_scope, list_least, entry_list, entry_id, entry_class, entry_n);
		END IF;
	END LOOP;
	RETURN NULL; -- all come into open blocks
END $$;

CREATE FUNCTION "cardvault".add(
	keys bigint[], -- at most 8, which it shares
	read_kind smallint, read_id uuid, read_stamp bigint, -- null: none was read
	of_store uuid, of_turn bigint, new_stamp bigint,
	new_kind smallint, new_id uuid, new_account uuid, new_scope uuid, new_child boolean, new_class smallint,
	new_due timestamptz, new_version bigint, new_lookup bytea, new_shown bytea, new_secret bytea,
	hashes bytea[],
	read_account uuid, new_part smallint
) RETURNS integer[]
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off -- and no more, as each setting costs time
AS $$
DECLARE
	stale boolean;
	closed boolean;
BEGIN
	-- One expression, as that needs no executor. What is not there is null.
	IF (pg_try_advisory_xact_lock_shared(keys[1]) AND pg_try_advisory_xact_lock_shared(keys[2])
			AND pg_try_advisory_xact_lock_shared(keys[3]) AND pg_try_advisory_xact_lock_shared(keys[4])
			AND pg_try_advisory_xact_lock_shared(keys[5]) AND pg_try_advisory_xact_lock_shared(keys[6])
			AND pg_try_advisory_xact_lock_shared(keys[7]) AND pg_try_advisory_xact_lock_shared(keys[8])) IS FALSE
			OR current_setting('transaction_isolation') <> 'read committed'
			OR current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
		PERFORM set_config('lock_timeout', '3s', true);
		PERFORM "cardvault".lock(true, keys, array_fill(false, ARRAY[cardinality(keys)]));
	END IF;
	WITH turn AS (
		INSERT INTO "cardvault".groups (store, turn, done) VALUES (of_store, of_turn, true)
	), added AS (
		INSERT INTO "cardvault".records (kind, id, account, scope, child, class, due, version, stamp, lookup, shown, secret)
			VALUES (new_kind, new_id, new_account, new_scope, new_child, new_class, new_due, new_version, new_stamp,
				new_lookup, new_shown, new_secret)
	)
	SELECT
		read_stamp IS DISTINCT FROM (SELECT r.stamp FROM "cardvault".records r
			WHERE r.account = read_account AND r.kind = read_kind AND r.id = read_id),
		new_class <> 0 AND new_id < (
			SELECT c.first FROM "cardvault".counts c
			WHERE c.part = new_part AND c.scope = new_scope AND c.child = new_child AND c.kind = new_kind AND c.level = 1
			ORDER BY c.first DESC LIMIT 1)
		INTO stale, closed;
	IF stale THEN
		RAISE EXCEPTION USING ERRCODE = 'CV001', MESSAGE = 'stale';
	END IF;
	IF hashes IS NOT NULL THEN
		INSERT INTO "cardvault".lookups (kind, hash, id, account) SELECT new_kind, h, new_id, new_account FROM unnest(hashes) AS h;
	END IF;
	IF closed THEN
		RETURN "cardvault".tally(ARRAY[new_part], ARRAY[new_kind], ARRAY[new_child], ARRAY[new_scope], ARRAY[new_id],
			ARRAY[1], ARRAY[new_id], ARRAY[new_class], ARRAY[1]);
	END IF;
	RETURN NULL;
END $$;

CREATE FUNCTION "cardvault".replace(
	new_stamp bigint, gone_kind smallint[], gone_id uuid[],
	new_kind smallint[], new_id uuid[], new_account uuid[], new_scope uuid[], new_child boolean[], new_class smallint[],
	new_due timestamptz[], new_version bigint[], new_lookup bytea[], new_shown bytea[], new_secret bytea[],
	off_kind smallint[], off_hash bytea[], off_id uuid[], gone_account uuid[], off_account uuid[]
) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
	IF cardinality(off_id) > 0 THEN
		DELETE FROM "cardvault".lookups l USING unnest(off_kind, off_hash, off_id, off_account) AS d(k, h, i, a)
			WHERE l.account = d.a AND l.kind = d.k AND l.hash = d.h AND l.id = d.i;
	END IF;
	IF cardinality(gone_id) > 0 THEN
		DELETE FROM "cardvault".records r USING unnest(gone_kind, gone_id, gone_account) AS d(k, i, a)
			WHERE r.account = d.a AND r.kind = d.k AND r.id = d.i;
	END IF;
	IF cardinality(new_id) > 0 THEN
		UPDATE "cardvault".records r
			SET scope = n.scope, child = n.child, class = n.class, due = n.due, version = n.version,
				stamp = new_stamp, lookup = n.lookup, shown = n.shown, secret = n.secret
			FROM unnest(new_kind, new_id, new_account, new_scope, new_child,
				new_class, new_due, new_version, new_lookup, new_shown,
				new_secret) AS n(kind, id, account, scope, child, class, due, version, lookup, shown, secret)
			WHERE r.account = n.account AND r.kind = n.kind AND r.id = n.id;
	END IF;
END $$;

-- found returns the first of the records of any account that have a hash, by id. Each
-- comes from the partition of its account: a join would open all of them for each.
CREATE FUNCTION "cardvault".found(of_kind smallint, of_hash bytea, most bigint) RETURNS SETOF "cardvault".records
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
	entry record;
	one "cardvault".records;
BEGIN
	FOR entry IN SELECT l.id, l.account FROM "cardvault".lookups l WHERE l.kind = of_kind AND l.hash = of_hash ORDER BY l.id LOOP
		EXIT WHEN most = 0;
		SELECT * INTO one FROM "cardvault".records r WHERE r.account = entry.account AND r.kind = of_kind AND r.id = entry.id;
		IF FOUND AND "cardvault".has(one.lookup, of_hash) THEN
			most := most - 1;
			RETURN NEXT one;
		END IF;
	END LOOP;
END $$;
