-- What a schema with partitions has besides the migrations: see partitions.go.
SET LOCAL search_path = pg_catalog, pg_temp;

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
