-- The schema of pgstore, version 1, to be run in one transaction. Migrate puts another
-- schema's name for "cardvault".
--
-- A function or operator of another schema never takes the place of one of pg_catalog:
-- each function sets its search path, except blocks, below and has, which would not be
-- inlined then and name pg_catalog themselves.
--
-- With partitions Migrate runs what is in comments of the word divided too, and leaves out
-- what is between those of whole and end: see partitions.go.
SET LOCAL search_path = pg_catalog, pg_temp;

CREATE TABLE "cardvault".records (
	version bigint   NOT NULL,
	stamp   bigint   NOT NULL, -- of the group of writes that this row is of
	due     timestamptz,
	kind    smallint NOT NULL,
	class   smallint NOT NULL,
	child   boolean  NOT NULL, -- whether scope is the parent
	id      uuid     NOT NULL,
	account uuid     NOT NULL,
	scope   uuid     NOT NULL, -- whose list it is in: the parent's, else the account's
	lookup  bytea,             -- hashes, each after a byte with its length
	shown   bytea    NOT NULL,
	secret  bytea    NOT NULL /*whole*/,
	PRIMARY KEY (kind, id) /*end*/
) /*divided PARTITION BY HASH (account) */;

-- What is sealed cannot be compressed.
ALTER TABLE "cardvault".records ALTER shown SET STORAGE EXTERNAL, ALTER secret SET STORAGE EXTERNAL;

CREATE INDEX records_list ON "cardvault".records (scope, child, kind, id) INCLUDE (class, due) WHERE child OR class <> 0;
CREATE INDEX records_due ON "cardvault".records (kind, due, id) INCLUDE (scope, child, class) WHERE due IS NOT NULL;

CREATE TABLE "cardvault".lookups (
	kind smallint NOT NULL,
	hash bytea    NOT NULL,
	id   uuid     NOT NULL /*divided , account uuid NOT NULL */ /*whole*/,
	PRIMARY KEY (kind, hash, id) /*end*/
) /*divided PARTITION BY HASH (account) */;

-- A list is cut into blocks. One of level 1 begins with the id first and ends where the
-- next begins; one of level 2 is a run of these. The last block of each level is open:
-- what comes at the end of a list, as most records do, is counted nowhere. Whatever
-- changes in another block adds a row here, so that nobody waits for a counter; the
-- sum of the rows is how many records of a class the block has. Every block has a row
-- of class 0. A list without rows is one open block.
CREATE TABLE "cardvault".counts (
	n     bigint   NOT NULL,
	kind  smallint NOT NULL,
	level smallint NOT NULL,
	class smallint NOT NULL,
	child boolean  NOT NULL,
	scope uuid     NOT NULL,
	first uuid     NOT NULL /*divided , part smallint NOT NULL */ -- the partition of the account; functions of one leave it out
) /*divided PARTITION BY LIST (part) */;

CREATE INDEX counts_list ON "cardvault".counts (scope, child, kind, level, first) INCLUDE (class, n);

-- A group of writes has a row here that is committed with it, by its Store and a number.
-- If the answer is lost, the Store looks for that row, and puts one there if there is
-- none: then the group can never be committed. Each group has a row of its own, as one
-- that all update would have to be found among all versions that a long snapshot keeps.
CREATE TABLE "cardvault".groups (
	store uuid        NOT NULL,
	turn  bigint      NOT NULL,
	done  boolean     NOT NULL, -- false: it never will be
	at    timestamptz NOT NULL DEFAULT pg_catalog.now(),
	PRIMARY KEY (store, turn)
);

-- The names of the advisory locks follow from this, so that only who may read it knows
-- them. It stays what it is: two Stores of which each has another one exclude nothing.
CREATE TABLE "cardvault".seed (seed uuid NOT NULL DEFAULT pg_catalog.gen_random_uuid());
REVOKE ALL ON "cardvault".seed FROM PUBLIC;
INSERT INTO "cardvault".seed DEFAULT VALUES;

-- lock takes locks until the end of the transaction, in the order of the keys, waiting
-- for each or for none.
CREATE FUNCTION "cardvault".lock(patient boolean, keys bigint[], exclusive boolean[]) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
	IF current_setting('transaction_isolation') <> 'read committed' THEN
		RAISE EXCEPTION USING ERRCODE = 'CV003', MESSAGE = 'the isolation level is not read committed';
	END IF;
	IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
		PERFORM set_config('synchronous_commit', 'on', true);
	END IF;
	IF patient THEN
		PERFORM CASE WHEN l.x THEN pg_advisory_xact_lock(l.k) ELSE pg_advisory_xact_lock_shared(l.k) END
			FROM unnest(keys, exclusive) AS l(k, x);
	ELSIF EXISTS (SELECT FROM unnest(keys, exclusive) AS l(k, x)
			WHERE NOT CASE WHEN l.x THEN pg_try_advisory_xact_lock(l.k) ELSE pg_try_advisory_xact_lock_shared(l.k) END) THEN
		RAISE EXCEPTION USING ERRCODE = 'CV001', MESSAGE = 'busy';
	END IF;
