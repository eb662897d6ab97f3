-- The schema of pgstore, version 1. Names are qualified, so that no search path matters;
-- Migrate puts another schema's name for "cardvault".

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
	secret  bytea    NOT NULL,
	PRIMARY KEY (kind, id)
);

-- What is sealed cannot be compressed.
ALTER TABLE "cardvault".records ALTER shown SET STORAGE EXTERNAL, ALTER secret SET STORAGE EXTERNAL;

CREATE INDEX records_list ON "cardvault".records (scope, child, kind, id) INCLUDE (class, due) WHERE child OR class <> 0;
CREATE INDEX records_due ON "cardvault".records (kind, due, id) INCLUDE (scope, child, class) WHERE due IS NOT NULL;

CREATE TABLE "cardvault".lookups (
	kind smallint NOT NULL,
	hash bytea    NOT NULL,
	id   uuid     NOT NULL,
	PRIMARY KEY (kind, hash, id)
);

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
	first uuid     NOT NULL
);

CREATE INDEX counts_list ON "cardvault".counts (scope, child, kind, level, first) INCLUDE (class, n);

-- A writer is a Store. turn is the last group of writes that it has made, or that will
-- never be made.
CREATE TABLE "cardvault".writers (
	id   uuid        PRIMARY KEY,
	turn bigint      NOT NULL,
	at   timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 10);

