-- Version 3: add takes two rows that were read. The function of before stays for programs of
-- version 2, which go on while others are replaced.
SET LOCAL search_path = pg_catalog, pg_temp;

CREATE FUNCTION "cardvault".add(
	keys bigint[], -- at most 8, which it shares
	read_kind smallint, read_id uuid, read_stamp bigint, -- null: none was read
	also_kind smallint, also_id uuid, also_stamp bigint, -- null: no second one was read
	of_store uuid, of_turn bigint, new_stamp bigint,
	new_kind smallint, new_id uuid, new_account uuid, new_scope uuid, new_child boolean, new_class smallint,
	new_due timestamptz, new_version bigint, new_lookup bytea, new_shown bytea, new_secret bytea,
	hashes bytea[]
	/*divided , read_account uuid, also_account uuid, new_part smallint */
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
			WHERE /*divided r.account = read_account AND */ r.kind = read_kind AND r.id = read_id)
			OR also_stamp IS DISTINCT FROM (SELECT r.stamp FROM "cardvault".records r
				WHERE /*divided r.account = also_account AND */ r.kind = also_kind AND r.id = also_id),
		new_class <> 0 AND new_id < (
			SELECT c.first FROM "cardvault".counts c
			WHERE /*divided c.part = new_part AND */ c.scope = new_scope AND c.child = new_child AND c.kind = new_kind AND c.level = 1
			ORDER BY c.first DESC LIMIT 1)
		INTO stale, closed;
	IF stale THEN
		RAISE EXCEPTION USING ERRCODE = 'CV001', MESSAGE = 'stale';
	END IF;
	IF hashes IS NOT NULL THEN
		INSERT INTO "cardvault".lookups (kind, hash, id /*divided , account */)
			SELECT new_kind, h, new_id /*divided , new_account */ FROM unnest(hashes) AS h;
	END IF;
	IF closed THEN
		RETURN "cardvault".tally(/*divided ARRAY[new_part], */ ARRAY[new_kind], ARRAY[new_child], ARRAY[new_scope], ARRAY[new_id],
			ARRAY[1], ARRAY[new_id], ARRAY[new_class], ARRAY[1]);
	END IF;
	RETURN NULL;
END $$;