END $$;

-- apply makes the writes of a group if what it has read is still so. It returns which of
-- the lists have a block that has grown too large. What loops in it and in the functions
-- that it calls does so over the arrays, which the Store bounds.
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
	entry_list integer[], entry_id uuid[], entry_class smallint[], entry_n integer[] -- what changes in them
	/*divided , read_account uuid[], gone_account uuid[], off_account uuid[], on_account uuid[], list_part smallint[] */
	-- of the rows and lists above; a read_account of null: the row may be of any account
) RETURNS integer[]
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '3s' SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
	taken text;
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
		/*divided
		IF read_account[i] IS NOT NULL THEN
			IF read_stamp[i] IS DISTINCT FROM (SELECT r.stamp FROM "cardvault".records r
					WHERE r.account = read_account[i] AND r.kind = read_kind[i] AND r.id = read_id[i]) THEN
				RAISE EXCEPTION USING ERRCODE = 'CV001', MESSAGE = 'stale';
			END IF;
			CONTINUE;
		END IF;
		*/
		IF read_stamp[i] IS DISTINCT FROM (
				SELECT r.stamp FROM "cardvault".records r WHERE r.kind = read_kind[i] AND r.id = read_id[i] /*divided LIMIT 1 */) THEN
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
			new_lookup[:changed], new_shown[:changed], new_secret[:changed], off_kind, off_hash, off_id
			/*divided , gone_account, off_account */);
	END IF;
	IF cardinality(new_id) > changed THEN
		INSERT INTO "cardvault".records (kind, id, account, scope, child, class, due, version, stamp, lookup, shown, secret)
			SELECT new_kind[i], new_id[i], new_account[i], new_scope[i], new_child[i], new_class[i], new_due[i], new_version[i],
				new_stamp, new_lookup[i], new_shown[i], new_secret[i]
			FROM generate_series(changed + 1, cardinality(new_id)) AS i;
	END IF;
	IF cardinality(on_id) > 0 THEN
		INSERT INTO "cardvault".lookups (kind, hash, id /*divided , account */)
			SELECT * FROM unnest(on_kind, on_hash, on_id /*divided , on_account */);
	END IF;

	FOR i IN 1..coalesce(cardinality(list_scope), 0) LOOP
		IF list_least[i] < (
				SELECT c.first FROM "cardvault".counts c
				WHERE /*divided c.part = list_part[i] AND */ c.scope = list_scope[i] AND c.child = list_child[i]
					AND c.kind = list_kind[i] AND c.level = 1
				ORDER BY c.first DESC LIMIT 1) THEN
			RETURN "cardvault".tally(/*divided list_part, */ list_kind, list_child, list_scope, list_least,
				entry_list, entry_id, entry_class, entry_n);
		END IF;
	END LOOP;
	RETURN NULL; -- all come into open blocks
END $$;

-- add is apply for a group that adds one row.
CREATE FUNCTION "cardvault".add(
	keys bigint[], -- at most 8, which it shares
	read_kind smallint, read_id uuid, read_stamp bigint, -- null: none was read
	of_store uuid, of_turn bigint, new_stamp bigint,
	new_kind smallint, new_id uuid, new_account uuid, new_scope uuid, new_child boolean, new_class smallint,
	new_due timestamptz, new_version bigint, new_lookup bytea, new_shown bytea, new_secret bytea,
	hashes bytea[]
	/*divided , read_account uuid, new_part smallint */
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
			WHERE /*divided r.account = read_account AND */ r.kind = read_kind AND r.id = read_id),
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

-- settle ends a group of which it is not known what has become, and returns whether it
-- was committed. It waits for one that is about to be. It writes in any case, so that
-- what it says is as durable as the group.
CREATE FUNCTION "cardvault".settle(of_store uuid, of_turn bigint) RETURNS boolean
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '3s'
AS $$
DECLARE
	was boolean;
BEGIN
	PERFORM "cardvault".lock(true, NULL, NULL);
	INSERT INTO "cardvault".groups AS g (store, turn, done) VALUES (of_store, of_turn, false)
		ON CONFLICT (store, turn) DO UPDATE SET at = now() RETURNING g.done INTO was;
	RETURN was;
END $$;