-- lock takes locks until the end of the transaction, in the order of the keys, waiting
-- for each or for none.
CREATE FUNCTION "cardvault".lock(patient boolean, keys bigint[], exclusive boolean[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	IF current_setting('transaction_isolation') <> 'read committed' THEN
		RAISE EXCEPTION USING ERRCODE = 'CV003', MESSAGE = 'the isolation level is not read committed';
	END IF;
	IF current_setting('synchronous_commit') IN ('off', 'local') THEN
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
-- the lists have a block that has grown too large.
CREATE FUNCTION "cardvault".apply(
	patient boolean, keys bigint[], exclusive boolean[], -- see lock
	read_kind smallint[], read_id uuid[], read_stamp bigint[], -- rows; a stamp of null: there is none
	writer_id uuid, next_turn bigint, new_stamp bigint, -- null: nothing is written
	gone_kind smallint[], gone_id uuid[], -- rows, with
	gone uuid[], -- ids that shall have no children left
	new_kind smallint[], new_id uuid[], new_account uuid[], new_scope uuid[], new_child boolean[], new_class smallint[],
	new_due timestamptz[], new_version bigint[], new_lookup bytea[], new_shown bytea[], new_secret bytea[],
	changed integer, -- how many of the new, the first, take the place of a row
	off_kind smallint[], off_hash bytea[], off_id uuid[], -- lookups
	on_kind smallint[], on_hash bytea[], on_id uuid[],
	list_kind smallint[], list_child boolean[], list_scope uuid[], list_least uuid[], -- lists, and the least id below
	entry_list integer[], entry_id uuid[], entry_class smallint[], entry_n integer[] -- what changes in them
) RETURNS integer[]
LANGUAGE plpgsql
SET lock_timeout = '3s' SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
	taken text;
BEGIN
	IF NOT patient OR current_setting('transaction_isolation') <> 'read committed'
			OR current_setting('synchronous_commit') IN ('off', 'local') THEN
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
		IF read_stamp[i] IS DISTINCT FROM (SELECT r.stamp FROM "cardvault".records r WHERE r.kind = read_kind[i] AND r.id = read_id[i]) THEN
			RAISE EXCEPTION USING ERRCODE = 'CV001', MESSAGE = 'stale';
		END IF;
	END LOOP;
	IF next_turn IS NULL THEN
		RETURN NULL;
	END IF;
	UPDATE "cardvault".writers SET turn = next_turn, at = now() WHERE id = writer_id AND turn = next_turn - 1;
	IF NOT FOUND THEN
		RAISE EXCEPTION USING ERRCODE = 'CV002', MESSAGE = 'the turn is taken';
	END IF;
	IF cardinality(off_id) > 0 OR cardinality(gone_id) > 0 OR cardinality(gone) > 0 OR changed > 0 THEN
		PERFORM "cardvault".replace(new_stamp, gone_kind, gone_id, gone, new_kind[:changed], new_id[:changed], new_account[:changed],
			new_scope[:changed], new_child[:changed], new_class[:changed], new_due[:changed], new_version[:changed],
			new_lookup[:changed], new_shown[:changed], new_secret[:changed], off_kind, off_hash, off_id);
	END IF;
	IF cardinality(new_id) - changed = 1 THEN
		INSERT INTO "cardvault".records (kind, id, account, scope, child, class, due, version, stamp, lookup, shown, secret)
			VALUES (new_kind[changed + 1], new_id[changed + 1], new_account[changed + 1], new_scope[changed + 1], new_child[changed + 1],
				new_class[changed + 1], new_due[changed + 1], new_version[changed + 1], new_stamp, new_lookup[changed + 1],
				new_shown[changed + 1], new_secret[changed + 1]);
	ELSIF cardinality(new_id) > changed THEN
		INSERT INTO "cardvault".records (kind, id, account, scope, child, class, due, version, stamp, lookup, shown, secret)
			SELECT new_kind[i], new_id[i], new_account[i], new_scope[i], new_child[i], new_class[i], new_due[i], new_version[i],
				new_stamp, new_lookup[i], new_shown[i], new_secret[i]
			FROM generate_series(changed + 1, cardinality(new_id)) AS i;
	END IF;
	IF cardinality(on_id) > 0 THEN
		INSERT INTO "cardvault".lookups (kind, hash, id) SELECT * FROM unnest(on_kind, on_hash, on_id);
	END IF;

	FOR i IN 1..coalesce(cardinality(list_scope), 0) LOOP
		IF list_least[i] < (
				SELECT c.first FROM "cardvault".counts c
				WHERE c.scope = list_scope[i] AND c.child = list_child[i] AND c.kind = list_kind[i] AND c.level = 1
				ORDER BY c.first DESC LIMIT 1) THEN
			RETURN "cardvault".tally(list_kind, list_child, list_scope, list_least, entry_list, entry_id, entry_class, entry_n);
		END IF;
	END LOOP;
	RETURN NULL; -- all come into open blocks
END $$;

-- replace is the part of apply that removes and changes rows.
CREATE FUNCTION "cardvault".replace(
	new_stamp bigint, gone_kind smallint[], gone_id uuid[], gone uuid[],
	new_kind smallint[], new_id uuid[], new_account uuid[], new_scope uuid[], new_child boolean[], new_class smallint[],
	new_due timestamptz[], new_version bigint[], new_lookup bytea[], new_shown bytea[], new_secret bytea[],
	off_kind smallint[], off_hash bytea[], off_id uuid[]
) RETURNS void
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
	IF cardinality(off_id) > 0 THEN
		DELETE FROM "cardvault".lookups l USING unnest(off_kind, off_hash, off_id) AS d(k, h, i)
			WHERE l.kind = d.k AND l.hash = d.h AND l.id = d.i;
	END IF;
	IF cardinality(gone_id) > 0 THEN
		DELETE FROM "cardvault".records r USING unnest(gone_kind, gone_id) AS d(k, i) WHERE r.kind = d.k AND r.id = d.i;
	END IF;
	IF cardinality(gone) > 0 AND EXISTS (SELECT FROM "cardvault".records r WHERE r.scope = ANY (gone) AND r.child) THEN
		RAISE EXCEPTION USING ERRCODE = 'CV001', MESSAGE = 'stale';
	END IF;
	IF cardinality(new_id) > 0 THEN
		UPDATE "cardvault".records r
			SET account = n.account, scope = n.scope, child = n.child, class = n.class, due = n.due, version = n.version,
				stamp = new_stamp, lookup = n.lookup, shown = n.shown, secret = n.secret
			FROM unnest(new_kind, new_id, new_account, new_scope, new_child,
				new_class, new_due, new_version, new_lookup, new_shown,
				new_secret) AS n(kind, id, account, scope, child, class, due, version, lookup, shown, secret)
			WHERE r.kind = n.kind AND r.id = n.id;
	END IF;
END $$;

-- tally is the part of apply that counts what changes in closed blocks.
CREATE FUNCTION "cardvault".tally(
	list_kind smallint[], list_child boolean[], list_scope uuid[], list_least uuid[],
	entry_list integer[], entry_id uuid[], entry_class smallint[], entry_n integer[]
) RETURNS integer[]
LANGUAGE plpgsql
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

-- fold puts one row of each class for all of a block that nobody else folds, and returns
-- how many records these count.
CREATE FUNCTION "cardvault".fold(of_kind smallint, of_child boolean, of_scope uuid, of_level smallint, of_first uuid) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
	size bigint;
BEGIN
	WITH mine AS MATERIALIZED (
		SELECT ctid FROM "cardvault".counts
		WHERE scope = of_scope AND child = of_child AND kind = of_kind AND level = of_level AND first = of_first AND class <> 0
		FOR UPDATE SKIP LOCKED
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

-- open_block returns where the open block of a level begins, or null if the list has none.
CREATE FUNCTION "cardvault".open_block(of_kind smallint, of_child boolean, of_scope uuid, of_level smallint) RETURNS uuid
LANGUAGE sql STABLE AS $$
	SELECT first FROM "cardvault".counts
	WHERE scope = of_scope AND child = of_child AND kind = of_kind AND level = of_level
	ORDER BY first DESC LIMIT 1
$$;

-- arrange cuts the end of a list into blocks, and those of the rest, if asked, that have
-- grown too large. The keys are the locks for that.
CREATE FUNCTION "cardvault".arrange(of_kind smallint, of_child boolean, of_scope uuid, all_blocks boolean, keys bigint[], exclusive boolean[]) RETURNS void
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
	zero CONSTANT uuid := '00000000-0000-0000-0000-000000000000';
	block record;
	open uuid;
	runs CONSTANT bigint := 128; -- blocks in one of level 2
BEGIN
	PERFORM "cardvault".lock(true, keys, exclusive);
	open := "cardvault".open_block(of_kind, of_child, of_scope, 1::smallint);
	FOR block IN
		SELECT b.first, b.next FROM (
			SELECT c.first, lead(c.first) OVER (ORDER BY c.first) AS next, sum(c.n) AS size FROM "cardvault".counts c
			WHERE c.scope = of_scope AND c.child = of_child AND c.kind = of_kind AND c.level = 1
				AND (all_blocks OR c.first = open)
			GROUP BY c.first) AS b
		WHERE b.size > 256 OR b.next IS NULL
		UNION ALL SELECT zero, NULL WHERE open IS NULL
	LOOP
		DELETE FROM "cardvault".counts c
			WHERE c.scope = of_scope AND c.child = of_child AND c.kind = of_kind AND c.level = 1 AND c.first = block.first;
		-- The last entries stay in the open block, since ids come almost in order.
		WITH entries AS MATERIALIZED (
			SELECT r.id, r.class, (row_number() OVER (ORDER BY r.id) - 1) / 128 AS place, count(*) OVER () AS size
			FROM "cardvault".records r
			WHERE r.scope = of_scope AND r.child = of_child AND r.kind = of_kind AND r.class <> 0 AND (r.child OR r.class <> 0)
				AND r.id >= block.first AND r.id <= coalesce(block.next, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
				AND (block.next IS NULL OR r.id < block.next)
		), blocks AS (
			SELECT e.place, CASE e.place WHEN 0 THEN block.first ELSE (array_agg(e.id ORDER BY e.id))[1] END AS first,
				block.next IS NULL AND e.place >= greatest(0, min(e.size) - 128) / 128 AS open
			FROM entries e GROUP BY e.place
		)
		INSERT INTO "cardvault".counts (kind, child, scope, level, first, class, n)
			SELECT of_kind, of_child, of_scope, 1, b.first, 0, 0 FROM blocks b
				WHERE NOT b.open OR b.place = (SELECT min(o.place) FROM blocks o WHERE o.open)
			UNION ALL SELECT of_kind, of_child, of_scope, 1, block.first, 0, 0 WHERE NOT EXISTS (SELECT FROM blocks)
			UNION ALL SELECT of_kind, of_child, of_scope, 1, b.first, e.class, count(*)
				FROM entries e JOIN blocks b USING (place) WHERE NOT b.open GROUP BY b.first, e.class;
	END LOOP;

	IF (SELECT count(DISTINCT c.first) FROM "cardvault".counts c
			WHERE c.scope = of_scope AND c.child = of_child AND c.kind = of_kind AND c.level = 1
				AND c.first >= coalesce("cardvault".open_block(of_kind, of_child, of_scope, 2::smallint), zero)) > 2 * runs THEN
		-- Blocks that have become empty join the one before.
		DELETE FROM "cardvault".counts c
			WHERE c.scope = of_scope AND c.child = of_child AND c.kind = of_kind
				AND (c.level = 2 OR c.first IN (
					SELECT e.first FROM "cardvault".counts e
					WHERE e.scope = of_scope AND e.child = of_child AND e.kind = of_kind AND e.level = 1
						AND e.first NOT IN (zero, "cardvault".open_block(of_kind, of_child, of_scope, 1::smallint))
					GROUP BY e.first HAVING count(*) FILTER (WHERE e.class <> 0) = 0));
		WITH entries AS MATERIALIZED (
			SELECT c.first, c.class, c.n, (dense_rank() OVER (ORDER BY c.first) - 1) / runs AS place
			FROM "cardvault".counts c
			WHERE c.scope = of_scope AND c.child = of_child AND c.kind = of_kind AND c.level = 1
		), blocks AS (
			SELECT e.place, (array_agg(e.first ORDER BY e.first))[1] AS first, e.place = (SELECT max(o.place) FROM entries o) AS open
			FROM entries e GROUP BY e.place
		)
		INSERT INTO "cardvault".counts (kind, child, scope, level, first, class, n)
			SELECT of_kind, of_child, of_scope, 2, b.first, 0, 0 FROM blocks b
			UNION ALL SELECT of_kind, of_child, of_scope, 2, b.first, e.class, sum(e.n)
				FROM entries e JOIN blocks b USING (place) WHERE NOT b.open AND e.class <> 0 GROUP BY b.first, e.class HAVING sum(e.n) <> 0;
	END IF;
END $$;

-- rank returns how many records of a list and some classes (null: all) have an id below
-- one, or up to it. seen is how many records it has looked at.
CREATE FUNCTION "cardvault".rank(of_kind smallint, of_child boolean, of_scope uuid, of_class smallint[], up_to uuid, inclusive boolean,
	OUT n bigint, OUT seen bigint)
LANGUAGE plpgsql STABLE AS $$
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

-- list answers a query: how many records it selects, if counted, and the ids of a page,
-- ascending. tail is how many records were counted one by one. A page is found by adding
-- up blocks.
CREATE FUNCTION "cardvault".list(
	of_kind smallint, of_child boolean, of_scope uuid, of_class smallint[], low uuid, high uuid, live timestamptz,
	descending boolean, skip bigint, most bigint, counted boolean, OUT total bigint, OUT tail bigint, OUT ids uuid[])
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
	zero CONSTANT uuid := '00000000-0000-0000-0000-000000000000';
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
		IF descending THEN
			ids := ARRAY(
				SELECT r.id FROM "cardvault".records r
				WHERE r.scope = of_scope AND r.child = of_child AND r.kind = of_kind AND (r.child OR r.class <> 0) AND r.class <> 0
					AND r.id >= low AND r.id <= high
					AND (of_class IS NULL OR r.class = ANY (of_class)) AND (live IS NULL OR r.due IS NULL OR r.due > live)
				ORDER BY r.id DESC LIMIT most);
		ELSE
			ids := ARRAY(
				SELECT r.id FROM "cardvault".records r
				WHERE r.scope = of_scope AND r.child = of_child AND r.kind = of_kind AND (r.child OR r.class <> 0) AND r.class <> 0
					AND r.id >= low AND r.id <= high
					AND (of_class IS NULL OR r.class = ANY (of_class)) AND (live IS NULL OR r.due IS NULL OR r.due > live)
				ORDER BY r.id LIMIT most);
		END IF;
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
		begins := (SELECT k.n FROM "cardvault".rank(of_kind, of_child, of_scope, of_class, low, false) AS k)
			- width_bucket(low, lapsed) + (low = ANY (lapsed))::integer;
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
		SELECT c.first, lead(c.first) OVER w AS next,
			coalesce(sum(sum(c.n) FILTER (WHERE of_class IS NULL OR c.class = ANY (of_class)))
				OVER (w ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
		FROM "cardvault".counts c
		WHERE c.scope = of_scope AND c.child = of_child AND c.kind = of_kind AND c.level = 2
		GROUP BY c.first WINDOW w AS (ORDER BY c.first)) AS b
	WHERE b.before - width_bucket(b.first, lapsed) + (b.first = ANY (lapsed))::integer <= place
	ORDER BY b.first DESC LIMIT 1;
	before := coalesce(before, 0);
	SELECT b.first, b.before INTO block, before FROM (
		SELECT c.first, before + coalesce(sum(sum(c.n) FILTER (WHERE of_class IS NULL OR c.class = ANY (of_class)))
				OVER (ORDER BY c.first ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
		FROM "cardvault".counts c
		WHERE c.scope = of_scope AND c.child = of_child AND c.kind = of_kind AND c.level = 1
			AND c.first >= coalesce(run, zero) AND c.first <= coalesce(next, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
		GROUP BY c.first) AS b
	WHERE b.before - width_bucket(b.first, lapsed) + (b.first = ANY (lapsed))::integer <= place
	ORDER BY b.first DESC LIMIT 1;
	block := coalesce(block, zero);
	before := coalesce(before, 0) - width_bucket(block, lapsed) + (block = ANY (lapsed))::integer;
	ids := ARRAY(
		SELECT r.id FROM "cardvault".records r
		WHERE r.scope = of_scope AND r.child = of_child AND r.kind = of_kind AND (r.child OR r.class <> 0) AND r.class <> 0
			AND r.id >= block AND (of_class IS NULL OR r.class = ANY (of_class)) AND r.id <> ALL (lapsed)
		ORDER BY r.id OFFSET place - before LIMIT most);
END $$;

-- list_hash is list for the records that have a hash, which are few.
CREATE FUNCTION "cardvault".list_hash(
	of_kind smallint, of_child boolean, of_scope uuid, of_class smallint[], low uuid, high uuid, live timestamptz,
	descending boolean, skip bigint, most bigint, of_hash bytea, OUT total bigint, OUT tail bigint, OUT ids uuid[])
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
	place bigint;
BEGIN
	ids := ARRAY(
		SELECT l.id FROM "cardvault".lookups l
		CROSS JOIN LATERAL (
			SELECT x.scope, x.child, x.class, x.due FROM "cardvault".records x WHERE x.kind = l.kind AND x.id = l.id OFFSET 0) AS r
		WHERE l.kind = of_kind AND l.hash = of_hash AND l.id >= low AND l.id <= high
			AND r.scope = of_scope AND r.child = of_child AND r.class <> 0 AND (of_class IS NULL OR r.class = ANY (of_class))
			AND (live IS NULL OR r.due IS NULL OR r.due > live)
		ORDER BY l.id);
	total := cardinality(ids);
	tail := 0;
	place := CASE WHEN descending THEN total - skip - most ELSE skip END;
	ids := ids[greatest(place, 0) + 1:least(place + most, CASE WHEN descending THEN total - skip ELSE total END)];
END $$;

-- family returns the records that belong to some ids, and all that belong to these in turn.
CREATE FUNCTION "cardvault".family(ids uuid[]) RETURNS TABLE (kind smallint, id uuid)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
BEGIN
	RETURN QUERY WITH RECURSIVE family AS (
		SELECT r.kind, r.id FROM "cardvault".records r WHERE r.scope = ANY (ids) AND r.child
		UNION SELECT r.kind, r.id FROM family f
			CROSS JOIN LATERAL (SELECT x.kind, x.id FROM "cardvault".records x WHERE x.scope = f.id AND x.child OFFSET 0) AS r)
	SELECT f.kind, f.id FROM family f;
END $$;