-- replace is the part of apply that removes and changes rows.
CREATE FUNCTION "cardvault".replace(
	new_stamp bigint, gone_kind smallint[], gone_id uuid[],
	new_kind smallint[], new_id uuid[], new_account uuid[], new_scope uuid[], new_child boolean[], new_class smallint[],
	new_due timestamptz[], new_version bigint[], new_lookup bytea[], new_shown bytea[], new_secret bytea[],
	off_kind smallint[], off_hash bytea[], off_id uuid[] /*divided , gone_account uuid[], off_account uuid[] */
) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
	IF cardinality(off_id) > 0 THEN
		DELETE FROM "cardvault".lookups l USING unnest(off_kind, off_hash, off_id /*divided , off_account */) AS d(k, h, i /*divided , a */)
			WHERE /*divided l.account = d.a AND */ l.kind = d.k AND l.hash = d.h AND l.id = d.i;
	END IF;
	IF cardinality(gone_id) > 0 THEN
		DELETE FROM "cardvault".records r USING unnest(gone_kind, gone_id /*divided , gone_account */) AS d(k, i /*divided , a */)
			WHERE /*divided r.account = d.a AND */ r.kind = d.k AND r.id = d.i;
	END IF;
	IF cardinality(new_id) > 0 THEN
		UPDATE "cardvault".records r
			SET /*whole*/ account = n.account, /*end*/ scope = n.scope, child = n.child, class = n.class, due = n.due, version = n.version,
				stamp = new_stamp, lookup = n.lookup, shown = n.shown, secret = n.secret
			FROM unnest(new_kind, new_id, new_account, new_scope, new_child,
				new_class, new_due, new_version, new_lookup, new_shown,
				new_secret) AS n(kind, id, account, scope, child, class, due, version, lookup, shown, secret)
			WHERE /*divided r.account = n.account AND */ r.kind = n.kind AND r.id = n.id;
	END IF;
END $$;

-- tally is the part of apply that counts what changes in closed blocks.
CREATE FUNCTION "cardvault".tally(
	list_kind smallint[], list_child boolean[], list_scope uuid[], list_least uuid[],
	entry_list integer[], entry_id uuid[], entry_class smallint[], entry_n integer[]
) RETURNS integer[]
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
	large integer[];
	entry record;
BEGIN
	FOR entry IN
		WITH closed AS MATERIALIZED (
			SELECT l.place, l.k, l.c, l.s, v.level, o.first
			FROM unnest(list_kind, list_child, list_scope, list_least) WITH ORDINALITY AS l(k, c, s, least, place)
			CROSS JOIN (VALUES (1::smallint), (2::smallint)) AS v(level)
			CROSS JOIN LATERAL (
				SELECT x.first FROM "cardvault".counts x
				WHERE x.scope = l.s AND x.child = l.c AND x.kind = l.k AND x.level = v.level
				ORDER BY x.first DESC LIMIT 1) AS o
			WHERE l.least < o.first
		), added AS (
			INSERT INTO "cardvault".counts (kind, child, scope, level, first, class, n)
				SELECT c.k, c.c, c.s, c.level, b.first, e.class, sum(e.n)
				FROM closed c
				JOIN unnest(entry_list, entry_id, entry_class, entry_n) AS e(list, id, class, n) ON e.list = c.place AND e.id < c.first
				CROSS JOIN LATERAL (
					SELECT x.first FROM "cardvault".counts x
					WHERE x.scope = c.s AND x.child = c.c AND x.kind = c.k AND x.level = c.level AND x.first <= e.id
					ORDER BY x.first DESC LIMIT 1) AS b
				GROUP BY c.k, c.c, c.s, c.level, b.first, e.class
				HAVING sum(e.n) <> 0
				RETURNING kind, child, scope, level, first
		)
		SELECT DISTINCT a.kind, a.child, a.scope, a.level, a.first, c.place
			FROM added a JOIN closed c ON (c.k, c.c, c.s, c.level) = (a.kind, a.child, a.scope, a.level)
	LOOP
		-- Now and then the rows of a block become one for each class.
		IF random() < 0.06 AND "cardvault".fold(entry.kind, entry.child, entry.scope, entry.level, entry.first) > 256 AND entry.level = 1 THEN
			large := large || entry.place::integer;
		END IF;
	END LOOP;
	RETURN large;
END $$;

-- fold puts one row of each class for those of a block that nobody else folds, at most
-- 4,096, and returns how many records these count.
CREATE FUNCTION "cardvault".fold(of_kind smallint, of_child boolean, of_scope uuid, of_level smallint, of_first uuid) RETURNS bigint
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	size bigint;
BEGIN
	WITH mine AS MATERIALIZED (
		SELECT ctid FROM "cardvault".counts
		WHERE scope = of_scope AND child = of_child AND kind = of_kind AND level = of_level AND first = of_first AND class <> 0
		LIMIT 4096 FOR UPDATE SKIP LOCKED
	), gone AS (
		DELETE FROM "cardvault".counts WHERE ctid = ANY (ARRAY(SELECT ctid FROM mine)) RETURNING class, n
	), kept AS (
		INSERT INTO "cardvault".counts (kind, child, scope, level, first, class, n)
			SELECT of_kind, of_child, of_scope, of_level, of_first, class, sum(n) FROM gone GROUP BY class HAVING sum(n) <> 0
			RETURNING n
	)
	SELECT coalesce(sum(n), 0) INTO size FROM kept;
	RETURN size;
END $$;

-- block_of returns where the block of a level begins that has an id, or null if the list
-- has no blocks. That of the greatest id is the open one.
CREATE FUNCTION "cardvault".block_of(of_kind smallint, of_child boolean, of_scope uuid, of_level smallint, of_id uuid) RETURNS uuid
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT first FROM "cardvault".counts
	WHERE scope = of_scope AND child = of_child AND kind = of_kind AND level = of_level AND first <= of_id
	ORDER BY first DESC LIMIT 1
$$;

-- blocks returns the blocks of a level that have ids of a range, where the next of these
-- begins, and how many records of some classes (null: all) each has.
CREATE FUNCTION "cardvault".blocks(of_kind smallint, of_child boolean, of_scope uuid, of_level smallint,
	low uuid, high uuid, of_class smallint[]) RETURNS TABLE (first uuid, next uuid, n bigint)
LANGUAGE sql STABLE AS $$
	SELECT c.first, pg_catalog.lead(c.first) OVER (ORDER BY c.first),
		coalesce(pg_catalog.sum(c.n) FILTER (WHERE of_class IS NULL OR c.class OPERATOR(pg_catalog.=) ANY (of_class)), 0)::bigint
	FROM "cardvault".counts c
	WHERE c.scope OPERATOR(pg_catalog.=) of_scope AND c.child OPERATOR(pg_catalog.=) of_child
		AND c.kind OPERATOR(pg_catalog.=) of_kind AND c.level OPERATOR(pg_catalog.=) of_level
		AND c.first OPERATOR(pg_catalog.>=) coalesce((
			SELECT x.first FROM "cardvault".counts x
			WHERE x.scope OPERATOR(pg_catalog.=) of_scope AND x.child OPERATOR(pg_catalog.=) of_child
				AND x.kind OPERATOR(pg_catalog.=) of_kind AND x.level OPERATOR(pg_catalog.=) of_level
				AND x.first OPERATOR(pg_catalog.<=) low
			ORDER BY x.first DESC LIMIT 1), low)
		AND c.first OPERATOR(pg_catalog.<=) high
	GROUP BY c.first
$$;

-- arrange cuts a piece of a list into blocks: from the block on that has an id, those of
-- its run that have grown too large, and the end of the list if it is the last run. It
-- returns where the next piece begins, or null. The greatest id is for the end alone.
-- The keys are the locks for that: nobody else writes to the list meanwhile, so that a
-- piece is small.
CREATE FUNCTION "cardvault".arrange(of_kind smallint, of_child boolean, of_scope uuid, at uuid, keys bigint[], exclusive boolean[]) RETURNS uuid
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
	zero CONSTANT uuid := '00000000-0000-0000-0000-000000000000';
	top CONSTANT uuid := 'ffffffff-ffff-ffff-ffff-ffffffffffff';
	piece CONSTANT bigint := 8192; -- records
	run uuid;
	after_run uuid; -- null: run is the open one
	block record;
	firsts uuid[]; -- where new blocks begin
	done bigint := 0;
	onward uuid;
BEGIN
	PERFORM "cardvault".lock(true, keys, exclusive);
	run := coalesce("cardvault".block_of(of_kind, of_child, of_scope, 2::smallint, at), zero);
	after_run := (
		SELECT c.first FROM "cardvault".counts c
		WHERE c.scope = of_scope AND c.child = of_child AND c.kind = of_kind AND c.level = 2 AND c.first > run
		ORDER BY c.first LIMIT 1);
	onward := after_run;
	-- A block is divided after each 128 records; what is left has up to 255, and the last
	-- of a list stay in the open block, since ids come almost in order.
	FOR block IN
		SELECT b.first, b.next FROM "cardvault".blocks(of_kind, of_child, of_scope, 1::smallint, at, coalesce(after_run, top), NULL) AS b
			WHERE b.first IS DISTINCT FROM after_run AND (b.n > 256 OR b.next IS NULL)
		UNION ALL SELECT zero, NULL WHERE "cardvault".block_of(of_kind, of_child, of_scope, 1::smallint, top) IS NULL
		ORDER BY first
	LOOP
		firsts := ARRAY(
			SELECT e.id FROM (
				SELECT l.id, row_number() OVER (ORDER BY l.id) AS place, count(*) OVER () AS size FROM (
					SELECT r.id FROM "cardvault".records r
					WHERE r.scope = of_scope AND r.child = of_child AND r.kind = of_kind AND (r.child OR r.class <> 0) AND r.class <> 0
						AND r.id >= block.first AND r.id <= coalesce(block.next, top) AND r.id IS DISTINCT FROM block.next
					ORDER BY r.id LIMIT piece + 128) AS l) AS e
			WHERE e.place > 1 AND e.place % 128 = 1 AND e.place + 127 <= e.size
			ORDER BY e.place);
		PERFORM "cardvault".cut(of_kind, of_child, of_scope, 1::smallint, block.first, block.next, firsts);
		done := done + 128 * cardinality(firsts);
		IF done >= piece THEN
			onward := firsts[cardinality(firsts)];
			EXIT;
		END IF;
	END LOOP;

	firsts := ARRAY(
		SELECT e.first FROM (
			SELECT b.first, row_number() OVER (ORDER BY b.first) AS place, count(*) OVER () AS size
			FROM "cardvault".blocks(of_kind, of_child, of_scope, 1::smallint, run, coalesce(after_run, top), NULL) AS b
			WHERE b.first IS DISTINCT FROM after_run) AS e
		WHERE e.place > 1 AND e.place % 128 = 1 AND e.place + 127 <= e.size
		ORDER BY e.place);
	PERFORM "cardvault".cut(of_kind, of_child, of_scope, 2::smallint, run, after_run, firsts);
	IF cardinality(firsts) > 0 THEN
		-- Runs that have become empty join the one before, at most 16 at a time: each has
		-- some hundred blocks.
		DELETE FROM "cardvault".counts c
			USING (SELECT r.first, r.next FROM "cardvault".blocks(of_kind, of_child, of_scope, 2::smallint, zero, top, NULL) AS r
				WHERE r.n = 0 AND r.first > zero AND r.next IS NOT NULL ORDER BY r.first LIMIT 16) AS b
			WHERE c.scope = of_scope AND c.child = of_child AND c.kind = of_kind AND c.level IN (1, 2) AND c.first >= b.first AND c.first < b.next;
	END IF;
	RETURN onward;
END $$;

-- cut divides a block where new ones shall begin. What comes after the last of these is
-- counted if the block was.
CREATE FUNCTION "cardvault".cut(of_kind smallint, of_child boolean, of_scope uuid, of_level smallint,
	of_first uuid, of_next uuid, firsts uuid[]) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	bounds CONSTANT uuid[] := of_first || firsts;
	rest CONSTANT uuid := firsts[cardinality(firsts)];
BEGIN
	IF rest IS NULL THEN
		RETURN;
	END IF;
	INSERT INTO "cardvault".counts (kind, child, scope, level, first, class, n)
		SELECT of_kind, of_child, of_scope, of_level, f.first, 0, 0 FROM unnest(bounds) AS f(first)
		WHERE f.first <> of_first OR "cardvault".block_of(of_kind, of_child, of_scope, of_level, of_first) IS DISTINCT FROM of_first;
	WITH entries AS MATERIALIZED (
		SELECT bounds[width_bucket(e.id, bounds)] AS first, e.class, sum(e.n) AS n
		FROM (
			SELECT r.id, r.class, 1 AS n FROM "cardvault".records r
				WHERE of_level = 1 AND r.scope = of_scope AND r.child = of_child AND r.kind = of_kind AND (r.child OR r.class <> 0) AND r.class <> 0
					AND r.id >= of_first AND r.id < rest
			UNION ALL SELECT c.first, c.class, c.n FROM "cardvault".counts c
				WHERE of_level = 2 AND c.scope = of_scope AND c.child = of_child AND c.kind = of_kind AND c.level = 1 AND c.class <> 0
					AND c.first >= of_first AND c.first < rest) AS e
		GROUP BY 1, 2
	), gone AS (
		DELETE FROM "cardvault".counts c
			WHERE c.scope = of_scope AND c.child = of_child AND c.kind = of_kind AND c.level = of_level AND c.first = of_first AND c.class <> 0
			RETURNING c.class, c.n
	)
	INSERT INTO "cardvault".counts (kind, child, scope, level, first, class, n)
		SELECT of_kind, of_child, of_scope, of_level, e.first, e.class, e.n FROM entries e WHERE e.n <> 0
		UNION ALL SELECT of_kind, of_child, of_scope, of_level, rest, r.class, sum(r.n)
			FROM (SELECT g.class, g.n FROM gone g UNION ALL SELECT e.class, -e.n FROM entries e) AS r
			WHERE of_next IS NOT NULL GROUP BY r.class HAVING sum(r.n) <> 0;
END $$;

-- rank returns how many records of a list and some classes (null: all) have an id below
-- one, or up to it. seen is how many records it has looked at.
CREATE FUNCTION "cardvault".rank(of_kind smallint, of_child boolean, of_scope uuid, of_class smallint[], up_to uuid, inclusive boolean,
	OUT n bigint, OUT seen bigint)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	zero CONSTANT uuid := '00000000-0000-0000-0000-000000000000';
	run uuid;
	block uuid;
BEGIN
	SELECT c.first INTO run FROM "cardvault".counts c
		WHERE c.scope = of_scope AND c.child = of_child AND c.kind = of_kind AND c.level = 2 AND c.first <= up_to
		ORDER BY c.first DESC LIMIT 1;
	SELECT c.first INTO block FROM "cardvault".counts c
		WHERE c.scope = of_scope AND c.child = of_child AND c.kind = of_kind AND c.level = 1 AND c.first <= up_to
		ORDER BY c.first DESC LIMIT 1;
	SELECT count(*) INTO seen FROM "cardvault".records r
		WHERE r.scope = of_scope AND r.child = of_child AND r.kind = of_kind AND (r.child OR r.class <> 0) AND r.class <> 0
			AND r.id >= coalesce(block, zero) AND r.id <= up_to AND (inclusive OR r.id < up_to)
			AND (of_class IS NULL OR r.class = ANY (of_class));
	n := seen;
	IF block IS NOT NULL THEN
		n := n + (SELECT coalesce(sum(c.n), 0) FROM "cardvault".counts c
			WHERE c.scope = of_scope AND c.child = of_child AND c.kind = of_kind AND c.level = 1
				AND c.first >= coalesce(run, zero) AND c.first < block AND (of_class IS NULL OR c.class = ANY (of_class)));
	END IF;
	IF run IS NOT NULL THEN
		n := n + (SELECT coalesce(sum(c.n), 0) FROM "cardvault".counts c
			WHERE c.scope = of_scope AND c.child = of_child AND c.kind = of_kind AND c.level = 2
				AND c.first < run AND (of_class IS NULL OR c.class = ANY (of_class)));
	END IF;
END $$;

-- list answers a query: how many records it selects, if counted, and the ids of a page.
-- tail is how many records were counted one by one. A page is found by adding up blocks:
-- one row or a few for each 16,384 records, then for each 128 of these. Beyond that, only
-- how many have lapsed counts, of the whole kind, as the contract has it.
CREATE FUNCTION "cardvault".list(
	of_kind smallint, of_child boolean, of_scope uuid, of_class smallint[], low uuid, high uuid, live timestamptz,
	descending boolean, skip bigint, most bigint, counted boolean, OUT total bigint, OUT tail bigint, OUT ids uuid[])
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
	zero CONSTANT uuid := '00000000-0000-0000-0000-000000000000';
	top CONSTANT uuid := 'ffffffff-ffff-ffff-ffff-ffffffffffff';
	lapsed uuid[] := '{}';
	begins bigint := 0; -- ranks of the range
	ends bigint;
	place bigint; -- rank of the first record to return
	run uuid;
	block uuid;
	next uuid;
	before bigint := 0; -- rank of the first record of run, then of block
BEGIN
	total := 0;
	tail := 0;
	IF skip = 0 AND NOT counted THEN
		ids := "cardvault".walk(of_kind, of_child, of_scope, of_class, low, high, live, descending, 0, most);
		RETURN;
	END IF;

	IF live IS NOT NULL THEN
		lapsed := ARRAY(
			SELECT d.id FROM (
				SELECT r.id, r.scope, r.child, r.class FROM "cardvault".records r WHERE r.kind = of_kind AND r.due <= live OFFSET 0) AS d
			WHERE d.scope = of_scope AND d.child = of_child AND d.class <> 0 AND (of_class IS NULL OR d.class = ANY (of_class))
			ORDER BY d.id);
	END IF;
	IF low > zero THEN
		begins := (SELECT k.n FROM "cardvault".rank(of_kind, of_child, of_scope, of_class, low, false) AS k) - "cardvault".below(low, lapsed);
	END IF;
	SELECT k.n, k.seen INTO ends, tail FROM "cardvault".rank(of_kind, of_child, of_scope, of_class, high, true) AS k;
	ends := greatest(begins, ends - width_bucket(high, lapsed));
	total := ends - begins;
	place := CASE WHEN descending THEN ends - skip - most ELSE begins + skip END;
	most := least(place + most, CASE WHEN descending THEN ends - skip ELSE ends END);
	place := greatest(place, begins);
	most := most - place;
	IF most <= 0 THEN
		RETURN;
	END IF;
	SELECT b.first, b.next, b.before INTO run, next, before FROM (
		SELECT r.first, r.next, coalesce(sum(r.n) OVER (ORDER BY r.first ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
		FROM "cardvault".blocks(of_kind, of_child, of_scope, 2::smallint, zero, top, of_class) AS r) AS b
	WHERE b.before - "cardvault".below(b.first, lapsed) <= place
	ORDER BY b.first DESC LIMIT 1;
	before := coalesce(before, 0);
	SELECT b.first, b.before INTO block, before FROM (
		SELECT r.first, before + coalesce(sum(r.n) OVER (ORDER BY r.first ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
		FROM "cardvault".blocks(of_kind, of_child, of_scope, 1::smallint, coalesce(run, zero), coalesce(next, top), of_class) AS r) AS b
	WHERE b.before - "cardvault".below(b.first, lapsed) <= place
	ORDER BY b.first DESC LIMIT 1;
	block := coalesce(block, zero);
	before := coalesce(before, 0) - "cardvault".below(block, lapsed);
	ids := "cardvault".walk(of_kind, of_child, of_scope, of_class, block, high, live, false, place - before, most);
END $$;

-- below returns how many of some ids, which ascend, are below one.
CREATE FUNCTION "cardvault".below(of_id uuid, ids uuid[]) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$
	SELECT pg_catalog.width_bucket(of_id, ids)
		OPERATOR(pg_catalog.-) coalesce((ids[pg_catalog.width_bucket(of_id, ids)] OPERATOR(pg_catalog.=) of_id)::integer, 0)
$$;

-- walk returns a page of the ids in a range: it passes over some. It looks at 512
-- records whatever their class, and if that is not enough only at blocks that have
-- records of these classes, of which only lapsed ones may keep the page from being full.
CREATE FUNCTION "cardvault".walk(
	of_kind smallint, of_child boolean, of_scope uuid, of_class smallint[], low uuid, high uuid, live timestamptz,
	descending boolean, pass bigint, most bigint) RETURNS uuid[]
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
	zero CONSTANT uuid := '00000000-0000-0000-0000-000000000000';
	near CONSTANT bigint := 512;
	ids uuid[];
	run record;
	block record;
	found uuid[];
BEGIN
	IF descending THEN
		ids := ARRAY(
			SELECT e.id FROM (
				SELECT r.id, r.class, r.due FROM "cardvault".records r
				WHERE r.scope = of_scope AND r.child = of_child AND r.kind = of_kind AND (r.child OR r.class <> 0) AND r.class <> 0
					AND r.id >= low AND r.id <= high
				ORDER BY r.id DESC LIMIT near) AS e
			WHERE (of_class IS NULL OR e.class = ANY (of_class)) AND (live IS NULL OR e.due IS NULL OR e.due > live)
			ORDER BY e.id DESC OFFSET pass LIMIT most);
	ELSE
		ids := ARRAY(
			SELECT e.id FROM (
				SELECT r.id, r.class, r.due FROM "cardvault".records r
				WHERE r.scope = of_scope AND r.child = of_child AND r.kind = of_kind AND (r.child OR r.class <> 0) AND r.class <> 0
					AND r.id >= low AND r.id <= high
				ORDER BY r.id LIMIT near) AS e
			WHERE (of_class IS NULL OR e.class = ANY (of_class)) AND (live IS NULL OR e.due IS NULL OR e.due > live)
			ORDER BY e.id OFFSET pass LIMIT most);
	END IF;
	IF cardinality(ids) = most OR NOT EXISTS (
			SELECT FROM "cardvault".records r
			WHERE r.scope = of_scope AND r.child = of_child AND r.kind = of_kind AND (r.child OR r.class <> 0) AND r.class <> 0
				AND r.id >= low AND r.id <= high OFFSET near) THEN
		RETURN ids;
	END IF;

	ids := '{}';
	FOR run IN
		SELECT u.first, u.next FROM (
			SELECT b.first, b.next FROM "cardvault".blocks(of_kind, of_child, of_scope, 2::smallint, low, high, of_class) AS b
				WHERE b.n > 0 OR b.next IS NULL
			UNION ALL SELECT zero, NULL WHERE "cardvault".block_of(of_kind, of_child, of_scope, 2::smallint, high) IS NULL) AS u
		ORDER BY CASE WHEN descending THEN u.first END DESC, u.first
	LOOP
		FOR block IN
			SELECT u.first, u.next FROM (
				SELECT b.first, b.next FROM "cardvault".blocks(of_kind, of_child, of_scope, 1::smallint,
						greatest(low, run.first), least(high, run.next), of_class) AS b
					WHERE b.first IS DISTINCT FROM run.next AND (b.n > 0 OR b.next IS NULL)
				UNION ALL SELECT zero, NULL WHERE "cardvault".block_of(of_kind, of_child, of_scope, 1::smallint, high) IS NULL) AS u
			ORDER BY CASE WHEN descending THEN u.first END DESC, u.first
		LOOP
			found := ARRAY(
				SELECT r.id FROM "cardvault".records r
				WHERE r.scope = of_scope AND r.child = of_child AND r.kind = of_kind AND (r.child OR r.class <> 0) AND r.class <> 0
					AND r.id >= greatest(low, block.first) AND r.id <= least(high, block.next) AND r.id IS DISTINCT FROM block.next
					AND (of_class IS NULL OR r.class = ANY (of_class)) AND (live IS NULL OR r.due IS NULL OR r.due > live)
				ORDER BY CASE WHEN descending THEN r.id END DESC, r.id LIMIT pass + most);
			ids := ids || found[pass::integer + 1:];
			pass := greatest(0, pass - cardinality(found));
			IF cardinality(ids) >= most THEN
				RETURN ids[:most::integer];
			END IF;
		END LOOP;
	END LOOP;
	RETURN ids;
END $$;

-- list_hash is list for the records that have a hash, of which it looks at most at 10,000
-- whatever list they are in: if more have it, total is -1.
CREATE FUNCTION "cardvault".list_hash(
	of_kind smallint, of_child boolean, of_scope uuid, of_class smallint[], low uuid, high uuid, live timestamptz,
	descending boolean, skip bigint, most bigint, of_hash bytea, OUT total bigint, OUT tail bigint, OUT ids uuid[])
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
	place bigint;
BEGIN
	tail := 0;
	ids := ARRAY(SELECT l.id FROM "cardvault".lookups l WHERE l.kind = of_kind AND l.hash = of_hash ORDER BY l.id LIMIT 10001);
	IF cardinality(ids) > 10000 THEN
		total := -1;
		ids := NULL;
		RETURN;
	END IF;
	ids := ARRAY(
		SELECT i.id FROM unnest(ids) AS i(id)
		CROSS JOIN LATERAL (
			SELECT x.scope, x.child, x.class, x.due, x.lookup FROM "cardvault".records x WHERE x.kind = of_kind AND x.id = i.id OFFSET 0) AS r
		WHERE i.id >= low AND i.id <= high
			AND r.scope = of_scope AND r.child = of_child AND r.class <> 0 AND (of_class IS NULL OR r.class = ANY (of_class))
			AND (live IS NULL OR r.due IS NULL OR r.due > live) AND "cardvault".has(r.lookup, of_hash)
		ORDER BY i.id);
	total := cardinality(ids);
	place := CASE WHEN descending THEN total - skip - most ELSE skip END;
	ids := ids[greatest(place, 0) + 1:least(place + most, CASE WHEN descending THEN total - skip ELSE total END)];
END $$;

-- has reports whether a row has a hash, as a row of lookups says. Such a row may be left
-- from another state of the database, or be somebody's.
CREATE FUNCTION "cardvault".has(lookup bytea, hash bytea) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
	SELECT pg_catalog.position(lookup,
		pg_catalog.set_byte('\x00', 0, pg_catalog.octet_length(hash)) OPERATOR(pg_catalog.||) hash) OPERATOR(pg_catalog.>) 0
$$;

-- readable reports whether a row can be read. What is due passes over others, which would
-- keep it from what comes after them.
CREATE FUNCTION "cardvault".readable(of_class smallint, of_due timestamptz, hashes bytea) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	size CONSTANT integer := coalesce(octet_length(hashes), 0);
	at integer := 0;
BEGIN
	WHILE at < size LOOP
		at := at + 1 + get_byte(hashes, at);
	END LOOP;
	RETURN at = size AND isfinite(of_due) AND of_class BETWEEN 0 AND 255;
END $$;

-- children returns the first of the records that belong to an id, by kind and id, in
-- one walk of records_list that ends with the last of these.
CREATE FUNCTION "cardvault".children(of_parent uuid, most bigint /*divided , of_account uuid */) RETURNS TABLE (kind smallint, id uuid)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
	RETURN QUERY SELECT r.kind, r.id FROM "cardvault".records r
		WHERE r.scope = of_parent AND r.child /*divided AND r.account = of_account */ ORDER BY r.kind, r.id LIMIT most;
END $$;
